"""The next batches of one who reads a shard from end to end, fetched while the last one is being looked at.

Only for reads without a fence, and only once two have followed one another, or one was large: workers fetch
ahead by themselves. What was fetched is used at once or not at all: a reader who comes back later asks anew.
Where a shard ends is asked anew by who comes to it: that was true when the batch was fetched.

Two are under way at a time. Where the second begins is known when the first begins to come, so the server
reads and sends it while the first is received and unpacked here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from shoal.core.errors import ShoalError
from shoal.core.model import StreamName
from shoal.core.reading import ReadLimits
from shoal.forks import renew_in_child
from shoal.wire.batch import Batch

_FRESH_S: Final = 1.0
_LINGER_S: Final = 1.0
_READERS: Final = 8
"""Readers that are followed at once."""
_AHEAD: Final = 2
"""Batches that may wait for each of them."""
_LARGE: Final = 1_000_000
"""Who reads so many bytes at once reads on."""


class Wanted(NamedTuple):
    """One read."""

    name: StreamName
    shard: int
    offset: int
    limits: ReadLimits


Came = Callable[[int | None, int], None]
"""Told when an answer comes, before it is unpacked: where the next one begins, if there is more; and its
bytes."""


class _Fetch:
    """One that is under way, or done. `batch` and `ended_s` are written by its thread before `done`, and read
    after; the rest under the lock."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.following: Wanted | None = None
        self.is_ahead = True
        """Nobody has asked for it yet."""
        self.ahead = 0
        """How many after it may be fetched."""
        self.done = threading.Event()
        self.batch: Batch | None = None
        self.ended_s = 0.0


class ReadAhead:
    """Writer and reader of the fields: any thread, under `_lock`. A forked child begins anew."""

    def __init__(
        self, read: Callable[[Wanted, Came], Batch], renewed: Callable[[Wanted, Batch], Batch]
    ) -> None:
        """`renewed` gives the last batch of a shard, which was fetched ahead, as it would be read now: its
        reader may take it for the end, and what was appended before it came for the batch is not to be
        missed."""
        self._read, self._renewed = read, renewed
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._lock = threading.Lock()
        self._expected: dict[Wanted, None] = {}
        """Reads that would follow one that was made."""
        self._fetches: dict[Wanted, _Fetch] = {}
        self._due: deque[_Fetch] = deque()
        """Those that no thread has taken yet."""
        self._has_come = threading.Condition(self._lock)
        self._idle = 0
        """Threads that wait for one."""

    def read(self, wanted: Wanted) -> Batch:
        """What was fetched ahead, or what the hub says now; and what follows is fetched, if that is likely to
        be asked for."""
        with self._lock:
            has_followed = wanted in self._expected
            self._expected.pop(wanted, None)
            fetched = self._fetches.pop(wanted, None)
            fetch = fetched or _Fetch(wanted)
            fetch.is_ahead = False
            fetch.ahead = _AHEAD if has_followed else 0
            self._go_on(fetch)
        batch = None
        if fetched is not None:
            fetched.done.wait()
            batch = fetched.batch if time.monotonic() - fetched.ended_s < _FRESH_S else None
            if batch is not None and fetched.following is None:
                batch = self._renewed(wanted, batch)
        if batch is None:
            batch = self._read(wanted, partial(self._came, fetch))
        with self._lock:
            if fetch.following is not None:
                _bound(self._expected, _READERS)
                self._expected[fetch.following] = None
        return batch

    def forget(self) -> None:
        """Streams may be others now, or their records gone."""
        with self._lock:
            self._expected.clear()
            self._fetches.clear()

    def _came(self, fetch: _Fetch, offset: int | None, size: int) -> None:
        with self._lock:
            if size >= _LARGE and not fetch.is_ahead:
                fetch.ahead = max(fetch.ahead, 1)
            fetch.following = None if offset is None else fetch.wanted._replace(offset=offset)
            self._go_on(fetch)

    def _go_on(self, fetch: _Fetch) -> None:
        """Under the lock: fetch what follows, if it is known and may be."""
        if fetch.following is None or not fetch.ahead:
            return
        after = self._fetches.get(fetch.following)
        if after is None:
            _bound(self._fetches, _READERS * _AHEAD)
            after = _Fetch(fetch.following)
            if self._idle > len(self._due):
                self._has_come.notify()
            elif not self._start():
                return  # Who comes for it asks for it.
            self._due.append(after)
            self._fetches[fetch.following] = after
        after.ahead = max(after.ahead, fetch.ahead - 1)
        self._go_on(after)

    def _start(self) -> bool:
        """One more thread; False: there is none to be had, or the program ends."""
        try:
            threading.Thread(target=self._run, name="shoal-read-ahead", daemon=True).start()
        except RuntimeError:
            return False
        return True

    def _run(self) -> None:
        """A thread, which stays for a moment after what it has fetched: the next one is likely to come."""
        while True:
            with self._lock:
                self._idle += 1
                self._has_come.wait_for(lambda: self._due, _LINGER_S)
                self._idle -= 1
                if not self._due:
                    return self._drop_old()
                fetch = self._due.popleft()
            self._fetch(fetch)

    def _drop_old(self) -> None:
        """Under the lock: batches that nobody came for would be held as long as the hub is."""
        old_s = time.monotonic() - _FRESH_S
        for wanted, fetch in list(self._fetches.items()):
            if fetch.done.is_set() and fetch.ended_s <= old_s:
                del self._fetches[wanted]

    def _fetch(self, fetch: _Fetch) -> None:
        try:
            with suppress(ShoalError):  # Who comes for it asks again, and is told.
                fetch.batch = self._read(fetch.wanted, partial(self._came, fetch))
        finally:
            fetch.ended_s = time.monotonic()
            fetch.done.set()


def _bound(kept: dict[Wanted, Any], most: int) -> None:
    """Make room for one more: the oldest go."""
    while len(kept) >= most:
        kept.pop(next(iter(kept)))
