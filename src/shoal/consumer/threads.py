"""Threads that run what they are given: as many as are needed at once, up to a bound.

They do not keep the process alive, and take work until the very end: the standard pool refuses it as soon as
the main thread has ended, when shards are still to be handed over, and waits for user code without a bound.

Invariant: work waits only if all threads are busy and there are as many as allowed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial


class Threads:
    """Writer of the fields: any thread, under `_changed`."""

    def __init__(self, name: str, most: int, failed: Callable[[BaseException], None]) -> None:
        """`failed` is told what escapes from work; nothing that is ours should."""
        self._name, self._most, self._failed = name, most, failed
        self._changed = threading.Condition()
        self._work: deque[Callable[[], object]] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._is_closed = False

    def submit(self, work: Callable[..., object], /, *arguments: object) -> None:
        """Run it in a thread, soon."""
        with self._changed:
            self._work.append(partial(work, *arguments))
            if len(self._work) > self._idle and len(self._threads) < self._most:
                thread = threading.Thread(
                    target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
            else:
                self._changed.notify()

    def close(self) -> None:
        """What was given is still done; then the threads end. Nobody waits for them."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def join(self) -> None:
        """Close, and wait until all is done."""
        self.close()
        for thread in list(self._threads):
            thread.join()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - a thread's top: the worker ends with it
                self._failed(error)
            del work  # It may hold records; the wait for the next may be long.

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            self._idle += 1
            try:
                while not self._work:
                    if self._is_closed:
                        return None
                    self._changed.wait()
                return self._work.popleft()
            finally:
                self._idle -= 1
