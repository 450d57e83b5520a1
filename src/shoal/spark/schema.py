"""A stream's columns as Spark knows them: `stream, shard, offset, timestamp, key`, then `value` or typed
columns of the stream's own, then `headers` if they are asked for.

Spark takes Arrow columns only in exactly the types that it would have written itself. Most of ours are those
already and pass as they are; the others (unsigned numbers, other units of time) are cast, column by column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from shoal.core.errors import InvalidInput, SchemaMismatch
from shoal.core.model import StreamInfo
from shoal.wire.functions import pc
from shoal.wire.layout import Layout

FIXED: Final = (
    StructField("stream", StringType(), nullable=False),
    StructField("shard", IntegerType(), nullable=False),
    StructField("offset", LongType(), nullable=False),
    StructField("timestamp", TimestampType(), nullable=False),
    StructField("key", BinaryType()),
)
HEADERS: Final = StructField("headers", MapType(StringType(), BinaryType()))


def streams_schema(
    streams: Sequence[StreamInfo], columns: Sequence[str] | None, *, has_headers: bool
) -> StructType:
    """The columns of all these streams, which must have the same, narrowed to those that are asked for."""
    own = _own_columns(streams)
    fixed = {field.name: field for field in (*FIXED, HEADERS)}
    names = [field.name for field in FIXED] + own.names + (["headers"] if has_headers else [])
    if columns is not None:
        for name in columns:
            if name not in fixed and name not in own.names:
                known = ", ".join([*(field.name for field in FIXED), *own.names, "headers"])
                raise InvalidInput("columns", name, f"stream {streams[0].full_name} has {known}")
        names = list(columns)
    return StructType([fixed[name] if name in fixed else _field(own.field(name)) for name in names])


def check_schema(given: StructType, streams: Sequence[StreamInfo]) -> None:
    """Refuse a schema of the user's that asks for what is not there, for another type, or for one column
    twice; or that says of what may be null that it is not. Spark takes its word for that: it counts no nulls,
    and reads values where none are.

    Names are compared as they are written: a stream may have a column `Key` beside its `key`.
    """
    own = _own_columns(streams)
    for name, times in Counter(given.names).items():
        if times > 1:
            raise SchemaMismatch(name, given=f"{times} columns of this name", wanted="one of each name")
    for field in given.fields:
        known = next((known for known in (*FIXED, HEADERS) if known.name == field.name), None)
        if known is None and field.name not in own.names:
            names = ", ".join([*(known.name for known in FIXED), *own.names, "headers"])
            raise SchemaMismatch(field.name, given=field.dataType.simpleString(), wanted=f"one of {names}")
        wanted = known if known is not None else _field(own.field(field.name))
        if _plain(wanted.dataType) != _plain(field.dataType):
            raise SchemaMismatch(
                field.name, given=field.dataType.simpleString(), wanted=wanted.dataType.simpleString()
            )
        may_be_null = known.nullable if known is not None else own.field(field.name).nullable
        for path, kind in _denied(
            field.name, field.dataType, wanted.dataType, may_be_null and not field.nullable
        ):
            said = kind.simpleString()
            raise SchemaMismatch(
                path,
                given=f"{said} not null",
                wanted=f"{said} without NOT NULL (nullable=True): it may be null",
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark wants to be given for these columns."""
    return to_arrow_schema(schema, timezone="UTC")


def fitted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column in the type that Spark wants: as it is, if it can be. ArrowInvalid if a value does not fit: a
    time so far away that it has no microseconds."""
    if column.type == kind:
        return column
    # A finer unit of time than Spark's is cut off; nothing else is lost by the types that we choose.
    return column.cast(options=pc.CastOptions(target_type=kind, allow_time_truncate=True))


def _own_columns(streams: Sequence[StreamInfo]) -> pa.Schema:
    first, *others = streams
    own = Layout(first.settings.schema).columns
    for other in others:
        columns = Layout(other.settings.schema).columns
        if columns != own:
            raise SchemaMismatch(
                str(other.full_name),
                given=_brief(columns),
                wanted=f"the columns of {first.full_name}, {_brief(own)}, to be read together with it",
            )
    return own


def _field(column: pa.Field) -> StructField:
    try:
        # Nullable, whatever the stream says: a sink that Spark writes may not want it, and no one reads it.
        return StructField(column.name, from_arrow_type(_known(column.type)))
    except (PySparkException, ValueError, TypeError):
        raise SchemaMismatch(
            column.name, given=str(column.type), wanted="a type that Spark knows; leave it out with columns="
        ) from None


def _known(kind: pa.DataType) -> pa.DataType:
    """A type that Spark knows, wide enough for all values of this one."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_known(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_known(kind.key_type), kind.item_field.with_type(_known(kind.item_type)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_known(kind.value_type)))
    return _known_alone(kind)


def _known_alone(kind: pa.DataType) -> pa.DataType:
    if kind in _WIDER:
        return _WIDER[kind]
    if pa.types.is_time32(kind):
        return pa.time64("us")
    if pa.types.is_decimal(kind):
        if kind.precision > _DIGITS_MAX or not 0 <= kind.scale <= kind.precision:
            raise ValueError("Spark has no such decimal")
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def _denied(path: str, given: DataType, wanted: DataType, is_denied: bool) -> Iterator[tuple[str, DataType]]:
    """Where nulls are denied that may be there. The types are the same but for that."""
    if is_denied:
        yield path, given
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        for mine, theirs in zip(given.fields, wanted.fields, strict=True):
            is_denied = theirs.nullable and not mine.nullable
            yield from _denied(f"{path}.{mine.name}", mine.dataType, theirs.dataType, is_denied)
    elif isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        is_denied = wanted.containsNull and not given.containsNull
        yield from _denied(f"{path}.element", given.elementType, wanted.elementType, is_denied)
    elif isinstance(given, MapType) and isinstance(wanted, MapType):
        yield from _denied(f"{path}.key", given.keyType, wanted.keyType, False)
        is_denied = wanted.valueContainsNull and not given.valueContainsNull
        yield from _denied(f"{path}.value", given.valueType, wanted.valueType, is_denied)


def _plain(kind: DataType) -> str:
    """A type without what is said about nulls."""
    return kind.simpleString()


def _brief(columns: pa.Schema) -> str:
    return ", ".join(f"{column.name}: {column.type}" for column in columns)


_DIGITS_MAX: Final = 38
"""Of Spark's decimals."""
_WIDER: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}
