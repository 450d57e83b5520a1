"""The producer that users hold: checks a record, finds its shard, puts it in the queue, returns a future.

Invariant: records of one key that come from one thread are stored in the order of their `send` calls, through
retries, splits and merges, each once.
"""

from __future__ import annotations

import atexit
import logging
import random
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from time import time_ns
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from shoal.core.appending import UNNAMED, check_number
from shoal.core.delaying import DELAYED, Delay
from shoal.core.errors import (
    BufferFull,
    EmptyBatch,
    InvalidInput,
    ProducerClosed,
    ProducerFenced,
    ShoalError,
    WrongThread,
)
from shoal.core.limits import RECORD_BYTES_MAX
from shoal.core.model import Appended, ShardId, StreamInfo
from shoal.core.names import checked_producer
from shoal.core.numbering import Stored, place_of_number
from shoal.core.parcels import checked_strategy, is_strict
from shoal.core.ring import LOGICAL_PARTITIONS, PARTITION_SIZE, checked_hash, key_bytes, placer
from shoal.core.routing import ShardMap
from shoal.forks import meet_arrow, renew_in_child
from shoal.ports import GroupSaves, HubService
from shoal.producer.committing import Committing
from shoal.producer.futures import BatchFuture, SendFuture
from shoal.producer.options import ProducerOptions
from shoal.producer.pending import RECORD_OVERHEAD, PendingColumns, Places, stored_before, unsettled
from shoal.producer.queues import Queues
from shoal.producer.sender import Life, Sender
from shoal.producer.statistics import ProducerStats
from shoal.producer.transaction import StreamPart, Transaction
from shoal.wire.fitting import (
    check_headers,
    check_row_sizes,
    check_size,
    check_value,
    fit_columns,
    headers_size,
)
from shoal.wire.layout import Layout
from shoal.wire.timestamps import timestamp_ms

_log: Final = logging.getLogger("shoal.producer")


