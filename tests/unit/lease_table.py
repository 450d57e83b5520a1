"""A lease table in memory, and one consumer's rounds on it at once; answers can be lost on purpose."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from shoal.core.errors import StoreUnavailable
from shoal.core.group import GroupSettings
from shoal.core.lease import (
    Change,
    ChangeKind,
    InstanceRow,
    LeaseRow,
    Row,
    SequenceRow,
    numbered,
    taken,
)
from shoal.core.leasing import LeasedConsumer, Outcome, Told
from shoal.core.model import Shard, ShardId
from shoal.core.resharding import first_shards, split
from shoal.core.taking import View
from shoal.lease_port import LeaseTable, draw

GROUP = "orders"
TIMEOUT_MS = 1000
INTERVAL_MS = 250

Key = tuple[str, str, int | str]
Fault = Callable[[Row | None, Row | None], str]
"""Says how a write goes: "ok", "lost" (it is in, and the answer is not) or "failed" (it is not in)."""


def key_of(row: Row) -> Key:
    match row:
        case LeaseRow():
            return (row.group, "lease", row.shard)
        case InstanceRow():
            return (row.group, "instance", row.name)
        case SequenceRow():
            return (row.group, "sequence", "")


class MemoryTable:
    """Rows in a dict."""

    def __init__(self) -> None:
        self.rows: dict[Key, Row] = {}
        self.fault: Fault = lambda _old, _new: "ok"
        self.history: list[tuple[Row | None, Row | None]] = []

    def list(self, group: str) -> Sequence[LeaseRow]:
        return [row for row in self.rows.values() if isinstance(row, LeaseRow) and row.group == group]

    def load(self, group: str, shard: ShardId) -> LeaseRow | None:
        row = self.rows.get((group, "lease", shard))
        assert row is None or isinstance(row, LeaseRow)
        return row

    def instances(self, group: str) -> Sequence[InstanceRow]:
        return [row for row in self.rows.values() if isinstance(row, InstanceRow) and row.group == group]

    def sequence(self, group: str) -> SequenceRow | None:
        row = self.rows.get((group, "sequence", ""))
        assert row is None or isinstance(row, SequenceRow)
        return row

    def begin(self, group: str) -> None:
        given = [row.number for row in self.rows.values() if isinstance(row, SequenceRow)]
        self.create(SequenceRow(group=group, number=max(given, default=0)))

    def create(self, row: Row) -> bool:
        return self._write(key_of(row), None, row)

    def swap(self, old: Row, new: Row) -> bool:
        return self._write(key_of(old), old, new)

    def delete(self, row: Row) -> bool:
        return self._write(key_of(row), row, None)

    def _write(self, key: Key, old: Row | None, new: Row | None) -> bool:
        fate = self.fault(old, new)
        if fate == "failed":
            raise StoreUnavailable("planted")
        is_equal = self.rows.get(key) == old
        if is_equal:
            if new is None:
                del self.rows[key]
            else:
                self.rows[key] = new
            self.history.append((old, new))
        if fate == "lost":
            raise StoreUnavailable("planted")
        return is_equal

    def row(self, shard: int) -> LeaseRow:
        row = self.load(GROUP, ShardId(shard))
        assert row is not None
        return row

    def put(self, row: Row) -> None:
        """Set up a test: whatever was there."""
        self.rows[key_of(row)] = row


def execute(table: LeaseTable, change: Change) -> Outcome:
    """Carry out one change."""
    try:
        if change.old is None:
            assert change.new is not None
            done = table.create(change.new)
        elif change.new is None:
            done = table.delete(change.old)
        else:
            done = table.swap(change.old, change.new)
    except StoreUnavailable:
        return Outcome.UNKNOWN
    return Outcome.DONE if done else Outcome.REFUSED


def found_of(table: LeaseTable, change: Change) -> Row | None:
    """The row that a refused change was about."""
    row = change.old or change.new
    match row:
        case LeaseRow():
            return table.load(row.group, row.shard)
        case InstanceRow():
            return next((other for other in table.instances(row.group) if other.name == row.name), None)
        case SequenceRow():
            return table.sequence(row.group)
        case None:
            return None


def view_of(table: LeaseTable, shards: Sequence[Shard], starts: Mapping[ShardId, int] | None = None) -> View:
    return View(
        rows=table.list(GROUP),
        instances=table.instances(GROUP),
        sequence=table.sequence(GROUP) or SequenceRow(group=GROUP),
        shards=shards,
        starts=starts or {},
    )


class Desk:
    """One consumer with its table at hand: a round is carried out at once, in virtual time."""

    def __init__(
        self,
        table: MemoryTable,
        name: str,
        *,
        incarnation: str | None = None,
        settings: GroupSettings | None = None,
        interval_ms: int = INTERVAL_MS,
    ) -> None:
        self.table = table
        self.name = name
        self.consumer = LeasedConsumer(
            group=GROUP,
            name=name,
            incarnation=incarnation or f"{name}-1",
            settings=settings or GroupSettings(timeout_ms=TIMEOUT_MS),
            interval_ms=interval_ms,
        )
        self.opened: list[tuple[int, int]] = []
        self.lost: list[tuple[int, int]] = []
        self.changes: list[ChangeKind] = []
        """What was done, in order."""

    @property
    def held(self) -> list[int]:
        return sorted(self.consumer.leases)

    @property
    def closing(self) -> list[int]:
        return sorted(shard for shard, lease in self.consumer.leases.items() if not lease.is_wanted)

    def epoch(self, shard: int) -> int:
        return self.consumer.leases[ShardId(shard)].epoch

    def join(self) -> None:
        change = self.consumer.join(self.table.instances(GROUP))
        self.carry_out([change], ())

    def look(self, shards: Sequence[Shard], now_ms: int, starts: Mapping[ShardId, int] | None = None) -> None:
        """Look until nothing is left to be made: children's rows come after their parents'."""
        for _ in range(20):
            made = self.look_once(shards, now_ms, starts)
            if ChangeKind.CREATE not in made:
                break

    def look_once(
        self, shards: Sequence[Shard], now_ms: int, starts: Mapping[ShardId, int] | None = None
    ) -> list[ChangeKind]:
        told = self.consumer.look(view_of(self.table, shards, starts), now_ms=now_ms, watch_ms=now_ms)
        self.hear(told)
        return self.carry_out(told.changes, shards)

    def beat(self, now_ms: int, shards: Sequence[Shard] = ()) -> None:
        self.carry_out(self.consumer.beat(now_ms), shards)

    def save(self, shard: Shard, offset: int) -> None:
        self.carry_out([self.consumer.checkpoint(shard, self.epoch(shard.id), offset)], [shard])

    def release(self, shard: Shard, offset: int | None = None) -> None:
        change = self.consumer.release(shard, self.epoch(shard.id), offset)
        assert change is not None
        self.carry_out([change], [shard])

    def drain(self, shards: Sequence[Shard]) -> None:
        """Let go of everything that is to be let go of."""
        for shard in self.closing:
            self.release(shards[shard])

    def leave(self, shards: Sequence[Shard], now_ms: int) -> None:
        changes = self.consumer.leave(view_of(self.table, shards), now_ms=now_ms, watch_ms=now_ms)
        self.carry_out(changes, shards)

    def carry_out(self, changes: Iterable[Change], shards: Sequence[Shard]) -> list[ChangeKind]:
        """Try each change, and what follows from it; says which were done."""
        by_id = {shard.id: shard for shard in shards}
        done: list[ChangeKind] = []
        waiting = list(changes)
        while waiting:
            change = waiting.pop(0)
            if change.wants_number:
                change = numbered(change, draw(self.table, GROUP, 1)[0])
            outcome = execute(self.table, change)
            found = found_of(self.table, change) if outcome is Outcome.REFUSED else None
            row = change.old or change.new
            about = by_id.get(row.shard) if isinstance(row, LeaseRow) else None
            told = self.consumer.settle(change, outcome, found, about)
            self.hear(told)
            if told.error is not None:
                raise told.error
            waiting = [*told.changes, *waiting]
            if outcome is Outcome.DONE:
                done.append(change.kind)
        self.changes.extend(done)
        return done

    def hear(self, told: Told) -> None:
        self.opened.extend((lease.shard, lease.epoch) for lease in told.opened)
        self.lost.extend((lease.shard, lease.epoch) for lease in told.lost)

    def may_act(self, shard: int, now_ms: int) -> bool:
        lease = self.consumer.leases.get(ShardId(shard))
        return lease is not None and self.consumer.may_act(lease.shard, lease.epoch, now_ms)


def filled(count: int, records: int = 10) -> tuple[Shard, ...]:
    """So many open shards with something in them."""
    return tuple(replace(shard, next_offset=records) for shard in first_shards(count, 0))


def owned(
    table: MemoryTable,
    counts: Mapping[str | None, int],
    *,
    settings: GroupSettings | None = None,
    joined: bool = True,
) -> dict[str | None, list[int]]:
    """Put rows into the table: so many for each consumer, None for nobody; and the consumers' own rows."""
    settings = settings or GroupSettings(timeout_ms=TIMEOUT_MS)
    place = 0
    shards: dict[str | None, list[int]] = {}
    numbers = draw(table, GROUP, 2 * sum(counts.values()) + 1)
    for name, count in counts.items():
        shards[name] = list(range(place, place + count))
        owner = f"{name}-1" if name is not None else None
        for shard in shards[name]:
            epoch = numbers[2 * shard + 1] if owner is not None else 0
            table.put(
                LeaseRow(
                    group=GROUP,
                    shard=ShardId(shard),
                    born=numbers[2 * shard],
                    revision=numbers[2 * shard],
                    lease_id=numbers[2 * shard],
                    lease_owner=owner,
                    consumer_owner=owner,
                    epoch=epoch,
                    owner_epoch=epoch,
                    timeout_ms=settings.timeout_ms,
                    interval_ms=INTERVAL_MS,
                )
            )
        place += count
        if name is not None and joined:
            table.put(instance(name))
    return shards


