"""How a stream's batches look as Arrow columns, and the bytes that are stored of them.

A stored batch is one Arrow IPC record batch message without its schema: the schema follows from the
stream's columns and the batch's layout number, and would be most of a small batch's bytes. Columns:
`timestamp`, `key`, `headers` only where any record has some (layout 1), then `value`, or the
stream's own typed columns. Its last eight bytes are the XXH3 of the others, so that damage is seen.
A record or a few are not compressed, whatever the stream says.

Timestamps are microseconds in UTC, keys and values plain binary: what Spark takes without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import xxhash

from shoal.core.checking import is_instance_of
from shoal.core.errors import InvalidInput, StoreCorrupt
from shoal.core.limits import RECORD_BYTES_MAX
from shoal.core.model import Compression
from shoal.wire.functions import pc
from shoal.wire.rows import RowFitter
from shoal.wire.sizes import room

TIMESTAMP: Final = pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False)
KEY: Final = pa.field("key", pa.binary())
HEADERS: Final = pa.field("headers", pa.map_(pa.string(), pa.binary()))
OFFSET: Final = pa.field("offset", pa.int64(), nullable=False)
VALUE: Final = pa.schema([pa.field("value", pa.binary())])
RESERVED: Final = frozenset({"stream", "shard", "offset", "timestamp", "key", "headers"})

PLAIN_LAYOUT: Final = 0
HEADERS_LAYOUT: Final = 1

MEMORY: Final = pa.system_memory_pool()
"""Where batches live. Arrow's own pool gives large buffers back to the system at once, and a page that comes
anew for every batch costs more than decompressing it: reads took twice as long."""

SchemaLike: TypeAlias = pa.Schema | Mapping[str, pa.DataType | str]


class Layout:
    """The columns of one stream. `columns` are the stream's own: typed ones, or `value`."""

    def __init__(self, schema: bytes | None) -> None:
        self.is_typed = schema is not None
        self.columns: pa.Schema = VALUE if schema is None else pa.ipc.read_schema(pa.py_buffer(schema))
        self._stored = {
            PLAIN_LAYOUT: pa.schema([TIMESTAMP, KEY, *self.columns]),
            HEADERS_LAYOUT: pa.schema([TIMESTAMP, KEY, HEADERS, *self.columns]),
        }
        self._prefix = {number: stored.serialize() for number, stored in self._stored.items()}
        self.read_schema: pa.Schema = pa.schema([OFFSET, TIMESTAMP, KEY, HEADERS, *self.columns])

    @cached_property
    def rows(self) -> RowFitter:
        """What fits single rows to the stream's typed columns."""
        return RowFitter(self.columns)

    def stored(self, *, with_headers: bool) -> pa.Schema:
        """The schema of a stored batch."""
        return self._stored[HEADERS_LAYOUT if with_headers else PLAIN_LAYOUT]

    def encode(self, batch: pa.RecordBatch, compression: Compression) -> tuple[int, bytes]:
        """The layout number and the bytes of a batch that has one of the stored schemas."""
        number = HEADERS_LAYOUT if "headers" in batch.schema.names else PLAIN_LAYOUT
        if batch.num_rows <= _FEW and batch.get_total_buffer_size() <= _TINY:
            message = batch.serialize()
            return number, b"".join((memoryview(message), xxhash.xxh3_64_digest(message)))
        sink = pa.BufferOutputStream(MEMORY)
        with pa.ipc.new_stream(sink, self._stored[number], options=_WRITE[compression]) as writer:
            writer.write_batch(batch)
        whole, prefix = sink.getvalue(), self._prefix[number]
        assert whole.slice(0, prefix.size).equals(prefix), "Arrow writes a stream's schema first, unchanged"
        message = whole.slice(prefix.size, whole.size - prefix.size - _END_OF_STREAM)
        return number, b"".join((memoryview(message), xxhash.xxh3_64_digest(message)))

    def encode_part(self, part: pa.RecordBatch) -> tuple[int, bytes]:
        """The same for a slice of a stored batch, for one who reads it once."""
        return self.encode(part.take(pa.array(np.arange(part.num_rows))), Compression.LZ4)

    def decode(self, number: int, payload: bytes | memoryview) -> pa.RecordBatch:
        """The batch of these bytes."""
        message = memoryview(payload)[:-_DIGEST]
        # Arrow checks nothing: it would give wrong records, or follow a damaged offset out of the buffer.
        if xxhash.xxh3_64_digest(message) != payload[-_DIGEST:]:
            raise StoreCorrupt(f"a stored batch (layout {number}) has changed since it was written")
        try:
            if len(message) <= _TINY:
                # From a copy, which is aligned: Arrow refers to it.
                return pa.ipc.read_record_batch(pa.py_buffer(bytes(message)), self._stored[number])
            # As a stream, since only that takes a memory pool. To copy a small one is quicker than not to.
            parts = (memoryview(self._prefix[number]), message)
            is_small = len(message) <= _SMALL
            source = pa.BufferReader(b"".join(parts)) if is_small else pa.PythonFile(_Joined(*parts), "r")
            with pa.ipc.open_stream(source, options=_READ, memory_pool=MEMORY) as reader:
                return reader.read_next_batch()
        except (KeyError, pa.ArrowException, OSError, EOFError, ValueError) as error:
            raise StoreCorrupt(f"a stored batch (layout {number}) cannot be decoded: {error}") from error


