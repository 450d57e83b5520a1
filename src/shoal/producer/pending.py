"""Batches on their way: gathered from single records, or given as columns. Data; no thread, no sending.

A pending batch is settled once: stored, failed, or moved into others when its shard was closed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from shoal.core.errors import ShoalError
from shoal.core.model import Appended, ShardId

Places: TypeAlias = Sequence[int | None]
"""Where rows lie on the ring, one for each; None is anywhere."""
RECORD_OVERHEAD: Final = 64
"""What a waiting record costs beside its bytes, about."""


class Settling:
    """What all pending batches share: the outcome.

    Writer: the sender, once, before `settled` is set. Readers: whoever holds a future.
    """

    __slots__ = ("appended", "callbacks", "error", "is_seen", "settled", "shard", "size")

    def __init__(self, shard: ShardId) -> None:
        self.shard = shard
        self.size = 0
        self.settled = threading.Event()
        self.appended: Appended | None = None
        self.error: ShoalError | None = None
        self.is_seen = False
        """Someone has looked at the outcome through a future."""
        self.callbacks: list[Callable[[], None]] = []


class PendingRecords(Settling):
    """Records that came through `send`. Writer until it is taken: senders, under the producer's lock."""

    __slots__ = ("born_s", "headers", "is_sealed", "keys", "moved", "places", "timestamps", "values")

    def __init__(self, shard: ShardId, born_s: float) -> None:
        super().__init__(shard)
        self.born_s = born_s
        self.is_sealed = False
        self.values: list[Any] = []
        self.keys: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.headers: list[Mapping[str, bytes] | None] | None = None
        self.places: dict[int, int] | None = None
        """Explicit hash keys by index: needed again if the shard is closed."""
        self.moved: list[tuple[PendingRecords, int]] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def add(  # noqa: PLR0917 - the hot path: keywords cost more than they tell
        self,
        value: Any,
        key: bytes | None,
        timestamp: int,
        headers: Mapping[str, bytes] | None,
        place: int | None,
        size: int,
    ) -> int:
        """Add one record and return its index."""
        index = len(self.values)
        self.values.append(value)
        self.keys.append(key)
        self.timestamps.append(timestamp)
        if headers is not None and self.headers is None:
            self.headers = [None] * index
        if self.headers is not None:
            self.headers.append(headers)
        if place is not None:
            self.places = self.places or {}
            self.places[index] = place
        self.size += size
        return index


class PendingColumns(Settling):
    """A piece of a `send_batch`, in stored layout. Never added to, so it is ready at once."""

    __slots__ = ("batch", "parts", "places")

    def __init__(self, shard: ShardId, batch: pa.RecordBatch, places: Places | None = None) -> None:
        super().__init__(shard)
        self.batch = batch
        self.places = places
        """Where each row lies, if the user says so: needed again if the shard is closed."""
        self.size = batch.nbytes
        self.parts: list[PendingColumns] | None = None
        """Where it went when its shard was closed."""

    def __len__(self) -> int:
        rows: int = self.batch.num_rows
        return rows


Pending = PendingRecords | PendingColumns


def unsettled(batches: list[Pending]) -> list[Pending]:
    """Those of the batches, or of the ones that they were moved into, that are still on their way."""
    left: list[Pending] = []
    looked_at: set[int] = set()
    waiting = list(reversed(batches))
    while waiting:
        batch = waiting.pop()
        if id(batch) in looked_at:
            continue
        looked_at.add(id(batch))
        if isinstance(batch, PendingRecords) and batch.moved is not None:
            waiting.extend(heir for heir, _ in batch.moved)
        elif isinstance(batch, PendingColumns) and batch.parts is not None:
            waiting.extend(batch.parts)
        elif not batch.settled.is_set():
            left.append(batch)
    return left
