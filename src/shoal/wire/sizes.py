"""How many bytes a value takes, by its type: in a row, in a column, and where there is none.

A single row (`rows.py`) is never counted smaller than a column counts it here: what one `send` let through
must not fail the batch that it ends up in.
"""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.wire.functions import pc

Sizes: TypeAlias = npt.NDArray[np.int64]


def in_memory(batch: pa.RecordBatch) -> int:
    """The bytes of a batch, at least. Of a tiny one with its slack: to leave that out takes longer than most
    of what an append of one record does."""
    whole: int = batch.get_total_buffer_size()
    return whole if whole <= _TINY else batch.nbytes


_TINY = 1024


@cache
def room(kind: pa.DataType) -> int:
    """What every value of this type takes, a null too: its fixed bytes, or an offset."""
    if is_text(kind) or is_bytes(kind) or is_list(kind) or pa.types.is_map(kind):
        large = (pa.types.is_large_string, pa.types.is_large_binary, pa.types.is_large_list)
        return 8 if any(check(kind) for check in large) else 4
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * room(kind.value_type)
    if pa.types.is_struct(kind):
        return 1 + sum(room(kind.field(i).type) for i in range(kind.num_fields))
    if pa.types.is_null(kind):
        return 1
    return max(1, int(kind.bit_width) // 8)


def value_sizes(column: pa.Array) -> Sizes:
    """The size of each value of a column."""
    kind = column.type
    if is_text(kind) or is_bytes(kind):
        return lengths(column) + room(kind)
    if is_list(kind) or pa.types.is_map(kind):
        return _list_sizes(column)
    if pa.types.is_fixed_size_list(kind) and kind.list_size > 0:
        # `values` are those of the whole column, of which this one may be a slice.
        items = column.values.slice(column.offset * kind.list_size, len(column) * kind.list_size)
        summed: Sizes = value_sizes(items).reshape(len(column), kind.list_size).sum(axis=1)
        return summed
    sizes = np.full(len(column), 1 if pa.types.is_struct(kind) else room(kind), dtype=np.int64)
    if pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            sizes += value_sizes(column.field(i))
    return sizes


def largest_value(column: pa.Array) -> int:
    """A bound on the size of any one value, cheap to have."""
    kind = column.type
    if is_text(kind) or is_bytes(kind):
        longest: int | None = pc.max(pc.binary_length(column)).as_py()
        return longest or 0
    if pa.types.is_nested(kind):
        return 8 * int(column.nbytes)  # A bool takes a bit there, and a byte where values are counted.
    return room(kind)


def lengths(column: pa.Array) -> Sizes:
    """How long each text or bytes of a column is."""
    counted: Sizes = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    return counted.astype(np.int64)


def is_text(kind: pa.DataType) -> bool:
    """Text of any length, as it is stored."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Bytes of any length, as they are stored."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_list(kind: pa.DataType) -> bool:
    """A list of any length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _list_sizes(column: pa.Array) -> Sizes:
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    items = column.values
    if _is_flat(items.type):
        sizes: Sizes = np.diff(offsets) * room(items.type)
    else:
        first, end = int(offsets[0]), int(offsets[-1])
        sums = np.concatenate(([0], np.cumsum(value_sizes(items.slice(first, end - first)))))
        sizes = np.diff(sums[offsets - first])
    if column.null_count:  # Arrow lets a null hide items.
        sizes = np.where(column.is_null().to_numpy(zero_copy_only=False), 0, sizes)
    return sizes + room(column.type)


def _is_flat(kind: pa.DataType) -> bool:
    return not (is_text(kind) or is_bytes(kind) or pa.types.is_nested(kind))
