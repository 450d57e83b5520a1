"""What a user gives, as a batch in a stream's stored layout: checked, cast where nothing is lost, or refused.

A refusal names the column and the type. Nothing here cuts, routes or numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.core.aside import OURS
from shoal.core.checking import is_instance_of
from shoal.core.errors import InvalidInput, InvalidKey, InvalidTimestamp, SchemaMismatch, TooLarge
from shoal.core.limits import (
    HEADERS_MAX,
    OUR_HEADERS_BYTES_MAX,
    OUR_HEADERS_MAX,
    RECORD_BYTES_MAX,
    TIMESTAMP_MS_MAX,
)
from shoal.core.model import Compression
from shoal.wire.casting import cast_column, is_bytes_like, map_entries
from shoal.wire.functions import pc
from shoal.wire.layout import HEADERS, KEY, RESERVED, TIMESTAMP, Layout
from shoal.wire.sizes import is_bytes, is_text, largest_value, lengths, value_sizes

Columns: TypeAlias = pa.Table | pa.RecordBatch


def fit_columns(layout: Layout, given: Columns, key_column: str | None, now_ms: int) -> pa.RecordBatch:
    """A table or record batch in the stored layout; `key_column` is kept as a column if the schema has it."""
    if not isinstance(given, pa.Table | pa.RecordBatch):
        raise InvalidInput("table", type(given).__name__, "give a pyarrow.Table or pyarrow.RecordBatch")
    names = given.schema.names
    if len(set(names)) != len(names):
        raise InvalidInput("table", names, "a column name is given twice")
    if key_column is not None and key_column not in names:
        raise InvalidInput("key_column", key_column, f"the table has the columns {', '.join(names)}")
    if key_column not in (None, "key") and "key" in names:
        raise InvalidInput("key_column", key_column, "the table also has a column 'key'; drop it or use it")
    for name in names:
        if name not in layout.columns.names and name not in ("key", "timestamp", "headers", key_column):
            wanted = ", ".join([*layout.columns.names, "key", "timestamp", "headers"])
            raise SchemaMismatch(name, given=str(given.schema.field(name).type), wanted=f"only {wanted}")
    rows = given.num_rows
    headers = _column(given, "headers")
    has_headers = headers is not None and headers.null_count < rows
    columns = [_fit_timestamps(_column(given, "timestamp"), rows, now_ms)]
    columns.append(fit_keys(_column(given, key_column or "key"), key_column or "key", rows))
    if has_headers:
        columns.append(_fit_headers(headers))
    columns.extend(_fit_one(_column(given, field.name), field, rows) for field in layout.columns)
    return pa.record_batch(columns, schema=layout.stored(with_headers=has_headers))


def fit_records(
    layout: Layout,
    values: Sequence[Any],
    keys: Sequence[bytes | None],
    timestamps_ms: Sequence[int],
    headers: Sequence[Mapping[str, bytes] | None] | None,
) -> pa.RecordBatch:
    """Records that were checked one by one (see `check_value`) as a batch in the stored layout."""
    stamps = pa.array(np.asarray(timestamps_ms, dtype=np.int64) * 1000).view(TIMESTAMP.type)
    # To find out that there is none takes longer than most of an append of one record.
    is_keyless = keys.count(None) == len(keys)
    columns = [stamps, pa.nulls(len(keys), KEY.type) if is_keyless else pa.array(keys, KEY.type)]
    if headers is not None:
        columns.append(pa.array([list(h.items()) if h else None for h in headers], HEADERS.type))
    if layout.is_typed:
        rows = pa.array(values, pa.struct(list(layout.columns)))
        columns.extend(rows.flatten())
    else:
        columns.append(pa.array(values, pa.binary()))
    return pa.record_batch(columns, schema=layout.stored(with_headers=headers is not None))


def check_value(layout: Layout, value: Any) -> tuple[Any, int]:
    """One value as it will be stored, and about how many bytes it takes."""
    if layout.is_typed:
        # Converting it now is what makes an error belong to this `send`.
        row, size = layout.rows.fit(value)
        return row, check_size(size)
    if isinstance(value, str):
        value = _encoded("value", value)
    elif isinstance(value, bytearray | memoryview):
        value = bytes(value)
    elif value is not None and not isinstance(value, bytes):
        raise SchemaMismatch("value", given=type(value).__name__, wanted="bytes or str: it has no schema")
    return value, check_size(len(value) if value is not None else 0)


def check_size(size: int) -> int:
    """The size of one record, if it is within the limit."""
    if size > RECORD_BYTES_MAX:
        raise TooLarge("record", size=size, limit=RECORD_BYTES_MAX, remedy="keep large objects elsewhere")
    return size


def check_headers(headers: Mapping[str, bytes | str] | None) -> dict[str, bytes] | None:
    """Headers as they are stored: text to bytes."""
    if not headers:
        return None
    if not is_instance_of(headers, Mapping):
        raise InvalidInput("headers", type(headers).__name__, "give a dict of str to bytes or str")
    if len(headers) > HEADERS_MAX and len(headers) - _ours(headers) > HEADERS_MAX:
        raise InvalidInput("headers", f"{len(headers)} of them", f"a record has at most {HEADERS_MAX}")
    checked = {}
    for name, value in headers.items():
        if not is_instance_of(name, str) or not is_instance_of(value, (bytes, str)):
            raise InvalidInput("headers", {name: value}, "a header is a str with bytes or str")
        _encoded("headers", name)
        checked[name] = _encoded("headers", value) if isinstance(value, str) else value
    return checked


def _ours(headers: Mapping[str, object]) -> int:
    """How many of them are ours, and do not count."""
    mine = sum(is_instance_of(name, str) and name.startswith(OURS) for name in headers)
    return min(mine, OUR_HEADERS_MAX)


def headers_size(headers: Mapping[str, bytes]) -> int:
    """What checked headers count of a record's bytes. A name counts in UTF-8, not in characters."""
    return sum((len(name) if name.isascii() else len(name.encode())) + len(v) for name, v in headers.items())


