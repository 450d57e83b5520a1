"""The table of the explorer's leased groups: compare and set one row, and what must hold at every commit.

An epoch is given once, to whoever takes it, and never goes down; a checkpoint is its owner's and never goes
back; a row goes only after its shard is done. Code of its own: the rules are not asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shoal.core.lease import Change, ChangeKind, InstanceRow, LeaseRow, Row, SequenceRow
from shoal.core.leasing import Outcome
from sim.small_leased import Answer, State, Table


def tried(state: State, who: str, changes: Sequence[Change]) -> tuple[State, list[Answer]]:
    """Each by itself: done if the row is what the change takes it for."""
    answers: list[Answer] = []
    for change in changes:
        before = _stored(state.table, change.row)
        if _name_of(before) != _name_of(change.old):
            answers.append((Outcome.REFUSED, before))
            continue
        state = _committed(state, who, change)
        answers.append((Outcome.DONE, None))
    return state, answers


def _stored(table: Table, like: Row) -> Row | None:
    match like:
        case LeaseRow():
            return table.leases.get(like.shard)
        case InstanceRow():
            return table.instances.get(like.name)
        case SequenceRow():
            return table.sequence


def _name_of(row: Row | None) -> tuple[object, ...] | None:
    """What never comes twice."""
    match row:
        case LeaseRow():
            return row.born, row.revision
        case InstanceRow():
            return row.incarnation, row.revision
        case SequenceRow():
            return (row.revision,)
        case None:
            return None


def _committed(state: State, who: str, change: Change) -> State:
    table, row = state.table, change.row
    match row:
        case LeaseRow():
            assert change.old is None or isinstance(change.old, LeaseRow)
            assert change.new is None or isinstance(change.new, LeaseRow)
            leases = {key: lease for key, lease in table.leases.items() if key != row.shard}
            if change.new is not None:
                leases[row.shard] = change.new
            ordered = {shard: leases[shard] for shard in sorted(leases)}
            why = state.fault or _wrong(state, who, change.kind, change.old, change.new)
            done = state.done
            if not state.shards[row.shard].is_open and row.checkpoint >= state.shards[row.shard].next_offset:
                done |= {row.shard}
            return replace(state, table=replace(table, leases=ordered), fault=why, done=done)
        case InstanceRow():
            assert change.new is None or isinstance(change.new, InstanceRow)
            instances = {name: one for name, one in table.instances.items() if name != row.name}
            if change.new is not None:
                instances[row.name] = change.new
            ordered_too = {name: instances[name] for name in sorted(instances)}
            return replace(state, table=replace(table, instances=ordered_too))
        case SequenceRow():
            assert isinstance(change.new, SequenceRow)
            return replace(state, table=replace(table, sequence=change.new))


def _wrong(
    state: State, who: str, kind: ChangeKind, before: LeaseRow | None, after: LeaseRow | None
) -> str | None:
    """Why this commit breaks the promise, if it does."""
    if before is None or after is None:
        if before is not None and before.shard not in state.done:
            return f"{who} removes shard {before.shard}, which is not done"
        return None
    owner = (after.consumer_owner, after.owner_epoch)
    why = None
    if after.epoch < before.epoch:
        why = f"its epoch goes from {before.epoch} to {after.epoch}"
    elif owner != (before.consumer_owner, before.owner_epoch) and after.consumer_owner is not None:
        if after.owner_epoch <= before.epoch:
            why = f"epoch {after.owner_epoch} is given again, to {owner[0]}"
        elif after.consumer_owner != who:
            why = f"it is given to {after.consumer_owner} by {who}"
    if after.checkpoint < before.checkpoint:
        why = f"{kind} takes its checkpoint back"
    elif after.checkpoint != before.checkpoint and who != before.consumer_owner:
        why = f"a checkpoint of {who}, while it is with {before.consumer_owner}"
    return why and f"shard {after.shard}: {why}"