def instance(name: str, incarnation: str | None = None) -> InstanceRow:
    return InstanceRow(
        group=GROUP,
        name=name,
        incarnation=incarnation or f"{name}-1",
        timeout_ms=TIMEOUT_MS,
        interval_ms=INTERVAL_MS,
    )


def joined(table: MemoryTable, *names: str, settings: GroupSettings | None = None) -> list[Desk]:
    desks = [Desk(table, name, settings=settings) for name in names]
    for desk in desks:
        desk.join()
    return desks


def watch(observer: Desk, count: int, ms: int) -> None:
    """Look so often that nothing is missed, for so long, from 0 on."""
    shards = filled(count)
    for now_ms in range(0, ms + 1, 50):
        observer.look(shards, now_ms)


def holder(table: MemoryTable, shards: tuple[Shard, ...] | None = None) -> Desk:
    """One that holds all of them, or the only one."""
    desk = Desk(table, "foo")
    desk.join()
    desk.look(shards or filled(1), 0)
    return desk


def take_away(table: MemoryTable, shard: int = 0) -> LeaseRow:
    """Another consumer has watched it for its timeout, and takes it."""
    row = replace(table.row(shard), stood_ms=TIMEOUT_MS)
    number = draw(table, GROUP, 1)[0]
    after = replace(taken(row, instance("bar")), epoch=number, owner_epoch=number)
    table.put(after)
    return after


def lose_answers(table: MemoryTable, times: int) -> None:
    """The next so many writes are in, and nobody hears of it."""
    left = [times]

    def fault(old: Row | None, new: Row | None) -> str:
        left[0] -= 1
        return "lost" if left[0] >= 0 else "ok"

    table.fault = fault


def grown() -> tuple[MemoryTable, tuple[Shard, ...], Desk, list[LeaseRow]]:
    """Three generations, of which the first two are consumed; and every row that there ever was."""
    table = MemoryTable()
    shards: tuple[Shard, ...] = filled(1)
    foo = Desk(table, "foo")
    foo.join()
    foo.look(shards, 0)
    for now_ms in (1, 2):
        last = [shard for shard in shards if shard.is_open]
        shards = split(shards, last[0], None, now_ms)
        shards = tuple(replace(shard, next_offset=10) if shard.is_open else shard for shard in shards)
        for shard in foo.held:
            if not shards[shard].is_open:
                foo.release(shards[shard], 10)
        for _ in range(3):
            foo.look(shards, now_ms)
    for shard in foo.held:
        foo.save(shards[shard], 5)
    for _ in range(3):
        foo.look(shards, 3)
    return table, shards, foo, [new for _, new in table.history if isinstance(new, LeaseRow)]
