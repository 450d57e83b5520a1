"""A leased group's rows as a `Group`, so that both kinds are described in the same words. Decides nothing but
what its consumers may add to its history: they tell what they did, and nobody else can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from shoal.core.claims import unbound
from shoal.core.errors import InvalidInput
from shoal.core.group import Claim, Coordination, Group, Member, MemberStatus, Note, ShardState
from shoal.core.lease import Change, ChangeKind, InstanceRow, LeaseRow
from shoal.core.limits import NAME_LENGTH_MAX, TEXT_LENGTH_MAX
from shoal.core.model import Shard, ShardId
from shoal.core.succession import standing


def as_group(
    group: Group,
    rows: Sequence[LeaseRow],
    instances: Sequence[InstanceRow],
    shards: Sequence[Shard],
    starts: Mapping[ShardId, int],
) -> Group:
    """The group with members and claims as its rows say. The claims that it comes with tell what is bound."""
    free = unbound(group.claims)
    found = standing(rows, shards, free)
    living = {row.incarnation for row in instances if not row.is_dead}
    claims = []
    for shard in shards:
        row = found.rows.get(shard.id)
        if row is not None:
            waits = found.is_waiting(row, in_order=group.settings.in_order)
            claims.append(_claim(row, is_waiting=waits, is_orphaned=row.consumer_owner not in living))
        else:
            # Cleaned up after its end, or not made yet.
            is_done = shard.id in found.ended
            is_bound = group.settings.in_order and shard.id not in free
            waits = is_bound and any(parent not in found.ended for parent in shard.parents)
            state = ShardState.OVER if is_done else ShardState.WAIT if waits else ShardState.NOT_ALLOC
            at = shard.next_offset if is_done else starts.get(shard.id, shard.first_offset)
            claims.append(Claim(shard=shard.id, state=state, checkpoint=at))
    members = {
        row.incarnation: Member(
            incarnation=row.incarnation,
            name=row.name,
            status=MemberStatus.ACTIVE if row.is_taking else MemberStatus.LEAVING,
            beat=row.counter,
            timeout_ms=row.timeout_ms,
            interval_ms=row.interval_ms,
            stood_ms=row.stood_ms,
        )
        for row in instances
        if row.incarnation in living
    }
    version = sum(row.revision for row in rows)
    return replace(group, version=version, members=members, claims=tuple(claims))


def _claim(row: LeaseRow, *, is_waiting: bool, is_orphaned: bool) -> Claim:
    """`is_orphaned`: who has it is no member any more, and it moves as soon as it is let go of or watched."""
    if row.is_over:
        state = ShardState.OVER
    elif row.consumer_owner is not None:
        is_moving = row.is_stolen or row.is_fenced or is_orphaned
        state = ShardState.TRANSFER if is_moving else ShardState.ALREADY_ALLOC
    else:
        state = ShardState.WAIT if is_waiting else ShardState.NOT_ALLOC
    return Claim(
        shard=row.shard,
        state=state,
        checkpoint=row.checkpoint,
        epoch=row.epoch,
        owner=None if row.is_over else row.consumer_owner,
        owner_epoch=row.owner_epoch,
        next=row.lease_owner if row.is_stolen else None,
        is_bound=row.is_bound,
        lapse_ms=row.lapse_ms,
        handover_ms=row.waited_ms,
    )


def noted(change: Change, consumer: str, names: Mapping[str, str] | None = None) -> Note | None:
    """The line of history that a change makes, told by who made it; renewals and watches make none.

    `names`: of incarnations, as far as they are known.
    """
    known = names or {}
    row = change.new or change.old
    if change.kind in _UNTOLD or row is None:
        return None
    if not isinstance(row, LeaseRow):
        name = row.name if isinstance(row, InstanceRow) else consumer
        return Note(kind=change.kind.value, consumer=name)
    old = change.old if isinstance(change.old, LeaseRow) else None
    detail = ""
    whom = consumer
    if change.kind is ChangeKind.STEAL and old is not None:
        whom, detail = _name(old.consumer_owner, known), f"to {_name(row.lease_owner, known)}"
    elif change.kind in {ChangeKind.FREEZE, ChangeKind.FORCE, ChangeKind.END, ChangeKind.RETURN} and old:
        whom = _name(old.consumer_owner, known)
    return Note(
        kind=change.kind.value, consumer=whom or None, shard=row.shard, epoch=row.epoch or None, detail=detail
    )


def check_told(group: Group, notes: Sequence[Note]) -> None:
    """Refuse what no consumer has to tell: of a group that the hub coordinates, which writes that history
    itself, and other things than changes of rows are told as. Who may change the rows may say what it did."""
    if group.settings.coordination is not Coordination.LEASED:
        raise InvalidInput("group", group.name, "the hub itself writes the history of such a group")
    for note in notes:
        if note.kind not in _TOLD:
            raise InvalidInput("kind", note.kind, f"one of {', '.join(sorted(_TOLD))}")
        for name, text, limit in (
            ("consumer", note.consumer or "", NAME_LENGTH_MAX),
            ("detail", note.detail, TEXT_LENGTH_MAX),
        ):
            if len(text) > limit:
                raise InvalidInput(name, f"{len(text)} characters", f"at most {limit} of them")


def known_names(
    before: Mapping[str, str], rows: Sequence[LeaseRow], instances: Sequence[InstanceRow]
) -> dict[str, str]:
    """The names of incarnations: of those that are there, and of those that are gone and still own a row."""
    owners = {row.consumer_owner for row in rows} | {row.lease_owner for row in rows}
    return {
        **{incarnation: name for incarnation, name in before.items() if incarnation in owners},
        **{row.incarnation: row.name for row in instances},
    }


def _name(incarnation: str | None, names: Mapping[str, str]) -> str:
    """The name of an incarnation, or as much of it as memberships put into one."""
    found = names.get(incarnation or "")
    return (incarnation or "").rpartition(".")[0] if found is None else found


_UNTOLD: Final = frozenset(
    {ChangeKind.BEAT, ChangeKind.WATCH, ChangeKind.RENEW, ChangeKind.SAVE, ChangeKind.LINK}
)
_TOLD: Final = frozenset(kind.value for kind in ChangeKind) - {kind.value for kind in _UNTOLD}
