"""Memory for long answers, which is used again: pages that come anew for every answer cost a twentieth of
reading a stream from end to end.

Invariant: memory is used again only when nothing refers to the answer that was in it, nor to a part of it.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from contextlib import suppress
from typing import Final, NamedTuple

import pyarrow as pa

from shoal.wire.layout import MEMORY

LEAST: Final = 1_000_000
"""Shorter ones are not worth it."""
MOST: Final = 16_000_000
ROUND: Final = 1_000_000
"""Of such sizes: the next answer is a few bytes longer."""
KEPT: Final = 4
"""Two are under way for a reader, and one is being unpacked."""
KEPT_S: Final = 5.0


class Bodies:
    """Writer and reader of `_free`: any thread, one step of the deque at a time. No lock: whoever lets the
    last part of an answer go puts its memory back, and that may happen within any statement."""

    def __init__(self) -> None:
        self._free: deque[_Spare] = deque()
        self._age = 0
        """How often all was dropped: what was taken before is not kept when it comes back."""

    def take(self, length: int) -> tuple[memoryview, memoryview]:
        """Memory to write an answer to, and the same to be read: it is taken until the latter and all of its
        parts are gone. It holds anything."""
        if not LEAST <= length <= MOST:
            body = memoryview(pa.allocate_buffer(length, memory_pool=MEMORY)).cast("B")
            return body, body
        memory = self._spare(length)
        use = _Use()
        weakref.finalize(use, self._put_back, memory, self._age).atexit = False
        body = memoryview(pa.foreign_buffer(memory.address, length, use)).cast("B")
        return memoryview(memory).cast("B")[:length], body

    def _spare(self, length: int) -> pa.Buffer:
        """Not much larger: who keeps a part of the answer keeps all of it."""
        with suppress(IndexError):
            spare = self._free.pop()
            size = spare.memory.size
            if length <= size <= 2 * length:
                return spare.memory
            if size > length and len(self._free) < KEPT:
                self._free.appendleft(spare)  # The next one that is looked at is another.
        return pa.allocate_buffer(-(-length // ROUND) * ROUND, memory_pool=MEMORY)

    def _put_back(self, memory: pa.Buffer, age: int) -> None:
        if age == self._age and len(self._free) < KEPT:
            self._free.append(_Spare(memory, time.monotonic()))

    def tidy(self) -> None:
        """Let go of what nothing was written to for a while."""
        old_s = time.monotonic() - KEPT_S
        with suppress(IndexError):
            for _ in range(len(self._free)):
                spare = self._free.popleft()
                if spare.since_s > old_s:
                    self._free.append(spare)

    def drop(self) -> None:
        """Nothing long is expected any more."""
        self._age += 1
        self._free.clear()


class _Spare(NamedTuple):
    memory: pa.Buffer
    since_s: float


class _Use:
    """As long as it is there, the memory is taken."""

    __slots__ = ("__weakref__",)


BODIES: Final = Bodies()
"""Of this process."""
