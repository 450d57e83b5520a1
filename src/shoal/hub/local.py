"""A hub in this process: the calls of HubService over a store. Load, ask `core`, save; no rule of its own."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from shoal.access_port import AccessStore
from shoal.core.appending import Offer, check_batch
from shoal.core.balance import Strategy
from shoal.core.checking import is_whole
from shoal.core.delaying import DELAYED, Delay, together
from shoal.core.errors import InvalidInput, OffsetExpired, ShardClosed, ShoalError, UnknownStream
from shoal.core.group import Note
from shoal.core.limits import BATCH_BYTES_MAX, GROUPS_PER_STREAM, PRODUCER_STATE_KEPT_MS, RETRIES_MAX
from shoal.core.lineage import find_shard
from shoal.core.model import (
    Appended,
    ProducerOpening,
    ProducerStamp,
    Scaling,
    SendStrategy,
    Shard,
    ShardId,
    StreamInfo,
    StreamName,
    StreamSettings,
    StreamStats,
    Trimmed,
)
from shoal.core.reading import ReadLimits, is_end_of_shard, whole_offset
from shoal.core.resharding import first_shards, merge, reshard, split
from shoal.core.retention import plan_cuts
from shoal.core.scaling import check_scaling
from shoal.core.timeline import find_offset
from shoal.delay_port import DelayedRow
from shoal.forks import renew_in_child
from shoal.hub.broadcast import LocalPositions
from shoal.hub.committer import Committer
from shoal.hub.delays import Delays
from shoal.hub.groups import LocalGroups
from shoal.hub.keeper import Keeper
from shoal.hub.scaler import Scaler
from shoal.hub.shared import LocalShares
from shoal.ports import (
    AppendAnswer,
    AppendRequest,
    ChangeSignal,
    Fence,
    Fetched,
    Following,
    GroupSaves,
    Place,
    ProducerLife,
    ShardEnd,
    ShardGone,
    ShardShut,
    Store,
    Submission,
)
from shoal.wire.batch import Batch
from shoal.wire.fitting import check_row_sizes
from shoal.wire.layout import MEMORY, Layout
from shoal.wire.timestamps import batch_timestamps, top_timestamp

_log: Final = logging.getLogger("shoal.hub")

KEEPER_INTERVAL_S: Final = 30.0
GATHER_SHARE: Final = 0.5
"""Of what a commit took, its callers are waited for: half of one more commit is less than all of it."""
ENCODERS: Final = max(2, os.cpu_count() or 2)
"""Appends that are encoded at once. More than the machine has cores only makes memory come and go."""


class LocalHub:
    """See HubService."""

    def __init__(
        self,
        store: Store,
        *,
        keeper_interval_s: float = KEEPER_INTERVAL_S,
        strategies: Mapping[str, Strategy] | None = None,
        groups_per_stream: int = GROUPS_PER_STREAM,
        leases: Store | None = None,
        producers_kept_ms: int = PRODUCER_STATE_KEPT_MS,
        noted: Callable[[Sequence[Note]], None] | None = None,
    ) -> None:
        self._store = store
        self._leases = leases
        self._producers_kept_ms = producers_kept_ms
        self.groups = LocalGroups(
            store,
            self._offset_at,
            strategies=strategies,
            groups_per_stream=groups_per_stream,
            leases=leases,
            noted=noted,
        )
        self.shares = LocalShares(store, self)
        self.positions = LocalPositions(store)
        self._delays = Delays(store, self)
        self._scaler = Scaler(store, self, self._change_shards)
        self._committer = Committer(
            store.append, lambda request: len(request.payload), gather_share=GATHER_SHARE
        )
        self._streams: dict[StreamName, StreamInfo] = {}
        self._layouts: dict[int, Layout] = {}
        self._keeper_interval_s = keeper_interval_s
        self._encoders = threading.BoundedSemaphore(ENCODERS)
        self._keeper: Keeper | None = Keeper(self._keep, keeper_interval_s)
        renew_in_child(self)

    @property
    def access(self) -> AccessStore:
        """Users, keys and policies, for one who keeps the door."""
        return self._store.access

    @property
    def store_identity(self) -> str:
        """A random name that no other store has."""
        return self._store.identity

    # --- Streams and shards. ---

    def create_stream(self, name: StreamName, settings: StreamSettings, shards: int) -> StreamInfo:
        now_ms = _now_ms()
        return self._store.create_stream(name, settings, first_shards(shards, now_ms), now_ms)

    def describe_stream(self, name: StreamName) -> StreamInfo:
        stream = self._store.load_stream(name)
        self._streams[name] = stream
        return stream

    def refresh_stream(self, known: StreamInfo, shards: Collection[ShardId] = ()) -> StreamInfo:
        return self._store.refresh_stream(known, shards)

    def list_streams(self, project: str | None) -> list[StreamInfo]:
        return self._store.list_streams(project)

    def list_projects(self) -> list[str]:
        return self._store.list_projects()

    def create_project(self, project: str) -> bool:
        """A project without streams, for clients that make one first; False if it is there already."""
        return self._store.create_project(project, _now_ms())

    def delete_project(self, project: str) -> None:
        self._store.delete_project(project)

    def delete_stream(self, name: StreamName) -> None:
        groups = self.groups.list(name)
        self._store.delete_stream(name)
        self._streams.pop(name, None)
        self.groups.clear(groups)

    def set_retention(
        self, name: StreamName, retention_ms: int | None, retention_bytes: int | None
    ) -> StreamInfo:
        return self._store.change_settings(
            name, lambda old: replace(old, retention_ms=retention_ms, retention_bytes=retention_bytes)
        )

    def split_shard(self, name: StreamName, shard: int, at: int | None = None) -> StreamInfo:
        return self._change_shards(name, lambda now: split(now.shards, find_shard(now, shard), at, _now_ms()))

    def merge_shards(self, name: StreamName, left: int, right: int | None) -> StreamInfo:
        return self._change_shards(
            name,
            lambda now: merge(
                now.shards,
                find_shard(now, left),
                None if right is None else find_shard(now, right),
                _now_ms(),
            ),
        )

    def reshard(self, name: StreamName, count: int) -> StreamInfo:
        return self._change_shards(name, lambda now: reshard(now.shards, count, _now_ms()))

    def set_scaling(self, name: StreamName, scaling: Scaling | None) -> None:
        self._store.set_scaling(name, None if scaling is None else check_scaling(scaling))

    def scaling(self, name: StreamName) -> Scaling | None:
        return self._store.scalings().get(self.describe_stream(name).id)

    def set_strategy(self, name: StreamName, strategy: SendStrategy | None) -> None:
        self._store.set_strategy(name, strategy)

    def strategy(self, name: StreamName) -> SendStrategy | None:
        return self._store.strategy(name)

    def _change_shards(self, name: StreamName, rule: Callable[[StreamInfo], tuple[Shard, ...]]) -> StreamInfo:
        after = self._store.change_shards(name, rule)
        try:
            self.groups.follow(after)
        except ShoalError as error:
            # The shards have changed all the same; whoever watches the groups lets them know.
            _log.warning("groups of %s: %s", name, error)
        return after

    # --- Records. ---

    def append(self, stream: StreamInfo, batches: Sequence[Submission]) -> list[Appended | ShoalError]:
        """See HubService. Encoding happens here, in the caller's thread; only the commit is shared."""
        with self._encoders:
            prepared = [(one.shard, self._prepare(stream, one)) for one in batches]
        return self.append_prepared(stream, prepared)

    def append_prepared(
        self, stream: StreamInfo, batches: Sequence[tuple[ShardId, AppendRequest | ShoalError]]
    ) -> list[Appended | ShoalError]:
        """Store batches that are as the store takes them, or say again why one cannot be appended."""
        if self._keeper is None:  # We are in a forked child, which has no threads of its parent.
            self._keeper = Keeper(self._keep, self._keeper_interval_s)
        requests = _sound(batches)
        return self.append_answered(stream, batches, self._committer.commit(requests) if requests else [])

    def submit(
        self,
        requests: Sequence[AppendRequest],
        done: Callable[[list[AppendAnswer] | BaseException], None],
        callers: int = 1,
    ) -> None:
        """The same for those who do not wait: `done` hears the store's answers, for `append_answered`."""
        self._committer.submit(requests, done, callers)

    def append_answered(
        self,
        stream: StreamInfo,
        batches: Sequence[tuple[ShardId, AppendRequest | ShoalError]],
        stored: Sequence[AppendAnswer],
    ) -> list[Appended | ShoalError]:
        """The answers as clients know them; and whoever waits for records is told."""
        prepared = [request for _, request in batches]
        answers = iter(stored)
        answered = [
            (request, next(answers)) if isinstance(request, AppendRequest) else (None, request)
            for request in prepared
        ]
        self._store.signal.ring(
            [
                (ShardEnd(request.stream_id, request.shard), answer.next_offset)
                for request, answer in answered
                if request is not None and isinstance(answer, Appended) and request.delayed is None
            ]
        )
        if any(request is not None and request.delayed is not None for request, _ in answered):
            self._delays.wake()
        is_shut = any(isinstance(answer, ShardShut) for _, answer in answered)
        now = self._store.load_stream_by_id(stream.id) if is_shut else None
        return [
            _named_answer(stream, now, shard, answer)
            for (shard, _), (_, answer) in zip(batches, answered, strict=True)
        ]

    def transact(
        self,
        life: ProducerLife,
        appends: Sequence[tuple[StreamInfo, Submission]],
        saves: Sequence[GroupSaves] = (),
    ) -> list[Appended]:
        """See HubService."""
        with self._encoders:
            prepared = [(stream, self._request(stream, submission)) for stream, submission in appends]
        return self.transact_prepared(life, prepared, saves)

    def transact_prepared(
        self,
        life: ProducerLife,
        appends: Sequence[tuple[StreamInfo, AppendRequest]],
        saves: Sequence[GroupSaves],
    ) -> list[Appended]:
        """The same for batches that are as the store takes them."""
        touches = self.groups.touches(saves)
        requests = [request for _, request in appends]
        answers, ends = self._store.transact(life, requests, touches, _now_ms())
        appended = []
        for (stream, request), answer in zip(appends, answers, strict=True):
            now = self._store.load_stream_by_id(stream.id) if isinstance(answer, ShardShut) else None
            named = _named_answer(stream, now, request.shard, answer)
            if isinstance(named, ShoalError):
                raise named
            appended.append(named)
        self._store.signal.ring(
            [
                (ShardEnd(request.stream_id, request.shard), answer.next_offset)
                for request, answer in zip(requests, appended, strict=True)
                if request.delayed is None
            ]
        )
        if any(request.delayed is not None for request in requests):
            self._delays.wake()
        self.groups.reached([touch.group_id for touch, count in zip(touches, ends, strict=True) if count])
        return appended

    def open_producer(self, stream: StreamInfo, producer: str, held: int | None = None) -> ProducerOpening:
        """See HubService."""
        opening = self._store.open_producer(stream.id, producer, held, _now_ms())
        if opening is None:
            raise UnknownStream(str(stream.full_name))
        return opening

    def read(
        self, name: StreamName, shard: int, offset: int, limits: ReadLimits, fence: Fence | None = None
    ) -> Batch:
        """See HubService."""
        deadline = time.monotonic() + limits.wait_s
        offset = whole_offset(offset)
        while True:
            stream, fetched = self.fetch(name, shard, offset, limits, fence)
            left_s = deadline - time.monotonic()
            if fetched.batches or not fetched.shard.is_open or left_s <= 0:
                break
            self._store.signal.wait(ShardEnd(stream.id, fetched.shard.id), offset, left_s)
        layout = self.layout(stream)
        chunks = []
        for stored in fetched.batches:
            chunk = layout.decode(stored.layout, stored.payload)
            low = max(0, offset - stored.base_offset)
            high = min(stored.records, fetched.end - stored.base_offset)
            chunks.append(chunk if high - low == chunk.num_rows else chunk.slice(low, high - low))
        return Batch(
            stream=str(name),
            shard=shard,
            first_offset=offset,
            chunks=chunks,
            layout=layout,
            end_of_shard=is_end_of_shard(fetched.shard, fetched.end),
            tail=fetched.shard.next_offset,
        )

    def fetch(
        self, name: StreamName, shard: int, offset: int, limits: ReadLimits, fence: Fence | None = None
    ) -> tuple[StreamInfo, Fetched]:
        """What there is for a read now, as it is stored, and the stream that it is of."""
        stream = self._stream(name, shard)
        while True:
            try:
                place = ShardEnd(stream.id, find_shard(stream, shard).id)
                fetched = self._store.fetch(name, place, offset, limits, fence)
                if fence is not None and fence.is_leased:
                    self.groups.check_read(name, place.shard, fence)
                return stream, fetched
            except UnknownStream:
                # It was deleted, or deleted and made again, since we looked: look again, once.
                fresh = self.describe_stream(name)
                if fresh.id == stream.id:
                    raise
                stream = fresh

    def follow(self, moved: Callable[[Place], None]) -> Following:
        """See HubService."""
        return self._store.signal.follow(moved)

    @property
    def signal(self) -> ChangeSignal:
        """Where changes are heard, for one who waits in a way of their own."""
        return self._store.signal

    def offset_at(self, name: StreamName, shard: int, timestamp_ms: int) -> int:
        """See HubService."""
        for _ in range(RETRIES_MAX):
            stream = self.describe_stream(name)
            try:
                return self._offset_at(stream, find_shard(stream, shard), timestamp_ms)
            except OffsetExpired:
                continue  # Retention took the batch between our finding it and our reading it.
        return self.describe_stream(name).shards[shard].first_offset

    def _offset_at(self, stream: StreamInfo, shard: Shard, timestamp_ms: int) -> int:
        def timestamps(base_offset: int) -> Sequence[int]:
            limits = ReadLimits(max_bytes=BATCH_BYTES_MAX * 2)
            fetched = self._store.fetch(stream.full_name, ShardEnd(stream.id, shard.id), base_offset, limits)
            first = fetched.batches[0]
            return batch_timestamps(self.layout(stream).decode(first.layout, first.payload))

        return find_offset(
            shard,
            timestamp_ms * 1000,
            lambda offset: self._store.batch_at(stream.id, shard.id, offset),
            timestamps,
        )

    def count_delayed(self, name: StreamName) -> int:
        """See HubService."""
        return self._store.count_delayed(self._store.load_stream(name).id)

    def appended_at(self, stream: StreamInfo, shard: ShardId, offset: int) -> int | None:
        """When the record at this offset was appended, in milliseconds; None if it is not there."""
        found = self._store.batch_at(stream.id, shard, offset)
        return None if found is None else found[0].appended_ms

    # --- Keeping. ---

    def stats(self, name: StreamName) -> StreamStats:
        return self._store.stats(self.describe_stream(name))

    def enforce_retention(self, name: StreamName | None) -> list[Trimmed]:
        """See HubService. Works in bounded transactions until nothing more is due."""
        streams = [self.describe_stream(name)] if name is not None else self._store.list_streams(None)
        trimmed = []
        for stream in streams:
            settings = stream.settings
            if settings.retention_ms is None and settings.retention_bytes is None:
                continue
            now_ms = _now_ms()
            while cuts := self._store.trim(stream, partial(plan_cuts, settings=settings, now_ms=now_ms)):
                trimmed += [
                    Trimmed(
                        stream=stream.full_name,
                        shard=shard,
                        first_offset=cut.first_offset,
                        records=cut.records,
                        bytes=cut.bytes,
                    )
                    for shard, cut in cuts.items()
                ]
        return trimmed

    @property
    def description(self) -> str:
        """Its store, for people: without secrets."""
        return self._store.description

    def close(self) -> None:
        """See HubService."""
        if self._keeper is not None:
            self._keeper.stop()
        self._delays.close()
        self.groups.close()
        if self._leases is not None:
            self._leases.close()
        self._store.close()

    def renew(self) -> None:
        """See Renewed."""
        self._keeper = None
        self._encoders = threading.BoundedSemaphore(ENCODERS)

    def _keep(self) -> None:
        self.enforce_retention(None)
        while self._store.sweep():
            pass
        self.positions.keep()
        self._delays.look()
        self._scaler.keep()
        self._store.forget_producers(_now_ms() - self._producers_kept_ms)

    def _stream(self, name: StreamName, shard: int) -> StreamInfo:
        """The stream as last seen, if that view has the shard; otherwise as of now."""
        seen = self._streams.get(name)
        if seen is not None and is_whole(shard) and 0 <= shard < len(seen.shards):
            return seen
        return self.describe_stream(name)

    def layout(self, stream: StreamInfo) -> Layout:
        """The stored form of a stream's batches."""
        layout = self._layouts.get(stream.id)
        if layout is None:
            layout = self._layouts[stream.id] = Layout(stream.settings.schema)
        return layout

    def seen_stream(self, name: StreamName, stream_id: int, shards: Collection[int]) -> StreamInfo | None:
        """The stream of this id as last seen, if that view has the shards. Asks nobody."""
        seen = self._streams.get(name)
        if seen is None or seen.id != stream_id or any(shard >= len(seen.shards) for shard in shards):
            return None
        return seen

    def known_stream(self, name: StreamName, stream_id: int, shards: Collection[int]) -> StreamInfo:
        """The stream of this id as last seen, if that view has the shards; otherwise as of now."""
        seen = self.seen_stream(name, stream_id, shards) or self.describe_stream(name)
        if seen.id != stream_id:
            raise UnknownStream(str(name))
        return seen

    def prepare(self, stream: StreamInfo, submission: Submission) -> AppendRequest | ShoalError:
        """A batch as the store takes it, for one who appends it together with something else."""
        with self._encoders:
            return self._prepare(stream, submission)

    def _prepare(self, stream: StreamInfo, submission: Submission) -> AppendRequest | ShoalError:
        """The encoded request, or why this batch, and no other, cannot be appended."""
        try:
            return self._request(stream, submission)
        except InvalidInput as error:
            return error

    def _request(self, stream: StreamInfo, submission: Submission) -> AppendRequest:
        batch = submission.batch
        raw_bytes: int = batch.nbytes
        check_batch(batch.num_rows, raw_bytes)
        check_row_sizes(batch)
        if submission.delays is not None:
            rows = self._delayed(stream, batch, submission.delays)
            return self.requested(stream, submission, 0, b"", raw_bytes=raw_bytes, delayed=rows)
        number, payload = self.layout(stream).encode(batch, stream.settings.compression)
        return self.requested(stream, submission, number, payload, raw_bytes=raw_bytes)

    def requested(
        self,
        stream: StreamInfo,
        submission: Submission,
        number: int,
        payload: bytes,
        *,
        raw_bytes: int,
        delayed: Sequence[DelayedRow] | None = None,
    ) -> AppendRequest:
        """A batch that is encoded already, as the store takes it."""
        batch = submission.batch
        stamp = None
        if submission.producer is not None:
            stamp = ProducerStamp(
                producer=submission.producer,
                epoch=submission.epoch,
                sequence=submission.sequence,
                number=submission.number,
            )
        return AppendRequest(
            stream_id=stream.id,
            shard=DELAYED if delayed is not None else find_shard(stream, submission.shard).id,
            offer=Offer(
                records=batch.num_rows,
                stored_bytes=len(payload),
                top_timestamp_us=top_timestamp(batch),
                stamp=stamp,
            ),
            layout=number,
            raw_bytes=raw_bytes,
            payload=payload,
            delayed=delayed,
        )

    def _delayed(
        self, stream: StreamInfo, batch: pa.RecordBatch, delays: Sequence[Delay]
    ) -> list[DelayedRow]:
        """What is due together, encoded together."""
        rows = []
        for delay, some in together(delays).items():
            part = pc.take(batch, pa.array(some), memory_pool=MEMORY)
            number, payload = self.layout(stream).encode(part, stream.settings.compression)
            rows.append(
                DelayedRow(
                    due_ms=delay.due_ms,
                    place=delay.place,
                    records=len(some),
                    raw_bytes=part.nbytes,
                    layout=number,
                    payload=payload,
                )
            )
        return rows


def _sound(batches: Sequence[tuple[ShardId, AppendRequest | ShoalError]]) -> list[AppendRequest]:
    return [request for _, request in batches if isinstance(request, AppendRequest)]


def _named_answer(
    stream: StreamInfo, now: StreamInfo | None, shard: ShardId, answer: AppendAnswer
) -> Appended | ShoalError:
    """The store's answer as clients know it; `now` is the stream as of now, if it is still there."""
    match answer:
        case ShardGone():
            return UnknownStream(str(stream.full_name))
        case ShardShut(last_sequence=last_sequence):
            if now is None:
                return UnknownStream(str(stream.full_name))
            return ShardClosed(stream=now, shard=shard, last_sequence=last_sequence)
        case _:
            return answer


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