_SMALL: Final = 65_536
_TINY: Final = 1024
_FEW: Final = 4
"""To compress so little saves next to nothing, and takes ten times as long as to write it."""


class _Joined:
    """Two buffers as one file, for Arrow, without a copy of either."""

    def __init__(self, *parts: memoryview) -> None:
        self._parts = list(parts)
        self.closed = False

    def read(self, size: int) -> memoryview | bytes:
        while self._parts and not self._parts[0]:
            del self._parts[0]
        if not self._parts:
            return b""
        first = self._parts[0]
        if len(first) < size and len(self._parts) > 1:  # Arrow reads a schema and a batch apart.
            self._parts[0:2] = [memoryview(b"".join(self._parts[0:2]))]
            first = self._parts[0]
        self._parts[0] = first[size:]
        return first[:size]

    def close(self) -> None:
        self.closed = True


def stored_schema(schema: SchemaLike | None) -> bytes | None:
    """A user's schema, checked, as it is kept with the stream."""
    if schema is None:
        return None
    checked = schema if isinstance(schema, pa.Schema) else _from_mapping(schema)
    if len(checked) == 0:
        raise InvalidInput("schema", "no columns", "name at least one column, or leave the schema out")
    for column in checked:
        if column.name in RESERVED or checked.names.count(column.name) > 1:
            raise InvalidInput(
                "schema",
                column.name,
                f"a column name is used once and is none of {', '.join(sorted(RESERVED))}",
            )
        if not _is_storable(column.type):
            raise InvalidInput(
                "schema", f"{column.name}: {column.type}", "use a plain Arrow type for this column"
            )
    width = sum(room(column.type) for column in checked)
    if width > RECORD_BYTES_MAX:
        raise InvalidInput(
            "schema", f"{width} bytes a record", f"its columns alone are over the limit of {RECORD_BYTES_MAX}"
        )
    stored = bytes(checked.remove_metadata().serialize())
    _try_out(stored)
    return stored


def _try_out(schema: bytes) -> None:
    """Take a row of nulls through all that happens to a batch: a type that Arrow cannot do fails here."""
    layout = Layout(schema)
    columns = layout.stored(with_headers=False)
    try:
        batch = pa.record_batch([pa.nulls(1, column.type) for column in columns], schema=columns)
        layout.decode(*layout.encode(pc.take(batch, pa.array([0])), Compression.NONE))
    except (pa.ArrowException, StoreCorrupt) as error:
        raise InvalidInput(
            "schema", str(layout.columns), f"Arrow cannot store these types ({error})"
        ) from error


def _from_mapping(schema: Mapping[str, pa.DataType | str]) -> pa.Schema:
    if not is_instance_of(schema, Mapping):
        raise InvalidInput("schema", schema, "give a pyarrow.Schema, or a dict of column name to type")
    fields = []
    for name, kind in schema.items():
        try:
            fields.append(pa.field(name, pa.type_for_alias(kind) if isinstance(kind, str) else kind))
        except (ValueError, TypeError) as error:
            raise InvalidInput("schema", f"{name}: {kind}", f"not an Arrow type ({error})") from error
    return pa.schema(fields)


def _is_storable(kind: pa.DataType) -> bool:
    """Dictionaries and extensions need more than one message or code of their own; views have no `take`."""
    plain = not (
        pa.types.is_dictionary(kind)
        or pa.types.is_union(kind)
        or pa.types.is_run_end_encoded(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
        or isinstance(kind, pa.BaseExtensionType)
    )
    fields = [kind.field(i) for i in range(kind.num_fields)]
    has_names = len({field.name for field in fields}) == len(fields)  # A dict has each but once.
    return plain and has_names and all(_is_storable(field.type) for field in fields)


_HASTE: Final = -8
"""LZ4's level: below nothing it looks less closely for repeats. Up to a fifth of the time is saved
for up to four per cent more bytes; some levels on, text takes half as much again."""


def _codec(kind: Compression) -> pa.Codec | None:
    if kind is Compression.NONE:
        return None
    return pa.Codec(kind.value, _HASTE) if kind is Compression.LZ4 else pa.Codec(kind.value)


# Without threads: a batch has few columns, and handing them to a pool costs more than it gives.
_WRITE: Final = {
    kind: pa.ipc.IpcWriteOptions(compression=_codec(kind), use_threads=False) for kind in Compression
}
_READ: Final = pa.ipc.IpcReadOptions(use_threads=False)
_END_OF_STREAM: Final = 8
_DIGEST: Final = 8
