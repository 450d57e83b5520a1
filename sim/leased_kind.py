"""Worlds of leased groups: a table that every consumer reaches by itself, and nobody who decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shoal.core.claims import lineage_of
from shoal.core.errors import StoreBusy, StoreUnavailable, UnknownGroup
from shoal.core.group import GroupSettings
from shoal.core.lease import Change, ChangeKind, LeaseRow, SequenceRow
from shoal.core.lease_reset import Resetting, numbers_max
from shoal.core.leasing import Outcome
from shoal.core.model import Shard, ShardId
from sim.lease_table import FORCED, RESET, LeaseTable
from sim.leased import LeasedSeat
from sim.loop import Process, Steps
from sim.rows import LeasedRows, Rows
from sim.stage import Stage
from sim.stream import NAME

TRIES: Final = 12


class LeasedKind:
    """See Kind."""

    cleans_up = True
    generation_ms = 100
    """One with each look, and one rests for four times as long as one looks."""

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
        self._stage.facts.delivery.group_emptied()

    def seat(self, process: Process, name: str) -> LeasedSeat:
        return LeasedSeat(self._stage, process, name)

    def update(self, group: int, settings: GroupSettings) -> Steps[None]:
        def body() -> None:
            rows = self._rows(group)
            stream = self._stage.store.stream
            if stream is not None and settings.in_order != rows.settings.in_order:
                rows.unbound = frozenset(shard.id for shard in stream.shards)
            rows.settings = settings
            self._stage.facts.updated(settings)

        yield from self._stage.store.write(self._admin, body)

    def rewind(self, group: int, positions: Mapping[ShardId, int], why: str) -> Steps[None]:
        """One row after the other, as planned from one look; planned anew when one was changed meanwhile."""
        del why
        settings = yield from self._stage.store.read(self._admin, lambda: self._rows(group).settings)
        table = LeaseTable(self._stage, self._admin, self._rows(group))
        holder = f"hub.{self._stage.store.next_id()}"
        resetting = Resetting(
            holder,
            group=table.rows.key,
            settings=settings,
            positions=positions,
            starts=table.rows.starts,
        )
        table.reset = self._stage.facts.delivery.reset_begins()
        is_done = False
        try:
            yield from self._reset(table, resetting, positions, in_order=settings.in_order)
            is_done = True
        finally:
            self._stage.facts.delivery.reset_ends(table.reset, is_done=is_done)

    def _reset(
        self, table: LeaseTable, resetting: Resetting, positions: Mapping[ShardId, int], *, in_order: bool
    ) -> Steps[None]:
        for _ in range(TRIES):
            since = self._stage.store.failovers
            rows = yield from table.read(lambda rows: list(rows.leases.values()))
            shards = yield from table.read(self._shards)
            numbers = yield from table.draw(numbers_max(shards))
            changes = resetting.plan(rows, shards, numbers)
            if not changes:
                return
            concerned = lineage_of(shards, positions) if in_order else positions
            self._stage.facts.delivery.reset_concerns(table.reset, concerned)
            yield from self._carry_out(table, resetting, changes, positions, since)
        raise StoreBusy("the rows change faster than we can follow", 0.0)

    def _carry_out(
        self,
        table: LeaseTable,
        resetting: Resetting,
        changes: Sequence[Change],
        positions: Mapping[ShardId, int],
        since: int,
    ) -> Steps[None]:
        """Up to the first one that is refused."""
        for change in changes:
            row = change.row
            assert isinstance(row, LeaseRow)
            is_named = row.shard in positions and change.kind in {ChangeKind.CREATE, ChangeKind.REWIND}
            who = FORCED if is_named else RESET if change.kind is ChangeKind.REWIND else "admin"
            (outcome,) = yield from table.attempt(who, [change], since)
            if outcome is Outcome.UNKNOWN:
                raise StoreUnavailable("no answer: the checkpoint may have been forced")
            if outcome is Outcome.REFUSED:
                return
            resetting.settle(change)

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

    def _shards(self, rows: LeasedRows) -> tuple[Shard, ...]:
        stream = self._stage.store.stream
        if stream is None or stream.id != rows.stream_id:
            raise UnknownGroup(stream=str(NAME), group=str(rows.id))
        return stream.shards
