"""What waits to be sent, by shard, in order. Everything here happens under the producer's one lock.

Invariant: within a shard's queue, batches are in the order of their `send` calls, and a batch leaves only
from the head, stored, or failed; so nothing of a key overtakes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shoal.core.limits import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    ROUND_BATCHES_PER_SHARD,
    ROUND_BYTES_MAX,
)
from shoal.core.model import KeyHash, ShardId
from shoal.core.ring import place
from shoal.core.routing import ShardMap
from shoal.producer.options import ProducerOptions
from shoal.producer.pending import RECORD_OVERHEAD, Pending, PendingColumns, PendingRecords, Places
from shoal.wire.fitting import headers_size
from shoal.wire.hashing import column_shards, group_rows
from shoal.wire.layout import MEMORY

Rows: TypeAlias = npt.NDArray[np.int64]


class Queues:
    """Pending batches of one producer."""

    def __init__(self, shards: ShardMap, how: KeyHash, options: ProducerOptions) -> None:
        self.shards = shards
        self.bytes = 0
        self._how = how
        self._options = options
        self._queues: dict[ShardId, deque[Pending]] = {}
        self.open: dict[ShardId, PendingRecords] = {}
        """For each shard the batch that the next single record goes into, if there is one with room."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    def everything(self) -> list[Pending]:
        """All batches that wait, with nothing more going into them."""
        for batch in list(self.open.values()):
            self.seal(batch)
        return [batch for queue in self._queues.values() for batch in queue]

    def open_batch(self, shard: ShardId, born_s: float) -> PendingRecords:
        """A new batch for the single records of a shard, at the end of its queue."""
        batch = PendingRecords(shard, born_s)
        self._enqueue(batch)
        self.open[shard] = batch
        return batch

    def seal(self, batch: Pending) -> None:
        """Nothing more goes into this batch."""
        if isinstance(batch, PendingRecords) and not batch.is_sealed:
            batch.is_sealed = True
            del self.open[batch.shard]

    def is_full(self, batch: PendingRecords) -> bool:
        """Large enough to be sent before its time."""
        return batch.size >= self._options.batch_bytes or len(batch.values) >= self._options.batch_records

    def add_columns(self, pieces: list[PendingColumns]) -> None:
        """Append pieces behind whatever waits for their shards."""
        for piece in pieces:
            self._enqueue(piece)
            self.bytes += piece.size

    def ready(self, now_s: float, *, everything: bool) -> list[Pending]:
        """What is due, within one commit: the heads of all queues first, then what follows them.

        They stay in their queues, and those of one shard are in order.
        """
        due: list[Pending] = []
        size, is_full = 0, False
        for rank in range(ROUND_BATCHES_PER_SHARD):
            for queue in self._queues.values():
                if rank >= len(queue):
                    continue
                batch = queue[rank]
                is_due = everything or rank + 1 < len(queue) or self._is_due(batch, now_s)
                if not is_due:
                    continue
                if due and size + batch.size > ROUND_BYTES_MAX:
                    is_full = True  # And no later rank either: it would overtake what did not fit.
                    break
                due.append(batch)
                size += batch.size
            if is_full:
                break
        for batch in due:
            self.seal(batch)
        return due

    def due_in_s(self, now_s: float) -> float | None:
        """Seconds until a head is due, or None if nothing waits."""
        waits = [
            0.0 if self._is_due(queue[0], now_s) or len(queue) > 1 else self._left_s(queue[0], now_s)
            for queue in self._queues.values()
        ]
        return min(waits, default=None)

    def remove(self, batch: Pending) -> None:
        """Take a settled batch out: the head, or one that failed behind a head which moves on."""
        queue = self._queues[batch.shard]
        queue.remove(batch)
        if not queue:
            del self._queues[batch.shard]
        self.bytes -= batch.size

    def remap(self, shards: ShardMap, unkeyed: Callable[[], int]) -> list[Pending]:
        """Take the new map: what waits for closed shards moves to their heirs, whole and in order.

        Returns the batches that were moved, with their new places written but not yet published.
        """
        self.shards = shards
        still_open = set(shards.ids)
        moved: list[Pending] = []
        for shard in [shard for shard in self._queues if shard not in still_open]:
            self.open.pop(shard, None)
            for batch in self._queues.pop(shard):
                self.bytes -= batch.size
                if isinstance(batch, PendingRecords):
                    self._move_records(batch, unkeyed())
                else:
                    batch.parts = list(self.cut(batch.batch, unkeyed(), batch.places))
                    self.add_columns(batch.parts)
                moved.append(batch)
        return moved

    def cut(
        self, batch: pa.RecordBatch, unkeyed_place: int, places: Places | None = None
    ) -> Iterator[PendingColumns]:
        """A batch in stored layout as one piece or more for each shard that its keys fall into.

        With `places`, one for each row, they say where it goes, and not the key.
        """
        shards = self.shards
        unkeyed = shards.ids.index(shards.shard_at(unkeyed_place))
        if places is None:
            found = column_shards(batch.column("key"), self._how, shards, unkeyed)
        else:
            index = {shard: i for i, shard in enumerate(shards.ids)}
            found = np.array(
                [unkeyed if place is None else index[shards.shard_at(place)] for place in places], np.int64
            )
        for shard, rows in zip(shards.ids, group_rows(found, len(shards.ids)), strict=True):
            if len(rows):
                yield from _pieces(shard, batch, rows, places)

    def _move_records(self, batch: PendingRecords, unkeyed_place: int) -> None:
        batch.moved = []
        for i, key in enumerate(batch.keys):
            explicit = batch.places.get(i) if batch.places else None
            if explicit is not None:
                where = explicit
            elif key is not None:
                where = place(key, self._how)
            else:
                where = unkeyed_place
            shard = self.shards.shard_at(where)
            heir = self.open.get(shard)
            if heir is None:
                heir = self.open_batch(shard, batch.born_s)
            headers = batch.headers[i] if batch.headers is not None else None
            size = _size_of(batch, i)
            index = heir.add(batch.values[i], key, batch.timestamps[i], headers, explicit, size)
            self.bytes += size
            batch.moved.append((heir, index))
            if self.is_full(heir):
                self.seal(heir)

    def _enqueue(self, batch: Pending) -> None:
        queue = self._queues.get(batch.shard)
        if queue is None:
            queue = self._queues[batch.shard] = deque()
        else:
            self.seal(queue[-1])
        queue.append(batch)

    def _is_due(self, batch: Pending, now_s: float) -> bool:
        if isinstance(batch, PendingColumns):
            return True
        return batch.is_sealed or self._left_s(batch, now_s) <= 0

    def _left_s(self, batch: Pending, now_s: float) -> float:
        return 0.0 if isinstance(batch, PendingColumns) else batch.born_s + self._options.linger_s - now_s


