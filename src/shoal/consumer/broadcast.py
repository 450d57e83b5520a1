"""What users hold of a broadcast group: every record, from a position of its own that its name keeps.

The position covers what was handed out before the last `poll`, or all of it after `save`; it is persisted
every few seconds, by `save` and by `close`. A crash repeats what was not covered.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Self

from shoal.consumer.joining import HubCalls, checked_hub, missed_by_name
from shoal.consumer.options import OnExpired
from shoal.core.checking import is_number, is_whole
from shoal.core.errors import (
    ConsumerClosed,
    InvalidInput,
    OffsetExpired,
    OffsetOutOfRange,
    PositionMoved,
    StoreError,
    UnknownGroup,
    UnknownPosition,
)
from shoal.core.group import Delivery, check_delivery
from shoal.core.limits import DURATION_S_MAX, POSITION_UNUSED_S, READ_WAIT_S_MAX
from shoal.core.lineage import readable
from shoal.core.model import ShardId
from shoal.core.names import checked_name, stream_name
from shoal.core.reading import ReadLimits
from shoal.forks import renew_in_child
from shoal.ports import Following, ShardEnd
from shoal.wire.batch import Batch

_log: Final = logging.getLogger("shoal.consumer.broadcast")


class BroadcastConsumer:
    """Gets every record of the stream, whoever else does. For one thread.

    `name` is what its position is kept by: give each consumer one that it has again after a restart.
    `on_expired`: when retention has taken what comes next, `stop` raises OffsetExpired; `jump` goes on at the
    first record that is kept, `end` behind all that is there; what was left out is counted in `skipped`.
    """

    def __init__(
        self,
        hub: HubCalls,
        stream: str,
        group: str,
        name: str,
        *,
        save_interval: float = 5.0,
        on_expired: str = "stop",
        max_records: int = 100_000,
    ) -> None:
        if not is_number(save_interval) or not 0 <= save_interval <= DURATION_S_MAX:
            raise InvalidInput("save_interval", save_interval, f"seconds from 0 to {DURATION_S_MAX:g}")
        if on_expired not in tuple(OnExpired):
            raise InvalidInput("on_expired", on_expired, f"one of {', '.join(OnExpired)}")
        if not is_whole(max_records) or max_records < 1:
            raise InvalidInput("max_records", max_records, "a batch has at least 1")
        self._service = checked_hub(hub).service
        self._stream = stream_name(stream)
        found = self._service.groups.find(self._stream, checked_name("group", group))
        check_delivery(found, str(self._stream), Delivery.BROADCAST)
        self.group, self._group_id = found.name, found.id
        self._in_order = found.settings.in_order
        self.name = checked_name("name", name)
        self._save_interval = save_interval
        self._refresh_s = (found.settings.unused_ms or POSITION_UNUSED_S * 1000) / 4000
        self._on_expired = OnExpired(on_expired)
        self._limits = ReadLimits(max_records=max_records)
        self.skipped = 0
        self._info = self._service.describe_stream(self._stream)
        self._is_closed = False
        self._turn = 0
        self._done: dict[int, int] = {}
        """The next offset of each shard, as far as everything before it is done."""
        self._given: Batch | None = None
        """What was returned last, and may be in work."""
        self.renew()
        renew_in_child(self)
        self._join()

    def renew(self) -> None:
        """See Renewed. A forked child is another consumer: the position stays with its parent."""
        self._incarnation = secrets.token_hex(16)
        self._woken = threading.Event()
        self._following: Following | None = None
        self._places: set[ShardEnd] = set()

    # --- For users. ---

    def poll(self, timeout: float = 0.0) -> Batch | None:
        """The next records, of one shard; None if none came within `timeout` seconds.

        What was returned before counts as done.
        """
        if not is_number(timeout) or not 0 <= timeout <= READ_WAIT_S_MAX:
            raise InvalidInput("timeout", timeout, f"seconds from 0 to {READ_WAIT_S_MAX:g}")
        deadline = time.monotonic() + timeout
        self._settle()
        while True:
            self._check_open()
            self._save_if_due()
            self._woken.clear()
            batch = self._read()
            if batch is not None:
                self._given = batch
                return batch
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._wait(min(left, _LOOK_S))

    def __iter__(self) -> Iterator[Batch]:
        """What comes, until the consumer is closed; an outage of the store is waited for."""
        while not self._is_closed:
            try:
                batch = self.poll(_LOOK_S)
            except ConsumerClosed:
                return
            except StoreError as error:
                if not error.retriable:
                    raise
                _log.warning("reading for %s: %s", self.name, error)
                time.sleep(_OUTAGE_S)
                continue
            if batch is not None:
                yield batch

    def save(self) -> None:
        """Everything that was returned is done: durable when this returns."""
        self._check_open()
        self._settle()
        self._persist()

    def position(self) -> Mapping[int, int]:
        """The next offset of each shard, as far as it is done."""
        return dict(self._done)

    def close(self) -> None:
        """Save the position, with everything that was returned, and end."""
        self._end(with_last=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What was being worked on when something failed comes again.
        self._end(with_last=kind is None)

    def __repr__(self) -> str:
        return f"<BroadcastConsumer {self.name} of {self.group} on {self._stream}>"

    # --- Reading. ---

    def _read(self) -> Batch | None:
        """What comes next, of the stream that we began with: one of its name, made since, is another."""
        try:
            batch = self._next()
        except OffsetOutOfRange:
            self._service.refresh_stream(self._info)
            raise
        self._service.refresh_stream(self._info)
        return batch

    def _next(self) -> Batch | None:
        """From the first shard that has something, each time from another one on."""
        while True:
            shards = readable(self._info.shards, self._done, in_order=self._in_order)
            self._turn += 1
            first = self._turn % len(shards) if shards else 0
            has_ended = False
            for shard in (*shards[first:], *shards[:first]):
                batch = self._read_shard(shard)
                if len(batch):
                    return batch
                has_ended |= batch.end_of_shard and self._info.shards[shard].is_open
            if not has_ended:
                return None
            self._refresh()

    def _read_shard(self, shard: ShardId) -> Batch:
        offset = self._done.get(shard, 0)
        try:
            return self._service.read(self._stream, shard, offset, self._limits)
        except OffsetExpired as error:
            if self._on_expired is OnExpired.STOP:
                raise
            after = error.first_offset
            if self._on_expired is OnExpired.END:
                after = self._service.describe_stream(self._stream).shards[shard].next_offset
            self.skipped += after - offset
            _log.warning(
                "consumer %s of %s: retention was faster; offsets %s to %s of shard %s are left out",
                self.name,
                self.group,
                offset,
                after - 1,
                shard,
            )
            self._done[shard] = after
            return self._service.read(self._stream, shard, after, self._limits)

    def _refresh(self) -> None:
        """The stream was split or merged: children begin where they do."""
        self._info = self._service.describe_stream(self._stream)
        self._done = {shard.id: 0 for shard in self._info.shards} | self._done

    def _wait(self, timeout_s: float) -> None:
        if self._following is None:
            self._following = self._service.follow(lambda _: self._woken.set())
        places = {
            ShardEnd(self._info.id, shard): self._done[shard]
            for shard in readable(self._info.shards, self._done, in_order=self._in_order)
        }
        for place in self._places - places.keys():
            self._following.drop(place)  # A shard that was closed would wake us with every commit.
        self._places = set(places)
        for place, beyond in places.items():
            if not self._following.move(place, beyond):
                self._following.add(place, beyond)
        self._woken.wait(timeout_s)

    # --- The position. ---

    def _join(self) -> None:
        with self._named():
            found = self._service.positions.join(self._stream, self._group_id, self.name, self._incarnation)
        self._done = {int(shard): offset for shard, offset in found.items()}
        self._given = None
        self._saved = dict(self._done)
        self._saved_s = time.monotonic()

    def _settle(self) -> None:
        if self._given is not None:
            self._done[self._given.shard] = self._given.next_offset
            self._given = None

    def _save_if_due(self) -> None:
        since = time.monotonic() - self._saved_s
        if since >= self._refresh_s or (since >= self._save_interval and self._done != self._saved):
            self._persist()

    def _persist(self) -> None:
        done = dict(self._done)
        try:
            self._save(done)
        except UnknownPosition:
            # It was not used for longer than the group keeps one, or was dropped by hand; we are still here.
            _log.warning(
                "consumer %s of %s: its position was dropped, and is made again", self.name, self.group
            )
            with self._named():
                self._service.positions.join(self._stream, self._group_id, self.name, self._incarnation)
            self._save(done)
        except PositionMoved:
            _log.warning("consumer %s of %s: the group was reset; going on from there", self.name, self.group)
            self._join()

    def _save(self, done: dict[int, int]) -> None:
        offsets = {ShardId(shard): offset for shard, offset in done.items()}
        with self._named():
            self._service.positions.save(self._stream, self._group_id, self.name, self._incarnation, offsets)
        self._saved, self._saved_s = done, time.monotonic()

    def _end(self, *, with_last: bool) -> None:
        if self._is_closed:
            return
        if with_last:
            self._settle()
        self._is_closed = True
        if self._following is not None:
            self._following.close()
        try:
            self._persist()
        except UnknownGroup:
            _log.info("closing: group %s is deleted, and with it the position of %s", self.group, self.name)

    def _named(self) -> AbstractContextManager[None]:
        return missed_by_name(self._stream, self.group)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConsumerClosed("close() was called")


_LOOK_S: Final = 30.0
"""A position is saved at least so often, if it is due, however long nothing comes."""
_OUTAGE_S: Final = 0.5
