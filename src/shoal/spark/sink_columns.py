"""Rows as Spark gives them, as rows that a stream takes: which column is what, checked before anything runs.

A row's columns are the stream's own (`value`, or its typed ones), and `key`, `timestamp`, `headers` if they
are there. `stream` names the stream of a row unless the option does. `shard` and `offset`, which a row that
was read from another stream has, are left out: the log gives it new ones. Anything else is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.core.errors import InvalidInput, SchemaMismatch
from shoal.core.model import StreamInfo, StreamName
from shoal.spark.ledger import Contents
from shoal.spark.sink_options import SinkSettings, target
from shoal.wire.casting import cast_column
from shoal.wire.fitting import check_row_sizes, fit_columns, fit_keys
from shoal.wire.layout import HEADERS, Layout

_STREAM: Final = "stream"
_LEFT_OUT: Final = frozenset({"shard", "offset"})


def check_columns(settings: SinkSettings, schema: pa.Schema, stream: StreamInfo | None) -> None:
    """Refuse what no row could ever be written with. `stream` is the one that the option names."""
    if stream is None and _STREAM not in schema.names:
        raise InvalidInput(
            "stream", None, "name it with .option(\"stream\", …), or give every row a column 'stream' of text"
        )
    if stream is None and not pa.types.is_string(schema.field(_STREAM).type):
        raise SchemaMismatch(_STREAM, given=str(schema.field(_STREAM).type), wanted="text: it names a stream")
    if settings.key_column is not None and settings.key_column not in schema.names:
        raise InvalidInput(
            "keyColumn", settings.key_column, f"there is no such column among {', '.join(schema.names)}"
        )
    if settings.refuses_null_keys and settings.key_column is None and "key" not in schema.names:
        raise InvalidInput("nullKey", "refuse", "there is no column 'key', and no keyColumn names another")
    if stream is not None:
        empty = pa.record_batch([pa.array([], field.type) for field in schema], schema=schema)
        own = _own_columns(settings, empty)
        fit(settings, Layout(stream.settings.schema), own, 0)
        if "headers" in own.schema.names:  # Where no row has any, nobody looks at their type.
            cast_column(own.column("headers"), HEADERS)


def by_stream(settings: SinkSettings, rows: pa.RecordBatch) -> Iterator[tuple[StreamName, pa.RecordBatch]]:
    """The rows of each stream, in their order, however they spell its name."""
    own = _own_columns(settings, rows)
    if settings.stream is not None:
        yield target(settings.stream), own
        return
    names = rows.column(_STREAM)
    if names.null_count:
        raise InvalidInput("stream", None, "a row names no stream: its column 'stream' is null")
    encoded = names.dictionary_encode()
    spelt = [target(name) for name in encoded.dictionary.to_pylist()]
    # Two spellings are one stream: two writers of it would number their pieces alike, and the log drop half.
    numbers = {stream: number for number, stream in enumerate(dict.fromkeys(spelt))}
    if len(numbers) == 1:
        yield spelt[0], own
        return
    which = np.array([numbers[stream] for stream in spelt])[encoded.indices.to_numpy(zero_copy_only=False)]
    for stream, number in numbers.items():
        yield stream, own.take(pa.array(np.flatnonzero(which == number)))


def fit(settings: SinkSettings, layout: Layout, rows: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
    """Rows in the stream's stored layout."""
    fitted = fit_columns(layout, rows, settings.key_column, now_ms)
    if settings.refuses_null_keys and fitted.column("key").null_count:
        raise InvalidInput(
            settings.key_column or "key",
            None,
            f"{fitted.column('key').null_count} rows have no key, and nullKey is 'refuse'",
        )
    check_row_sizes(fitted)
    return fitted


def contents(settings: SinkSettings, rows: pa.RecordBatch) -> Contents:
    """See Contents. Only keys are looked at: summing up every byte of every value would take too long."""
    name = settings.key_column or "key"
    keys = fit_keys(rows.column(name) if name in rows.schema.names else None, name, rows.num_rows)
    _, offsets_buffer, data = keys.buffers()
    if data is None or len(keys) == 0:
        return Contents(rows=rows.num_rows)
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[keys.offset : keys.offset + len(keys) + 1]
    first, end = int(offsets[0]), int(offsets[-1])
    key_sum = int(np.frombuffer(data, dtype=np.uint8, count=end)[first:].sum(dtype=np.uint64))
    return Contents(rows=rows.num_rows, key_bytes=end - first, key_sum=key_sum)


def _own_columns(settings: SinkSettings, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Without those that are about where a row was, and with headers as maps."""
    leave = {_STREAM, *_LEFT_OUT} - {settings.key_column}
    kept = [name for name in rows.schema.names if name not in leave]
    own = rows.select(kept) if len(kept) < rows.num_columns else rows
    if "headers" in kept and pa.types.is_list(own.column("headers").type):
        place = own.schema.get_field_index("headers")
        own = own.set_column(place, HEADERS, _as_maps(own.column("headers")))
    return own


def _as_maps(column: pa.Array) -> pa.Array:
    """Headers as Spark's Kafka connector has them, a list of (key, value), as maps."""
    entries = column.type.value_type
    if not pa.types.is_struct(entries) or entries.num_fields != 2:
        raise SchemaMismatch("headers", given=str(column.type), wanted="map<string, binary>")
    names = [entries.field(i).name for i in range(2)]
    if names != ["key", "value"]:
        raise SchemaMismatch("headers", given=str(column.type), wanted="structs of 'key' and 'value'")
    flat = column.flatten()
    sizes = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(
        np.concatenate(([0], np.cumsum(sizes))), pa.int32(), mask=np.append(_nulls(column), False)
    )
    try:
        return pa.MapArray.from_arrays(
            offsets, flat.field(0).cast(pa.string()), flat.field(1).cast(pa.binary())
        )
    except pa.ArrowException as error:
        raise SchemaMismatch("headers", given=f"{column.type} ({error})", wanted="a name for each") from error


def _nulls(column: pa.Array) -> np.ndarray:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False))
