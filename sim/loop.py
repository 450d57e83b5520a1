"""Virtual time: one heap of what is due, processes that freeze and die, and clocks that disagree.

Everything that runs is a generator owned by a process. It yields how long it sleeps, in microseconds: a
positive number sleeps in the process, which may freeze or die meanwhile; a negative one is time on the
wire, where a message goes on whatever becomes of its sender. It yields a `Future` to wait for an answer.

Invariant: the order of events depends on the seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import heappop, heappush
from typing import Final, TypeAlias, TypeVar

T = TypeVar("T")

MS: Final = 1000
"""Times of the loop are in microseconds, those of the rules in milliseconds."""


class Loop:
    """The one thread of the world."""

    def __init__(self) -> None:
        self.now = 0
        self.events = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0

    def after(self, delay_us: int, act: Callable[[], None]) -> None:
        """Do this later. What is due at the same time is done in the order in which it was asked for."""
        self._order += 1
        heappush(self._heap, (self.now + delay_us, self._order, act))

    def run_until(self, until_us: int) -> None:
        """Let time pass up to this instant."""
        heap = self._heap
        while heap and heap[0][0] <= until_us:
            self.now, _, act = heappop(heap)
            self.events += 1
            act()
        self.now = until_us


class Future:
    """Something to wait for. The first result counts."""

    __slots__ = ("_loop", "is_set", "result", "waiting")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.is_set = False
        self.result: object = None
        self.waiting: list[Task] = []

    def resolve(self, result: object = None) -> None:
        if self.is_set:
            return
        self.is_set, self.result = True, result
        for task in self.waiting:
            self._loop.after(0, task.resume)
        self.waiting.clear()


Steps: TypeAlias = Generator["int | Future", None, T]
"""Something that takes virtual time and answers with a T."""


class Task:
    """A generator on its way through time."""

    __slots__ = ("_is_on_wire", "_loop", "_process", "_steps")

    def __init__(self, process: Process, steps: Steps[None]) -> None:
        self._process, self._steps, self._loop = process, steps, process.loop
        self._is_on_wire = False

    def resume(self) -> None:
        if not self._is_on_wire:
            if not self._process.is_up:
                self._steps.close()
                return
            if self._process.is_frozen:
                self._process.stalled.append(self)
                return
        try:
            wait = next(self._steps)
        except StopIteration:
            return
        if isinstance(wait, int):
            self._is_on_wire = wait < 0
            self._loop.after(abs(wait), self.resume)
            return
        self._is_on_wire = False
        if wait.is_set:
            self._loop.after(0, self.resume)
        else:
            wait.waiting.append(self)


class Process:
    """One life of one process, with its two clocks. A restart is another process.

    Both clocks have a rate of their own, in millionths. A pause (a garbage collection, SIGSTOP) lets both
    go on; a suspend (a laptop's lid, a frozen virtual machine) stops the clock for watches.
    """

    def __init__(self, loop: Loop, name: str, *, boot_rate: int, watch_rate: int, started_at: int) -> None:
        self.loop, self.name = loop, name
        self.is_up = True
        self.is_frozen = False
        self.cut_until = 0
        """Until then nothing that it sends arrives anywhere."""
        self.unanswered_until = 0
        """Until then what it commits is in, and it does not learn of it."""
        self.stalled: list[Task] = []
        self._boot_rate, self._watch_rate = boot_rate, watch_rate
        self._zero = loop.now - started_at
        self._suspended = 0
        self._suspended_at: int | None = None
        self._freezes = 0

    @property
    def runs(self) -> bool:
        return self.is_up and not self.is_frozen

    def boot_us(self) -> int:
        """The clock that goes on in suspend: for deadlines."""
        return (self.loop.now - self._zero) * self._boot_rate // 1_000_000

    def boot_ms(self) -> int:
        return self.boot_us() // MS

    def sleep_us(self, watch_us: int) -> int:
        """How long to sleep so that the clock for watches goes on by so much."""
        return watch_us * 1_000_000 // self._watch_rate + 1

    def watch_us(self) -> int:
        """The clock that stops in suspend: for watches."""
        now = self.loop.now
        if self.is_frozen and self._suspended_at is not None:
            now = self._suspended_at  # What is at work in the same instant, or holds a lock, sees it stand.
        return (now - self._zero - self._suspended) * self._watch_rate // 1_000_000

    def spawn(self, steps: Steps[None]) -> None:
        """Run this in the process, from now on."""
        self.loop.after(0, Task(self, steps).resume)

    def crash(self) -> None:
        """Nothing of it runs any more. What is on the wire is no longer in its hands."""
        self.is_up = False
        stalled, self.stalled = self.stalled, []
        for task in stalled:
            task.resume()  # It finds its process dead, and lets go of what it had.

    def freeze(self, for_us: int, *, is_suspended: bool) -> None:
        """Nothing of it runs for so long. A second freeze on top of the first is part of it."""
        if self.is_frozen or not self.is_up:
            return
        self.is_frozen = True
        self._freezes += 1
        self._suspended_at = self.loop.now if is_suspended else None
        number = self._freezes

        def thaw() -> None:
            if number == self._freezes:
                self.thaw()

        self.loop.after(for_us, thaw)

    def thaw(self) -> None:
        """It runs again, and goes on where it stood."""
        if not self.is_frozen:
            return
        self.is_frozen = False
        if self._suspended_at is not None:
            self._suspended += self.loop.now - self._suspended_at
        stalled, self.stalled = self.stalled, []
        for task in stalled:
            self.loop.after(0, task.resume)
