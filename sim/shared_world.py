"""One world of a shared group: a stream that grows, consumers that come and go, a time of faults, and an end.

Lighter than `world`, on the same loop, network and store. First `safety`: faults, with every fact checked as
it is committed. Then the world heals, and everything must be settled within a bound.
"""

from __future__ import annotations

from random import Random
from typing import Final, cast

from shoal.core.group import Coordination
from shoal.core.model import Shard, ShardId
from shoal.core.share import ShareRules
from sim.facts import Facts
from sim.history import History, Violation
from sim.hub import Hub
from sim.loop import MS, Loop, Process
from sim.network import Call, Network
from sim.shared_consumer import SharedWorker
from sim.shared_facts import SharedFacts
from sim.shared_hub import SharedHub, Table
from sim.stage import Stage
from sim.store import Store
from sim.swarm import chosen
from sim.world import Outcome

SAFETY_MS: Final = 2_000
LIVENESS_MS: Final = 30_000
"""On top: what was never settled runs out as often as the group allows, and a key's records one by one."""
RECORDS_MAX: Final = 60
KEYS: Final = 5


class SharedWorld:
    """See the head of this file. `switches` are planted bugs of the shell; `focus` is for them to show."""

    def __init__(
        self,
        seed: int,
        *,
        is_traced: bool = False,
        switches: frozenset[str] = frozenset(),
        focus: tuple[str, ...] = (),
    ) -> None:
        self.seed, self.rng = seed, Random(seed)
        rng = self.rng
        self.swarm = chosen(rng, focus, Coordination.COORDINATED)
        self.loop = Loop()
        self.history = History(self.loop, is_traced=is_traced)
        self.store = Store(self.loop, rng, self.swarm, self.history)
        self.stage = Stage(
            loop=self.loop,
            rng=rng,
            swarm=self.swarm,
            history=self.history,
            store=self.store,
            facts=Facts(self.loop, self.store, self.history, of_records=False),
            switches=switches,
        )
        self.visibility_ms = rng.choice((150, 400, 800))
        self.sloppiness = rng.choice((0.0, 0.1, 0.4)) if not focus else 0.3
        rules = ShareRules(
            max_attempts=rng.choice((2, 3, 5)), key_ordered=rng.random() < 0.4 or "keys" in focus
        )
        self.facts = SharedFacts(self.loop, self.history, rules.max_attempts, rules.key_ordered)
        self.table = Table(rules=rules, facts=self.facts)
        for shard in range(rng.choice((1, 1, 2, 3))):
            self.table.shards.append(Shard(id=ShardId(shard), begin=0, end=1))
            self.table.keys.append([])
        self._switches = switches
        self._born = 0
        self._appended = 0
        self._servers: list[SharedHub] = []
        self.workers: list[SharedWorker] = []
        self.history.say("world", f"seed {seed}: {self.swarm}, {rules}, visibility {self.visibility_ms} ms")

    def run(self) -> Outcome:
        """The whole history of this seed."""
        violation = None
        try:
            for _ in range(self.swarm.servers):
                self._serve()
            for _ in range(max(2, self.swarm.consumers)):
                self._start()
            self.loop.after(0, self._append)
            self.loop.after(self._pace(), self._break)
            self.loop.run_until(SAFETY_MS * MS)
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

    def _demand(self) -> None:
        until = self.loop.now + LIVENESS_MS * MS
        while left := self.facts.left(set(range(len(self.table.shards)))):
            if self.loop.now > until:
                raise Violation("6", f"{len(left)} records are not settled, the first is {left[0]}")
            self.loop.run_until(self.loop.now + 100 * MS)
        for shard in self.table.shards:
            row = self.table.rows.get(shard.id)
            if row is not None and row.unsettled(shard):
                raise Violation("6", f"shard {shard.id} says that {row.unsettled(shard)} are left")

    # --- Who is there. ---

    def _process(self, kind: str) -> Process:
        self._born += 1
        return self.stage.process(f"{kind}-{self._born}")

    def _serve(self) -> None:
        self._servers.append(SharedHub(self._process("server"), self.store, self.table, self._switches))

    def _start(self) -> None:
        process = self._process("consumer")
        own = SharedHub(process, self.store, self.table, self._switches)
        is_own = not self._servers or self.rng.random() < self.swarm.embedded
        # The network only ever asks a hub for its process.
        servers = cast("list[Hub]", self._servers)
        network = Network(self.stage, process, cast("Hub", own) if is_own else None, servers)
        worker = SharedWorker(
            process,
            lambda call: network.call(cast("Call[object]", call)),
            self.rng,
            self.history,
            visibility_ms=self.visibility_ms,
            sloppiness=self.sloppiness,
        )
        self.workers.append(worker)
        process.spawn(worker.run())

    # --- What happens. ---

    def _append(self) -> None:
        for _ in range(self.rng.randrange(1, 8)):
            open_ones = [shard.id for shard in self.table.shards if shard.is_open]
            self.table.append(self.rng.choice(open_ones), self.rng.randrange(KEYS))
            self._appended += 1
        if self._appended < RECORDS_MAX and not self.stage.is_healed:
            self.loop.after(self.rng.randrange(10, 150) * MS, self._append)

    def _pace(self) -> int:
        return self.rng.randrange(20, self.swarm.pace_ms) * MS

    def _break(self) -> None:
        if self.stage.is_healed:
            return
        acts = [act for act in self.swarm.acts if act in _ACTS] or ["crash"]
        act = self.rng.choice(acts)
        self.history.fault(act)
        getattr(self, _ACTS[act])()
        self.loop.after(self._pace(), self._break)

    def _crash(self) -> None:
        worker = self.workers.pop(self.rng.randrange(len(self.workers)))
        worker.process.crash()
        self._start()

    def _newcomer(self) -> None:
        if len(self.workers) < 5:
            self._start()

    def _pause(self) -> None:
        self._victim().freeze(self.rng.randrange(50, 1200) * MS, is_suspended=False)

    def _suspend(self) -> None:
        self._victim().freeze(self.rng.randrange(50, 1200) * MS, is_suspended=True)

    def _cut(self) -> None:
        self._victim().cut_until = self.loop.now + self.rng.randrange(50, 900) * MS

    def _unanswered(self) -> None:
        self._victim().unanswered_until = self.loop.now + self.rng.randrange(50, 600) * MS

    def _outage(self) -> None:
        self.store.outage(self.rng.randrange(50, 700) * MS)

    def _split(self) -> None:
        open_ones = [shard.id for shard in self.table.shards if shard.is_open]
        if len(self.table.shards) < 9:
            self.table.split(self.rng.choice(open_ones))

    def _retention(self) -> None:
        shard = self.rng.choice(self.table.shards)
        self.table.trim(shard.id, self.rng.randrange(shard.first_offset, shard.next_offset + 1))

    def _crash_server(self) -> None:
        if self._servers:
            self._servers.pop(self.rng.randrange(len(self._servers))).process.crash()
            self._serve()

    def _victim(self) -> Process:
        hubs = [hub.process for hub in self._servers]
        return self.rng.choice([worker.process for worker in self.workers] + hubs)

    def _heal(self) -> None:
        self.stage.is_healed = self.store.is_healed = True
        self.store.out_until = 0
        for process in [hub.process for hub in self._servers] + [worker.process for worker in self.workers]:
            process.cut_until = process.unanswered_until = 0
            process.thaw()
        for worker in self.workers:
            worker.mend()


_ACTS: Final = {
    "crash": "_crash",
    "newcomer": "_newcomer",
    "pause": "_pause",
    "suspend": "_suspend",
    "cut": "_cut",
    "unanswered commits": "_unanswered",
    "outage": "_outage",
    "split": "_split",
    "retention": "_retention",
    "server crash": "_crash_server",
}
"""What of the swarm's acts there is in these worlds."""
