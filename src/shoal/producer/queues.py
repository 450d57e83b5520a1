"""What waits to be sent, by shard, in order. Everything here happens under the producer's one lock.

Invariant: within a shard's queue, batches are in the order of their `send` calls, and a batch leaves only
from the head, settled; so nothing of a key overtakes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from shoal.core.limits import COMMIT_BYTES_MAX
from shoal.core.model import KeyHash, ShardId
from shoal.core.ring import place
from shoal.core.routing import ShardMap
from shoal.producer.options import ProducerOptions
from shoal.producer.pending import Pending, PendingColumns, PendingRecords
from shoal.wire.hashing import column_shards, group_rows


class Queues:
    """Pending batches of one producer."""

    def __init__(self, shards: ShardMap, how: KeyHash, options: ProducerOptions) -> None:
        self.shards = shards
        self.bytes = 0
        self._how = how
        self._options = options
        self._queues: dict[ShardId, deque[Pending]] = {}

    def __bool__(self) -> bool:
        return bool(self._queues)

    def open_batch(self, shard: ShardId, now_s: float) -> PendingRecords:
        """The batch that the next single record of a shard goes into."""
        queue = self._queues.get(shard)
        if queue:
            last = queue[-1]
            if isinstance(last, PendingRecords) and not last.is_sealed:
                if last.size < self._options.batch_bytes and len(last) < self._options.batch_records:
                    return last
                last.is_sealed = True
        batch = PendingRecords(shard, now_s)
        self._enqueue(batch)
        return batch

    def add_columns(self, pieces: list[PendingColumns]) -> None:
        """Append pieces behind whatever waits for their shards."""
        for piece in pieces:
            self._enqueue(piece)
            self.bytes += piece.size

    def ready(self, now_s: float, *, everything: bool) -> list[Pending]:
        """The head of every queue that is due, within the size of one commit. They stay in their queues."""
        due: list[Pending] = []
        size = 0
        for queue in self._queues.values():
            head = queue[0]
            if due and size + head.size > COMMIT_BYTES_MAX:
                break
            if everything or len(queue) > 1 or self._is_due(head, now_s):
                due.append(head)
                size += head.size
        for batch in due:
            if isinstance(batch, PendingRecords):
                batch.is_sealed = True
        return due

    def due_in_s(self, now_s: float) -> float | None:
        """Seconds until a head is due, or None if nothing waits."""
        waits = [
            0.0 if self._is_due(queue[0], now_s) or len(queue) > 1 else self._left_s(queue[0], now_s)
            for queue in self._queues.values()
        ]
        return min(waits, default=None)

    def remove(self, batch: Pending) -> None:
        """Take a settled head out."""
        queue = self._queues[batch.shard]
        head = queue.popleft()
        assert head is batch, "a batch leaves only from the head of its queue"
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
            for batch in self._queues.pop(shard):
                self.bytes -= batch.size
                if isinstance(batch, PendingRecords):
                    self._move_records(batch, unkeyed())
                else:
                    batch.parts = list(self.cut(batch.batch, unkeyed()))
                    self.add_columns(batch.parts)
                moved.append(batch)
        return moved

    def cut(self, batch: pa.RecordBatch, unkeyed_place: int) -> Iterator[PendingColumns]:
        """A batch in stored layout as one piece or more for each shard that its keys fall into."""
        shards = self.shards
        unkeyed = shards.ids.index(shards.shard_at(unkeyed_place))
        keys = batch.column("key")
        rows_of = group_rows(column_shards(keys, self._how, shards, unkeyed), len(shards.ids))
        most_rows = max(1, self._options.batch_records)
        for shard, rows in zip(shards.ids, rows_of, strict=True):
            if len(rows) == 0:
                continue
            share = batch.nbytes * len(rows) // batch.num_rows
            pieces = max(1, -(-share // (self._options.batch_bytes * 2)), -(-len(rows) // most_rows))
            for part in np.array_split(rows, pieces):
                # `take` copies, which also leaves behind the buffers of a slice's parent.
                yield PendingColumns(shard, batch.take(pa.array(part)))

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
            heir = self.open_batch(self.shards.shard_at(where), batch.born_s)
            size = batch.size // len(batch.keys)
            headers = batch.headers[i] if batch.headers is not None else None
            index = heir.add(batch.values[i], key, batch.timestamps[i], headers, explicit, size)
            self.bytes += size
            batch.moved.append((heir, index))

    def _enqueue(self, batch: Pending) -> None:
        queue = self._queues.get(batch.shard)
        if queue is None:
            queue = self._queues[batch.shard] = deque()
        elif isinstance(queue[-1], PendingRecords):
            queue[-1].is_sealed = True
        queue.append(batch)

    def _is_due(self, batch: Pending, now_s: float) -> bool:
        if isinstance(batch, PendingColumns):
            return True
        is_full = batch.size >= self._options.batch_bytes or len(batch) >= self._options.batch_records
        return batch.is_sealed or is_full or self._left_s(batch, now_s) <= 0

    def _left_s(self, batch: Pending, now_s: float) -> float:
        return 0.0 if isinstance(batch, PendingColumns) else batch.born_s + self._options.linger_s - now_s