def _size_of(batch: PendingRecords, i: int) -> int:
    """About what one record takes: large and small ones of a batch may part ways when it moves."""
    value, key = batch.values[i], batch.keys[i]
    if not isinstance(value, bytes):
        return batch.size // len(batch.keys)
    headers = (batch.headers[i] if batch.headers is not None else None) or {}
    return RECORD_OVERHEAD + len(value) + (len(key) if key is not None else 0) + headers_size(headers)


def _pieces(
    shard: ShardId, batch: pa.RecordBatch, rows: Rows, places: Places | None
) -> Iterator[PendingColumns]:
    """These rows of a batch, cut evenly by size; and again where large records lie close together."""
    size = batch.nbytes * len(rows) // batch.num_rows
    for part in np.array_split(rows, max(1, -(-size // _PIECE_BYTES), -(-len(rows) // BATCH_RECORDS_MAX))):
        # `take` copies, which also leaves behind the buffers of a slice's parent.
        taken = pc.take(batch, pa.array(part), memory_pool=MEMORY)
        if taken.nbytes <= BATCH_BYTES_MAX or len(part) == 1:
            yield PendingColumns(shard, taken, None if places is None else [places[row] for row in part])
        else:
            half = len(part) // 2
            yield from _pieces(shard, batch, part[:half], places)
            yield from _pieces(shard, batch, part[half:], places)


_PIECE_BYTES: Final = 5_000_000
"""Large enough to read back at full speed, and below BATCH_BYTES_MAX even if sizes vary a little."""
