"""The front door: `shoal.connect(url)` and the hub that it returns.

A hub is the same object over any service, in process or remote. It takes what users find natural to give
(names, seconds, lists of values) and hands on values; it keeps no rules of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

from shoal.core.balance import Strategy
from shoal.core.checking import is_number, is_whole
from shoal.core.errors import (
    InvalidInput,
    StreamExists,
    UnknownProject,
    UnknownStream,
)
from shoal.core.group import Note
from shoal.core.limits import FIRST_USE_SHARDS, GROUPS_PER_STREAM, PRODUCER_STATE_KEPT_MS
from shoal.core.lineage import find_shard
from shoal.core.model import (
    Appended,
    Compression,
    KeyHash,
    ProducerStamp,
    Shard,
    StreamInfo,
    StreamSettings,
    StreamStats,
    Trimmed,
)
from shoal.core.names import checked_name, stream_name
from shoal.core.parcels import checked_strategy
from shoal.core.reading import ReadLimits
from shoal.core.retention import checked_retention
from shoal.core.ring import checked_hash, checked_shard_count
from shoal.forks import importing, meet_arrow
from shoal.front.appending import PlainAppends
from shoal.front.arguments import choice, flag, retention_ms
from shoal.front.dead import DeadCalls
from shoal.front.groups import GroupCalls
from shoal.front.scaling import ScalingCalls
from shoal.hub.local import KEEPER_INTERVAL_S as HOUSEKEEPING_S
from shoal.hub.local import LocalHub
from shoal.ports import HubService
from shoal.remote.address import is_remote
from shoal.wire.batch import Batch
from shoal.wire.layout import SchemaLike, stored_schema
from shoal.wire.timestamps import timestamp_ms

if TYPE_CHECKING:
    from shoal.producer import Producer, ProducerOptions

PRODUCERS_KEPT_S: Final = PRODUCER_STATE_KEPT_MS / 1000


def connect(
    url: str,
    *,
    durable: bool = True,
    housekeeping_s: float = HOUSEKEEPING_S,
    groups_per_stream: int = GROUPS_PER_STREAM,
    strategies: Mapping[str, Strategy] | None = None,
    leases: str | None = None,
    producers_kept: timedelta | float = PRODUCERS_KEPT_S,
) -> Hub:
    """Open a hub: `sqlite:///data/shoal.db`, `postgresql://user@host/db`, `mysql://user@host/db`.

    The schema is created or brought up to date. With `durable=False` a database whose settings would
    lose acknowledged records at a power cut is taken all the same. Retention runs every `housekeeping_s`.
    `strategies` are functions of your own that spread shards over consumers, by the name that groups
    know them by; every process that decides for such a group needs them. `leases` is the URL of another
    database for the tables of leased groups; without it they are beside the log. A producer that is
    silent for `producers_kept`, a timedelta or seconds, is forgotten: until then a repeat is known.

    `http://host:7400` (or https, or several servers of one store: `http://a:7400,b:7400`) is a hub that
    `shoal serve` keeps; all the other settings are that server's to have.
    """
    meet_arrow()
    if is_remote(url):
        _refuse_settings_of_a_server(
            durable=durable,
            housekeeping_s=housekeeping_s,
            groups_per_stream=groups_per_stream,
            strategies=strategies,
            leases=leases,
            producers_kept=producers_kept,
        )
        return open_remote(url)
    local = open_local(
        url,
        durable=durable,
        housekeeping_s=housekeeping_s,
        groups_per_stream=groups_per_stream,
        strategies=strategies,
        leases=leases,
        producers_kept=producers_kept,
    )
    return Hub(local, local.description)


def open_remote(url: str) -> Hub:
    """A hub that a server keeps: see `connect`."""
    with importing:
        from shoal.remote.hub import RemoteHub
    remote = RemoteHub(url)
    return Hub(remote, remote.description)


def open_local(
    url: str,
    *,
    durable: bool = True,
    housekeeping_s: float = HOUSEKEEPING_S,
    groups_per_stream: int = GROUPS_PER_STREAM,
    strategies: Mapping[str, Strategy] | None = None,
    leases: str | None = None,
    producers_kept: timedelta | float = PRODUCERS_KEPT_S,
    noted: Callable[[Sequence[Note]], None] | None = None,
    mapped: bool = False,
    looks_first: bool = False,
) -> LocalHub:
    """A hub in this process: see `connect`. `noted` is told what happened in groups, for counting. `mapped`:
    a file is read through a mapping into memory, for one who may be ended by an error of the disk.
    `looks_first`: for a server, which judges no consumer before it has been there for a whole timeout."""
    if not is_number(housekeeping_s) or housekeeping_s <= 0:
        raise InvalidInput("housekeeping_s", housekeeping_s, "seconds, more than 0")
    if not is_whole(groups_per_stream) or groups_per_stream < 1:
        raise InvalidInput("groups_per_stream", groups_per_stream, "a whole number from 1 on")
    for name, strategy in (strategies or {}).items():
        checked_name("strategies", name)
        if not callable(strategy):
            raise InvalidInput("strategies", name, "a strategy is a function of shards, members and held")
    kept_ms = retention_ms(producers_kept, "producers_kept")
    if not kept_ms:
        raise InvalidInput("producers_kept", producers_kept, "a timedelta or seconds, more than 0")
    with importing:
        from shoal.store.sql.store import SQLStore
    store = SQLStore.open(url, durable=durable, mapped=mapped)
    try:
        lease_store = None if leases is None else SQLStore.open(leases, durable=durable)
    except BaseException:
        store.close()
        raise
    return LocalHub(
        store,
        leases=lease_store,
        keeper_interval_s=housekeeping_s,
        strategies=strategies,
        groups_per_stream=groups_per_stream,
        producers_kept_ms=kept_ms,
        noted=noted,
        looks_first=looks_first,
    )


def _refuse_settings_of_a_server(
    *,
    durable: bool,
    housekeeping_s: float,
    groups_per_stream: int,
    strategies: Mapping[str, Strategy] | None,
    leases: str | None,
    producers_kept: timedelta | float,
) -> None:
    for field, value, usual in (
        ("durable", durable, True),
        ("housekeeping_s", housekeeping_s, HOUSEKEEPING_S),
        ("groups_per_stream", groups_per_stream, GROUPS_PER_STREAM),
        ("strategies", strategies, None),
        ("leases", leases, None),
        ("producers_kept", producers_kept, PRODUCERS_KEPT_S),
    ):
        if value != usual:
            raise InvalidInput(field, value, "a server has its own; start 'shoal serve' with it")


class Hub(GroupCalls, DeadCalls, ScalingCalls):
    """The whole service behind one object. Safe to use from many threads, and in a forked child."""

    def __init__(self, service: HubService, description: str) -> None:
        super().__init__(service)
        self._description = description
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        self._appends = PlainAppends(service)

    @property
    def service(self) -> HubService:
        """What this object talks to: for those who speak its calls themselves."""
        return self._service

    # --- Streams. ---

    def create_stream(
        self,
        name: str,
        shards: int = 4,
        *,
        schema: SchemaLike | None = None,
        retention: timedelta | float | None = None,
        retention_bytes: int | None = None,
        compression: str = "lz4",
        hash: str = "xxh64",
        strategy: str | None = None,
    ) -> StreamInfo:
        """Make a stream of equal shards. `project/stream` makes the project too, if it is new.

        `schema` gives it typed columns: a pyarrow.Schema, or a dict of name to type. `retention` is an age,
        in seconds or as a timedelta; without one, and without `retention_bytes`, records are kept for ever.
        `strategy` is what producers make of failed attempts: see `set_strategy`.
        """
        order = checked_strategy(strategy)
        settings = StreamSettings(
            hash=choice("hash", hash, KeyHash),
            compression=choice("compression", compression, Compression),
            retention_ms=retention_ms(retention),
            retention_bytes=checked_retention("retention_bytes", retention_bytes),
            schema=stored_schema(schema),
        )
        made = self._service.create_stream(stream_name(name), settings, checked_shard_count(shards))
        if order is not None:
            self._service.set_strategy(made.full_name, order)
        return made

    def ensure_stream(self, name: str, shards: int = FIRST_USE_SHARDS, **settings: Any) -> StreamInfo:
        """The stream as of now; made, as by `create_stream`, if it is not there."""
        try:
            return self.describe_stream(name)
        except (UnknownStream, UnknownProject):
            pass  # Then this is its first use.
        try:
            return self.create_stream(name, shards, **settings)
        except StreamExists:  # Another had the same first use.
            return self.describe_stream(name)

    def describe_stream(self, name: str) -> StreamInfo:
        """The stream as of now: `.shards`, `.settings`, `.version`."""
        return self._service.describe_stream(stream_name(name))

    def list_streams(self, project: str | None = None) -> list[StreamInfo]:
        """All streams by name, or those of one project."""
        return self._service.list_streams(None if project is None else checked_name("project", project))

    def delete_stream(self, name: str) -> None:
        """Remove a stream and all its records. Its name is free at once."""
        self._service.delete_stream(stream_name(name))

    def set_retention(
        self, name: str, *, retention: timedelta | float | None = None, retention_bytes: int | None = None
    ) -> StreamInfo:
        """Change how long, and how much, a stream keeps. None is for ever."""
        size = checked_retention("retention_bytes", retention_bytes)
        return self._service.set_retention(stream_name(name), retention_ms(retention), size)

    def list_projects(self) -> list[str]:
        """All projects by name."""
        return self._service.list_projects()

    def delete_project(self, project: str) -> None:
        """Remove a project that holds no streams any more."""
        self._service.delete_project(checked_name("project", project))

    # --- Shards. ---

    def split_shard(self, name: str, shard: int, at: int | str | None = None) -> tuple[Shard, Shard]:
        """Close a shard and open two children that divide its range, at `at` or in the middle."""
        cut = None if at is None else checked_hash(at, "at")
        after = self._service.split_shard(stream_name(name), shard, cut)
        left, right = (child for child in after.shards if child.parents == (shard,))
        return left, right

    def merge_shards(self, name: str, shard: int, other: int | None = None) -> Shard:
        """Close two neighbours and open one child. Without `other`, the right neighbour is meant."""
        after = self._service.merge_shards(stream_name(name), shard, other)
        return next(child for child in after.shards if shard in child.parents)

    def reshard(self, name: str, shards: int) -> StreamInfo:
        """Get to `shards` equal shards with the fewest splits and merges, all in one step."""
        return self._service.reshard(stream_name(name), checked_shard_count(shards))

    # --- Records. ---

    def producer(
        self,
        stream: str,
        options: ProducerOptions | None = None,
        *,
        name: str | None = None,
        create: bool = False,
        **settings: Any,
    ) -> Producer:
        """A producer for a stream, with ProducerOptions or with its fields as keywords.

        With a `name` it may come again after a crash: whoever had the name before is fenced on this stream
        (ProducerFenced), and what was sent with a `number` is not stored twice. With `create`, a stream that
        is not there is made, with two shards.
        """
        with importing:
            from shoal.producer import Producer, ProducerOptions
        if settings:
            if options is not None:
                raise InvalidInput(
                    "options", sorted(settings), "give an options object or keywords, not both"
                )
            try:
                options = ProducerOptions(**settings)
            except TypeError as error:
                raise InvalidInput("options", sorted(settings), str(error)) from error
        found = self.ensure_stream(stream) if flag("create", create) else self.describe_stream(stream)
        producer = Producer(self._service, found, options, name=name)
        self._producers.add(producer)
        return producer

    def append(
        self,
        stream: str,
        shard: int,
        records: Sequence[Any] | pa.Table | pa.RecordBatch,
        *,
        key_column: str | None = None,
        stamp: ProducerStamp | None = None,
    ) -> Appended:
        """Append one batch to one shard, durably: Arrow columns, or a list of values or Records.

        This is the plain way, without routing or retries; a producer does both. With a `stamp` (producer,
        epoch, sequence) a batch that is repeated is stored once.
        """
        return self._appends.append(stream, shard, records, key_column=key_column, stamp=stamp)

    def read(
        self,
        stream: str,
        shard: int,
        offset: int,
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
        wait: float = 0.0,
        group: str | None = None,
        epoch: int | None = None,
    ) -> Batch:
        """Records of a shard from an offset on: whole batches, trimmed to the limits.

        At the end of the shard the batch is empty; with `wait`, only after so many seconds without a record.
        An owner shows its `group` and `epoch`, and is refused once another has the shard.
        """
        given = {"max_records": max_records, "max_bytes": max_bytes}
        limits = ReadLimits(
            wait_s=wait, **{name: value for name, value in given.items() if value is not None}
        )
        fence = self._fence(stream, group, epoch)
        return self._service.read(stream_name(stream), shard, offset, limits, fence)

    def first_offset(self, stream: str, shard: int) -> int:
        """The first offset that retention has kept."""
        return find_shard(self.describe_stream(stream), shard).first_offset

    def next_offset(self, stream: str, shard: int) -> int:
        """The offset that the next record of the shard will get."""
        return find_shard(self.describe_stream(stream), shard).next_offset

    def offset_at(self, stream: str, shard: int, time: int | datetime) -> int:
        """The first offset at or after a time: milliseconds since 1970, or a datetime with a time zone."""
        return self._service.offset_at(stream_name(stream), shard, timestamp_ms(time))

    def count_delayed(self, stream: str) -> int:
        """How many records were sent with `deliver_at`, and are to come."""
        return self._service.count_delayed(stream_name(stream))

    # --- Keeping. ---

    def stats(self, stream: str) -> StreamStats:
        """Figures of a stream: records and bytes kept, appended in all, by shard."""
        return self._service.stats(stream_name(stream))

    def enforce_retention(self, stream: str | None = None) -> list[Trimmed]:
        """Remove now what retention no longer keeps, of one stream or of all; it also runs by itself."""
        return self._service.enforce_retention(None if stream is None else stream_name(stream))

    def close(self) -> None:
        """Close the producers that are still open, sending what they hold, and give everything back.

        Memberships of groups end, and hand their shards over.
        """
        with ExitStack() as stack:  # Every one of them is closed, whatever the others raise.
            stack.callback(self._service.close)
            for membership in list(self._memberships):
                stack.callback(membership.leave)
            for producer in list(self._producers):
                stack.callback(producer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Hub {self._description}>"
