"""A transaction of a producer: records for any streams, and checkpoints, in one step or not at all.

What is sent gathers here. `commit` waits until all that the producer was given before is stored, and has its
sending thread make the one call: so the transaction's place among the producer's own records is that of its
commit. A closed shard means that nothing of it is stored; what was meant for it goes to its heirs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from time import time_ns
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from shoal.core.delaying import DELAYED, Delay
from shoal.core.errors import InvalidInput, ShoalError, TooLarge, TransactionEnded
from shoal.core.limits import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    RECORD_BYTES_MAX,
    TRANSACTION_BYTES_MAX,
)
from shoal.core.model import Appended, StreamInfo, StreamName
from shoal.core.names import stream_name
from shoal.core.ring import LOGICAL_PARTITIONS, PARTITION_SIZE, checked_hash, key_bytes, placer
from shoal.core.routing import ShardMap
from shoal.ports import GroupSaves, HubService, Pledge
from shoal.producer.futures import SendFuture, settle
from shoal.producer.options import ProducerOptions
from shoal.producer.pending import RECORD_OVERHEAD, Pending, PendingRecords
from shoal.producer.queues import Queues
from shoal.wire.fitting import check_headers, check_size, check_value, headers_size
from shoal.wire.layout import Layout
from shoal.wire.timestamps import timestamp_ms


class Checkpointing(Protocol):
    """What a processor is given to declare records done with, or a consumer."""

    def pledge(self, offset: Any = None) -> Pledge: ...


class _Pledged(NamedTuple):
    """Who is to be saved, and how far."""

    checkpointer: Checkpointing
    offset: Any
    pledge: Pledge


class Transaction:
    """Made by `Producer.transaction()`, for one thread. Left without an error it commits, otherwise not."""

    def __init__(
        self,
        service: HubService,
        stream: StreamInfo,
        send: SendTransaction,
        partitioner: Callable[[bytes], int | str] | None = None,
    ) -> None:
        """`partitioner` is the producer's own, for its own stream."""
        self._service = service
        self._send = send
        self._streams: dict[StreamName, StreamPart] = {}
        self._mine = self._see(stream, partitioner)
        self._pledges: dict[int, _Pledged] = {}
        """By who gave them: one for each, since a pledge keeps its shards to itself while it is redeemed."""
        self._size = 0
        self._ended: str | None = None

    def send(
        self,
        value: bytes | str | Mapping[str, Any] | None,
        key: bytes | str | None = None,
        *,
        stream: str | None = None,
        timestamp: int | datetime | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        hash_key: int | str | None = None,
        deliver_at: int | datetime | None = None,
    ) -> SendFuture:
        """A record for the producer's stream, or for another. Its future is done when the commit is."""
        if self._ended is not None:
            raise TransactionEnded(self._ended)
        part = self._mine if stream is None else self._part(stream)
        if type(value) is bytes and not part.is_typed:
            size = len(value)
        else:
            value, size = check_value(part.layout, value)
        binary_key = key if key is None or type(key) is bytes else key_bytes(key)
        kept_headers = check_headers(headers) if headers else None
        if kept_headers:
            size += headers_size(kept_headers)
        if binary_key is not None:
            size += len(binary_key)
        if size > RECORD_BYTES_MAX:
            check_size(size)
        size += RECORD_OVERHEAD
        if self._size + size > TRANSACTION_BYTES_MAX:
            self._refuse(self._size + size)
        explicit = None if hash_key is None else checked_hash(hash_key)
        if explicit is None and binary_key is not None and part.partitioner is not None:
            explicit = checked_hash(part.partitioner(binary_key), "partitioner")
        where = part.place(binary_key) if explicit is None and binary_key is not None else explicit
        stamp = time_ns() // 1_000_000 if timestamp is None else timestamp_ms(timestamp)
        delay = None if deliver_at is None else Delay(timestamp_ms(deliver_at, "deliver_at"), explicit)
        batch = part.batch_at(part.unkeyed if where is None else where, is_delayed=delay is not None)
        self._size += size
        index = batch.add(value, binary_key, stamp, kept_headers, explicit, size, None, delay)
        return SendFuture(batch, index)

    def _refuse(self, size: int) -> None:
        remedy = "commit more often: a transaction is in memory until then, and is one call"
        raise TooLarge("transaction", size=size, limit=TRANSACTION_BYTES_MAX, remedy=remedy)

    def _part(self, stream: str) -> StreamPart:
        name = stream_name(stream)
        return self._streams.get(name) or self._see(self._service.describe_stream(name))

    def checkpoint(self, checkpointer: Checkpointing, *, offset: Any = None) -> None:
        """Save with the commit what `checkpointer.save()` would declare done now: all that was processed,
        and the batch in hand; or what `consumer.commit()` would. `offset` is as there. If the commit fails,
        nothing of it is declared. Of several calls for one checkpointer the last counts."""
        self._check_open()
        if not hasattr(checkpointer, "pledge"):
            raise InvalidInput(
                "checkpointer",
                type(checkpointer).__name__,
                "give what `process` was given as checkpointer, or a Consumer",
            )
        before = self._pledges.get(id(checkpointer))
        if before is not None and isinstance(offset, Mapping):
            if before.offset is None:
                raise InvalidInput("offset", offset, "the whole consumer is in it already; give offsets once")
            offset = {**before.offset, **offset}
        pledge = checkpointer.pledge(offset)
        self._check_apart(checkpointer, pledge)
        self._pledges[id(checkpointer)] = _Pledged(checkpointer, offset, pledge)

    def _check_apart(self, checkpointer: Checkpointing, pledge: Pledge) -> None:
        """Two that wait for the same shard would wait for ever."""
        for other in self._pledges.values():
            shared = other.pledge.shards.keys() & pledge.shards.keys()
            if shared and other.checkpointer is not checkpointer:
                remedy = "another lane's checkpoint of it is in the transaction already; give each its own"
                raise InvalidInput("checkpointer", f"of shard {min(shared)[1]}", remedy)

    def commit(self) -> list[Appended]:
        """Store and save all of it, or raise, and then nothing is. Where the batches are."""
        self._check_open()
        self._ended = "it was committed"
        answers: list[Appended] = []

        def go(pledges: Sequence[Pledge], saves: Sequence[GroupSaves]) -> None:
            """Every pledge around the next, and the call within all of them."""
            if pledges:
                pledges[0].redeem(lambda more: go(pledges[1:], [*saves, *more]))
            else:
                answers.extend(self._send(list(self._streams.values()), saves))

        try:
            pledges = [one.pledge for one in self._pledges.values()]
            with self._kept():
                go(sorted(pledges, key=lambda pledge: sorted(pledge.shards)), ())
        except BaseException as error:
            self._ended = f"it failed: {error}"
            self._fail(error if isinstance(error, ShoalError) else TransactionEnded(self._ended))
            raise
        return answers

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """All in one order: two transactions that wait for each other's shards would wait for ever."""
        keeps = {place: keep for one in self._pledges.values() for place, keep in one.pledge.shards.items()}
        with ExitStack() as kept:
            for place in sorted(keeps):
                keep = keeps[place]
                if keep is not None:
                    kept.enter_context(keep())
            yield

    def abort(self) -> None:
        """Forget it. What has ended stays as it is."""
        if self._ended is None:
            self._ended = "it was aborted"
            self._fail(TransactionEnded(self._ended))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._ended is None:
            self.commit()

    def _fail(self, error: ShoalError) -> None:
        for part in self._streams.values():
            for batch in part.queues.everything():
                batch.error = error
                settle(batch)

    def _check_open(self) -> None:
        if self._ended is not None:
            raise TransactionEnded(self._ended)

    def _see(self, stream: StreamInfo, partitioner: Callable[[bytes], int | str] | None = None) -> StreamPart:
        self._streams[stream.full_name] = part = StreamPart(stream, partitioner)
        return part


