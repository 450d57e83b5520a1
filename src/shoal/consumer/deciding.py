"""Decisions one at a time, by whichever thread has news: the work that follows need not wait to be handed on.

A thread that finished a job brings the news, decides if nobody else does, and goes on with the first job that
follows; a read, the call of user code and what comes of it then take one thread and no hand-over between
them, each of which costs as much as the read. A thread of its own decides when something is due by the clock.

Invariant: news that has been brought is decided on by who brought it, or by who was deciding at that moment.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from shoal.consumer.threads import Threads

Event = Callable[[], None]
"""Something that happened, to be taken note of."""
Job = Callable[[], Event]
"""Work for a thread of the pool; it returns what came of it."""
Decide = Callable[[], tuple[Sequence[Job], float]]
"""After the news: the jobs that follow, and for how many seconds nothing is due; none: it is over."""


class Deciding:
    """Writer of the news: any thread. Those who decide take turns under `_role`."""

    def __init__(self, pool: Threads, decide: Decide) -> None:
        self._pool, self._decide = pool, decide
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._role = threading.Lock()
        self._is_called = False
        """A thread of the pool is on its way to look at the news."""
        self._changed = threading.Condition()
        self._is_woken = False
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

    def begin(self, job: Job) -> None:
        """Have it done in the pool."""
        self._pool.submit(self._work, job)

    def bring(self, event: Event) -> None:
        """From a thread that is not the pool's: decide here, if nobody does, and have the rest done there."""
        self._events.put(event)
        self._look(keeps=False)

    def take_turn(self) -> None:
        """The thread by the clock: look at all news, and at what is due."""
        with self._role:
            self._turn(keeps=False)
        self._look(keeps=False)

    def sleep(self) -> None:
        """The thread by the clock: until something is due, or news comes that is its own to see to."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_woken, max(0.0, self._due_s - time.monotonic()))
            self._is_woken = False

    def _wake(self) -> None:
        with self._changed:
            self._is_woken = True
            self._changed.notify()

    def _answer(self) -> None:
        self._is_called = False  # Before the look: whoever comes later calls again.
        self._go_on(self._look(keeps=True))

    def _work(self, job: Job) -> None:
        self._go_on(job)

    def _go_on(self, job: Job | None) -> None:
        """In a thread of the pool: the job, and then what follows, for as long as something does."""
        while job is not None:
            self._events.put(job())
            job = self._look(keeps=True)

    def _look(self, *, keeps: bool) -> Job | None:
        """Decide on the news, if nobody does; `keeps`: the first job that follows is this thread's own."""
        kept = None
        while not self._events.empty():
            if not self._role.acquire(blocking=False):
                break  # Who decides looks again after it has given the role back.
            try:
                mine = self._turn(keeps=keeps and kept is None)
            finally:
                self._role.release()
            kept = kept or mine
        return kept

    def _turn(self, *, keeps: bool) -> Job | None:
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                break
            event()
        jobs, rest_s = self._decide()
        due_s = time.monotonic() + rest_s
        if due_s < self._due_s:
            self._wake()
        self._due_s = due_s
        kept = jobs[0] if keeps and jobs else None
        for job in jobs[1:] if keeps else jobs:
            self.begin(job)
        return kept