class Producer:
    """Sends records to one stream. Safe to use from many threads; closed by `with` or `close()`."""

    def __init__(
        self,
        service: HubService,
        stream: StreamInfo,
        options: ProducerOptions | None = None,
        *,
        name: str | None = None,
    ) -> None:
        """A producer with a name fences whoever had it before, and knows what that one has stored."""
        self.options = options or ProducerOptions()
        self.name = name
        opening = None
        if name is not None:
            opening = service.open_producer(stream, checked_producer(name))
            stream = service.refresh_stream(stream)  # After it: all shards that may hold a number are in it.
        self._stored = Stored.of(stream.shards, opening.numbers) if opening is not None else Stored()
        self._delayed = -1 if opening is None else opening.numbers.get(DELAYED, -1)
        """The highest number of what was to come later: that is sent in order, too."""
        self._number = -1
        self.stream = str(stream.full_name)
        self._is_inherited = False
        meet_arrow()
        self._layout = Layout(stream.settings.schema)
        self._is_typed = self._layout.is_typed
        self._place = placer(stream.settings.hash)
        self._partitioner = self.options.partitioner
        self._limit = self.options.buffer_bytes_max
        self._batch_bytes, self._batch_records = self.options.batch_bytes, self.options.batch_records
        own = checked_strategy(self.options.strategy)
        self._strategy = service.strategy(stream.full_name) if own is None else own
        self._queues = Queues(ShardMap.of(stream), stream.settings.hash, self.options, self._strategy)
        self._sender = Sender(
            service,
            stream,
            self._queues,
            options=self.options,
            life=Life(
                producer=f"{UNNAMED}{uuid.uuid4().hex}" if name is None else name,
                epoch=0 if opening is None else opening.epoch,
            ),
            unkeyed=self._new_unkeyed_place,
        )
        self._changed, self._lock = self._sender.changed, self._sender.lock
        self._numbers: dict[tuple[int, ShardId], int] = {}
        """Of batches of transactions for other streams. Writer: the sender's thread."""
        self._closed: str | None = None
        self._unkeyed_place = self._new_unkeyed_place()
        self._unkeyed_until = 0
        self._sender.thread.start()
        renew_in_child(self)
        _LIVE.add(self)

    def send(
        self,
        value: bytes | str | Mapping[str, Any] | None,
        key: bytes | str | None = None,
        *,
        timestamp: int | datetime | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        hash_key: int | str | None = None,
        number: int | None = None,
        deliver_at: int | datetime | None = None,
    ) -> SendFuture:
        """Send one record: bytes or text, or a dict for a typed stream.

        Records of one key stay in order. `hash_key` places the record on the ring by hand. Blocks while the
        buffer is full. The future's `result()` is the shard and the offset.

        `number` is your own, of a producer with a name, and rises: a line, a row's id. What an earlier life
        of the producer has stored under its number is not stored again. Once a numbered record has failed,
        the producer sends no more: make it anew, and send again from there.

        `deliver_at`, a datetime or milliseconds since 1970, is when the record is to come, if that is later:
        it is durable at once, and gets its shard and its offset then.
        """
        if self._is_inherited:
            self._refuse_in_child()
        if type(value) is bytes and not self._is_typed:
            size = len(value)
        else:
            value, size = check_value(self._layout, value)
        binary_key = key if key is None or type(key) is bytes else key_bytes(key)
        stamp = time_ns() // 1_000_000 if timestamp is None else timestamp_ms(timestamp)
        kept_headers = check_headers(headers) if headers else None
        is_plain = hash_key is None and number is None and self._partitioner is None
        explicit = None if is_plain else self._placed(hash_key, binary_key, number)
        delay = None if deliver_at is None else Delay(timestamp_ms(deliver_at, "deliver_at"), explicit)
        if binary_key is not None:
            size += len(binary_key)
        if kept_headers:
            size += headers_size(kept_headers)
        if size > RECORD_BYTES_MAX:
            check_size(size)
        size += RECORD_OVERHEAD
        where = explicit
        if where is None and binary_key is not None:
            where = self._place(binary_key)
        queues = self._queues
        is_kept = where is not None if self._strategy is None else self._is_kept(number)
        with self._lock:
            if self._sender.is_refusing or queues.bytes + size > self._limit:
                self._admit(size)
            if where is None:
                where = self._place_unkeyed(size)
            shard = queues.shards.shard_at(where) if delay is None else DELAYED
            if number is not None and self._is_stored(where, number, shard):
                self._sender.stats.repeats += 1
                return SendFuture(stored_before(shard), 0)
            batch = (queues.open if is_kept else queues.open_loose).get(shard)
            if batch is None:
                batch = queues.open_batch(shard, time.monotonic(), is_strict=is_kept)
                self._changed.notify_all()  # The sender must know when this one is due.
            index = batch.add(value, binary_key, stamp, kept_headers, explicit, size, number, delay)
            queues.bytes += size
            if batch.size >= self._batch_bytes or index + 1 >= self._batch_records:
                queues.seal(batch)
                self._changed.notify_all()
        return SendFuture(batch, index)

    def send_batch(self, table: pa.Table | pa.RecordBatch, *, key_column: str | None = None) -> BatchFuture:
        """Send a table at once, routed by its key column: `key_column`, or `key` if there is one.

        Columns are the stream's own (`value`, or its typed columns), and optionally `key`, `timestamp` and
        `headers`. A table larger than a batch is cut.
        """
        if self._is_inherited:
            self._refuse_in_child()
        if isinstance(table, pa.Table | pa.RecordBatch) and table.num_rows == 0:
            raise EmptyBatch("table", "0 rows", "send at least one record")
        fitted = fit_columns(self._layout, table, key_column, time_ns() // 1_000_000)
        check_row_sizes(fitted)
        places = None if self._partitioner is None else _places(self._partitioner, fitted.column("key"))
        pieces: list[PendingColumns] = []
        # In steps, so that a large table does not fill the buffer in one go, nor wait for all of it.
        step = -(-fitted.num_rows // -(-fitted.nbytes // _STEP_BYTES))
        for start in range(0, fitted.num_rows, step):
            part = fitted.slice(start, step) if step < fitted.num_rows else fitted
            with self._changed:
                self._admit(part.nbytes)  # Before the copy that cutting makes, which must not wait in memory.
            pieces += self._enqueue_cut(part, None if places is None else places[start : start + step])
        return BatchFuture(pieces)

    def _enqueue_cut(self, part: pa.RecordBatch, places: Places | None) -> list[PendingColumns]:
        """Cut by the map, and again if the map has changed by the time the pieces are put in their queues."""
        while True:
            shards = self._queues.shards
            cut = list(self._queues.cut(part, self._new_unkeyed_place(), places))
            with self._changed:
                self._check_usable()
                if self._queues.shards is shards:
                    self._queues.add_columns(cut, time.monotonic())
                    self._changed.notify_all()
                    return cut

    def transaction(self) -> Transaction:
        """Records for this stream and others, and checkpoints, in one step: all of it is stored, or nothing.

        `with producer.transaction() as transaction:` commits at its end, and forgets it after an error.
        """
        if self._is_inherited:
            self._refuse_in_child()
        with self._changed:
            self._check_usable()
            stream = self._sender.stream
        return Transaction(self._sender.service, stream, self._transact, self._partitioner)

    def _transact(self, parts: Sequence[StreamPart], saves: Sequence[GroupSaves]) -> list[Appended]:
        self.flush()  # What was sent before comes before.
        self._check_sender()
        return self._sender.alone(Committing(self._sender, parts, saves, self._numbers).run)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is settled; raise an error that no future has shown yet."""
        if self._is_inherited:
            self._refuse_in_child()
        limit_s = self.options.delivery_timeout_s * 2 if timeout is None else timeout
        deadline = time.monotonic() + limit_s
        with self._changed:
            self._check_usable()
            waiting = self._queues.everything()
            self._sender.flushing += 1
            self._changed.notify_all()
            try:
                while waiting := unsettled(waiting):
                    self._check_sender()
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        raise TimeoutError(f"{self._queues.bytes} bytes are not stored after {limit_s:g} s")
                    self._changed.wait(left_s)
            finally:
                self._sender.flushing -= 1
            self._raise_unseen()

    def close(self, timeout: float | None = None) -> None:
        """Send what is buffered, stop, and raise an error that no future has shown yet. Twice is once."""
        if self._closed is not None or self._is_inherited:
            return
        if threading.current_thread() is self._sender.thread:
            self._check_sender()
        try:
            self.flush(self.options.close_timeout_s if timeout is None else timeout)
        finally:
            with self._changed:
                self._closed = "close() was called"
                self._sender.is_stopping = self._sender.is_refusing = True
                self._changed.notify_all()
            _LIVE.discard(self)
        self._sender.thread.join(self.options.close_timeout_s)

    def renew(self) -> None:
        """See Renewed. A child has no right to what its parent has numbered and buffered."""
        self._is_inherited = True

    @property
    def stats(self) -> ProducerStats:
        """What it has done since it was made, and how much waits."""
        with self._lock:
            return replace(self._sender.stats, buffered_bytes=self._queues.bytes)

    @property
    def highest_number(self) -> int:
        """The highest number that earlier lives have stored, also of what is to come later; -1 for none.
        Lower ones may be missing."""
        return max(self._stored.highest, self._delayed)

    @property
    def has_room(self) -> bool:
        """Whether a record, however large, can be sent without waiting for others to be stored."""
        return self._queues.bytes + RECORD_BYTES_MAX + RECORD_OVERHEAD <= self._limit

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait to be stored."""
        return self._queues.bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _admit(self, size: int) -> None:
        """Under the lock: refuse if closed, block while the buffer is full."""
        self._check_usable()
        began_s = time.monotonic()
        self._sender.stats.blocked += self._queues.bytes + size > self._limit and bool(self._queues)
        # A callback is called by the one who would make room: it cannot wait for that.
        limit_s = 0.0 if threading.current_thread() is self._sender.thread else self.options.send_timeout_s
        while self._queues.bytes + size > self._limit and self._queues:
            left_s = began_s + limit_s - time.monotonic()
            if left_s <= 0:
                raise BufferFull(buffered=self._queues.bytes, limit=self._limit, waited_s=limit_s)
            # What fills the buffer may still be lingering; somebody waits for it now.
            self._sender.flushing += 1
            self._changed.notify_all()
            try:
                self._changed.wait(left_s)
            finally:
                self._sender.flushing -= 1
            self._check_usable()

    def _placed(self, hash_key: int | str | None, key: bytes | None, number: int | None) -> int | None:
        """Where a record goes by hand, by the partitioner, or, without a key, by its number, as in a life
        before. None leaves it to the key."""
        if number is not None:
            check_number("number", number)
            if self.name is None:
                raise InvalidInput(
                    "number", number, "numbers are for a producer with a name: producer(…, name=…)"
                )
        if hash_key is not None:
            return checked_hash(hash_key)
        if key is None:
            return None if number is None else place_of_number(number)
        return None if self._partitioner is None else checked_hash(self._partitioner(key), "partitioner")

    def _is_kept(self, number: int | None) -> bool:
        """Whether a record keeps its place, with a strategy that was named."""
        return is_strict(self._strategy, is_placed=True, is_numbered=number is not None)

    def _is_stored(self, where: int, number: int, shard: ShardId) -> bool:
        """Under the lock: take note of the number; whether an earlier life has stored it."""
        if number <= self._number:
            raise InvalidInput("number", number, f"numbers rise, and {self._number} came before")
        self._number = number
        return number <= self._delayed if shard == DELAYED else self._stored.has(where, number)

    def _refuse_in_child(self) -> None:
        """Before the lock: in a forked child a thread that is not there may hold it for ever."""
        raise ProducerClosed("it belongs to the process that made it, and this is a fork of it")

    def _check_usable(self) -> None:
        if self._closed is not None:
            raise ProducerClosed(self._closed)
        if isinstance(self._sender.fatal, ProducerFenced | ProducerClosed):
            raise self._sender.fatal
        if self._sender.fatal is not None:
            raise ProducerClosed(str(self._sender.fatal)) from self._sender.fatal

    def _check_sender(self) -> None:
        """Whoever waits for the sender must not be the sender, and there must be one."""
        if threading.current_thread() is self._sender.thread:
            raise WrongThread("thread", "a callback's", "flush() and close() would wait for this very thread")
        if not self._sender.thread.is_alive():
            raise self._sender.fatal or ProducerClosed("its sending thread ended")

    def _raise_unseen(self) -> None:
        unseen = [batch for batch in self._sender.failed if not batch.is_seen]
        self._sender.failed.clear()
        error: ShoalError | None = unseen[0].error if unseen else None
        if error is not None:
            for batch in unseen:
                batch.is_seen = True
            raise error

    def _place_unkeyed(self, size: int) -> int:
        """Records without a key share a random logical partition for a batch, then another."""
        self._unkeyed_until -= size
        if self._unkeyed_until < 0:
            self._unkeyed_place = self._new_unkeyed_place()
            self._unkeyed_until = _UNKEYED_BYTES
        return self._unkeyed_place

    def _new_unkeyed_place(self) -> int:
        return random.randrange(LOGICAL_PARTITIONS) * PARTITION_SIZE


def _places(partitioner: Callable[[bytes], int | str], keys: pa.Array) -> list[int | None]:
    """Where each key lies: the partitioner is asked once for each different one."""
    encoded = keys.dictionary_encode()
    of_each = [checked_hash(partitioner(key), "partitioner") for key in encoded.dictionary.to_pylist()]
    return [None if index is None else of_each[index] for index in encoded.indices.to_pylist()]


_UNKEYED_BYTES = 256_000
_STEP_BYTES = 20_000_000

_LIVE: weakref.WeakSet[Producer] = weakref.WeakSet()


def _close_all() -> None:
    """A program that just ends must not lose what it sent."""
    for producer in list(_LIVE):
        try:
            producer.close()
        except (ShoalError, TimeoutError) as error:  # The others must be closed all the same.
            _log.error("at the end of the program, records for %s: %s", producer.stream, error)


atexit.register(_close_all)
