"""Dead letters of a shared group, ready for its dead stream: the same stream that workers use."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from shoal.core.aside import Origin, dead_stream, kept_for_ever, own_headers
from shoal.core.errors import ShardClosed, ShoalError, StreamExists
from shoal.core.model import ShardId, StreamInfo, StreamName, StreamSettings
from shoal.core.share_acts import Given
from shoal.ports import AppendRequest, ShardShut, Submission
from shoal.wire.batch import Batch
from shoal.wire.fitting import check_value, fit_records
from shoal.wire.layout import Layout
from shoal.wire.record import Record

_ERROR_MAX: Final = 1000


class Log(Protocol):
    """As much of a hub as burying needs."""

    def create_stream(self, name: StreamName, settings: StreamSettings, shards: int) -> StreamInfo: ...
    def describe_stream(self, name: StreamName) -> StreamInfo: ...
    def prepare(self, stream: StreamInfo, submission: Submission) -> AppendRequest | ShoalError: ...


def letters(
    log: Log, stream: StreamInfo, group: str, batch: Batch, *, given: Sequence[Given], reason: str
) -> AppendRequest:
    """The records of a batch, each with where it came from and why it died, to be appended."""
    dead = _dead(log, stream, group)
    attempts = {offset: one.attempts for one in given for offset in range(one.low, one.high)}
    records = list(batch)
    layout = Layout(dead.settings.schema)
    fitted = fit_records(
        layout,
        [check_value(layout, record.value)[0] for record in records],
        [record.key for record in records],
        [time.time_ns() // 1_000_000] * len(records),
        [
            {
                **own_headers(record.headers),
                **_origin(stream, batch.shard, record, attempts.get(record.offset, 1), reason).headers(),
            }
            for record in records
        ],
    )
    prepared = log.prepare(dead, Submission(shard=ShardId(0), batch=fitted))
    if isinstance(prepared, ShoalError):
        raise prepared
    return prepared


def closed(log: Log, stream: StreamInfo, group: str, answer: ShardShut) -> ShardClosed:
    """Someone has split the dead stream, or merged it."""
    dead = _dead(log, stream, group)
    return ShardClosed(stream=dead, shard=0, last_sequence=answer.last_sequence)


def _dead(log: Log, stream: StreamInfo, group: str) -> StreamInfo:
    """The group's dead stream, made if it is not there."""
    where = dead_stream(stream.full_name, group)
    with suppress(StreamExists):
        log.create_stream(where, kept_for_ever(stream.settings), 1)
    return log.describe_stream(where)


def _origin(stream: StreamInfo, shard: int, record: Record, attempts: int, reason: str) -> Origin:
    return Origin(
        stream=str(stream.full_name),
        shard=shard,
        offset=record.offset,
        timestamp=record.timestamp,
        attempts=attempts,
        error=reason[:_ERROR_MAX],
    )
