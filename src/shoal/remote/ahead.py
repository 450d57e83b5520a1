"""The next batches of one who reads a shard from end to end, fetched while the last one is being looked at.

Only for reads without a fence, and only once two have followed one another, or one was large: workers fetch
ahead by themselves. What was fetched is used at once or not at all: a reader who comes back later asks anew.
Where a shard ends is asked anew by who comes to it: that was true when the batch was fetched.

Two requests are under way at a time, each for a few reads if they are made quickly: what a request costs,
they share. Where the second begins is known when the answer to the first begins to come, so the server reads
and sends the one while the other is received and unpacked here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
_QUICK_S: Final = 0.05
"""Who reads on so soon, the wait for the last batch included, is not kept waiting by what comes with the next
one, nor finds that it is old."""
_TOGETHER: Final = 4
"""Reads that one request asks for, then. The next request is made when the first of them is taken."""
_HELD: Final = 4 * _READERS
"""Batches that may wait for all of them. Where there is no room, nothing is fetched ahead, and nobody loses
what he comes for next."""
_LARGE: Final = 1_000_000
"""Who reads so many bytes at once reads on."""


class Wanted(NamedTuple):
    """One read."""

    name: StreamName
    shard: int
    offset: int
    limits: ReadLimits


class Coming(NamedTuple):
    """What an answer will hold, before it has come."""

    within: Sequence[int]
    """Where the reads begin that follow the first one in it."""
    following: int | None
    """Where the read begins that is not in it; None: there is no more."""
    size: int
    """Bytes of the first."""


Came = Callable[[Coming], None]
"""Told when an answer comes, before it is unpacked; again, if it had to be asked for again."""
Read = Callable[[Wanted, Came, int], Iterator[Batch]]
"""Makes a read, and up to so many more that follow it."""


class _Fetch:
    """One that is under way, or done. `batch` and `ended_s` are written by its thread before `done`, and read
    after; the rest under the lock."""

    def __init__(self, wanted: Wanted, age: int) -> None:
        self.wanted, self.age = wanted, age
        self.following: Wanted | None = None
        self.is_ahead = True
        """Nobody has asked for it yet."""
        self.ahead = 0
        """How many after it may be fetched."""
        self.pace = 1
        """How many a request of its reader asks for, if there is room."""
        self.asked = 0
        """How many its own asks for, until it is known what comes with it."""
        self.rest: dict[int, _Fetch] = {}
        """Those that come with it, by their offsets."""
        self.done = threading.Event()
        self.batch: Batch | None = None
        self.ended_s = 0.0

    def end(self) -> None:
        if not self.done.is_set():
            self.ended_s = time.monotonic()
            self.done.set()


class ReadAhead:
    """Writer and reader of the fields: any thread, under `_lock`. A forked child begins anew."""

    def __init__(
        self,
        read: Read,
        renewed: Callable[[Wanted, Batch], Batch],
        rested: Callable[[], object] = lambda: None,
    ) -> None:
        """`renewed` gives a batch that was fetched ahead as it would be read now, if it was the last of its
        shard then: its reader may take it for the end, and what was appended before it came for the batch is
        not to be missed. `rested` is called when nothing was fetched for a moment."""
        self._read, self._renewed, self._rested = read, renewed, rested
        self._quick_s = _QUICK_S
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._lock = threading.Lock()
        self._expected: dict[Wanted, float] = {}
        """Reads that would follow one that was made, and when that was begun."""
        self._quick: dict[StreamName, float] = {}
        """Streams that were read on quickly, and when."""
        self._fetches: dict[Wanted, _Fetch] = {}
        self._age = 0
        """How often all was forgotten: what was asked for before is of no use."""
        self._due: deque[_Fetch] = deque()
        """Those that no thread has taken yet."""
        self._has_come = threading.Condition(self._lock)
        self._idle = 0
        """Threads that wait for one."""

    def read(self, wanted: Wanted) -> Batch:
        """What was fetched ahead, or what the hub says now; and what follows is fetched, if that is likely to
        be asked for."""
        with self._lock:
            began_s = time.monotonic()
            made_s = self._expected.pop(wanted, None)
            fetched = self._fetches.pop(wanted, None)
            fetch = fetched or _Fetch(wanted, self._age)
            fetch.is_ahead = False
            fetch.pace = self._pace(wanted, made_s)
            fetch.ahead = 0 if made_s is None else fetch.pace + 1
            self._go_on(fetch)
        batch = None
        if fetched is not None:
            fetched.done.wait()
            batch = fetched.batch if time.monotonic() - fetched.ended_s < _FRESH_S else None
            if batch is not None:
                batch = self._renewed(wanted, batch)
        if batch is None:
            batch = next(self._read(wanted, partial(self._came, fetch), 0))
        with self._lock:
            if fetch.following is not None:
                _bound(self._expected, _READERS)
                self._expected[fetch.following] = began_s
        return batch

    def _pace(self, wanted: Wanted, made_s: float | None) -> int:
        """Under the lock: how many reads a request of this reader asks for. Who comes from another shard of
        the stream, which it has read quickly to its end, goes on like that."""
        now_s = time.monotonic()
        if made_s is None:
            quick_s = self._quick.get(wanted.name)
            return 1 if quick_s is None or now_s - quick_s >= self._quick_s else _TOGETHER
        if now_s - made_s >= self._quick_s:
            self._quick.pop(wanted.name, None)
            return 1
        _bound(self._quick, _READERS)
        self._quick[wanted.name] = now_s
        return _TOGETHER

    def forget(self) -> None:
        """Streams may be others now, or their records gone."""
        with self._lock:
            self._age += 1
            self._expected.clear()
            self._fetches.clear()

    def _came(self, fetch: _Fetch, coming: Coming) -> None:
        with self._lock:
            if fetch.age != self._age:
                return
            if coming.size >= _LARGE and not fetch.is_ahead:
                fetch.ahead = max(fetch.ahead, 1)
            last = fetch
            for offset in coming.within:
                after = fetch.rest.get(offset)
                if after is None:
                    after = fetch.rest[offset] = _Fetch(fetch.wanted._replace(offset=offset), self._age)
                    self._fetches[after.wanted] = after
                last.following, last = after.wanted, after
            fetch.asked = 0
            end = coming.following
            last.following = None if end is None else fetch.wanted._replace(offset=end)
            self._go_on(fetch)

    def _go_on(self, fetch: _Fetch) -> None:
        """Under the lock: fetch what follows, if it is known and may be."""
        if fetch.following is None or not fetch.ahead:
            return
        after = self._fetches.get(fetch.following)
        if after is None:
            room = self._room()
            if not room:
                return
            after = _Fetch(fetch.following, self._age)
            after.asked = fetch.pace if fetch.pace <= room - _READERS else 1
            if self._idle > len(self._due):
                self._has_come.notify()
            elif not self._start():
                return  # Who comes for it asks for it.
            self._due.append(after)
            self._fetches[after.wanted] = after
        after.ahead = max(after.ahead, fetch.ahead - 1)
        after.pace = fetch.pace
        self._go_on(after)

    def _room(self) -> int:
        """Under the lock: for how many. What nobody came for in time goes."""
        if len(self._fetches) >= _HELD - _READERS:
            self._drop_old()
        coming = sum(max(0, fetch.asked - 1) for fetch in self._fetches.values())
        return max(0, _HELD - len(self._fetches) - coming)

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
                    self._drop_old()
                    break
                fetch = self._due.popleft()
            self._fetch(fetch)
        self._rested()

    def _drop_old(self) -> None:
        """Under the lock: batches that nobody came for would be held as long as the hub is."""
        old_s = time.monotonic() - _FRESH_S
        for wanted, fetch in list(self._fetches.items()):
            if fetch.done.is_set() and fetch.ended_s <= old_s:
                del self._fetches[wanted]

    def _fetch(self, fetch: _Fetch) -> None:
        first, further = fetch.wanted.offset, fetch.asked - 1
        try:
            with suppress(ShoalError):  # Who comes for it asks again, and is told.
                for batch in self._read(fetch.wanted, partial(self._came, fetch), further):
                    offset = batch.first_offset
                    one = fetch if offset == first else fetch.rest.get(offset)
                    if one is not None:
                        one.batch = batch
                        one.end()
        finally:
            for one in (fetch, *fetch.rest.values()):
                one.end()


def _bound(kept: dict[Any, Any], most: int) -> None:
    """Make room for one more: the oldest go."""
    while len(kept) >= most:
        kept.pop(next(iter(kept)))
