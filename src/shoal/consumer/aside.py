"""Sets records aside: into the group's retry stream for another attempt, or into its dead stream.

Both are streams like any other, made when they are first needed, with the columns of the main stream.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from shoal.consumer.membership import boot_ms
from shoal.core.aside import (
    Origin,
    dead_stream,
    due_ms,
    kept_for_ever,
    origin_of,
    own_headers,
    retry_stream,
)
from shoal.core.errors import StreamExists
from shoal.core.model import StreamInfo, StreamName
from shoal.core.retry import FailureRules
from shoal.core.tasks import Failure
from shoal.ports import HubService
from shoal.wire.batch import Batch
from shoal.wire.record import Record

_ERROR_MAX = 1000


def retry_due_ms(rules: FailureRules, tier: int, set_aside_ms: int) -> int:
    """When a record of the retry stream may be handed out, on the clock that deadlines count by."""
    return due_ms(rules, tier, set_aside_ms, time.time_ns() // 1_000_000, boot_ms())


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
        self._known: dict[StreamName, int] = {}
        """Streams that are there, and their shards."""

    def see_retry(self) -> None:
        """Make the retry stream, if it is not there."""
        self._see(self.retry, self._tiers)

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
        tier = self._rules.tier(attempts)
        where = self.dead if tier is None else self.retry
        shards = self._see(where, 1 if tier is None else self._tiers)
        headers = {**own_headers(record.headers), **origin.headers()}
        # Its delay counts from now; when it was sent at first, the headers say.
        fresh = Record(0, time.time_ns() // 1_000_000, record.key, record.value, headers)
        # A retry stream that was made for fewer delays has no shard for the last of these.
        self._hub.append(str(where), min(tier or 0, shards - 1), [fresh])
        return tier is None

    @property
    def _tiers(self) -> int:
        """Delays, each with a shard of its own. Without any, what is replayed still needs one."""
        return max(1, len(self._rules.delays_s))

    def _see(self, name: StreamName, shards: int) -> int:
        """Make the stream if it is not there; how many shards it has."""
        if name not in self._known:
            with suppress(StreamExists):
                self._hub.service.create_stream(name, kept_for_ever(self._main.settings), shards)
            self._known[name] = len(self._hub.service.describe_stream(name).shards)
        return self._known[name]
