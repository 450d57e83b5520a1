"""Worlds of leased groups: a table that every consumer reaches by itself, and nobody who decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shoal.core import lease_reset
from shoal.core.errors import InvalidInput, StoreBusy, StoreUnavailable, UnknownGroup
from shoal.core.group import GroupSettings
from shoal.core.lease import Change, ChangeKind, LeaseRow, SequenceRow, numbered
from shoal.core.leasing import Outcome
from shoal.core.lineage import ancestors
from shoal.core.model import Shard, ShardId
from shoal.core.succession import standing
from sim.lease_table import LeaseTable
from sim.leased import LeasedSeat
from sim.loop import Process, Steps
from sim.rows import LeasedRows, Rows
from sim.stage import Stage
from sim.stream import NAME

TRIES: Final = 12


class LeasedKind:
    """See Kind."""

    cleans_up = True

    def __init__(self, stage: Stage, admin: Process) -> None:
        self._stage, self._admin = stage, admin

    def begin(self) -> None:
        """There is nobody but the consumers."""

    def made(self, settings: GroupSettings, *, start_at_end: bool) -> Rows:
        store = self._stage.store
        assert store.stream is not None
        group = store.next_id()
        number = 0 if "epochs restart" in self._stage.switches else store.sequence
        return LeasedRows(
            id=group,
            stream_id=store.stream.id,
            settings=settings,
            starts={
                shard.id: shard.next_offset if start_at_end else shard.first_offset
                for shard in store.stream.shards
            },
            sequence=SequenceRow(group=f"store-{group}", number=number),
        )

    def dropped(self, rows: Rows) -> None:
        """Rows go; the sequence stays, and so does the key, which nobody gets again."""
        assert isinstance(rows, LeasedRows)
        rows.leases.clear()
        rows.instances.clear()

    def seat(self, process: Process, name: str) -> LeasedSeat:
        return LeasedSeat(self._stage, process, name)

    def update(self, group: int, settings: GroupSettings) -> Steps[None]:
        def body() -> None:
            rows = self._rows(group)
            rows.settings = settings
            self._stage.facts.updated(settings)

        yield from self._stage.store.write(self._admin, body)

    def rewind(self, group: int, positions: Mapping[ShardId, int], why: str) -> Steps[None]:
        """One row after the other, parents first."""
        del why
        store = self._stage.store
        settings, shards = yield from store.read(
            self._admin, lambda: (self._rows(group).settings, self._shards())
        )
        table = LeaseTable(self._stage, self._admin, self._rows(group))
        concerned = lease_reset.concerned(settings, shards, positions)
        self._stage.facts.delivery.reset_begins(concerned)
        for shard in concerned:
            yield from self._rewind_one(table, settings, shards[shard], positions.get(shard))

    def _rewind_one(
        self, table: LeaseTable, settings: GroupSettings, shard: Shard, offset: int | None
    ) -> Steps[None]:
        """A row that was made again by mistake is as good as none."""
        shards = yield from self._stage.store.read(self._admin, self._shards)
        for _ in range(TRIES):
            since = self._stage.store.failovers
            rows = yield from table.read(lambda rows: list(rows.leases.values()))
            row = standing(rows, shards).rows.get(shard.id)
            if row is None and offset is None:
                return
            older = [] if row is not None else self._missing_ancestors(rows, shards, shard.id)
            if older:
                yield from self._make(table, settings, rows, older)
                continue
            (number,) = yield from table.draw(1)
            if row is not None:
                after = lease_reset.reset(row, shard, offset, number)
                change = Change(kind=ChangeKind.SAVE, old=row, new=after)
            else:
                assert offset is not None
                made = lease_reset.beginning(table.rows.key, settings, shard, offset, rows)
                change = numbered(made, number)
            outcome = yield from table.force(change, since, is_named=offset is not None)
            if outcome is Outcome.UNKNOWN:
                raise StoreUnavailable("no answer: the checkpoint may have been forced")
            if outcome is Outcome.DONE:
                return
        raise StoreBusy("the lease changes faster than we can follow", 0.0)

    def _missing_ancestors(
        self, rows: Sequence[LeaseRow], shards: Sequence[Shard], shard: ShardId
    ) -> list[Shard]:
        """Rows are made parents first: a child's alone would say that its ancestors were done."""
        missing = standing(rows, shards).missing
        if any(one.id == shard for one in missing):
            return []
        older = [one for one in missing if one.id in ancestors(shards, shard)]
        if not older:
            raise InvalidInput("shard", shard, "its lease was cleaned up after it was consumed")
        return older

    def _make(
        self, table: LeaseTable, settings: GroupSettings, rows: Sequence[LeaseRow], shards: Sequence[Shard]
    ) -> Steps[None]:
        since = self._stage.store.failovers
        numbers = yield from table.draw(len(shards))
        starts = table.rows.starts
        made = [
            lease_reset.beginning(table.rows.key, settings, shard, starts.get(shard.id, 0), rows)
            for shard in shards
        ]
        changes = [numbered(change, number) for change, number in zip(made, numbers, strict=True)]
        yield from table.attempt("admin", changes, since)

    def servers(self) -> list[Process]:
        return []

    def restart_server(self, process: Process, after_us: int) -> None:
        """There are none."""

    def others(self) -> list[Process]:
        return []

    def _rows(self, group: int) -> LeasedRows:
        rows = self._stage.store.group
        if not isinstance(rows, LeasedRows) or rows.id != group:
            raise UnknownGroup(stream=str(NAME), group=str(group))
        return rows

    def _shards(self) -> tuple[Shard, ...]:
        assert self._stage.store.stream is not None
        return self._stage.store.stream.shards
