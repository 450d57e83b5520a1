"""A LogHub log is a record: how groups become columns, and columns groups again.

`time` (Unix seconds, as the client says), `time_ns`, `topic`, `source`, `machine`, `tags`, and `contents`, a
map whose order, repeated keys and bytes are kept. The record's own timestamp is when the server received it.
A stream with other columns, or with columns of these names and other types, is read as well (`foreign`): each
column is a field.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.core.limits import BATCH_BYTES_MAX
from shoal.server.sls.foreign import contents_of, parts_of
from shoal.server.sls.packing import RAW_BYTES_MAX, Malformed, TooMuch
from shoal.server.sls.wire import NO_NUMBER, LogGroup
from shoal.server.sls.writing import Numbers, field_bytes, logs_bytes, pairs_bytes, rows_bytes, sizes_of
from shoal.wire.layout import KEY, MEMORY, TIMESTAMP, Layout, stored_schema

SCHEMA: Final = pa.schema(
    [
        pa.field("time", pa.int64()),
        pa.field("time_ns", pa.int64()),
        pa.field("topic", pa.string()),
        pa.field("source", pa.string()),
        pa.field("machine", pa.string()),
        pa.field("tags", pa.map_(pa.string(), pa.string())),
        pa.field("contents", pa.map_(pa.string(), pa.binary())),
    ]
)
STORED: Final = stored_schema(SCHEMA)
RECORDS_BYTES_MAX: Final = 2 * RAW_BYTES_MAX
"""Of one group, as records. A body may be as large as it may be, with as many logs: only what a group says
once, and each of its logs then has, can be more than this. Aliyun takes 10 MB in all."""
_LOG_BYTES: Final = 48
_PAIR_BYTES: Final = 8
"""What each log takes without any text, and each pair of texts beside them: numbers and offsets."""
_BATCH_BYTES: Final = BATCH_BYTES_MAX // 2
_STORED_SCHEMA: Final = Layout(STORED).stored(with_headers=False)


def records_bytes(group: LogGroup) -> int:
    """What the group's logs will take as records; more than is taken of one group is TooMuch.

    Topic, source, machine and tags are there once in a group, and in each of its records: a thousand logs of
    four bytes and a topic of a megabyte are a gigabyte. So this is counted before any record is made.
    """
    size: int = len(group.times) * _common_bytes(group) + group.keys.nbytes + group.values.nbytes
    if size > RECORDS_BYTES_MAX:
        raise TooMuch(
            f"{len(group.times)} logs, each with the topic, source and tags of the group, are {size} bytes; "
            f"at most {RECORDS_BYTES_MAX}"
        )
    return size


def _common_bytes(group: LogGroup) -> int:
    """What each record takes beside its contents."""
    named = sum(len(text) for text in (group.topic, group.source, group.machine) if text is not None)
    return _LOG_BYTES + named + sum(len(key) + len(value) + _PAIR_BYTES for key, value in group.tags)


def batches_of(group: LogGroup, received_us: int) -> list[pa.RecordBatch]:
    """The group's logs as batches that may be stored, in order; more than one only if they are large."""
    size = records_bytes(group)
    try:
        keys = group.keys.cast(pa.string())
        tags = [(key.decode(), value.decode()) for key, value in group.tags]
        named = [
            None if text is None else text.decode() for text in (group.topic, group.source, group.machine)
        ]
    except (UnicodeDecodeError, pa.ArrowInvalid) as error:
        raise Malformed("keys, tags, topic and source are UTF-8; only values may be any bytes") from error
    begins = np.concatenate(([0], group.ends))
    batches = []
    for low, high in pairwise(_cuts(group, begins) if size > _BATCH_BYTES else (0, len(group.times))):
        count = high - low
        first, end = int(begins[low]), int(begins[high])
        contents = [keys, group.values]
        if count < len(group.times):
            # Taken, not sliced: a slice would still be counted whole.
            part = pa.array(np.arange(first, end))
            contents = [pc.take(column, part, memory_pool=MEMORY) for column in contents]
        nanoseconds = group.nanoseconds[low:high]
        columns = [
            pa.array(np.full(count, received_us, dtype=np.int64)).cast(TIMESTAMP.type),
            pa.nulls(count, KEY.type),
            pa.array(group.times[low:high]),
            pa.array(nanoseconds, mask=nanoseconds == NO_NUMBER),
            *(_same(text, count) for text in named),
            _tagged(tags, count),
            pa.MapArray.from_arrays(pa.array((begins[low : high + 1] - first).astype(np.int32)), *contents),
        ]
        batches.append(pa.record_batch(columns, schema=_STORED_SCHEMA))
    return batches


def _cuts(group: LogGroup, begins: Numbers) -> Iterator[int]:
    """Where batches that may be stored begin, and where the last one ends; one log that is too large alone is
    the hub's to refuse."""
    contents = np.concatenate(([0], np.cumsum(sizes_of(group.keys) + sizes_of(group.values) + _PAIR_BYTES)))
    ends = contents[begins] + np.arange(len(begins)) * _common_bytes(group)
    low, count = 0, len(group.times)
    while low < count:
        yield low
        fitting = int(np.searchsorted(ends, ends[low] + _BATCH_BYTES, side="right")) - 1
        low = max(fitting, low + 1)
    yield count


