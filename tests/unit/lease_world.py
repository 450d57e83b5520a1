"""A small world for leased consumers in virtual time: one seed is one history.

Every call is apart from its answer, with time between. Consumers crash, stop for longer than their deadline,
are suspended, come back under the same name, and have clocks of different rates; answers get lost, calls
fail, and old writes arrive once more. The checks are written from what must hold and share no rule's code.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from shoal.core.errors import ShoalError, StoreUnavailable
from shoal.core.group import GroupSettings
from shoal.core.lease import Change, ChangeKind, LeaseRow, Row, numbered
from shoal.core.leasing import LeasedConsumer, Outcome, Told
from shoal.core.lineage import ancestors
from shoal.core.model import Shard, ShardId
from shoal.core.resharding import merge, split
from shoal.lease_port import draw
from tests.unit.lease_table import GROUP, MemoryTable, execute, filled, found_of, view_of

Steps = Iterator[int]
"""A program of a consumer: yields how long until it goes on."""

STEADY = {ChangeKind.BEAT, ChangeKind.RENEW, ChangeKind.SAVE}
"""What goes on in a group that has settled."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may happen in a world."""

    seed: int
    consumers: int = 3
    shards: int = 5
    timeout_ms: int = 1000
    interval_ms: int = 200
    handover_timeout_ms: int | None = None
    drain_ms: int = 50
    trouble_ms: int = 12_000
    faults: bool = True
    crashes: bool = True
    pauses: bool = True
    splits: bool = True
    in_order: bool = True


