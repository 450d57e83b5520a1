"""Batches on their way: gathered from single records, or given as columns. Data; no thread, no sending.

A pending batch is settled once: stored, failed, or moved into others when its shard was closed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from shoal.core.delaying import NOWHERE, Delay
from shoal.core.errors import ShoalError
from shoal.core.model import Appended, ShardId
from shoal.core.parcels import Parcel
from shoal.wire.sizes import in_memory

Places: TypeAlias = Sequence[int | None]
"""Where rows lie on the ring, one for each; None is anywhere."""
RECORD_OVERHEAD: Final = 64
"""What a waiting record costs beside its bytes, about."""


class Settling(Parcel):
    """What all pending batches share: the outcome.

    Writer: the sender, once, before `settled` is set. Readers: whoever holds a future.
    """

    __slots__ = ("appended", "callbacks", "displaced", "error", "is_aside", "is_seen", "settled")

    def __init__(self, shard: ShardId, *, is_strict: bool, due_s: float, began_s: float) -> None:
        super().__init__(shard, is_strict=is_strict, due_s=due_s, began_s=began_s)
        self.is_aside = False
        """It is in the outbox, and comes from there."""
        self.displaced = 0
        """How many of its records have lost their place, and are counted as such."""
        self.settled = threading.Event()
        self.appended: Appended | None = None
        self.error: ShoalError | None = None
        self.is_seen = False
        """Someone has looked at the outcome through a future."""
        self.callbacks: list[Callable[[], None]] = []


class PendingRecords(Settling):
    """Records that came through `send`. Writer until it is taken: senders, under the producer's lock."""

    __slots__ = (
        "delays",
        "headers",
        "is_sealed",
        "keys",
        "moved",
        "numbers",
        "places",
        "timestamps",
        "values",
    )

    def __init__(self, shard: ShardId, due_s: float, *, is_strict: bool = True, began_s: float = 0.0) -> None:
        super().__init__(shard, is_strict=is_strict, due_s=due_s, began_s=began_s)
        self.is_sealed = False
        self.values: list[Any] = []
        self.keys: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.headers: list[Mapping[str, bytes] | None] | None = None
        self.places: dict[int, int] | None = None
        """Explicit hash keys by index: needed again if the shard is closed."""
        self.delays: list[Delay] | None = None
        """For each record when it is to come, if all of them are to come later."""
        self.numbers: dict[int, int] | None = None
        """The sender's own numbers by index: they rise."""
        self.moved: list[tuple[PendingRecords, int]] | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_numbered(self) -> bool:
        return bool(self.numbers)

    def add(  # noqa: PLR0917 - the hot path: keywords cost more than they tell
        self,
        value: Any,
        key: bytes | None,
        timestamp: int,
        headers: Mapping[str, bytes] | None,
        place: int | None,
        size: int,
        number: int | None = None,
        delay: Delay | None = None,
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
        if delay is not None:
            self.delays = self.delays or []
            self.delays.append(delay)
        if number is not None:
            self.numbers = self.numbers or {}
            self.numbers[index] = number
        self.size += size
        return index


class PendingColumns(Settling):
    """A piece of a `send_batch`, in stored layout. Never added to, so it is ready at once."""

    __slots__ = ("batch", "parts", "places")

    def __init__(
        self,
        shard: ShardId,
        batch: pa.RecordBatch,
        places: Places | None = None,
        *,
        is_strict: bool = True,
    ) -> None:
        super().__init__(shard, is_strict=is_strict, due_s=0.0, began_s=0.0)
        self.batch = batch
        self.places = places
        """Where each row lies, if the user says so: needed again if the shard is closed."""
        self.size = in_memory(batch)
        self.parts: list[PendingColumns] | None = None
        """Where it went when its shard was closed."""

    def __len__(self) -> int:
        rows: int = self.batch.num_rows
        return rows


Pending = PendingRecords | PendingColumns


def number_of(batch: Pending) -> int | None:
    """The highest of the sender's own numbers in a batch."""
    if isinstance(batch, PendingColumns) or not batch.numbers:
        return None
    return max(batch.numbers.values())


def delays_of(batch: Pending) -> Sequence[Delay] | None:
    """When its records are to come, if that is later."""
    return batch.delays if isinstance(batch, PendingRecords) else None


def stored_before(shard: ShardId) -> PendingRecords:
    """What a future of a record has that an earlier life has stored; where, nobody remembers."""
    batch = PendingRecords(shard, 0.0)
    batch.appended = Appended(shard, NOWHERE, NOWHERE)
    batch.settled.set()
    return batch


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