class StreamPart:
    """What a transaction has for one stream."""

    def __init__(self, stream: StreamInfo, partitioner: Callable[[bytes], int | str] | None = None) -> None:
        self.stream = stream
        self.partitioner = partitioner
        self.layout = Layout(stream.settings.schema)
        self.is_typed = self.layout.is_typed
        self.place = placer(stream.settings.hash)
        self.queues = Queues(ShardMap.of(stream), stream.settings.hash, _OPTIONS)
        self.unkeyed = random.randrange(LOGICAL_PARTITIONS) * PARTITION_SIZE
        """Records without a key go to one place, another for each transaction."""

    def batch_at(self, place: int, *, is_delayed: bool) -> PendingRecords:
        """The batch that a record of this place goes into."""
        queues = self.queues
        shard = DELAYED if is_delayed else queues.shards.shard_at(place)
        batch = queues.open.get(shard)
        if batch is not None and batch.size >= _OPTIONS.batch_bytes:
            queues.seal(batch)
            batch = None
        return batch or queues.open_batch(shard, 0.0)

    def batches(self) -> list[Pending]:
        """All of them, with nothing more going in."""
        return self.queues.everything()

    def follow(self, stream: StreamInfo) -> int:
        """Take the new map: what was meant for closed shards goes to their heirs. How many batches."""
        self.stream = stream
        moved = self.queues.remap(stream, lambda: self.unkeyed)
        for batch in moved:
            settle(batch)
        return len(moved)


class SendTransaction(Protocol):
    """Makes the one call, after everything that the producer was given before."""

    def __call__(self, parts: Sequence[StreamPart], saves: Sequence[GroupSaves]) -> list[Appended]: ...


# Few batches for each shard: as many as can be answered again.
_OPTIONS = ProducerOptions(
    batch_bytes=BATCH_BYTES_MAX // 2,
    batch_records=BATCH_RECORDS_MAX,
    buffer_bytes_max=TRANSACTION_BYTES_MAX,
)
