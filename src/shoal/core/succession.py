"""Rows and lineage: which shards have a row, should get one, must wait, are done, or may be cleaned up.

Rows are made parents first, and a row is cleaned up only after its parents' rows are gone and its children
have rows that have got somewhere. So a shard without a row that has a descendant with one *was* done, and is
not made again. A consumer that thought long enough may still make such a row; it is told by what its
children know of it (`parents_born`), or by a child that could only be cleaned up after it, and is void.

Invariant: what is void or waits is neither taken nor counted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from shoal.core.claims import is_at_end
from shoal.core.lease import LeaseRow
from shoal.core.model import Shard, ShardId


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a group's rows say about a stream's shards."""

    rows: Mapping[ShardId, LeaseRow]
    """Those that count."""
    void: Sequence[LeaseRow]
    """Made again by mistake: to be deleted."""
    ended: frozenset[ShardId]
    """Over, with all their ancestors."""
    missing: Sequence[Shard]
    """Without a row, and now to get one: their parents have theirs, or are done."""
    done: Sequence[LeaseRow]
    """To be cleaned up."""
    unbound: Collection[ShardId] = ()
    """Those that wait for nobody, whatever their rows say: see `claims.unbound`."""

    def is_waiting(self, row: LeaseRow, *, in_order: bool) -> bool:
        """An ancestor has not ended."""
        is_bound = row.is_bound and row.shard not in self.unbound
        return in_order and is_bound and any(parent not in self.ended for parent in row.parents)

    def is_eligible(self, row: LeaseRow, *, in_order: bool) -> bool:
        """Someone should consume it."""
        return not row.is_over and not self.is_waiting(row, in_order=in_order)


def standing(
    rows: Sequence[LeaseRow], shards: Sequence[Shard], unbound: Collection[ShardId] = ()
) -> Standing:
    """Derive everything from one look at the rows. Rows of shards that the map does not have yet are kept."""
    by_shard = {row.shard: row for row in rows}
    children: dict[ShardId, list[ShardId]] = {shard.id: [] for shard in shards}
    for shard in shards:
        for parent in shard.parents:
            children[parent].append(shard.id)
    inherited = with_heirs(by_shard, shards)
    void = [row for row in rows if _is_void(row, children.get(row.shard, ()), by_shard, inherited)]
    for row in void:
        del by_shard[row.shard]
    over: set[ShardId] = set()
    for shard in shards:  # Parents come before their children, so one pass settles all ancestors.
        found = by_shard.get(shard.id)
        is_done = shard.id in inherited if found is None else found.is_over
        if is_done and all(parent in over for parent in shard.parents):
            over.add(shard.id)
    return Standing(
        rows=by_shard,
        void=void,
        ended=frozenset(over),
        missing=[shard for shard in shards if _is_missing(shard, by_shard, inherited)],
        done=[row for row in by_shard.values() if _is_done(row, children, by_shard, over)],
        unbound=unbound,
    )


def starting_over(rows: Mapping[ShardId, LeaseRow], shards: Sequence[Shard]) -> list[LeaseRow]:
    """Rows that are not over yet though nothing is left in their shard, and nothing will come."""
    return [
        row
        for shard in shards
        if (row := rows.get(shard.id)) is not None
        and not row.is_over
        and not row.is_fenced
        and is_at_end(shard, row.checkpoint)
    ]


def with_heirs(rows: Mapping[ShardId, LeaseRow], shards: Sequence[Shard]) -> set[ShardId]:
    """Shards with a descendant that has a row. Children come after their parents: one pass from the end."""
    found: set[ShardId] = set()
    for shard in reversed(shards):
        if shard.id in rows or shard.id in found:
            found.update(shard.parents)
    return found


def _is_void(
    row: LeaseRow, children: Sequence[ShardId], rows: Mapping[ShardId, LeaseRow], with_heirs: set[ShardId]
) -> bool:
    for child in children:
        heir = rows.get(child)
        if heir is None:
            if child in with_heirs:  # It was cleaned up, so this one had been before it.
                return True
        elif heir.parents_born[heir.parents.index(row.shard)] != row.born:
            return True
    return False


def _is_missing(shard: Shard, rows: Mapping[ShardId, LeaseRow], with_heirs: set[ShardId]) -> bool:
    return (
        shard.id not in rows
        and shard.id not in with_heirs
        and all(parent in rows or parent in with_heirs for parent in shard.parents)
    )


def _is_done(
    row: LeaseRow,
    children: Mapping[ShardId, Sequence[ShardId]],
    rows: Mapping[ShardId, LeaseRow],
    over: set[ShardId],
) -> bool:
    heirs = [rows.get(child) for child in children.get(row.shard, ())]
    return (
        row.shard in over
        and row.is_available
        and bool(heirs)
        and all(heir is not None and (heir.is_over or heir.checkpoint > 0) for heir in heirs)
        and not any(parent in rows for parent in row.parents)
    )
