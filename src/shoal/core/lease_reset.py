"""Forced checkpoints of a leased group, one compare-and-set after the other. Dry: no table.

A reset may name a shard whose row was cleaned up after it and its children were consumed. Its row is made
again, and its children wait for it once more. Since a row that was made again by mistake is void, told by
what its children know of it (see `succession`), the steps are in this order:

0. a row below that was made again by mistake is removed, and ancestors that nobody has looked at yet get
   rows: a child's alone would say that they were done;
1. children are told the `born` that the new row will have: as long as it is not there, this changes nothing;
2. rows are made, children before parents: one that was cleaned up between a named shard and its living
   descendants comes back as over. Until the last of them is there nothing waits. So that nobody takes or
   cleans up what was made meanwhile, the one who resets holds it, like any consumer, for a timeout at most;
3. parents first, each row gets a new epoch: whoever holds it is fenced, whoever looked before is refused, and
   what was made is let go of.

A plan is made from one look, at the rows first and then at the stream, so that every row's shard is known:
the children of one that was split meanwhile may be all that is left of it. It is carried out up to the first
step that is refused; then everything is looked at anew. It is over when a look finds nothing to do. If the
one who resets dies in between, what is not made yet is as if it had not been asked for, and the same reset
can be asked for again.

Invariant: when it is over, every row was changed after the last one was made, parents first. So whoever
thinks of an older state is refused, and nobody can take a row afterwards who does not know that it waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from shoal.core.claims import lineage_of
from shoal.core.group import GroupSettings, default_interval_ms
from shoal.core.lease import Change, ChangeKind, InstanceRow, LeaseRow, created, rewound, without_owner
from shoal.core.lineage import ancestors
from shoal.core.model import Shard, ShardId
from shoal.core.succession import standing, with_heirs


class Resetting:
    """One reset under way. Writer: the shell, which plans, carries out, and tells what is done."""

    def __init__(
        self,
        holder: str,
        *,
        group: str,
        settings: GroupSettings,
        positions: Mapping[ShardId, int],
        starts: Mapping[ShardId, int],
    ) -> None:
        """`holder`: a name that nobody else has, now or ever. `starts`: where the group began in shards that
        were there; others begin at 0."""
        self._settings, self._positions, self._starts = settings, positions, starts
        self._shards: Sequence[Shard] = ()
        """The stream's, as of the last look."""
        self._nobody = InstanceRow(
            group=group,
            name="hub",
            incarnation=holder,
            timeout_ms=settings.timeout_ms,
            interval_ms=default_interval_ms(settings.timeout_ms),
        )
        self._reset: set[ShardId] = set()
        self._read: set[ShardId] = set()

    @property
    def had_been_read(self) -> list[ShardId]:
        """Of an in-order group: descendants of which something had been consumed."""
        return sorted(self._read)

    def plan(self, rows: Sequence[LeaseRow], shards: Sequence[Shard], numbers: Iterable[int]) -> list[Change]:
        """What is to be done next, in this order; nothing: it is done. Draw the numbers after the look, and
        `numbers_max` of them."""
        self._shards = shards
        fresh = iter(numbers)
        by_shard = {row.shard: row for row in rows}
        if mistakes := self._mistakes(by_shard):
            return [Change(kind=ChangeKind.CLEAN, old=row, new=None) for row in mistakes]
        unborn = self._unborn(by_shard)
        if unborn:
            return [self._creation(shard, by_shard, next(fresh)) for shard in unborn]
        needed = self._needed(by_shard)
        born = {shard: by_shard[shard].born if shard in by_shard else next(fresh) for shard in sorted(needed)}
        steps = [*_links(rows, born), *self._creations(by_shard, born)]
        return steps or list(self._resets(by_shard, needed, fresh))

    def settle(self, change: Change) -> None:
        """A step that is done."""
        row = change.row
        assert isinstance(row, LeaseRow)
        if change.kind is ChangeKind.CREATE:
            # Who looked while it was missing may think what is above it void, and what is below it free.
            self._reset.clear()
        elif change.kind is ChangeKind.REWIND:
            self._reset.add(row.shard)
        is_told = self._settings.in_order and row.shard not in self._positions
        if is_told and row.checkpoint > 0 and change.new is not None:
            self._read.add(row.shard)

    def _mistakes(self, rows: Mapping[ShardId, LeaseRow]) -> list[LeaseRow]:
        """Rows below what is named of which a child knows another. Whoever cleaned one up after the reset is
        over would make void what was made above it. One that is named is told to its children instead."""
        below = lineage_of(self._shards, self._positions) - self._positions.keys()
        doubted = {
            parent
            for row in rows.values()
            for parent, born in zip(row.parents, row.parents_born, strict=True)
            if parent in rows and rows[parent].born != born
        }
        return [rows[shard] for shard in sorted(doubted & below)]

    def _unborn(self, rows: Mapping[ShardId, LeaseRow]) -> list[ShardId]:
        """Ancestors of what is named that nobody has looked at yet: the oldest of them first."""
        heirs = with_heirs(rows, self._shards)
        older = {one for shard in self._positions for one in ancestors(self._shards, shard)}
        never = {shard for shard in older if shard not in rows and shard not in heirs}
        return sorted(
            shard for shard in never if not any(parent in never for parent in self._shards[shard].parents)
        )

    def _creation(self, shard: ShardId, rows: Mapping[ShardId, LeaseRow], number: int) -> Change:
        """A row that nobody has made yet, as the first consumer to look would make it."""
        about = self._shards[shard]
        born = tuple(rows[parent].born if parent in rows else 0 for parent in about.parents)
        row = self._made(about, self._starts.get(shard, 0), born, number)
        return Change(kind=ChangeKind.CREATE, old=None, new=row)

    def _made(self, shard: Shard, offset: int, parents_born: tuple[int, ...], number: int) -> LeaseRow:
        row = created(
            self._nobody.group,
            shard,
            offset,
            owner=self._nobody,
            parents_born=parents_born,
            bound=self._settings.in_order,
        )
        return replace(row, born=number, revision=number, lease_id=number)

    def _needed(self, rows: Mapping[ShardId, LeaseRow]) -> set[ShardId]:
        """What must have a row: what is named, and below it what was cleaned up, for its heirs' sake.

        Not what this reset has come to and is gone since: that was consumed anew, to its end, while the reset
        went on. Made again it would be consumed once more, and so would a long lineage without an end.
        """
        heirs = with_heirs(rows, self._shards)
        needed = {
            shard
            for shard in self._positions
            if shard in rows or shard not in heirs or shard not in self._reset
        }
        below = set(needed)
        for shard in self._shards:  # Parents come before their children.
            if any(parent in below for parent in shard.parents):
                # Also below rows that are there again: it may have been cleaned up before they were made.
                below.add(shard.id)
                if shard.id not in rows and shard.id in heirs:
                    needed.add(shard.id)
        return needed

    def _creations(self, rows: Mapping[ShardId, LeaseRow], born: Mapping[ShardId, int]) -> Iterator[Change]:
        known = {**self._known(rows), **born}
        for shard in sorted(born, reverse=True):
            if shard not in rows:
                about = self._shards[shard]
                made = self._made(
                    about,
                    self._positions.get(shard, about.next_offset),
                    tuple(known.get(parent, 0) for parent in about.parents),
                    born[shard],
                )
                holder = self._nobody.incarnation
                held = replace(made, lease_owner=holder, consumer_owner=holder)
                yield Change(kind=ChangeKind.CREATE, old=None, new=held)

    def _known(self, rows: Mapping[ShardId, LeaseRow]) -> dict[ShardId, int]:
        """`born` of the rows that a child waits for. An ancestor's may be void: made by one who thought for
        so long that the shard was consumed and cleaned up meanwhile, and be it this reset. A child that knew
        of it would make it count. Of the shards that are reset, those are void that miss what is made now.
        """
        family = lineage_of(self._shards, self._positions)
        void = {row.shard for row in standing(list(rows.values()), self._shards).void}
        return {shard: row.born for shard, row in rows.items() if shard in family or shard not in void}

    def _resets(
        self, rows: Mapping[ShardId, LeaseRow], needed: set[ShardId], numbers: Iterator[int]
    ) -> Iterator[Change]:
        family = lineage_of(self._shards, self._positions) if self._settings.in_order else set()
        for shard in sorted((needed | family) - self._reset):
            row = rows.get(shard)
            if row is not None:
                offset = self._positions.get(shard, row.checkpoint)
                after = rewound(row, self._shards[shard], offset, next(numbers))
                if row.consumer_owner == self._nobody.incarnation:
                    after = without_owner(after, None)
                yield Change(kind=ChangeKind.REWIND, old=row, new=after)


def numbers_max(shards: Sequence[Shard]) -> int:
    """How many numbers a plan may use."""
    return 2 * len(shards)


def _links(rows: Sequence[LeaseRow], born: Mapping[ShardId, int]) -> Iterator[Change]:
    """Rows whose parents are, or will be, others than they know."""
    for row in rows:
        pairs = zip(row.parents, row.parents_born, strict=True)
        after = tuple(born.get(parent, known) for parent, known in pairs)
        if after != row.parents_born:
            linked = replace(row, revision=row.revision + 1, parents_born=after)
            yield Change(kind=ChangeKind.LINK, old=row, new=linked)
