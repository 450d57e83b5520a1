"""Records that no client of Aliyun's wrote: a field for each column that has a value, as text.

A stream may hold what Python has no value for (a time beyond the year 9999, a zone that nobody knows, a
nanosecond without pandas), and what takes next to nothing as it is stored and gigabytes as text (a list of a
billion nulls). So Arrow writes all that it can, Python sees nothing but numbers, text and bytes, and batches
are cut by what they will take before any of it is written. Whatever a stream can hold has a text: nothing in
here raises.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.core.limits import READ_BYTES_DEFAULT
from shoal.wire.casting import is_bytes_like
from shoal.wire.layout import TIMESTAMP
from shoal.wire.sizes import is_bytes, is_list, is_text, room

WRITTEN_BYTES: Final = 2 * READ_BYTES_DEFAULT
"""What is written at once, about. Most batches that were read take less, and are written whole."""
_VALUE_BYTES: Final = 24
"""Of a number or a time as text, and of what stands around any value."""


def parts_of(batches: Sequence[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """All rows in order, so many of them together as take `WRITTEN_BYTES`; one row at least."""
    together: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        for part, more in _halved(batch):
            if together and size + more > WRITTEN_BYTES:
                yield together
                together, size = [], 0
            together.append(part)
            size += more
    if together:
        yield together


def contents_of(batch: pa.RecordBatch) -> pa.MapArray:
    """The contents of each row's log: the names of its columns, and their values as text."""
    rows, names = batch.num_rows, _names(batch)
    values = [_fields_of(batch.column(name)) for name in names]
    # All of the first column, then all of the second: taken row by row, without what is null.
    order = np.arange(len(names) * rows).reshape(len(names), rows).T.reshape(-1)
    joined = pa.concat_arrays([*values, pa.array([], pa.binary())]).take(pa.array(order))
    is_there = np.asarray(joined.is_valid())
    keys = pa.array(names, pa.string()).take(pa.array(order // rows))
    ends = np.cumsum(is_there.reshape(rows, -1).sum(axis=1))
    return pa.MapArray.from_arrays(
        pa.array(np.concatenate(([0], ends)).astype(np.int32)),
        keys.filter(pa.array(is_there)),
        joined.filter(pa.array(is_there)),
    )


def _names(batch: pa.RecordBatch) -> list[str]:
    return [name for name in batch.schema.names if name != TIMESTAMP.name]


# --- How much it is. ---------------------------------------------------------------------------------


def _halved(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Halves, until each takes little enough or is one row; and what each takes."""
    names = _names(batch)
    size = sum(batch.num_rows * len(name.encode()) + _written_bytes(batch.column(name)) for name in names)
    if size <= WRITTEN_BYTES or batch.num_rows < 2:
        yield batch, size
        return
    middle = batch.num_rows // 2
    yield from _halved(batch.slice(0, middle))
    yield from _halved(batch.slice(middle))


def _written_bytes(column: pa.Array) -> int:
    """What the column takes as text, about. Only lengths are looked at: items may be there by the billion,
    and take no memory until each of them is written."""
    kind, rows = column.type, len(column)
    size = rows * _VALUE_BYTES
    if is_text(kind) or is_bytes(kind):
        return size + int(pc.sum(pc.binary_length(column)).as_py() or 0)
    if is_list(kind) or pa.types.is_map(kind):
        first, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
        return size + _written_bytes(column.values.slice(first, end - first))
    if pa.types.is_fixed_size_list(kind):
        count = kind.list_size
        return size + _written_bytes(column.values.slice(column.offset * count, rows * count))
    if pa.types.is_struct(kind):
        fields = [(kind.field(i).name, column.field(i)) for i in range(kind.num_fields)]
        return size + sum(rows * len(name.encode()) + _written_bytes(inner) for name, inner in fields)
    return size + rows * room(kind)


# --- What is written. --------------------------------------------------------------------------------


def _fields_of(column: pa.Array) -> pa.BinaryArray:
    """Each value as text; bytes as they are."""
    kind = column.type
    if is_bytes_like(kind):
        return column.cast(pa.binary())
    if not pa.types.is_nested(kind) and not pa.types.is_interval(kind):
        return _text(column).cast(pa.binary())
    size = _written_bytes(column)
    if len(column) == 1 and size > WRITTEN_BYTES:
        # It cannot be cut any further. At an error a client would stop for good, so it is told of this here.
        return pa.array([b"<a value of about %d bytes>" % size if column[0].is_valid else None], pa.binary())
    return pa.array([None if value is None else _json(value) for value in _values(column)], pa.binary())


def _text(column: pa.Array) -> pa.StringArray:
    """Numbers and times, as Arrow writes them: a duration as a number, and of what no calendar has that it is
    out of range, with its number."""
    if not pa.types.is_timestamp(column.type) or column.type.tz is None:
        return column.cast(pa.string())
    unit = column.type.unit
    try:
        zoned = column.cast(pa.string())
    except pa.ArrowInvalid:  # Nobody knows the zone. By its offset: a machine may know none at all.
        zoned = column.cast(pa.timestamp(unit, "+00:00")).cast(pa.string())
    # In a zone, Arrow 26 writes a time that is out of range as if it were another.
    plain = column.cast(pa.timestamp(unit)).cast(pa.string())
    return pc.if_else(pc.starts_with(plain, "<"), plain, zoned)


def _values(column: pa.Array) -> list[Any]:
    """As Python has them, for JSON: times are text already. Not by Arrow's own casts of what is nested, which
    lose items of some lists (Arrow 26)."""
    kind = column.type
    if pa.types.is_nested(kind):
        found, is_there = _nested(column), column.is_valid().to_pylist()
        return [value if there else None for value, there in zip(found, is_there, strict=True)]
    seen = column
    if is_text(kind):
        seen = column.cast(pa.large_binary())  # It may be no UTF-8.
    elif pa.types.is_duration(kind):
        seen = column.cast(pa.int64())
    elif pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        seen = _text(column)
    values: list[Any] = seen.to_pylist()
    return values


def _nested(column: pa.Array) -> list[Any]:
    kind, rows = column.type, len(column)
    if pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        fields = [_values(column.field(i)) for i in range(kind.num_fields)]
        return [dict(zip(names, row, strict=True)) for row in zip(*fields, strict=True)] or [{}] * rows
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        ends = [size * i for i in range(rows + 1)]
        items = _values(column.values.slice(column.offset * size, rows * size))
    else:
        offsets = column.offsets.to_pylist()
        ends = [offset - offsets[0] for offset in offsets]
        inner = column.values.slice(offsets[0], ends[-1])
        if pa.types.is_map(kind):
            items = list(zip(_values(inner.field(0)), _values(inner.field(1)), strict=True))
        else:
            items = _values(inner)
    return [items[low:high] for low, high in pairwise(ends)]


def _json(value: Any) -> bytes:
    return json.dumps(value, default=_plain, ensure_ascii=False).encode()


def _plain(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