class Node:
    """A machine that runs one consumer at a time, always under the same name."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.rate = world.random.uniform(0.98, 1.02)
        self.offset = world.random.randint(0, 10**9)
        self.suspended_ms = 0
        self.asleep_until_ms = 0
        self.life = 0
        self.consumer: LeasedConsumer | None = None
        self.drains: dict[tuple[ShardId, int], int] = {}
        self.read: dict[tuple[ShardId, int], int] = {}
        self.saved: dict[tuple[ShardId, int], int] = {}

    def clock(self) -> int:
        return self.offset + int(self.world.now_ms * self.rate)

    def watch_clock(self) -> int:
        return self.clock() - self.suspended_ms

    def start(self) -> None:
        self.life += 1
        options = self.world.options
        self.drains, self.read, self.saved = {}, {}, {}
        self.consumer = LeasedConsumer(
            group=GROUP,
            name=self.name,
            incarnation=f"{self.name}-{self.life}",
            settings=self.world.settings,
            interval_ms=options.interval_ms,
        )
        self.world.begin(self, self.joining(self.consumer))

    def joining(self, consumer: LeasedConsumer) -> Steps:
        while True:
            try:
                change = consumer.join(self.world.table.instances(GROUP))
            except ShoalError:
                self.consumer = None
                return
            yield self.world.delay()
            outcome = execute(self.world.table, change)
            yield self.world.delay()
            consumer.settle(change, outcome)
            if outcome is Outcome.DONE:
                break
        self.world.begin(self, self.repeat(self.looking, consumer, 100))
        self.world.begin(self, self.repeat(self.beating, consumer, self.world.options.interval_ms))
        self.world.begin(self, self.repeat(self.working, consumer, 40))

    def repeat(self, program: Callable[[LeasedConsumer], Steps], consumer: LeasedConsumer, ms: int) -> Steps:
        while self.consumer is consumer:
            begun = self.world.now_ms
            yield from program(consumer)
            yield max(1, ms - (self.world.now_ms - begun))

    def looking(self, consumer: LeasedConsumer) -> Steps:
        view = view_of(self.world.table, self.world.shards)
        yield self.world.delay()
        told = consumer.look(view, now_ms=self.clock(), watch_ms=self.watch_clock())
        self.hear(told)
        wanted = sum(change.wants_number for change in told.changes)
        numbers: list[int] = []
        if wanted:
            yield self.world.delay()
            try:
                numbers = list(draw(self.world.table, GROUP, wanted))
            except StoreUnavailable:
                return
        for change in told.changes:
            complete = numbered(change, numbers.pop(0)) if change.wants_number else change
            yield from self.carry_out(consumer, complete)

    def leaving(self, consumer: LeasedConsumer) -> Steps:
        """A clean stop; what its other programs have under way still arrives."""
        view = view_of(self.world.table, self.world.shards)
        yield self.world.delay()
        for change in consumer.leave(view, now_ms=self.clock(), watch_ms=self.watch_clock()):
            yield from self.carry_out(consumer, change)
        if self.consumer is consumer:
            self.consumer = None

    def beating(self, consumer: LeasedConsumer) -> Steps:
        for change in consumer.beat(self.clock()):
            yield from self.carry_out(consumer, change)

    def working(self, consumer: LeasedConsumer) -> Steps:
        for lease in list(consumer.leases.values()):
            shard = self.world.shards[lease.shard]
            key = (lease.shard, lease.epoch)
            done = self.read.setdefault(key, lease.checkpoint)
            yield 1
            if not consumer.may_act(lease.shard, lease.epoch, self.clock()):
                continue
            now = consumer.leases[lease.shard]
            if not now.is_wanted:
                self.drains.setdefault(key, self.world.now_ms)
                if self.world.now_ms - self.drains[key] < self.world.options.drain_ms:
                    continue
                change = consumer.release(shard, lease.epoch, done)
            elif done < shard.next_offset:
                self.world.hand_out(self, shard, done)
                self.read[key] = done + 1
                change = consumer.checkpoint(shard, lease.epoch, done + 1)
            elif not shard.is_open:
                change = consumer.release(shard, lease.epoch, done)
            elif done > self.saved.get(key, lease.checkpoint):
                change = consumer.checkpoint(shard, lease.epoch, done)
            else:
                continue
            if change is not None:
                yield from self.carry_out(consumer, change)

    def carry_out(self, consumer: LeasedConsumer, change: Change) -> Steps:
        waiting = [change]
        tries = 0
        while waiting and tries < 20:
            tries += 1
            change = waiting.pop(0)
            yield self.world.delay()
            outcome = execute(self.world.table, change)
            if outcome is Outcome.DONE:
                self.world.done(change)
            found: Row | None = None
            if outcome is Outcome.REFUSED:
                yield self.world.delay()
                found = found_of(self.world.table, change)
            yield self.world.delay()
            row = change.old or change.new
            shard = self.world.shards[row.shard] if isinstance(row, LeaseRow) else None
            told = consumer.settle(change, outcome, found, shard)
            is_answered = outcome is not Outcome.UNKNOWN and told.error is None
            if change.kind is ChangeKind.SAVE and is_answered and not told.changes:
                assert isinstance(change.new, LeaseRow)
                self.saved[change.new.shard, change.new.epoch] = change.new.checkpoint
            self.hear(told)
            waiting.extend(told.changes)

    def hear(self, told: Told) -> None:
        """A deadline begins to hold only with an answer: then, and when records are handed out, we check."""
        self.world.check()
        for lease in told.opened:
            assert lease.epoch <= self.world.epochs[lease.shard]


class World:
    """Time, the table, the stream, and what must hold."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.random = random.Random(options.seed)
        self.now_ms = 0
        self.is_troubled = options.faults or options.crashes or options.pauses
        self.table = MemoryTable()
        self.settings = GroupSettings(
            timeout_ms=options.timeout_ms,
            handover_timeout_ms=options.handover_timeout_ms,
            in_order=options.in_order,
        )
        self.shards: tuple[Shard, ...] = ()
        self.nodes = [Node(self, f"c{place:02}") for place in range(options.consumers)]
        self.queue: list[tuple[int, int, Node | None, int, Steps]] = []
        self.ticket = 0
        self.epochs: dict[ShardId, int] = {}
        self.checkpoints: dict[ShardId, int] = {}
        self.counted: Counter[ChangeKind] = Counter()
        self.handed_out = 0
        self.table.fault = self.fault
        self.checked = 0

    def begin(self, node: Node | None, steps: Steps, after_ms: int = 0) -> None:
        self.ticket += 1
        life = node.life if node is not None else 0
        heapq.heappush(self.queue, (self.now_ms + after_ms, self.ticket, node, life, steps))

    def run_until(self, end_ms: int) -> None:
        while self.queue and self.queue[0][0] <= end_ms:
            at_ms, _, node, life, steps = heapq.heappop(self.queue)
            self.now_ms = max(self.now_ms, at_ms)
            if node is not None and life != node.life:
                continue  # It crashed meanwhile.
            if node is not None and node.asleep_until_ms > self.now_ms:
                self.ticket += 1
                heapq.heappush(self.queue, (node.asleep_until_ms, self.ticket, node, life, steps))
                continue
            wait = next(steps, None)
            if wait is not None:
                self.ticket += 1
                heapq.heappush(self.queue, (self.now_ms + wait, self.ticket, node, life, steps))
        self.now_ms = end_ms

    def delay(self) -> int:
        """How long a call, or its answer, takes."""
        if self.is_troubled and self.options.faults and self.random.random() < 0.02:
            return self.random.randint(20, int(1.5 * self.options.timeout_ms))
        return self.random.randint(0, 3)

    def fault(self, old: Row | None, new: Row | None) -> str:
        if not (self.is_troubled and self.options.faults):
            return "ok"
        return self.random.choices(["ok", "lost", "failed"], [94, 3, 3])[0]

    def play(self) -> None:
        """The safety phase: trouble, with everyone joining somewhere in it."""
        for node in self.nodes:
            self.begin(None, self.later(node.start), after_ms=self.random.randint(0, 1500))
        if self.is_troubled or self.options.splits:
            self.begin(None, self.trouble())
        self.run_until(self.options.trouble_ms)

    def later(self, act: Callable[[], None]) -> Steps:
        yield 0
        act()

    def trouble(self) -> Steps:
        while self.now_ms < self.options.trouble_ms:
            yield self.random.randint(50, 1200)
            node = self.random.choice(self.nodes)
            match self.random.randint(0, 6):
                case 0 if self.options.crashes and node.consumer is not None:
                    node.life += 1
                    node.consumer = None
                    if self.random.random() < 0.8:
                        self.begin(None, self.later(node.start), after_ms=self.random.randint(1, 2500))
                case 4 if self.options.crashes and node.consumer is not None:
                    self.begin(node, node.leaving(node.consumer))
                    if self.random.random() < 0.8:
                        self.begin(None, self.later(node.start), after_ms=self.random.randint(1, 2500))
                case 1 if self.options.pauses:
                    pause = self.random.randint(100, 3 * self.options.timeout_ms)
                    node.asleep_until_ms = max(node.asleep_until_ms, self.now_ms + pause)
                    if self.random.random() < 0.5:
                        node.suspended_ms += int(pause * node.rate)
                case 2 if self.options.splits and len(self.shards) < 4 * self.options.shards:
                    self.reshard()
                case 3 if self.options.faults and self.table.history:
                    old, new = self.random.choice(self.table.history)  # It arrives once more.
                    execute(self.table, Change(kind=ChangeKind.WATCH, old=old, new=new))
                case _:
                    self.append()

    def reshard(self) -> None:
        alive = sorted((shard for shard in self.shards if shard.is_open), key=lambda shard: shard.begin)
        place = self.random.randrange(len(alive))
        if place + 1 < len(alive) and self.random.random() < 0.4:
            self.shards = merge(self.shards, alive[place], alive[place + 1], self.now_ms)
        else:
            self.shards = split(self.shards, alive[place], None, self.now_ms)

    def append(self) -> None:
        self.shards = tuple(
            replace(shard, next_offset=shard.next_offset + self.random.randint(0, 3))
            if shard.is_open
            else shard
            for shard in self.shards
        )

    # --- What must hold. ------------------------------------------------------------------------------

    def check(self) -> None:
        """At most one consumer may act on a shard; no checkpoint goes back; no epoch comes twice."""
        holders: dict[ShardId, str] = {}
        for node in self.nodes:
            if node.consumer is None:
                continue
            for shard, lease in node.consumer.leases.items():
                if node.consumer.may_act(shard, lease.epoch, node.clock()):
                    other = holders.setdefault(shard, node.name)
                    assert other == node.name, f"{self.now_ms} ms: {other} and {node.name} both own {shard}"
        for old, new in self.table.history[self.checked :]:
            if isinstance(new, LeaseRow) and isinstance(old, LeaseRow):
                assert new.checkpoint >= old.checkpoint, f"{old} -> {new}"
                if new.consumer_owner is not None and new.owner_epoch != old.owner_epoch:
                    assert new.epoch > old.epoch
                    assert new.epoch > self.epochs.get(new.shard, 0)
                    self.epochs[new.shard] = new.epoch
                    older = [self.epochs.get(one, 0) for one in ancestors(self.shards, new.shard)]
                    assert not self.options.in_order or new.epoch > max([0, *older])
                self.checkpoints[new.shard] = max(self.checkpoints.get(new.shard, 0), new.checkpoint)
        self.checked = len(self.table.history)

    def hand_out(self, node: Node, shard: Shard, offset: int) -> None:
        """A record reaches user code: its ancestors have all been declared done."""
        self.handed_out += 1
        self.check()
        if self.options.in_order:
            for one in ancestors(self.shards, shard.id):
                parent = self.shards[one]
                assert not parent.is_open
                assert self.checkpoints.get(one, 0) >= parent.next_offset, (
                    f"{self.now_ms} ms: {node.name} reads {shard.id} at {offset} before {one} has ended"
                )

    def done(self, change: Change) -> None:
        self.counted[change.kind] += 1

    # --- The liveness phase. --------------------------------------------------------------------------

    def heal(self, within_ms: int) -> None:
        """No more trouble: everything is read, counts end within one, and nothing but renewals is left."""
        self.is_troubled = False
        for node in self.nodes:
            node.asleep_until_ms = min(node.asleep_until_ms, self.now_ms)
        self.run_until(self.now_ms + within_ms)
        self.check_settled()
        before = Counter(self.counted)
        self.run_until(self.now_ms + 4 * self.options.timeout_ms)
        moved = {kind: count for kind, count in (self.counted - before).items() if kind not in STEADY}
        assert not moved, f"settled, and still: {moved}"
        self.check_settled()

    def check_settled(self) -> None:
        living = [node for node in self.nodes if node.consumer is not None and node.consumer.error is None]
        if not living:
            return
        wanted = [shard.id for shard in self.shards if shard.is_open]
        held = [shard for node in living for shard in (node.consumer.leases if node.consumer else ())]
        assert sorted(held) == wanted
        counts = [len(node.consumer.leases) for node in living if node.consumer]
        assert max(counts) - min(counts) <= 1, f"{counts}"
        for node in living:
            assert node.consumer is not None
            for shard, lease in node.consumer.leases.items():
                assert node.consumer.may_act(shard, lease.epoch, node.clock())
                row = self.table.row(shard)
                assert row.consumer_owner == node.consumer.me.incarnation
                assert row.checkpoint == self.shards[shard].next_offset
        names = {row.name for row in self.table.instances(GROUP)}
        assert names == {node.name for node in living}


def swarm(seed: int) -> Options:
    """Options for a seed: each world has some kinds of trouble and not others."""
    chance = random.Random(seed)
    return Options(
        seed=seed,
        consumers=chance.randint(2, 5),
        shards=chance.randint(1, 8),
        handover_timeout_ms=chance.choice([None, None, 300]),
        drain_ms=chance.choice([0, 50, 600, 3000]),
        faults=chance.random() < 0.8,
        crashes=chance.random() < 0.8,
        pauses=chance.random() < 0.8,
        splits=chance.random() < 0.7,
        in_order=chance.random() < 0.8,
    )


def lived(options: Options) -> World:
    """A whole history: trouble, then peace."""
    world = World(options)
    world.shards = filled(options.shards)
    world.play()
    world.heal(15_000 + 4 * options.drain_ms)
    return world
