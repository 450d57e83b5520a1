"""One world: a seed's processes, stream and group, a time of faults, and a time in which all must come right.

First `safety`: the nemesis breaks what the swarm allows, and every fact is checked as it happens. Then the
world heals and `liveness` is demanded within a bound: all is delivered, shards are with living consumers
and evenly so, nothing moves any more, and a new record gets through everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final

from shoal.core.errors import ShoalError, StoreError
from shoal.core.group import RULES, Claim, Coordination, GroupSettings, ShardState
from shoal.core.model import Shard
from sim.consumer import Consumer
from sim.coordinated_kind import CoordinatedKind
from sim.facts import Facts
from sim.history import History, Violation
from sim.kind import Kind
from sim.leased_kind import LeasedKind
from sim.loop import MS, Loop, Process, Steps
from sim.nemesis import Nemesis
from sim.rows import Rows
from sim.staff import Staff
from sim.stage import Stage
from sim.store import Store
from sim.stream import Stream
from sim.swarm import Swarm, chosen
from sim.worker import Worker
from sim.worker_swarm import narrowed

LIVENESS_MS: Final = 9_000
"""On top of some timeouts: for what had piled up, and for hand-overs along a lineage."""
STILL_TIMEOUTS: Final = 2
EVENTS_MAX: Final = 60_000
"""Ten times what a busy world needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a seed."""

    seed: int
    kind: Coordination
    violation: Violation | None
    history: History
    events: int
    virtual_ms: int


class World:
    """See the head of this file. `switches` are planted bugs of the shell; `kind` None: the seed's own.

    `has_workers`: whole workers consume, and every record is followed; otherwise user code is an interval.
    """

    def __init__(
        self,
        seed: int,
        *,
        is_traced: bool = False,
        switches: frozenset[str] = frozenset(),
        focus: tuple[str, ...] = (),
        kind: Coordination | None = None,
        has_workers: bool = False,
    ) -> None:
        rng = Random(seed)
        self.seed, self.rng = seed, rng
        self.swarm: Swarm = chosen(rng, focus, kind)
        if has_workers:
            self.swarm = narrowed(self.swarm, rng)
        self.loop = Loop()
        self.history = History(self.loop, is_traced=is_traced)
        self.store = Store(self.loop, rng, self.swarm, self.history)
        self.facts = Facts(self.loop, self.store, self.history, of_records=has_workers)
        self.stage = Stage(
            loop=self.loop,
            rng=rng,
            swarm=self.swarm,
            history=self.history,
            store=self.store,
            facts=self.facts,
            switches=switches,
            wake=self._wake,
        )
        self.consumers: list[Consumer | Worker] = []
        self._born = 0
        self.admin = self.stage.process("admin")
        """Who makes calls, by people or by scripts. It never fails itself."""
        is_leased = self.swarm.kind is Coordination.LEASED
        self.kind: Kind = (LeasedKind if is_leased else CoordinatedKind)(self.stage, self.admin)
        self.settings = GroupSettings(
            in_order=self.swarm.in_order,
            timeout_ms=self.swarm.timeout_ms,
            handover_timeout_ms=self.swarm.handover_timeout_ms,
            coordination=self.swarm.kind,
            strategy=self.swarm.strategy,
        )
        self.staff = Staff(self.stage, self.admin, focus) if has_workers else None
        self.history.say("world", f"seed {seed}: {self.swarm}")
        if self.staff is not None:
            self.history.say("world", f"workers: {self.staff.swarm}")

    def run(self) -> Outcome:
        """The whole history of this seed."""
        violation = None
        try:
            self._begin()
            while self.loop.now < self.swarm.safety_ms * MS:
                self._pass(250)
            self._heal()
            self._demand()
        except Violation as found:
            violation = found
            self.history.say("checker", f"VIOLATION {found}")
        return Outcome(
            seed=self.seed,
            kind=self.swarm.kind,
            violation=violation,
            history=self.history,
            events=self.loop.events,
            virtual_ms=self.loop.now // MS,
        )

    # --- What there is. ------------------------------------------------------------------------------

    def make_stream(self) -> None:
        """A new stream under the one name there is. Its group goes with the old one."""
        self.drop_group()
        keys = None if self.staff is None else Random(self.seed)
        self.store.stream = stream = Stream(self.store.next_id(), self.swarm.shards, keys)
        if self.staff is not None:
            stream.on_change = self._stir

    def drop_group(self) -> None:
        """The group is deleted, in use or not."""
        if self.store.group is not None:
            self.kind.dropped(self.store.group)
            self.store.group = None

    def make_group(self, *, start_at_end: bool) -> None:
        """A new group under the one name there is."""
        stream = self.store.stream
        assert stream is not None
        starts = [shard.next_offset if start_at_end else shard.first_offset for shard in stream.shards]
        rows = self.kind.made(self.settings, start_at_end=start_at_end)
        self.store.group = rows
        self.facts.group_made(rows, stream, starts)

    def add_consumer(self, name: str) -> Consumer | Worker:
        """A new process of this consumer, whether or not there is another under its name."""
        process = self.stage.process(f"{name}.{self._number()}")
        seat = self.kind.seat(process, name)
        consumer: Consumer | Worker
        if self.staff is None:
            consumer = Consumer(self.stage, process, seat, name)
        else:
            consumer = self.staff.worker(process, seat, name, self._start_again)
        self.consumers.append(consumer)
        self.history.say(process.name, "starts")
        consumer.start()
        return consumer

    def _start_again(self, name: str) -> None:
        """A worker ended because user code failed: whoever runs it starts another."""
        self.history.counts["workers started again"] += 1
        self.loop.after(self.rng.randrange(20, 200) * MS, partial(self._start, name))

    def _stir(self) -> None:
        """There is something new in the stream: workers that wait for it are told."""
        for consumer in self.consumers:
            if isinstance(consumer, Worker):
                self.loop.after(self.rng.randrange(1, 20) * MS, consumer.hear_news)

    def processes(self) -> list[Process]:
        """All but the one that makes the calls."""
        return self.kind.others() + [consumer.process for consumer in self.consumers]

    def working(self) -> list[Consumer | Worker]:
        """Consumers that mean to stay."""
        self.consumers = [consumer for consumer in self.consumers if consumer.process.is_up]
        return [consumer for consumer in self.consumers if consumer.is_working]

    def _number(self) -> int:
        self._born += 1
        return self._born

    def _wake(self, incarnation: str) -> None:
        if not self.stage.is_healed and self.rng.random() < 0.2:
            return  # It learns at its next heartbeat.
        for consumer in self.consumers:
            if consumer.incarnation == incarnation:
                self.loop.after(self.rng.randrange(1, 30) * MS, consumer.wake)
        if waiting := self.stage.waiting.pop(incarnation, None):
            delay = self.rng.randrange(1, 30) * MS
            for changed in waiting:
                self.loop.after(delay, changed.resolve)

    # --- Phases. -------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.make_stream()
        assert self.store.stream is not None
        for shard in self.store.stream.shards:
            if self.rng.random() < 0.7:
                for _ in range(1 + self.swarm.backlog):
                    self.store.stream.append(shard.id, self.rng.randrange(1, 4))
        self.make_group(start_at_end=self.swarm.start_at_end)
        self.kind.begin()
        for place in range(self.swarm.consumers):
            name = "abcdefgh"[place]
            self.loop.after(self.rng.randrange(600) * MS, partial(self._start, name))
        self.admin.spawn(self._produce())
        Nemesis(self).start()

    def _start(self, name: str) -> None:
        self.add_consumer(name)

    def _produce(self) -> Steps[None]:
        while not self.stage.is_healed:
            stream = self.store.stream
            if stream is not None:
                shard = self.rng.choice(stream.open)
                stream.append(shard.id, self.rng.randrange(1, 4))
            yield self.rng.randrange(20, 160) * MS

    def _heal(self) -> None:
        self.history.say("world", "heals")
        self.stage.is_healed = self.store.is_healed = True
        self.store.out_until = self.stage.stalled_until = 0
        self.store.outages = [(begin, min(end, self.loop.now)) for begin, end in self.store.outages]
        for process in self.processes():
            process.cut_until = process.unanswered_until = 0
            process.thaw()
        if self.store.group is None:
            self.make_group(start_at_end=False)
        self.admin.spawn(self._upgrade())
        while len(self.working()) < max(1, self.swarm.consumers - 1):
            self.add_consumer(f"z{self._number()}")

    def _upgrade(self) -> Steps[None]:
        """Rules that nobody knows do not stay."""
        for _ in range(10):
            rows = self._rows()
            try:
                yield from self.kind.update(rows.id, replace(rows.settings, rules=RULES))
            except StoreError:
                self.history.say("admin", "cannot get a word in")
            yield 100 * MS

    def _demand(self) -> None:
        """6, 8 and 4: within the bound, and then for good."""
        rows = self._rows()
        timeout_ms = max([self.settings.timeout_ms, rows.settings.timeout_ms])
        timeout_ms = max([timeout_ms, *(member.timeout_ms for member in rows.standing().values())])
        follow_ms = self.kind.generation_ms * self._unseen_generations()
        until = self.loop.now + (LIVENESS_MS + 8 * timeout_ms + follow_ms) * MS
        still_us = STILL_TIMEOUTS * timeout_ms * MS
        while (why := self._unsettled(still_us)) is not None:
            if self.loop.now > until:
                raise Violation("6", f"the world has healed, and still: {why}")
            if not self.working():  # The last one was barred, or on its way out.
                self.add_consumer(f"z{self._number()}")
            self._pass(100)
        self._gets_through(until + still_us)

    def _unseen_generations(self) -> int:
        """Of the shards that the group does not know yet: how long the longest line of descent is."""
        stream, rows = self.store.stream, self._rows()
        assert stream is not None
        known = max((shard.id for shard in stream.shards if rows.claim(shard.id) is not None), default=-1)
        depth: dict[int, int] = {}
        for shard in stream.shards[known + 1 :]:
            depth[shard.id] = 1 + max((depth.get(parent, 0) for parent in shard.parents), default=0)
        return max(depth.values(), default=0)

    def _pass(self, for_ms: int) -> None:
        """8: time passes, and a world does not run hot."""
        self.loop.run_until(self.loop.now + for_ms * MS)
        if self.loop.events > EVENTS_MAX * (1 if self.staff is None else 2):
            raise Violation("8", f"{EVENTS_MAX:,} events, and no rest")

    def _gets_through(self, until: int) -> None:
        stream = self.store.stream
        assert stream is not None
        for shard in stream.open:
            stream.append(shard.id, 1)
        while (missing := self._missing()) is not None:
            if self.loop.now > until:
                raise Violation("4", f"a record does not get through: {missing}")
            self._pass(50)

    def _unsettled(self, still_us: int) -> str | None:
        """Why the world is not at rest, if it is not. Looks at rows and processes only."""
        if (missing := self._missing()) is not None:
            return missing
        if (uneven := self._misplaced()) is not None:
            return uneven
        if self.loop.now - self.facts.moved_at < still_us:
            return "shards still move"
        return None

    def _missing(self) -> str | None:
        if self.staff is not None and self.staff.places.waiting:
            return f"{self.staff.places.waiting} records still wait for another attempt"
        return self.facts.delivery.missing()

    def _misplaced(self) -> str | None:
        stream, rows = self.store.stream, self._rows()
        assert stream is not None
        living = [consumer.incarnation for consumer in self.working()]
        members = rows.standing()
        if any(one not in members for one in living) or len(living) < len(self.consumers):
            return "consumers that are still about to join or to leave"
        counts = dict.fromkeys(living, 0)
        for shard in stream.shards:
            claim = rows.claim(shard.id)
            if (why := self._is_misplaced(shard, claim, living)) is not None:
                return why
            if claim is not None and claim.owner is not None:
                counts[claim.owner] += 1
        if (
            rows.settings.strategy in ("balanced", "spread")
            and max(counts.values()) - min(counts.values()) > 1
        ):
            return f"counts are {sorted(counts.values())}"
        return None

    def _is_misplaced(self, shard: Shard, claim: Claim | None, living: list[str]) -> str | None:
        if claim is None:
            is_done = self.kind.cleans_up and not shard.is_open
            return None if is_done else f"shard {shard.id} is not known to the group"
        shown = f"shard {shard.id} ({claim.state} of {claim.owner}, next {claim.next})"
        if shard.is_open is (claim.state is ShardState.OVER):
            return f"{shown} is {'open' if shard.is_open else 'closed, and not over'}"
        if shard.is_open and claim.state is not ShardState.ALREADY_ALLOC:
            return f"{shown} has no owner that is to keep it"
        if claim.owner is not None and self.facts.holding.must_go(claim.owner_epoch):
            return f"{shown} is held at {claim.owner_epoch}, which the store forgot to have given"
        if claim.owner not in living and (shard.is_open or claim.owner is not None):
            return f"{shown} has no living owner"
        return None

    def _rows(self) -> Rows:
        rows = self.store.group
        if rows is None:
            raise ShoalError("no group")
        return rows
