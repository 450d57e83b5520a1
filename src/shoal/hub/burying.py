"""Puts records of a shared group into its dead stream, durably: the same stream that workers use."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from shoal.core.aside import Origin, dead_stream, kept_for_ever, own_headers
from shoal.core.errors import ShoalError, StreamExists
from shoal.core.model import Appended, ShardId, StreamInfo, StreamName, StreamSettings
from shoal.core.share_acts import Given
from shoal.ports import Submission
from shoal.wire.batch import Batch
from shoal.wire.fitting import check_value, fit_records
from shoal.wire.layout import Layout
from shoal.wire.record import Record

_ERROR_MAX: Final = 1000
_AT_ONCE: Final = 1000


class Log(Protocol):
    """As much of a hub as burying needs."""

    def create_stream(self, name: StreamName, settings: StreamSettings, shards: int) -> StreamInfo: ...
    def describe_stream(self, name: StreamName) -> StreamInfo: ...
    def append(self, stream: StreamInfo, batches: Sequence[Submission]) -> list[Appended | ShoalError]: ...


def bury(
    log: Log, stream: StreamInfo, group: str, batch: Batch, *, given: Sequence[Given], reason: str
) -> None:
    """Append the records of a batch, each with where it came from and why it died. Returns when durable."""
    where = dead_stream(stream.full_name, group)
    with suppress(StreamExists):
        log.create_stream(where, kept_for_ever(stream.settings), 1)
    dead = log.describe_stream(where)
    attempts = {offset: one.attempts for one in given for offset in range(one.low, one.high)}
    records = list(batch)
    layout = Layout(dead.settings.schema)
    for at in range(0, len(records), _AT_ONCE):
        some = records[at : at + _AT_ONCE]
        headers = [
            {
                **own_headers(record.headers),
                **_origin(stream, batch.shard, record, attempts.get(record.offset, 1), reason).headers(),
            }
            for record in some
        ]
        fitted = fit_records(
            layout,
            [check_value(layout, record.value)[0] for record in some],
            [record.key for record in some],
            [time.time_ns() // 1_000_000] * len(some),
            headers,
        )
        (answer,) = log.append(dead, [Submission(shard=ShardId(0), batch=fitted)])
        if isinstance(answer, ShoalError):
            raise answer


def _origin(stream: StreamInfo, shard: int, record: Record, attempts: int, reason: str) -> Origin:
    return Origin(
        stream=str(stream.full_name),
        shard=shard,
        offset=record.offset,
        timestamp=record.timestamp,
        attempts=attempts,
        error=reason[:_ERROR_MAX],
    )