def _same(text: str | None, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _tagged(tags: Sequence[tuple[str, str]], count: int) -> pa.Array:
    if tags:
        # Of many tags, thirty times as quick as to repeat a scalar.
        once = pa.array([tags], SCHEMA.field("tags").type)
        return pc.take(once, pa.array(np.zeros(count, np.int32)), memory_pool=MEMORY)
    nothing = pa.array([], pa.string())
    return pa.MapArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), nothing, nothing)


def groups_of(batches: Sequence[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """The groups of stored batches of a stream, each with its number of logs, as fields of a list of groups.

    Logs of one batch that follow one another and agree in topic, source, machine and tags are one group.
    """
    filled = [batch for batch in batches if batch.num_rows]
    if not filled:
        return
    if all(_is_ours(filled[0].schema, field) for field in SCHEMA):
        parts = iter([[batch.select(SCHEMA.names) for batch in filled]])
    else:
        parts = ([_foreign(batch) for batch in part] for part in parts_of(filled))
    for part in parts:
        yield from _groups(
            pa.concat_batches(part, memory_pool=MEMORY), np.cumsum([batch.num_rows for batch in part])
        )


def _is_ours(schema: pa.Schema, field: pa.Field) -> bool:
    """Whether a column of this name holds what it would in a stream for logs."""
    if field.name not in schema.names:
        return False
    kind, wanted = schema.field(field.name).type, field.type
    if pa.types.is_map(wanted):  # What its fields are called, and whether they may be null, does not matter.
        return pa.types.is_map(kind) and (kind.key_type, kind.item_type) == (
            wanted.key_type,
            wanted.item_type,
        )
    return bool(kind == wanted)


def _groups(batch: pa.RecordBatch, ends: Numbers) -> Iterator[tuple[int, bytes]]:
    """The same of one batch, in which batches end at these rows."""
    times = np.asarray(batch.column("time").fill_null(0))
    offsets, keys, values = _map(batch.column("contents"))
    contents = rows_bytes(pairs_bytes(0x12, keys, values), offsets)
    logs = logs_bytes(np.maximum(times, 0) & 0xFFFFFFFF, batch.column("time_ns"), contents)
    offsets, keys, values = _map(batch.column("tags"))
    tags = rows_bytes(pairs_bytes(0x32, keys, values), offsets)
    names = [batch.column(name).cast(pa.binary()) for name in _NAMED]
    begins = np.unique(np.concatenate([[0], *(_changes(column) for column in (*names, tags)), ends]))
    heads = zip(*(column.take(pa.array(begins[:-1])).to_pylist() for column in (*names, tags)), strict=True)
    places = np.frombuffer(logs.buffers()[1], np.int32, len(logs) + 1)[begins].tolist()
    written = memoryview(logs.buffers()[2] or b"")
    spans, counts = pairwise(places), np.diff(begins).tolist()
    for count, (low, high), (*named, tagged) in zip(counts, spans, heads, strict=True):
        parts: list[bytes | memoryview] = [written[low:high]]
        for tag, value in zip(_NAMED.values(), named, strict=True):
            if value is not None:
                parts.append(field_bytes(tag, value))
        yield count, field_bytes(0x0A, b"".join([*parts, tagged]))


def _map(column: pa.MapArray) -> tuple[Numbers, pa.BinaryArray, pa.BinaryArray]:
    """Where each row ends, and keys and values of all, as bytes."""
    offsets = np.asarray(column.offsets).astype(np.int64)
    low, size = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys = column.keys.slice(low, size).cast(pa.binary())
    items = column.items.slice(low, size).cast(pa.binary())
    return offsets - low, keys, items.fill_null(b"") if items.null_count else items


def _changes(column: pa.BinaryArray) -> Numbers:
    """The rows that differ from the one before."""
    before, after = column[:-1], column[1:]
    if column.null_count:
        return 1 + np.flatnonzero(
            pc.or_(
                pc.fill_null(pc.not_equal(before, after), False),
                pc.not_equal(before.is_null(), after.is_null()),
            )
        )
    return 1 + np.flatnonzero(pc.not_equal(before, after))


_NAMED: Final = {"topic": 0x1A, "source": 0x22, "machine": 0x2A}


def _foreign(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Records that no client of Aliyun's wrote, as logs."""
    rows = batch.num_rows
    stamps = np.maximum(np.asarray(pc.cast(batch.column(TIMESTAMP.name), pa.int64())), 0)
    columns = [
        pa.array(stamps // 1_000_000),
        pa.array(stamps % 1_000_000 * 1000),
        _same("", rows),
        _same("", rows),
        _same(None, rows),
        _tagged([], rows),
        contents_of(batch),
    ]
    return pa.record_batch(columns, schema=SCHEMA)