def _encoded(field: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(field, text, f"text is kept as UTF-8 ({error.reason}); give bytes") from error


def check_row_sizes(batch: pa.RecordBatch) -> None:
    """Refuse a batch in which one record's bytes are over the limit: key, headers and values."""
    if batch.nbytes <= RECORD_BYTES_MAX:
        return
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    del columns["timestamp"]
    if sum(largest_value(column) for column in columns.values()) <= RECORD_BYTES_MAX:
        return
    sizes = np.zeros(batch.num_rows, dtype=np.int64)
    for name, column in columns.items():
        if is_text(column.type) or is_bytes(column.type):
            sizes += lengths(column)
        elif name == "headers":
            sizes += _header_sizes(column)
        else:
            sizes += value_sizes(column)
    check_size(int(sizes.max()))


def _header_sizes(column: pa.Array) -> npt.NDArray[np.int64]:
    """Names and values, as `send` counts them; ours do not count."""
    entries = column.values
    each = lengths(entries.field(0)) + lengths(entries.field(1))
    places = column.offsets.to_numpy(zero_copy_only=False)

    def summed(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        sums: npt.NDArray[np.int64] = np.diff(np.concatenate(([0], np.cumsum(sizes)))[places])
        return sums

    is_ours = pc.starts_with(entries.field(0), OURS).to_numpy(zero_copy_only=False)
    return summed(each) - np.minimum(summed(each * is_ours), OUR_HEADERS_BYTES_MAX)


def _column(given: Columns, name: str) -> pa.Array | None:
    if name not in given.schema.names:
        return None
    column = given.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _fit_timestamps(column: pa.Array | None, rows: int, now_ms: int) -> pa.Array:
    now = pa.scalar(now_ms * 1000, pa.int64()).cast(TIMESTAMP.type)
    if column is None:
        return pa.array(np.full(rows, now_ms * 1000, dtype=np.int64)).cast(TIMESTAMP.type)
    if pa.types.is_integer(column.type):
        column = pc.multiply(column.cast(pa.int64()), 1000) if _in_range(column, 1) else _refuse_times(column)
    elif not pa.types.is_timestamp(column.type):
        raise SchemaMismatch("timestamp", given=str(column.type), wanted="a timestamp, or int64 milliseconds")
    else:
        # In its own unit first: cast to microseconds, a time that is far out would wrap into one that is not.
        if not _in_range(column.cast(pa.int64()), Fraction(_PER_S[column.type.unit], 1000)):
            _refuse_times(column)
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
    fitted = column.cast(TIMESTAMP.type)
    return fitted if fitted.null_count == 0 else fitted.fill_null(now)


_PER_S: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def _in_range(column: pa.Array, per_ms: int | Fraction) -> bool:
    bounds = pc.min_max(column).as_py()
    return bounds["min"] is None or (bounds["min"] >= 0 and bounds["max"] < (TIMESTAMP_MS_MAX + 1) * per_ms)


def _refuse_times(column: pa.Array) -> pa.Array:
    numbers = column if pa.types.is_integer(column.type) else column.cast(pa.int64())
    bounds = pc.min_max(numbers).as_py()
    raise InvalidTimestamp("timestamp", bounds, "times from 1970 to the end of the year 9999")


def fit_keys(column: pa.Array | None, name: str, rows: int) -> pa.Array:
    """A column of keys, as it is stored; of none, as many nulls."""
    if column is None:
        return pa.nulls(rows, KEY.type)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_null(column.type):
        return pa.nulls(rows, KEY.type)
    if not is_bytes_like(column.type):
        raise InvalidKey(name, str(column.type), "a key column is binary or string; cast it to one of them")
    return column.cast(KEY.type)


def _fit_headers(column: pa.Array) -> pa.Array:
    """A column of headers, each record's within what `check_headers` allows."""
    fitted = cast_column(column, HEADERS)
    present = fitted.drop_null()
    counts = np.diff(present.offsets.to_numpy(zero_copy_only=False))
    if len(counts) == 0 or (most := int(counts.max())) == 0:
        return fitted
    if most > HEADERS_MAX:
        raise InvalidInput("headers", f"{most} of them", f"a record has at most {HEADERS_MAX}")
    entries = map_entries(present)
    if entries.field(1).null_count:
        raise InvalidInput("headers", None, "a header has bytes or text, which may be empty, but not null")
    if most > 1:
        names = entries.field(0).dictionary_encode()
        records = np.repeat(np.arange(len(counts)), counts)
        named = records * len(names.dictionary) + names.indices.to_numpy(zero_copy_only=False)
        if len(np.unique(named)) < len(named):
            raise InvalidInput("headers", "a name twice", "a record has each of its headers once")
    return fitted


def _fit_one(column: pa.Array | None, field: pa.Field, rows: int = 0) -> pa.Array:
    if column is None:
        if not field.nullable:
            raise SchemaMismatch(field.name, given="no such column", wanted=f"{field.type}, not null")
        if field.name == "value" and field.type == pa.binary():
            raise SchemaMismatch("value", given="no such column", wanted="a column 'value' of bytes or text")
        return pa.nulls(rows, field.type)
    return cast_column(column, field)


assert {TIMESTAMP.name, KEY.name, HEADERS.name} <= RESERVED


def warm_up() -> None:
    """Meet Arrow's lazy sides once: its import of numpy's parts, its search for pandas, its functions.

    See `shoal.forks.meet_arrow`.
    """
    layout = Layout(None)
    batch = fit_records(layout, [b""], [None], [0], [{"": b""}]).take(pa.array(np.zeros(1, np.int64)))
    for compression in Compression:
        layout.decode(*layout.encode(batch, compression))
