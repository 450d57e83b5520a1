"""The plain append: one batch to one shard, without routing or retries."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from shoal.core.appending import check_stamp
from shoal.core.checking import is_whole
from shoal.core.errors import EmptyBatch, InvalidInput, ShoalError, UnknownStream
from shoal.core.lineage import find_shard
from shoal.core.model import Appended, ProducerStamp, StreamInfo, StreamName
from shoal.core.names import stream_name
from shoal.core.ring import key_bytes
from shoal.forks import meet_arrow
from shoal.ports import HubService, Submission
from shoal.wire.fitting import check_headers, check_value, fit_columns, fit_records
from shoal.wire.layout import Layout
from shoal.wire.record import Record
from shoal.wire.timestamps import timestamp_ms

_KEPT: Final = 1024
"""Streams that are remembered."""

Records: TypeAlias = Sequence[Any] | pa.Table | pa.RecordBatch


class _Seen(NamedTuple):
    info: StreamInfo
    layout: Layout


class PlainAppends:
    """Appends by streams as they were last seen: to look at a stream takes longer than to append to it.

    A shard's keys and a stream's columns never change, and whether it is open the store asks anyway. Only
    another stream under the same name is another: what is refused by the old one is tried with the new one.
    """

    def __init__(self, service: HubService) -> None:
        self._service = service
        self._seen: dict[StreamName, _Seen] = {}

    def append(
        self,
        stream: str,
        shard: int,
        records: Records,
        *,
        key_column: str | None,
        stamp: ProducerStamp | None,
    ) -> Appended:
        name = stream_name(stream)
        if stamp is not None:
            check_stamp(stamp)
        seen = self._seen.get(name)
        if seen is not None and is_whole(shard) and 0 <= shard < len(seen.info.shards):
            try:
                return self._append(seen, shard, records, key_column, stamp)
            except (InvalidInput, UnknownStream):  # Nothing was stored.
                self._seen.pop(name, None)
        info = self._service.describe_stream(name)
        meet_arrow()
        seen = _Seen(info, Layout(info.settings.schema))
        if len(self._seen) >= _KEPT:
            self._seen.clear()
        self._seen[name] = seen
        return self._append(seen, shard, records, key_column, stamp)

    def _append(
        self,
        seen: _Seen,
        shard: int,
        records: Records,
        key_column: str | None,
        stamp: ProducerStamp | None,
    ) -> Appended:
        found = find_shard(seen.info, shard)
        if isinstance(records, pa.Table | pa.RecordBatch):
            batch = fit_columns(seen.layout, records, key_column, _now_ms())
        else:
            batch = _fit_list(seen.layout, records)
        submission = Submission(shard=found.id, batch=batch)
        if stamp is not None:
            submission = Submission(
                shard=found.id,
                batch=batch,
                producer=stamp.producer,
                epoch=stamp.epoch,
                sequence=stamp.sequence,
            )
        answer = self._service.append(seen.info, [submission])[0]
        if isinstance(answer, ShoalError):
            raise answer
        return answer


def _fit_list(layout: Layout, records: object) -> pa.RecordBatch:
    """A list of values, or of Records, as a batch."""
    if isinstance(records, bytes | str | Mapping) or not isinstance(records, Sequence):
        raise InvalidInput("records", type(records).__name__, "give a list of records, or Arrow columns")
    if not records:
        raise EmptyBatch("records", "0 records", "append at least one record")
    now_ms = _now_ms()
    values, keys, times, headers = [], [], [], []
    for record in records:
        is_record = isinstance(record, Record)
        values.append(check_value(layout, record.value if is_record else record)[0])
        keys.append(key_bytes(record.key) if is_record else None)
        times.append(timestamp_ms(record.timestamp) if is_record else now_ms)
        headers.append(check_headers(record.headers) if is_record else None)
    return fit_records(layout, values, keys, times, headers if any(headers) else None)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
