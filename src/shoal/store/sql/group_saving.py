"""Saves what a step or a plain hand-over changed, within a transaction.

A step never writes what heartbeats, checkpoints and watches write; where it judged by such a column, the
column is in its condition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from sqlalchemy import BigInteger, bindparam, delete, func, insert, select, update
from sqlalchemy.engine import Connection

from shoal.core.checkpoint import is_same, marks_text
from shoal.core.group import Claim, Group, GroupSettings, MemberStatus, Note
from shoal.core.handover import HandedOver
from shoal.core.limits import HISTORY_KEPT
from shoal.core.model import ShardId
from shoal.store.sql import tables
from shoal.store.sql.group_rows import claim_row, member_row, new_claim_row, settings_columns
from shoal.store.sql.prepared import PreparedSelect, PreparedWrite

_groups = tables.groups.c
_members = tables.members.c
_claims = tables.claims.c
_notes = tables.notes.c


class OutrunError(Exception):
    """Someone else was faster; the transaction is rolled back."""


def save_step(
    connection: Connection, before: Group, after: Group, notes: Sequence[Note], now_ms: int
) -> None:
    """All that a step changed, or OutrunError if what it was thought out from has changed."""
    _swap_group(connection, before, after)
    _save_members(connection, before, after, now_ms)
    _save_claims(connection, before, after, now_ms)
    save_notes(connection, after.id, notes, now_ms)
    if after.epoch != before.epoch:
        _raise_epoch(connection, after.epoch)


def _swap_group(connection: Connection, before: Group, after: Group) -> None:
    row = {
        "at": before.id,
        "was": before.version,
        "to_version": after.version,
        "to_epoch": after.epoch,
        "to_distrust_ms": after.distrust_ms,
        **{f"to_{name}": value for name, value in settings_columns(after.settings).items()},
    }
    if _SWAP_GROUP.run(connection, [row]) != 1:
        raise OutrunError


def _save_members(connection: Connection, before: Group, after: Group, now_ms: int) -> None:
    """Not what heartbeats and watches write. The end of a member is tied to the counter it was seen at.

    In the order in which those lock them, too: two commits never wait for each other.
    """
    born, changed = [], []
    for key, member in after.members.items():
        old = before.members.get(key)
        if old is None:
            born.append({**member_row(after.id, member), "joined_ms": now_ms})
        elif old != member:
            has_ended = member.status is MemberStatus.GONE and old.status is not MemberStatus.GONE
            changed.append(
                {
                    "at": after.id,
                    "who": key,
                    "to_status": member.status.value,
                    "to_assigned": member.assigned,
                    "beat_was": old.beat if has_ended else None,
                }
            )
    changed.sort(key=itemgetter("who"))
    if _STEP_MEMBER.run(connection, changed) != len(changed):
        raise OutrunError
    _INSERT_MEMBER.run(connection, born)
    pruned = [{"at": after.id, "who": key} for key in sorted(before.members.keys() - after.members.keys())]
    _DELETE_MEMBER.run(connection, pruned)


def _save_claims(connection: Connection, before: Group, after: Group, now_ms: int) -> None:
    known = len(before.claims)
    born = [new_claim_row(after.id, claim, now_ms) for claim in after.claims[known:]]
    _INSERT_CLAIM.run(connection, born)
    pairs = zip(before.claims, after.claims[:known], strict=True)
    _write_claims(connection, after.id, [(old, new) for old, new in pairs if old is not new], now_ms)


def _write_claims(
    connection: Connection, group_id: int, changes: Sequence[tuple[Claim, Claim]], now_ms: int
) -> None:
    """A checkpoint is written only where the step changed it, and only if it is the one that the step went
    by: owners save theirs meanwhile, and what was acknowledged is not put back."""
    moved, placed = [], []
    for old, new in changes:
        if old == new:
            continue
        row = claim_row(group_id, new)
        place = {"offset": row.pop("checkpoint"), "to_marks": row.pop("marks")}
        since = now_ms if (old.state, old.epoch) != (new.state, new.epoch) else None
        # Never back to nothing: an owner may have saved since the step looked.
        saved = now_ms if new.is_told and not old.is_told else None
        moved.append(
            {
                **{f"to_{name}": value for name, value in row.items()},
                "to_since_ms": since,
                "to_saved_ms": saved,
            }
        )
        if not is_same(new.checkpoint, old.checkpoint):
            was = {"was": int(old.checkpoint), "was_marks": marks_text(old.checkpoint) or ""}
            placed.append({"at": group_id, "of_shard": new.shard, **was, **place, "now": now_ms})
    _MOVE_CLAIM.run(connection, moved)
    if _PLACE_CLAIM.run(connection, placed) != len(placed):
        raise OutrunError


def save_hand_over(
    connection: Connection,
    group: Group,
    outcome: HandedOver,
    before: Mapping[ShardId, Claim],
    now_ms: int,
) -> None:
    """What a plain hand-over changed. The group's row is locked by the caller."""
    _swap_group(connection, group, outcome.group)
    rows = [
        {"at": group.id, "who": m.incarnation, "to_status": m.status.value, "to_assigned": m.assigned}
        for m in sorted(outcome.members, key=lambda member: member.incarnation)
    ]
    _CHANGE_MEMBER.run(connection, rows)
    _write_claims(connection, group.id, [(before[claim.shard], claim) for claim in outcome.claims], now_ms)
    save_notes(connection, group.id, outcome.notes, now_ms)
    _raise_epoch(connection, outcome.group.epoch)


