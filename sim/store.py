"""The simulated store: rows, transactions that take time, a lock, outages, and a memory that may fail.

A transaction has a beginning, a commit and an answer, with time between them; each may fail, and an answer
may be lost after the commit. What a transaction does to the rows is one function, run at the instant of the
commit. This room knows nothing of groups but that they are rows; what to write is others' to say.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, TypeVar

from shoal.core.errors import StoreUnavailable
from sim.history import History
from sim.loop import MS, Future, Loop, Process, Steps
from sim.rows import Rows
from sim.stream import Stream
from sim.swarm import Swarm

T = TypeVar("T")

SNAPSHOTS_KEPT: Final = 12
IDLE_IN_TRANSACTION_US: Final = 400 * MS
"""Whoever holds the lock for longer is rolled back: a frozen process must not stop the others for ever."""


class Store:
    """One database. `stream` and `group` are what the names stand for at this moment."""

    def __init__(self, loop: Loop, rng: Random, swarm: Swarm, history: History) -> None:
        self._loop, self._rng, self._swarm, self._history = loop, rng, swarm, history
        self.stream: Stream | None = None
        self.group: Rows | None = None
        self.sequence = 0
        """The highest epoch ever given: a recreated group goes on from here."""
        self.ids = 0
        self.failovers = 0
        """Every connection from before is broken, and who had one open learns it at the next use."""
        self.out_until = 0
        self.outages: list[tuple[int, int]] = []
        """Windows in which nobody could reach the store, or nobody ran: for the checkers."""
        self.is_healed = False
        self._lock: object | None = None
        self._waiting: list[Future] = []
        self._snapshots: list[Rows] = []
        self._is_forgetful = "forget" in swarm.acts
        self.on_written: Callable[[], None] = lambda: None

    def next_id(self) -> int:
        self.ids += 1
        return self.ids

    def outage(self, for_us: int) -> None:
        """Nobody reaches the store for so long."""
        self.out_until = max(self.out_until, self._loop.now + for_us)
        self.outages.append((self._loop.now, self._loop.now + for_us))

    def read(self, process: Process, body: Callable[[], T]) -> Steps[T]:
        """A read transaction: what it sees is as of one instant between question and answer."""
        yield self._on_the_way()
        self._refuse_if_out(process)
        value = body()
        yield self._on_the_way()
        self._refuse_if_cut(process)
        return value

    def write(self, process: Process, body: Callable[[], T]) -> Steps[T]:
        """A write transaction: begin, commit, answer. An exception of the body rolls back."""
        rng, habit = self._rng, self._swarm.habit
        yield self._on_the_way()
        self._refuse_if_out(process)
        while self._lock is not None:
            turn = Future(self._loop)
            self._waiting.append(turn)
            yield turn
            self._refuse_if_out(process)
        if not self.is_healed and habit("lock") and rng.random() < habit("lock"):
            yield from self._hold(process)
        if not self.is_healed and habit("fail") and rng.random() < habit("fail"):
            self._history.fault("store fails", process.name)
            raise StoreUnavailable("it failed before the commit")
        value = body()
        self._keep_snapshot()
        self.on_written()
        # The commit is done whatever becomes of the process; its answer is on the wire or in its hands.
        yield self._on_the_way()
        self._refuse_if_cut(process)
        if self._loop.now < process.unanswered_until:
            raise StoreUnavailable("the commit was not answered")
        if not self.is_healed and habit("lose answer") and rng.random() < habit("lose answer"):
            self._history.fault("answer lost after the commit", process.name)
            raise StoreUnavailable("the answer was lost")
        return value

    def forget(self) -> bool:
        """The last commits to the group are gone, as after a fail-over to a copy that lagged."""
        rows = self.group
        if rows is None or not self._snapshots or self._snapshots[0].id != rows.id:
            return False
        old = self._snapshots[0]
        if old.mark == rows.mark:
            return False
        rows.restore(old)
        self.sequence = old.highest
        self.failovers += 1
        self._snapshots = [old]
        return True

    def land(self, body: Callable[[], object], after_us: int) -> None:
        """A write that nobody waits for any more commits after all, unless its connection is lost by then."""
        failovers = self.failovers

        def commit() -> None:
            if self.failovers == failovers and self._loop.now >= self.out_until:
                body()
                self._keep_snapshot()

        self._loop.after(after_us, commit)

    def _hold(self, process: Process) -> Steps[None]:
        """The lock is held for a while; the process may freeze while it has it, or be rolled back."""
        self._lock = mine = object()
        since = self._loop.now
        try:
            if self._rng.random() < 0.3:
                self._history.fault("freeze holding the lock", process.name)
                process.freeze(self._rng.randrange(100, 900) * MS, is_suspended=self._rng.random() < 0.5)
                self._loop.after(IDLE_IN_TRANSACTION_US, lambda: self._unlock(mine))
            yield self._rng.randrange(1, 30) * MS
            if self._loop.now - since > IDLE_IN_TRANSACTION_US:
                raise StoreUnavailable("idle in transaction for too long")
        finally:
            self._unlock(mine)

    def _unlock(self, mine: object) -> None:
        if self._lock is not mine:
            return
        self._lock = None
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            turn.resolve()

    def _on_the_way(self) -> int:
        rng = self._rng
        delay = rng.randrange(50, self._swarm.latency_us)
        slow = 0.0 if self.is_healed else self._swarm.habit("slow store")
        if slow and rng.random() < slow:
            delay += rng.randrange(20, 400) * MS
        # Half of the time the database works on its own, half of it the process does.
        return delay if rng.random() < 0.5 else -delay

    def _refuse_if_out(self, process: Process) -> None:
        if self._loop.now < self.out_until:
            raise StoreUnavailable("out of order")
        self._refuse_if_cut(process)

    def _refuse_if_cut(self, process: Process) -> None:
        if self._loop.now < process.cut_until:
            raise StoreUnavailable("cut off")

    def _keep_snapshot(self) -> None:
        if self._is_forgetful and self.group is not None:
            self._snapshots.append(self.group.copied())
            del self._snapshots[:-SNAPSHOTS_KEPT]
