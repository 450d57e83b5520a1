"""A stored batch that a stranger has made: looked at before it is unpacked, and checked before it is kept.

Arrow trusts what it reads: it makes as much room as a compressed buffer claims to need, and follows offsets
wherever they lead. So the claims are added up first, from the message's own table of buffers (a flatbuffer,
read here by hand: `org.apache.arrow.flatbuf.Message` and `RecordBatch`), and every offset is checked after.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa

from shoal.core.errors import InvalidInput, InvalidTimestamp, StoreCorrupt, TooLarge
from shoal.core.limits import BATCH_BYTES_MAX, HEADERS_MAX, OUR_HEADERS_MAX, TIMESTAMP_MS_MAX
from shoal.wire.casting import lacks_required
from shoal.wire.layout import HEADERS, HEADERS_LAYOUT, PLAIN_LAYOUT, Layout


def accepted(layout: Layout, number: int, payload: memoryview) -> pa.RecordBatch:
    """The batch of these bytes, if it could have been made by us; otherwise InvalidInput."""
    if number not in (PLAIN_LAYOUT, HEADERS_LAYOUT):
        raise InvalidInput("layout", number, "0, or 1 for batches with headers")
    check_claims(payload[:-_DIGEST], UNPACKED_BYTES_MAX)
    try:
        batch = layout.decode(number, payload)
        batch.validate(full=True)
    except StoreCorrupt as error:
        raise InvalidInput("batch", f"{len(payload)} bytes", f"it cannot be read ({error.detail})") from error
    except pa.ArrowException as error:
        raise InvalidInput("batch", f"{len(payload)} bytes", f"it is not sound ({error})") from error
    _check_columns(layout, number, batch)
    return batch


def claimed_bytes(payload: bytes | memoryview) -> int:
    """What a batch says that it unpacks to. One that says nothing is refused once it is looked at itself."""
    try:
        return _claimed_bytes(memoryview(payload)[:-_DIGEST])
    except (struct.error, IndexError, ValueError):
        return 0


def check_claims(message: memoryview, limit: int) -> None:
    """Refuse a message that is not one record batch, or that would unpack to more bytes than the limit."""
    try:
        claimed = _claimed_bytes(message)
    except (struct.error, IndexError, ValueError) as error:
        raise InvalidInput("batch", f"{len(message)} bytes", f"this is no Arrow message ({error})") from error
    if claimed > limit:
        raise TooLarge("batch", size=claimed, limit=limit, remedy="cut it; a producer does this by itself")


def _check_columns(layout: Layout, number: int, batch: pa.RecordBatch) -> None:
    times = batch.column("timestamp")
    if times.null_count:
        raise InvalidTimestamp("timestamp", None, "every record has one")
    if batch.num_rows:
        if batch.num_rows == 1:
            low = high = times[0].value
        else:
            micros = times.view(pa.int64()).to_numpy()
            low, high = micros.min(), micros.max()
        if low < 0 or high >= (TIMESTAMP_MS_MAX + 1) * 1000:
            raise InvalidTimestamp("timestamp", int(high), "times from 1970 to the end of the year 9999")
    if layout.is_typed:  # Without columns of its own, nothing else in a stream is required.
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if (not field.nullable and column.null_count) or lacks_required(column):
                raise InvalidInput(field.name, None, f"{field.type}, not null")
    if number == HEADERS_LAYOUT:
        _check_headers(batch.column(HEADERS.name).drop_null())


def _check_headers(column: pa.Array) -> None:
    counts = np.diff(column.offsets.to_numpy(zero_copy_only=False))
    if len(counts) and int(counts.max()) > HEADERS_MAX + OUR_HEADERS_MAX:
        raise InvalidInput("headers", f"{int(counts.max())} of them", f"a record has at most {HEADERS_MAX}")
    if column.items.null_count:
        raise InvalidInput("headers", None, "a header has bytes or text, which may be empty, but not null")


# --- The message's table of buffers. -----------------------------------------------------------------------


def _claimed_bytes(message: memoryview) -> int:
    """What all buffers say they hold, unpacked."""
    marker, size = struct.unpack_from("<Ii", message, 0)
    if marker != _CONTINUED or size <= 0:
        raise ValueError("it does not begin like one")
    metadata, body = bytes(message[_HEAD : _HEAD + size]), message[_HEAD + size :]
    buffers = _buffers_again if size <= _METADATA_BYTES else _buffers
    claimed, packed = buffers(metadata, len(body))
    for offset, length in packed:
        (unpacked,) = _LONG.unpack_from(body, offset) if length >= _PREFIX else (-2,)
        if unpacked < -1:
            raise ValueError("a compressed buffer does not say how long it is")
        claimed += length if unpacked == -1 else unpacked
    return claimed


def _buffers(metadata: bytes, body_size: int) -> tuple[int, Sequence[tuple[int, int]]]:
    """What the buffers that are not compressed hold; and where the others are, and how long."""
    root = _indirect(metadata, 0)
    kind = _field(metadata, root, _HEADER_TYPE)
    if kind is None or metadata[kind] != _RECORD_BATCH:
        raise ValueError("it is not a record batch")
    length = _field(metadata, root, _BODY_LENGTH)
    if length is None or struct.unpack_from("<q", metadata, length)[0] != body_size:
        raise ValueError("its body is not as long as it says")
    header = _field(metadata, root, _HEADER)
    if header is None:
        raise ValueError("it has no header")
    batch = _indirect(metadata, header)
    buffers = _field(metadata, batch, _BUFFERS)
    if buffers is None:
        return 0, ()
    numbers = _vector(metadata, buffers)
    places = list(zip(numbers[::2], numbers[1::2], strict=True))
    if any(offset < 0 or length < 0 or offset + length > body_size for offset, length in places):
        raise ValueError("a buffer lies outside its body")
    if _field(metadata, batch, _COMPRESSION) is None:
        return sum(numbers[1::2]), ()
    return 0, [(offset, length) for offset, length in places if length]


def _indirect(data: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where a field of a table is; None if it has its default."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise ValueError("a table lies outside of it")
    size = struct.unpack_from("<H", data, vtable)[0]
    slot = 4 + 2 * number
    if slot + 2 > size:
        return None
    offset = struct.unpack_from("<H", data, vtable + slot)[0]
    return table + offset if offset else None


def _vector(data: bytes, at: int) -> tuple[int, ...]:
    """Pairs of numbers, one after another."""
    start = _indirect(data, at)
    (count,) = struct.unpack_from("<I", data, start)
    if count > len(data):
        raise ValueError("it has more buffers than bytes")
    return struct.unpack_from(f"<{2 * count}q", data, start + 4)


UNPACKED_BYTES_MAX: Final = 2 * BATCH_BYTES_MAX
"""What is refused before it is unpacked; what is in a batch is counted, and refused, more finely after."""
_LONG: Final = struct.Struct("<q")
_DIGEST: Final = 8
_HEAD: Final = 8
_PREFIX: Final = 8
_CONTINUED: Final = 0xFFFFFFFF
_RECORD_BATCH: Final = 3
_HEADER_TYPE: Final = 1
_HEADER: Final = 2
_BODY_LENGTH: Final = 3
_BUFFERS: Final = 2
_COMPRESSION: Final = 3
_METADATA_BYTES: Final = 1024
_buffers_again: Final = lru_cache(1_000)(_buffers)
"""Batches of single records are laid out alike, and to read how takes longer than to decode one."""