def delete_groups(connection: Connection, group_ids: Sequence[int]) -> None:
    """Remove groups and all that belongs to them."""
    for table in (
        tables.claims,
        tables.members,
        tables.notes,
        tables.blocks,
        tables.shares,
        tables.positions,
    ):
        connection.execute(delete(table).where(table.c.group_id.in_(group_ids)))
    connection.execute(delete(tables.groups).where(_groups.id.in_(group_ids)))


def save_notes(connection: Connection, group_id: int, notes: Sequence[Note], now_ms: int) -> None:
    if not notes:
        return
    last = _LAST_NOTE.rows(connection, {"at": group_id})[0].last or 0
    _INSERT_NOTE.run(
        connection,
        [
            {
                "group_id": group_id,
                "number": last + place,
                "at_ms": now_ms,
                "kind": note.kind,
                "consumer": note.consumer,
                "shard": note.shard,
                "epoch": note.epoch,
                "detail": note.detail,
            }
            for place, note in enumerate(notes[-HISTORY_KEPT:], 1)
        ],
    )
    oldest = last + min(len(notes), HISTORY_KEPT) - HISTORY_KEPT
    if oldest > 0:
        _DELETE_NOTES.run(connection, [{"at": group_id, "oldest": oldest}])


def last_epoch(connection: Connection) -> int:
    query = select(tables.sequences.c.value).where(tables.sequences.c.name == tables.EPOCHS)
    epoch: int = connection.execute(query).scalar_one()
    return epoch


def _raise_epoch(connection: Connection, epoch: int) -> None:
    """The store's sequence goes with the highest epoch that any group gave."""
    _RAISE_EPOCH.run(connection, [{"to": epoch}])


_SWAP_GROUP = PreparedWrite(
    update(tables.groups)
    .where(_groups.id == bindparam("at"), _groups.version == bindparam("was"))
    .values(
        {
            name: bindparam(f"to_{name}")
            for name in ("version", "epoch", "distrust_ms", *settings_columns(GroupSettings()))
        }
    )
)
_CHANGE = update(tables.members).values(status=bindparam("to_status"), assigned=bindparam("to_assigned"))
_ONE_MEMBER = (_members.group_id == bindparam("at"), _members.incarnation == bindparam("who"))
_CHANGE_MEMBER = PreparedWrite(_CHANGE.where(*_ONE_MEMBER))
_STEP_MEMBER = PreparedWrite(
    _CHANGE.where(
        *_ONE_MEMBER, _members.beat == func.coalesce(bindparam("beat_was", type_=BigInteger), _members.beat)
    )
)
_INSERT_MEMBER = PreparedWrite(insert(tables.members))
_DELETE_MEMBER = PreparedWrite(delete(tables.members).where(*_ONE_MEMBER))
_INSERT_CLAIM = PreparedWrite(insert(tables.claims))
_MOVE_CLAIM = PreparedWrite(
    update(tables.claims)
    .where(_claims.group_id == bindparam("to_group_id"), _claims.shard == bindparam("to_shard"))
    .values(
        state=bindparam("to_state"),
        epoch=bindparam("to_epoch"),
        owner=bindparam("to_owner"),
        owner_epoch=bindparam("to_owner_epoch"),
        next_owner=bindparam("to_next_owner"),
        is_bound=bindparam("to_is_bound"),
        restart=bindparam("to_restart"),
        handover_ms=bindparam("to_handover_ms"),
        lapse_ms=bindparam("to_lapse_ms"),
        since_ms=func.coalesce(bindparam("to_since_ms", type_=BigInteger), _claims.since_ms),
        saved_ms=func.coalesce(bindparam("to_saved_ms", type_=BigInteger), _claims.saved_ms),
    )
)
_PLACE_CLAIM = PreparedWrite(
    update(tables.claims)
    .where(
        _claims.group_id == bindparam("at"),
        _claims.shard == bindparam("of_shard"),
        _claims.checkpoint == bindparam("was"),
        func.coalesce(_claims.marks, "") == bindparam("was_marks"),
    )
    .values(checkpoint=bindparam("offset"), marks=bindparam("to_marks"), saved_ms=bindparam("now"))
)
_LAST_NOTE = PreparedSelect(
    select(func.max(_notes.number).label("last")).where(_notes.group_id == bindparam("at"))
)
_INSERT_NOTE = PreparedWrite(insert(tables.notes))
_DELETE_NOTES = PreparedWrite(
    delete(tables.notes).where(_notes.group_id == bindparam("at"), _notes.number <= bindparam("oldest"))
)
_RAISE_EPOCH = PreparedWrite(
    update(tables.sequences)
    .where(tables.sequences.c.name == tables.EPOCHS, tables.sequences.c.value < bindparam("to"))
    .values(value=bindparam("to"))
)
