"""Helpers of a sender: threads that make a call each while it goes on. Few, made when first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Helpers:
    """As many threads as calls were ever made at once. Used by one thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    def start(self, job: Callable[[], None]) -> None:
        """Have it done by one who is idle. It must not raise."""
        if not self._idle.acquire(blocking=False):
            thread = threading.Thread(
                target=self._run, name=f"{self._name}-{len(self._threads) + 1}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        self._jobs.put(job)

    def close(self) -> None:
        """They end when they have done what they were given."""
        for _ in self._threads:
            self._jobs.put(None)

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            job()
            self._idle.release()
