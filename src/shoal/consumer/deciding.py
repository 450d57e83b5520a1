"""Decisions one at a time, by whichever thread has news: the work that follows need not wait to be handed on.

A thread that finished a job brings the news, decides if nobody else does, and goes on with the jobs that
follow; a read, the call of user code and what comes of it then take one thread and no hand-over between
them, each of which costs as much as the read. Only a job that has waited for a moment, because those before
it take their time, gets a thread of its own. A thread by the clock sees to that, and decides when something
is due.

Invariants: news that has been brought is decided on by who brought it, or by who was deciding at that moment;
a job that waits has a thread that will come to it, or one is called in within moments.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from shoal.consumer.threads import Threads

Event = Callable[[], None]
"""Something that happened, to be taken note of."""
Job = Callable[[], Event]
"""Work for a thread of the pool; it returns what came of it."""
Decide = Callable[[bool], tuple[Sequence[Job], float | None]]
"""After the news: the jobs that follow, and for how many seconds nothing is due; None: as before.

It is told whether the clock has it decide, and so everything is to be looked at.
"""


class Deciding:
    """Writer of the news: any thread. Those who decide take turns under `_role`."""

    def __init__(self, pool: Threads, decide: Decide) -> None:
        self._pool, self._decide = pool, decide
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._role = threading.Lock()
        self._is_called = False
        """A thread of the pool is on its way to look at the news."""
        self._ready: deque[tuple[float, Job]] = deque()
        """Jobs that wait, and since when."""
        self._changed = threading.Condition()
        self._is_woken = False
        self._is_busy = False
        """Jobs were begun since the thread by the clock last looked."""
        self._is_watching = False
        """The thread by the clock looks in a moment who waits."""
        self._due_s = 0.0
        """When the thread by the clock wakes up by itself."""

    def post(self, event: Event) -> None:
        """From any thread: the thread by the clock sees to it."""
        self._events.put(event)
        self._wake()

    def call(self, event: Event) -> None:
        """From a thread that must not wait, and very often: a thread of the pool sees to it."""
        self._events.put(event)
        if not self._is_called:
            self._is_called = True
            self._pool.submit(self._answer)

    def bring(self, event: Event) -> None:
        """From a thread that is not the pool's: decide here, if nobody does, and have the rest done there."""
        self._events.put(event)
        self._look()
        self._call_in(len(self._ready))

    def take_turn(self) -> None:
        """The thread by the clock: look at all news, and at what is due."""
        with self._role:
            self._turn(is_due=True)
        self._look()
        self._call_in(len(self._ready))

    def sleep(self) -> None:
        """The thread by the clock: until something is due, or news comes that is its own to see to."""
        while not self._rest():
            late = time.monotonic() - _MOMENT_S
            self._call_in(sum(since < late for since, _ in list(self._ready)))

    def _rest(self) -> bool:
        """Whether it is time for a turn; while there is much to do, it is looked at who waits."""
        with self._changed:
            left_s = max(0.0, self._due_s - time.monotonic())
            self._is_watching = self._is_busy or bool(self._ready)
            self._is_busy = False
            pause_s = min(left_s, _MOMENT_S) if self._is_watching else left_s
            self._changed.wait_for(
                lambda: self._is_woken or (self._is_busy and not self._is_watching), pause_s
            )
            is_woken, self._is_woken = self._is_woken, False
        return is_woken or time.monotonic() >= self._due_s

    def _call_in(self, threads: int) -> None:
        for _ in range(threads):
            self._pool.submit(self._work)

    def _have_watched(self) -> None:
        """There are jobs behind the one that begins."""
        with self._changed:
            self._is_busy = True  # Once more: it may have been taken back between our saying so and now.
            self._changed.notify()

    def _wake(self) -> None:
        with self._changed:
            self._is_woken = True
            self._changed.notify()

    def _answer(self) -> None:
        self._is_called = False  # Before the look: whoever comes later calls again.
        self._look()
        self._work()

    def _work(self) -> None:
        """In a thread of the pool: a job, and then what follows, for as long as something does."""
        while self._ready:
            try:
                _, job = self._ready.popleft()
            except IndexError:  # Another was faster.
                return
            self._is_busy = True
            if self._ready and not self._is_watching:
                self._have_watched()
            self._events.put(job())
            del job  # It may hold records.
            self._look()

    def _look(self) -> None:
        """Decide on the news, if nobody does."""
        while not self._events.empty():
            if not self._role.acquire(blocking=False):
                return  # Who decides looks again after it has given the role back.
            try:
                self._turn(is_due=False)
            finally:
                self._role.release()

    def _turn(self, *, is_due: bool) -> None:
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                break
            event()
        jobs, rest_s = self._decide(is_due)
        now_s = time.monotonic()
        # What follows comes first: a record that is here already is not to wait for others to be fetched.
        self._ready.extendleft((now_s, job) for job in reversed(jobs))
        if rest_s is not None:
            if now_s + rest_s < self._due_s:
                self._wake()
            self._due_s = now_s + rest_s if is_due else min(self._due_s, now_s + rest_s)


_MOMENT_S: Final = 0.002
"""How long a job may wait for the thread that goes on with it, before it gets one of its own."""
