"""The next batch of one who reads a shard from end to end, fetched while the last one is being looked at.

Only for reads without a fence, and only once two have followed one another: workers fetch ahead by
themselves. What was fetched is used at once or not at all: a reader who comes back later asks anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from shoal.core.errors import ShoalError
from shoal.core.model import StreamName
from shoal.core.reading import ReadLimits
from shoal.forks import renew_in_child
from shoal.wire.batch import Batch

_FRESH_S: Final = 1.0
_READERS: Final = 8
"""Readers that are followed at once; each may have one batch waiting for it."""


class Wanted(NamedTuple):
    """One read."""

    name: StreamName
    shard: int
    offset: int
    limits: ReadLimits


class _Fetch:
    """One that is under way, or done. Written by its thread before `done`, read after."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.batch: Batch | None = None
        self.ended_s = 0.0


class ReadAhead:
    """Writer and reader of the fields: any thread, under `_lock`. A forked child begins anew."""

    def __init__(self, read: Callable[[Wanted], Batch]) -> None:
        self._read = read
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._lock = threading.Lock()
        self._expected: dict[Wanted, bool] = {}
        """Reads that would follow one that was made."""
        self._fetches: dict[Wanted, _Fetch] = {}

    def read(self, wanted: Wanted) -> Batch:
        """What was fetched ahead, or what the hub says now; and the next one is fetched, if it is likely."""
        with self._lock:
            has_followed = self._expected.pop(wanted, None) is not None
            fetch = self._fetches.pop(wanted, None)
        batch = None
        if fetch is not None:
            fetch.done.wait()
            batch = fetch.batch if time.monotonic() - fetch.ended_s < _FRESH_S else None
        if batch is None:
            batch = self._read(wanted)
        if len(batch) and batch.next_offset < batch.tail:
            self._prepare(wanted._replace(offset=batch.next_offset), is_likely=has_followed)
        return batch

    def forget(self) -> None:
        """Streams may be others now."""
        with self._lock:
            self._expected.clear()
            self._fetches.clear()

    def _prepare(self, following: Wanted, *, is_likely: bool) -> None:
        with self._lock:
            for kept in (self._expected, self._fetches):
                while len(kept) >= _READERS:
                    kept.pop(next(iter(kept)))
            self._expected[following] = is_likely
            if not is_likely:
                return
            fetch = self._fetches[following] = _Fetch()
        threading.Thread(
            target=self._fetch, args=(following, fetch), name="shoal-read-ahead", daemon=True
        ).start()

    def _fetch(self, wanted: Wanted, fetch: _Fetch) -> None:
        try:
            with suppress(ShoalError):  # Who comes for it asks again, and is told.
                fetch.batch = self._read(wanted)
        finally:
            fetch.ended_s = time.monotonic()
            fetch.done.set()
