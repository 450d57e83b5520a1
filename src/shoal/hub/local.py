"""A hub in this process: the calls of HubService over a store. Load, ask `core`, save; no rule of its own.

Encoding, answers, reads and the search by time have rooms of their own; here they are one hub.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from shoal.access_port import AccessStore
from shoal.core.balance import Strategy
from shoal.core.errors import ShoalError, UnknownStream
from shoal.core.group import Note
from shoal.core.limits import GROUPS_PER_STREAM, PRODUCER_STATE_KEPT_MS
from shoal.core.lineage import find_shard
from shoal.core.model import (
    Appended,
    ProducerOpening,
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
from shoal.core.reading import ReadLimits
from shoal.core.resharding import first_shards, merge, reshard, split
from shoal.core.retention import plan_cuts
from shoal.core.scaling import check_scaling
from shoal.forks import renew_in_child
from shoal.hub.answering import Answering, told
from shoal.hub.broadcast import LocalPositions
from shoal.hub.committer import Committer
from shoal.hub.delays import Delays
from shoal.hub.encoding import Encoding
from shoal.hub.groups import LocalGroups
from shoal.hub.keeper import Keeper
from shoal.hub.reading import Reader
from shoal.hub.routes import ANNOUNCE_S, Routes
from shoal.hub.scaler import Scaler
from shoal.hub.seen_streams import SeenStreams
from shoal.hub.shared import LocalShares
from shoal.hub.timeline import Timeline
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
    Store,
    Submission,
)
from shoal.wire.batch import Batch
from shoal.wire.layout import Layout

_log: Final = logging.getLogger("shoal.hub")

KEEPER_INTERVAL_S: Final = 30.0
DELAYS_LOOK_S: Final = 5.0
"""What another hub left that is gone is found so soon. A look is one row of an index."""
GATHER_SHARE: Final = 0.5
"""Of what a commit took, its callers are waited for: half of one more commit is less than all of it."""


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
        announce_s: float = ANNOUNCE_S,
        noted: Callable[[Sequence[Note]], None] | None = None,
        looks_first: bool = False,
    ) -> None:
        self._store = store
        self._leases = leases
        self._producers_kept_ms = producers_kept_ms
        self._streams = SeenStreams(store)
        self._encoding = Encoding()
        self._timeline = Timeline(store, self._streams, self._encoding.layout)
        self.groups = LocalGroups(
            store,
            self._timeline.offset_in,
            strategies=strategies,
            groups_per_stream=groups_per_stream,
            leases=leases,
            noted=noted,
            looks_first=looks_first,
        )
        self._reader = Reader(store, self._streams, self._encoding.layout, self.groups.check_read)
        self.shares = LocalShares(store, self)
        self.positions = LocalPositions(store)
        self._delays = Delays(store, self)
        self._answering = Answering(store, self._delays.wake)
        self._routes = Routes(store, announce_s)
        self._scaler = Scaler(store, self, self._change_shards)
        self._committer = Committer(
            store.append, lambda request: len(request.payload), gather_share=GATHER_SHARE
        )
        self._keeper_interval_s = keeper_interval_s
        self._keepers = self._begun_keepers()
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
        return self._streams.describe(name)

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
        self._streams.forget(name)
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
        after = self._routes.changed(name, rule)
        try:
            self.groups.follow(after)
        except ShoalError as error:
            # The shards have changed all the same; whoever watches the groups lets them know.
            _log.warning("groups of %s: %s", name, error)
        return after

    def seen_stream(self, name: StreamName, stream_id: int, shards: Collection[int]) -> StreamInfo | None:
        """See SeenStreams. Asks nobody."""
        return self._streams.seen(name, stream_id, shards)

    def known_stream(self, name: StreamName, stream_id: int, shards: Collection[int]) -> StreamInfo:
        """See SeenStreams."""
        return self._streams.known(name, stream_id, shards)

    # --- Records. ---

    def layout(self, stream: StreamInfo) -> Layout:
        """The stored form of a stream's batches."""
        return self._encoding.layout(stream)

    def prepare(self, stream: StreamInfo, submission: Submission) -> AppendRequest | ShoalError:
        """A batch as the store takes it, for one who appends it together with something else."""
        ((_, prepared),) = self._encoding.prepare(stream, [submission])
        return prepared

    def requested(
        self, stream: StreamInfo, submission: Submission, number: int, payload: bytes, *, raw_bytes: int
    ) -> AppendRequest:
        """A batch that is encoded already, as the store takes it."""
        return self._encoding.requested(stream, submission, number, payload, raw_bytes=raw_bytes)

    def append(self, stream: StreamInfo, batches: Sequence[Submission]) -> list[Appended | ShoalError]:
        """See HubService. Encoding happens here, in the caller's thread; only the commit is shared."""
        answers = self.append_prepared(stream, self._encoding.prepare(stream, batches))
        return [told(answer) for answer in answers]

    def append_prepared(
        self, stream: StreamInfo, batches: Sequence[tuple[ShardId, AppendRequest | ShoalError]]
    ) -> list[Appended | ShoalError]:
        """Store batches that are as the store takes them, or say again why one cannot be appended. The answer
        says which were there already: see `told`."""
        if not self._keepers:  # We are in a forked child, which has no threads of its parent.
            self._keepers = self._begun_keepers()
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
        """The answers as clients know them, but for `told`; and whoever waits for records is told."""
        return self._answering.appended(stream, batches, stored)

    def transact(
        self,
        life: ProducerLife,
        appends: Sequence[tuple[StreamInfo, Submission]],
        saves: Sequence[GroupSaves] = (),
    ) -> list[Appended]:
        """See HubService."""
        answers = self.transact_prepared(life, self._encoding.requests(appends), saves)
        return [told(answer) for answer in answers]

    def transact_prepared(
        self,
        life: ProducerLife,
        appends: Sequence[tuple[StreamInfo, AppendRequest]],
        saves: Sequence[GroupSaves],
    ) -> list[Appended]:
        """The same for batches that are as the store takes them. The answer says which were there already:
        see `told`."""
        touches = self.groups.touches(saves)
        requests = [request for _, request in appends]
        answers, ends = self._store.transact(life, requests, touches, _now_ms())
        appended = self._answering.committed(appends, answers)
        try:
            self.groups.reached([touch.group_id for touch, count in zip(touches, ends, strict=True) if count])
        except ShoalError as error:
            # It is committed all the same; whoever lets go of the shards lets the groups know.
            _log.warning("groups whose shards have ended: %s", error)
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
        return self._reader.read(name, shard, offset, limits, fence)

    def fetch(
        self, name: StreamName, shard: int, offset: int, limits: ReadLimits, fence: Fence | None = None
    ) -> tuple[StreamInfo, Fetched]:
        """What there is for a read now, as it is stored, and the stream that it is of."""
        return self._reader.fetch(name, shard, offset, limits, fence)

    def offset_at(self, name: StreamName, shard: int, timestamp_ms: int) -> int:
        """See HubService."""
        return self._timeline.offset_at(name, shard, timestamp_ms)

    def follow(self, moved: Callable[[Place], None]) -> Following:
        """See HubService."""
        return self._store.signal.follow(moved)

    @property
    def signal(self) -> ChangeSignal:
        """Where changes are heard, for one who waits in a way of their own."""
        return self._store.signal

    def count_delayed(self, name: StreamName) -> int:
        """See HubService."""
        return self._store.count_delayed(self._store.load_stream(name).id)

    def all_delayed(self) -> Mapping[int, int]:
        """How many records wait for each stream, by the streams' ids; only those that some wait for."""
        return self._store.all_delayed()

    def appended_at(self, stream: StreamInfo, shard: ShardId, offset: int) -> int | None:
        """When the record at this offset was appended, in milliseconds; None if it is not there."""
        found = self._store.batch_at(stream.id, shard, offset)
        return None if found is None else found[0].appended_ms

    def offset_appended(self, stream: StreamInfo, shard: Shard, appended_ms: int) -> int:
        """The first offset of a shard, which was just looked at, whose record was appended at this time or
        later; its next one, if none was. Other than `offset_at`, it does not go by what records carry."""
        return self._timeline.offset_appended(stream, shard, appended_ms)

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
        for keeper in self._keepers:
            keeper.stop()
        self._delays.close()
        self.groups.close()
        if self._leases is not None:
            self._leases.close()
        self._store.close()

    def renew(self) -> None:
        """See Renewed."""
        self._keepers = []

    def _begun_keepers(self) -> list[Keeper]:
        """Housekeeping; and a look for delayed records of others, which must not wait so long."""
        interval_s = self._keeper_interval_s
        return [
            Keeper(self._keep, interval_s),
            Keeper(self._delays.look, min(interval_s, DELAYS_LOOK_S)),
        ]

    def _keep(self) -> None:
        self.enforce_retention(None)
        while self._store.sweep():
            pass
        self.positions.keep()
        self._routes.keep()
        self._scaler.keep()
        self._store.forget_producers(_now_ms() - self._producers_kept_ms)


def _sound(batches: Sequence[tuple[ShardId, AppendRequest | ShoalError]]) -> list[AppendRequest]:
    return [request for _, request in batches if isinstance(request, AppendRequest)]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
