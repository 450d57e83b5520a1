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

from shoal.core.appending import Offer, check_batch
from shoal.core.balance import Strategy
from shoal.core.checking import is_whole
from shoal.core.errors import InvalidInput, OffsetExpired, ShardClosed, ShoalError, UnknownStream
from shoal.core.limits import BATCH_BYTES_MAX, GROUPS_PER_STREAM, PRODUCER_STATE_KEPT_MS, RETRIES_MAX
from shoal.core.lineage import find_shard
from shoal.core.model import (
    Appended,
    ProducerStamp,
    Scaling,
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
from shoal.forks import renew_in_child
from shoal.hub.broadcast import LocalPositions
from shoal.hub.committer import Committer
from shoal.hub.groups import LocalGroups
from shoal.hub.keeper import Keeper
from shoal.hub.scaler import Scaler
from shoal.hub.shared import LocalShares
from shoal.ports import (
    AppendAnswer,
    AppendRequest,
    Fence,
    Following,
    Place,
    ShardEnd,
    ShardGone,
    ShardShut,
    Store,
    Submission,
)
from shoal.wire.batch import Batch
from shoal.wire.fitting import check_row_sizes
from shoal.wire.layout import Layout
from shoal.wire.timestamps import batch_timestamps, top_timestamp

_log: Final = logging.getLogger("shoal.hub")

KEEPER_INTERVAL_S: Final = 30.0
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
    ) -> None:
        self._store = store
        self._leases = leases
        self.groups = LocalGroups(
            store,
            self._offset_at,
            strategies=strategies,
            groups_per_stream=groups_per_stream,
            leases=leases,
        )
        self.shares = LocalShares(store, self)
        self.positions = LocalPositions(store)
        self._scaler = Scaler(store, self, self._change_shards)
        self._committer = Committer(store.append, lambda request: len(request.payload))
        self._streams: dict[StreamName, StreamInfo] = {}
        self._layouts: dict[int, Layout] = {}
        self._keeper_interval_s = keeper_interval_s
        self._encoders = threading.BoundedSemaphore(ENCODERS)
        self._keeper: Keeper | None = Keeper(self._keep, keeper_interval_s)
        renew_in_child(self)

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

    def split_shard(self, name: StreamName, shard: int, at: int | None) -> StreamInfo:
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
        if self._keeper is None:  # We are in a forked child, which has no threads of its parent.
            self._keeper = Keeper(self._keep, self._keeper_interval_s)
        with self._encoders:
            prepared = [self._prepare(stream, submission) for submission in batches]
        requests = [request for request in prepared if isinstance(request, AppendRequest)]
        answers = iter(self._committer.commit(requests) if requests else ())
        answered = [
            (request, next(answers)) if isinstance(request, AppendRequest) else (None, request)
            for request in prepared
        ]
        self._store.signal.ring(
            [
                (ShardEnd(request.stream_id, request.shard), answer.next_offset)
                for request, answer in answered
                if request is not None and isinstance(answer, Appended)
            ]
        )
        is_shut = any(isinstance(answer, ShardShut) for _, answer in answered)
        now = self._store.load_stream_by_id(stream.id) if is_shut else None
        return [
            _named_answer(stream, now, submission, answer)
            for submission, (_, answer) in zip(batches, answered, strict=True)
        ]

    def read(
        self, name: StreamName, shard: int, offset: int, limits: ReadLimits, fence: Fence | None = None
    ) -> Batch:
        """See HubService."""
        deadline = time.monotonic() + limits.wait_s
        offset = whole_offset(offset)
        stream = self._stream(name, shard)
        while True:
            try:
                place = ShardEnd(stream.id, find_shard(stream, shard).id)
                fetched = self._store.fetch(name, place, offset, limits, fence)
                if fence is not None and fence.is_leased:
                    self.groups.check_read(name, place.shard, fence)
            except UnknownStream:
                # It was deleted, or deleted and made again, since we looked: look again, once.
                fresh = self.describe_stream(name)
                if fresh.id == stream.id:
                    raise
                stream = fresh
                continue
            left_s = deadline - time.monotonic()
            if fetched.batches or not fetched.shard.is_open or left_s <= 0:
                break
            self._store.signal.wait(ShardEnd(stream.id, fetched.shard.id), offset, left_s)
        layout = self._layout(stream)
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

    def follow(self, moved: Callable[[Place], None]) -> Following:
        """See HubService."""
        return self._store.signal.follow(moved)

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
            return batch_timestamps(self._layout(stream).decode(first.layout, first.payload))

        return find_offset(
            shard,
            timestamp_ms * 1000,
            lambda offset: self._store.batch_at(stream.id, shard.id, offset),
            timestamps,
        )

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

    def close(self) -> None:
        """See HubService."""
        if self._keeper is not None:
            self._keeper.stop()
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
        self._store.forget_producers(_now_ms() - PRODUCER_STATE_KEPT_MS)
        self._scaler.keep()

    def _stream(self, name: StreamName, shard: int) -> StreamInfo:
        """The stream as last seen, if that view has the shard; otherwise as of now."""
        seen = self._streams.get(name)
        if seen is not None and is_whole(shard) and 0 <= shard < len(seen.shards):
            return seen
        return self.describe_stream(name)

    def _layout(self, stream: StreamInfo) -> Layout:
        layout = self._layouts.get(stream.id)
        if layout is None:
            layout = self._layouts[stream.id] = Layout(stream.settings.schema)
        return layout

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
        number, payload = self._layout(stream).encode(batch, stream.settings.compression)
        stamp = None
        if submission.producer is not None:
            stamp = ProducerStamp(
                producer=submission.producer, epoch=submission.epoch, sequence=submission.sequence
            )
        return AppendRequest(
            stream_id=stream.id,
            shard=find_shard(stream, submission.shard).id,
            offer=Offer(
                records=batch.num_rows,
                stored_bytes=len(payload),
                top_timestamp_us=top_timestamp(batch),
                stamp=stamp,
            ),
            layout=number,
            raw_bytes=raw_bytes,
            payload=payload,
        )


def _named_answer(
    stream: StreamInfo, now: StreamInfo | None, submission: Submission, answer: AppendAnswer
) -> Appended | ShoalError:
    """The store's answer as clients know it; `now` is the stream as of now, if it is still there."""
    match answer:
        case ShardGone():
            return UnknownStream(str(stream.full_name))
        case ShardShut(last_sequence=last_sequence):
            if now is None:
                return UnknownStream(str(stream.full_name))
            return ShardClosed(stream=now, shard=submission.shard, last_sequence=last_sequence)
        case _:
            return answer


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
