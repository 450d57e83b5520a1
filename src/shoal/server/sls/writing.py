"""LogHub's messages, written: columns in, bytes out. As in `wire`, no Python runs for each log or field: the
few bytes before each key and each value are made for all of them at once, and Arrow joins them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shoal.wire.layout import MEMORY

Numbers = NDArray[np.int64]


def pairs_bytes(tag: int, keys: pa.BinaryArray, values: pa.BinaryArray) -> pa.BinaryArray:
    """Key and value of each, as a field of this tag."""
    if not len(keys):
        return keys
    key_sizes, value_sizes = sizes_of(keys), sizes_of(values)
    inner = 2 + varint_sizes(key_sizes) + key_sizes + varint_sizes(value_sizes) + value_sizes
    return _joined(
        _octets(bytes([tag]), inner, b"\x0a", key_sizes), keys, _octets(b"\x12", value_sizes), values
    )


def logs_bytes(times: Numbers, nanoseconds: pa.Int64Array, contents: pa.BinaryArray) -> pa.BinaryArray:
    """Each log as a field of its group. Its contents are fields already; without nanoseconds it has none."""
    has_them = np.asarray(nanoseconds.is_valid())
    numbers = np.asarray(nanoseconds.fill_null(0)).astype(np.uint32)
    inner = 1 + varint_sizes(times) + sizes_of(contents) + 5 * has_them
    tails = np.empty((len(times), 5), np.uint8)
    tails[:, 0] = 0x25
    tails[:, 1:] = numbers.astype("<u4").view(np.uint8).reshape(-1, 4)
    ends = np.concatenate(([0], np.cumsum(5 * has_them)))
    tail = _binary(tails[has_them].reshape(-1), ends)
    return _joined(_octets(b"\x0a", inner, b"\x08", times), contents, tail)


def field_bytes(tag: int, value: bytes) -> bytes:
    """One field of bytes."""
    return b"".join((bytes([tag]), varint(len(value)), value))


def rows_bytes(pairs: pa.BinaryArray, offsets: Numbers) -> pa.BinaryArray:
    """Of each row, the pairs between its offsets, as they are."""
    _, ends, data = pairs.buffers()
    return _binary(data, np.frombuffer(ends, np.int32, len(pairs) + 1)[offsets])


def sizes_of(values: pa.BinaryArray) -> Numbers:
    """How long each is."""
    ends = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
    return np.diff(ends).astype(np.int64)


def varint_sizes(numbers: Numbers) -> Numbers:
    """How many bytes each takes."""
    found = np.ones(len(numbers), np.int64)
    for shift in range(7, 7 * _width(numbers), 7):
        found += numbers >= 1 << shift
    return found


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _octets(*parts: bytes | Numbers) -> pa.BinaryArray:
    """In each row these bytes, and these numbers as varints."""
    rows = next(len(part) for part in parts if not isinstance(part, bytes))
    widths = [len(part) if isinstance(part, bytes) else _width(part) for part in parts]
    matrix = np.empty((rows, sum(widths)), np.uint8)
    shown = np.ones(matrix.shape, np.bool_)
    sizes = np.full(rows, sum(widths), np.int64)
    at = 0
    for part, width in zip(parts, widths, strict=True):
        if isinstance(part, bytes):
            matrix[:, at : at + width] = np.frombuffer(part, np.uint8)
        else:
            for i in range(width):
                left = part >> (7 * i)
                matrix[:, at + i] = (left & 0x7F) | ((left >= 0x80) << 7)
                if i:
                    is_there = left > 0
                    shown[:, at + i] = is_there
                    sizes -= ~is_there
        at += width
    return _binary(matrix[shown], np.concatenate(([0], np.cumsum(sizes))))


def _width(numbers: Numbers) -> int:
    """Bytes of the longest."""
    return len(varint(int(numbers.max()))) if len(numbers) else 1


def _binary(data: NDArray[np.uint8] | pa.Buffer, ends: NDArray[np.integer[Any]]) -> pa.BinaryArray:
    offsets = pa.py_buffer(ends.astype(np.int32))
    held = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, offsets, held])


def _joined(*columns: pa.BinaryArray) -> pa.BinaryArray:
    return pc.binary_join_element_wise(*columns, _NOTHING, memory_pool=MEMORY)


_NOTHING: Final = pa.scalar(b"", pa.binary())
