"""What a task does: reads its spans from the hub, and hands them to Spark as Arrow record batches.

Nothing is done for each record: a stored batch's columns are passed on as they are, cut or joined to a size
that Spark likes. A fenced read is an error, and never an empty one: what it would leave out is another's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from shoal.connect import Hub
from shoal.consumer.membership import insist
from shoal.core.errors import (
    NotFound,
    OffsetExpired,
    OffsetOutOfRange,
    SchemaMismatch,
    StoreError,
    StreamReplaced,
)
from shoal.core.names import stream_name
from shoal.core.reading import ReadLimits
from shoal.ports import Fence
from shoal.spark.hubs import TASK_OUTAGE_S, HubAddress, task_hub
from shoal.spark.plan.spans import Span
from shoal.spark.schema import arrow_schema, fitted
from shoal.wire.batch import Batch
from shoal.wire.lanes import done_before

_log: Final = logging.getLogger("shoal.spark")

ROWS_MAX: Final = 20_000
ROWS_MIN: Final = 1_000
BYTES_MAX: Final = 4_000_000
"""Of one record batch for Spark: below a thousand rows each costs more than it brings; beyond some megabytes
it leaves the processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What all tasks of a query have in common."""

    hub: HubAddress
    schema: StructType
    strict: bool


def read_spans(reading: Reading, spans: Sequence[Span]) -> Iterator[pa.RecordBatch]:
    """The records of these spans, in order."""
    hub = task_hub(reading.hub)
    shaper = Shaper(arrow_schema(reading.schema))
    there = _still_there(hub, reading, spans)
    yield from _sized(
        part for span in there for batch in _batches(hub, reading, span) for part in shaper.parts(batch)
    )
    # A stream that was made anew while we read gave us records of another: then none of this counts.
    _still_there(hub, reading, there, has_read=True)


def _still_there(hub: Hub, reading: Reading, spans: Sequence[Span], *, has_read: bool = False) -> list[Span]:
    """Those spans whose stream is the one that was planned. Of one who has read, another's records must not
    count, whatever may be lost; the next attempt leaves them out."""
    gone: dict[tuple[str, int], bool] = {}
    for span in spans:
        key = span.stream, span.stream_id
        if key not in gone:
            gone[key] = False
            try:
                described = partial(hub.service.describe_stream, stream_name(span.stream))
                if insist(described, StoreError, TASK_OUTAGE_S).id != span.stream_id:
                    raise StreamReplaced(span.stream)
            except NotFound as error:
                if reading.strict or (has_read and isinstance(error, StreamReplaced)):
                    raise
                gone[key] = True
                _log.warning("failOnDataLoss=false: %s", error)
    return [span for span in spans if not gone[span.stream, span.stream_id]]


def _batches(hub: Hub, reading: Reading, span: Span) -> Iterator[Batch]:
    """The span as the hub gives it: stored batches, trimmed."""
    name, offset = stream_name(span.stream), span.start
    fence = None if span.owner is None else Fence(*span.owner)
    while offset < span.end:
        limits = ReadLimits(max_records=span.end - offset)
        read = partial(hub.service.read, name, span.shard, offset, limits, fence)
        batch = _batch(read, reading, span, offset)
        if isinstance(batch, int):
            offset = batch
            continue
        offset = batch.next_offset
        done = done_before(batch, span.beyond) if span.beyond else frozenset()
        yield batch.part([one for one in batch.offsets if one not in done]) if done else batch


def _batch(read: Callable[[], Batch], reading: Reading, span: Span, offset: int) -> Batch | int:
    """What the hub has at this offset; if it is gone, and may be, the next one of the span that is there."""
    try:
        batch = insist(read, StoreError, TASK_OUTAGE_S)
        if len(batch):
            return batch
        raise OffsetOutOfRange(stream=span.stream, shard=span.shard, offset=span.end, next_offset=offset)
    except (OffsetExpired, OffsetOutOfRange) as error:
        if reading.strict:
            raise
        _log.warning("failOnDataLoss=false: %s", error)
        return min(span.end, error.first_offset) if isinstance(error, OffsetExpired) else span.end


class Shaper:
    """Makes of stored batches the columns that Spark wants."""

    def __init__(self, columns: pa.Schema) -> None:
        self._columns = columns

    def parts(self, batch: Batch) -> Iterator[pa.RecordBatch]:
        """The batch in pieces that are not too large, without a copy where that can be."""
        for offsets, chunk in batch.chunks():
            if not chunk.num_rows:
                continue
            most = max(1, min(ROWS_MAX, BYTES_MAX * chunk.num_rows // max(1, chunk.nbytes)))
            pieces = -(-chunk.num_rows // most)
            rows = -(-chunk.num_rows // pieces)  # All alike: a small rest would be copied to be joined.
            places = _column_of(offsets) if "offset" in self._columns.names else None
            for low in range(0, chunk.num_rows, rows):
                some = None if places is None else places.slice(low, rows)
                yield self._part(batch, some, chunk.slice(low, rows))

    def _part(self, batch: Batch, offsets: pa.Array | None, chunk: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [
            _fitted(field, _column(field.name, batch, offsets, chunk))
            if field.name != "headers" or "headers" in chunk.schema.names
            else pa.nulls(chunk.num_rows, field.type)
            for field in self._columns
        ]
        return pa.record_batch(arrays, schema=self._columns)


def _fitted(field: pa.Field, column: pa.Array) -> pa.Array:
    try:
        return fitted(column, field.type)
    except pa.ArrowInvalid as error:
        raise SchemaMismatch(
            field.name,
            given=f"{column.type} with a value beyond Spark's ({error})",
            wanted=f"{field.type}; leave it out with columns=",
        ) from error


def _column_of(offsets: Sequence[int]) -> pa.Array:
    if isinstance(offsets, range):
        return pa.array(np.arange(offsets.start, offsets.stop))
    return pa.array(offsets, pa.int64())


def _column(name: str, batch: Batch, offsets: pa.Array | None, chunk: pa.RecordBatch) -> pa.Array:
    rows = chunk.num_rows
    match name:
        case "stream":
            return pa.repeat(pa.scalar(batch.stream), rows)
        case "shard":
            return pa.array(np.full(rows, batch.shard, dtype=np.int32))
        case "offset":
            return offsets
        case "headers":
            # Arrow writes a slice of a map with all that it is a slice of.
            return chunk.column(name).take(pa.array(np.arange(rows)))
        case _:
            return chunk.column(name)


def _sized(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Small pieces joined, until they are worth Spark's while."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for part in parts:
        if not waiting and part.num_rows >= ROWS_MIN:
            yield part
            continue
        waiting.append(part)
        rows += part.num_rows
        size += part.nbytes
        if rows >= ROWS_MIN or size >= BYTES_MAX:
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)
