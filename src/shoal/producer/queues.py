"""The contents of what waits: which batch the next record goes into, how tables are cut, what moves where.

When a batch is sent, and what waits for what, decides `core/sending`. Everything here happens under the
producer's one lock.

Invariant: the open batch of a shard is the last of its kind there, strict or not, so nothing overtakes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shoal.core.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from shoal.core.model import KeyHash, SendStrategy, ShardId, StreamInfo
from shoal.core.parcels import SendingRules, merged
from shoal.core.ring import place
from shoal.core.routing import ShardMap
from shoal.core.sending import Sending
from shoal.producer.options import ProducerOptions
from shoal.producer.pending import RECORD_OVERHEAD, Pending, PendingColumns, PendingRecords, Places
from shoal.wire.fitting import headers_size
from shoal.wire.hashing import column_shards, group_rows
from shoal.wire.layout import MEMORY

Rows: TypeAlias = npt.NDArray[np.int64]


class Queues:
    """Pending batches of one producer."""

    def __init__(
        self,
        shards: ShardMap,
        how: KeyHash,
        options: ProducerOptions,
        strategy: SendStrategy | None = SendStrategy.STRICT,
    ) -> None:
        self.shards = shards
        self.bytes = 0
        self.strategy = strategy
        self._how = how
        self._options = options
        self.lanes: Sending[Pending] = Sending(
            shards,
            SendingRules(
                retry_first_s=options.retry_first_s,
                retry_most_s=options.retry_most_s,
                delivery_timeout_s=options.delivery_timeout_s,
                max_attempts=options.max_attempts,
                calls_max=options.calls_max,
            ),
        )
        self.open: dict[ShardId, PendingRecords] = {}
        """For each shard the batch that the next single record goes into, if there is one with room."""
        self.open_loose: dict[ShardId, PendingRecords] = {}
        """The same for records that may go to another shard."""

    def __bool__(self) -> bool:
        return bool(self.lanes)

    def everything(self) -> list[Pending]:
        """All batches that wait, with nothing more going into them."""
        for batch in [*self.open.values(), *self.open_loose.values()]:
            self.seal(batch)
        return self.lanes.everything()

    def open_batch(self, shard: ShardId, now_s: float, *, is_strict: bool = True) -> PendingRecords:
        """A new batch for the single records of a shard, at the end of its lane."""
        return self._opened(
            PendingRecords(shard, now_s + self._options.linger_s, is_strict=is_strict, began_s=now_s)
        )

    def _opened(self, batch: PendingRecords) -> PendingRecords:
        self._put(batch)
        (self.open if batch.is_strict else self.open_loose)[batch.shard] = batch
        return batch

    def seal(self, batch: Pending) -> None:
        """Nothing more goes into this batch."""
        if isinstance(batch, PendingRecords) and not batch.is_sealed:
            batch.is_sealed, batch.due_s = True, 0.0
            del (self.open if batch.is_strict else self.open_loose)[batch.shard]

    def is_full(self, batch: PendingRecords) -> bool:
        """Large enough to be sent before its time."""
        return batch.size >= self._options.batch_bytes or len(batch.values) >= self._options.batch_records

    def add_columns(self, pieces: list[PendingColumns], now_s: float) -> None:
        """Append pieces behind whatever waits for their shards."""
        for piece in pieces:
            piece.began_s = piece.began_s or now_s
            self._put(piece)
            self.bytes += piece.size

    def take(self, now_s: float, *, hurry: bool, only_numbered: bool = False) -> list[Pending]:
        """See Sending. A batch that is due and cannot go gathers for a while and no longer: its records fail
        together, when the time of the first is over."""
        for old in [*self.open.values(), *self.open_loose.values()]:
            if now_s - old.due_s > _GATHERED_S:
                self.seal(old)
        taken = self.lanes.take(now_s, hurry=hurry, only_numbered=only_numbered)
        for batch in taken:
            self.seal(batch)
        return taken

    def dropped(self, batch: Pending) -> None:
        """A batch has left its lane: stored, failed, set aside."""
        self.seal(batch)
        self.bytes -= batch.size

    def remap(self, stream: StreamInfo, unkeyed: Callable[[], int]) -> list[Pending]:
        """Take the new map; nothing of closed shards is on its way. See `follow`."""
        self.lanes.hear(stream)
        return [] if self.lanes.newer is None else self.follow(unkeyed)

    def follow(self, unkeyed: Callable[[], int]) -> list[Pending]:
        """Take the new map: what waits for closed shards moves to their heirs, whole and in order.

        Returns the batches that were moved, with their new places written but not yet published.
        """
        lanes = self.lanes.follow()
        self.shards = self.lanes.shards
        moved = [batch for lane in lanes for batch in lane]
        for batch in moved:
            self.seal(batch)
            self.bytes -= batch.size
            if isinstance(batch, PendingRecords):
                batch.moved = []
        places = {id(batch): unkeyed() for batch in moved}
        contents = [_contents(lane) for lane in lanes]
        has_numbers = any(batch.is_numbered for batch in moved)
        for batch, i in merged(contents, _number) if has_numbers else chain.from_iterable(contents):
            if isinstance(batch, PendingRecords):
                self._move_record(batch, i, places[id(batch)])
            else:
                batch.parts = list(self.cut(batch.batch, places[id(batch)], batch.places))
                for part in batch.parts:
                    part.displaced = len(part) if batch.displaced else 0
                    part.descends(batch)
                self.add_columns(batch.parts, batch.began_s)
        for heir in [*self.open.values(), *self.open_loose.values()]:
            if heir.due_s == _AT_ONCE_S:
                self.seal(heir)  # What is sent from now on has more time.
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
        keys = batch.column("key")
        is_placed = None
        if self.strategy is None and keys.null_count and (places is None or None in places):
            is_placed = keys.is_valid().to_numpy(zero_copy_only=False)
        for shard, rows in zip(shards.ids, group_rows(found, len(shards.ids)), strict=True):
            for some, is_strict in self._by_kind(rows, is_placed):
                if len(some):
                    yield from _pieces(shard, batch, some, places, is_strict=is_strict)

    def _by_kind(self, rows: Rows, is_placed: npt.NDArray[np.bool_] | None) -> list[tuple[Rows, bool]]:
        """Rows that keep their place, and those that need not."""
        if is_placed is None:
            return [(rows, self.strategy is not SendStrategy.BEST_TRIED)]
        return [(rows[is_placed[rows]], True), (rows[~is_placed[rows]], False)]

    def _move_record(self, batch: PendingRecords, i: int, unkeyed_place: int) -> None:
        key, explicit = batch.keys[i], batch.places.get(i) if batch.places else None
        if explicit is not None:
            where = explicit
        elif key is not None:
            where = place(key, self._how)
        else:
            where = unkeyed_place
        shard = self.shards.shard_at(where)
        heir = (self.open if batch.is_strict else self.open_loose).get(shard)
        if heir is None or not heir.is_peer(batch):
            heir = self._opened(PendingRecords(shard, _AT_ONCE_S, is_strict=batch.is_strict))
        heir.descends(batch)
        headers = batch.headers[i] if batch.headers is not None else None
        size, number = _size_of(batch, i), _number((batch, i))
        index = heir.add(batch.values[i], key, batch.timestamps[i], headers, explicit, size, number)
        heir.displaced += i < batch.displaced
        self.bytes += size
        assert batch.moved is not None
        batch.moved.append((heir, index))
        if self.is_full(heir):
            self.seal(heir)

    def _put(self, batch: Pending) -> None:
        last = (self.open if batch.is_strict else self.open_loose).get(batch.shard)
        if last is not None:
            self.seal(last)
        self.lanes.put(batch)


def _contents(lane: list[Pending]) -> Iterator[tuple[Pending, int]]:
    """Records one by one, tables whole."""
    for batch in lane:
        for i in range(len(batch) if isinstance(batch, PendingRecords) else 1):
            yield batch, i


def _number(one: tuple[Pending, int]) -> int | None:
    batch, i = one
    return batch.numbers.get(i) if isinstance(batch, PendingRecords) and batch.numbers else None


def _size_of(batch: PendingRecords, i: int) -> int:
    """About what one record takes: large and small ones of a batch may part ways when it moves."""
    value, key = batch.values[i], batch.keys[i]
    if not isinstance(value, bytes):
        return batch.size // len(batch.keys)
    headers = (batch.headers[i] if batch.headers is not None else None) or {}
    return RECORD_OVERHEAD + len(value) + (len(key) if key is not None else 0) + headers_size(headers)


def _pieces(
    shard: ShardId, batch: pa.RecordBatch, rows: Rows, places: Places | None, *, is_strict: bool
) -> Iterator[PendingColumns]:
    """These rows of a batch, cut evenly by size; and again where large records lie close together."""
    size = batch.nbytes * len(rows) // batch.num_rows
    for part in np.array_split(rows, max(1, -(-size // _PIECE_BYTES), -(-len(rows) // BATCH_RECORDS_MAX))):
        # `take` copies, which also leaves behind the buffers of a slice's parent.
        taken = pc.take(batch, pa.array(part), boundscheck=False, memory_pool=MEMORY)
        if taken.nbytes <= BATCH_BYTES_MAX or len(part) == 1:
            kept = None if places is None else [places[row] for row in part]
            yield PendingColumns(shard, taken, kept, is_strict=is_strict)
        else:
            half = len(part) // 2
            yield from _pieces(shard, batch, part[:half], places, is_strict=is_strict)
            yield from _pieces(shard, batch, part[half:], places, is_strict=is_strict)


_AT_ONCE_S: Final = 0.0
_GATHERED_S: Final = 1.0
"""Little beside any delivery timeout that makes sense, and long beside any linger."""
_PIECE_BYTES: Final = 5_000_000
"""Large enough to read back at full speed, and below BATCH_BYTES_MAX even if sizes vary a little."""
