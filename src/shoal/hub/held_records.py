"""Records that were handed out, read from the log: a stored batch is decoded once for all who share it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Protocol

from shoal.core.errors import OffsetExpired
from shoal.core.limits import READ_BYTES_DEFAULT
from shoal.core.model import Shard, ShardId, StreamInfo, StreamName
from shoal.core.reading import ReadLimits
from shoal.core.share_acts import Given
from shoal.core.spans import Range, ranges_of
from shoal.forks import renew_in_child
from shoal.wire.batch import Batch
from shoal.wire.hashing import key_hashes

_KEPT: Final = 8
"""Batches that are kept decoded: each may be as large as one read."""


class Reading(Protocol):
    """As much of a hub as this needs."""

    def read(self, name: StreamName, shard: int, offset: int, limits: ReadLimits) -> Batch: ...


class HeldRecords:
    """Reads by ranges. Records never change, so what is kept is never wrong."""

    def __init__(self, log: Reading) -> None:
        self._log = log
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, ShardId], Batch] = OrderedDict()

    def read(
        self, stream: StreamInfo, shard: ShardId, given: Sequence[Given], max_bytes: int | None
    ) -> tuple[Batch | None, list[Range]]:
        """The records, up to a size (at least one), and what did not fit. What retention took is left out."""
        waiting = [(one.low, one.high) for one in reversed(given)]
        limit = READ_BYTES_DEFAULT if max_bytes is None else max_bytes
        parts: list[Batch] = []
        size = 0
        while waiting and size < limit:
            batch = self._batch(stream, shard, waiting[-1][0])
            if not len(batch):
                break
            offsets = _within(waiting, batch)
            if not offsets:
                continue  # Retention took what was wanted of it.
            part = batch.part(offsets)
            fits = max(1, (limit - size) * len(part) // max(1, part.nbytes))
            if fits < len(part):
                waiting += reversed(ranges_of(offsets[fits:]))
                part = batch.part(offsets[:fits])
                size = limit
            size += part.nbytes
            parts.append(part)
        return (Batch.joined(parts) if parts else None), waiting[::-1]

    def keys(self, stream: StreamInfo, shard: Shard, offset: int, count: int) -> tuple[int, Sequence[int]]:
        """The keys' hashes of the records from an offset on, 0 for none: as many as one batch has."""
        offset = max(offset, shard.first_offset)
        batch = self._batch(stream, shard.id, offset)
        end = min(batch.next_offset, offset + count)
        if end <= offset:
            return offset, ()
        start = max(offset, batch.first_offset)
        return start, key_hashes(batch.part(range(start, end)).key_columns())

    def _batch(self, stream: StreamInfo, shard: ShardId, offset: int) -> Batch:
        """A batch that holds the offset, or begins after it, if that is gone; empty at the end."""
        where = (stream.id, shard)
        with self._lock:
            kept = self._kept.get(where)
        if kept is not None and kept.first_offset <= offset < kept.next_offset:
            return kept
        try:
            batch = self._log.read(stream.full_name, shard, offset, ReadLimits())
        except OffsetExpired as error:
            batch = self._log.read(stream.full_name, shard, error.first_offset, ReadLimits())
        with self._lock:
            self._kept[where] = batch
            self._kept.move_to_end(where)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return batch


def _within(waiting: list[Range], batch: Batch) -> Sequence[int]:
    """Take from what is waited for (the next is last) all that the batch holds, or has passed."""
    runs: list[range] = []
    while waiting and waiting[-1][0] < batch.next_offset:
        low, high = waiting.pop()
        runs.append(range(max(low, batch.first_offset), min(high, batch.next_offset)))
        if high > batch.next_offset:
            waiting.append((batch.next_offset, high))
    runs = [run for run in runs if run]
    return runs[0] if len(runs) == 1 else [offset for run in runs for offset in run]
