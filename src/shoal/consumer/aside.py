"""Sets records aside: for another attempt, as delayed records of the group's retry stream, or into its dead
stream.

Both are streams like any other, made when they are first needed, with the columns of the main stream.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from shoal.core.aside import (
    Origin,
    dead_stream,
    kept_for_ever,
    origin_of,
    own_headers,
    retry_shards,
    retry_stream,
)
from shoal.core.delaying import DELAYED, Delay
from shoal.core.errors import ShoalError, StreamExists, UnknownStream
from shoal.core.model import StreamInfo, StreamName
from shoal.core.retry import FailureRules
from shoal.core.tasks import Failure
from shoal.ports import HubService, Submission
from shoal.wire.batch import Batch
from shoal.wire.fitting import check_headers, check_value, fit_records
from shoal.wire.layout import Layout
from shoal.wire.record import Record

_ERROR_MAX = 1000


class Appending(Protocol):
    """What setting aside needs of a hub."""

    @property
    def service(self) -> HubService: ...
    def append(self, stream: str, shard: int, records: Sequence[Any]) -> object: ...


class Aside:
    """The retry and dead streams of one group."""

    def __init__(self, hub: Appending, stream: StreamInfo, group: str, rules: FailureRules) -> None:
        self._hub, self._main, self._rules = hub, stream, rules
        self.retry = retry_stream(stream.full_name, group)
        self.dead = dead_stream(stream.full_name, group)
        self._known: dict[StreamName, StreamInfo] = {}
        """Streams that are there."""

    def see_retry(self) -> None:
        """Make the retry stream, if it is not there."""
        self._see(self.retry, retry_shards(self._main))

    def put(self, batch: Batch, offset: int, failure: Failure) -> bool:
        """Set a record of a batch aside, durably. True: into the dead stream; that was its last attempt."""
        (record,) = batch.part([offset])
        before = origin_of(record.headers)
        attempts = 1 if before is None else before.attempts + 1
        origin = Origin(
            stream=str(self._main.full_name) if before is None else before.stream,
            shard=batch.shard if before is None else before.shard,
            offset=offset if before is None else before.offset,
            timestamp=record.timestamp if before is None else before.timestamp,
            attempts=attempts,
            error=f"{failure.kind}: {failure.text}"[:_ERROR_MAX],
        )
        headers = {**own_headers(record.headers), **origin.headers()}
        wait_ms = self._rules.delay_ms(attempts)
        if wait_ms is None:
            self._bury(Record(0, time.time_ns() // 1_000_000, record.key, record.value, headers))
            return True
        self._delay(Record(0, origin.timestamp, record.key, record.value, headers), wait_ms)
        return False

    def _bury(self, record: Record) -> None:
        self._see(self.dead, 1)
        try:
            self._hub.append(str(self.dead), 0, [record])
        except UnknownStream:
            self._forget(self.dead)
            raise

    def _delay(self, record: Record, wait_ms: int) -> None:
        """Durable now; in the retry stream, in the shard of its key, when its delay is over."""
        stream = self._see(self.retry, retry_shards(self._main))
        layout = Layout(stream.settings.schema)
        value, _ = check_value(layout, record.value)
        batch = fit_records(
            layout, [value], [record.key], [record.timestamp], [check_headers(record.headers)]
        )
        delays = [Delay(0, None, wait_ms)]
        (answer,) = self._hub.service.append(stream, [Submission(shard=DELAYED, batch=batch, delays=delays)])
        if isinstance(answer, UnknownStream):
            self._forget(self.retry)
        if isinstance(answer, ShoalError):
            raise answer

    def _see(self, name: StreamName, shards: int) -> StreamInfo:
        """Make the stream if it is not there."""
        found = self._known.get(name)
        if found is None:
            with suppress(StreamExists):
                self._hub.service.create_stream(name, kept_for_ever(self._main.settings), shards)
            found = self._known[name] = self._hub.service.describe_stream(name)
        return found

    def _forget(self, name: StreamName) -> None:
        """It was deleted, and is made anew by the next attempt. Several shards may find that out at once."""
        self._known.pop(name, None)
