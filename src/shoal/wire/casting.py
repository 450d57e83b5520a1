"""Which column fits which: a cast is made within one kind of value, where nothing is lost; or it is refused.

Arrow itself casts far more: text to numbers, numbers to text, a flag to a number. Here the types decide
first (`is_castable`), then Arrow's safe cast looks at the values: an int that is too large, a fraction of a
second that has no place, bytes that are no UTF-8. At half floats it does not look, so we do.

Who knows neither half floats nor 64 bits without a sign (Spark) has floats and decimals for them: those are
taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Final

import pyarrow as pa

from shoal.core.errors import SchemaMismatch
from shoal.wire.functions import pc
from shoal.wire.sizes import is_bytes, is_list, is_text


def cast_column(column: pa.Array, field: pa.Field) -> pa.Array:
    """A column as the field wants it, or SchemaMismatch with both types."""
    cast = column
    if column.type != field.type:
        if not is_castable(column.type, field.type):
            raise SchemaMismatch(field.name, given=str(column.type), wanted=str(field.type))
        try:
            cast = _cast(column, field.type)
        except pa.ArrowException as error:
            raise SchemaMismatch(
                field.name, given=f"{column.type} ({error})", wanted=str(field.type)
            ) from error
    if not field.nullable and cast.null_count:
        raise SchemaMismatch(field.name, given=f"{cast.null_count} nulls", wanted=f"{field.type}, not null")
    if _has_required(field.type) and lacks_required(cast):
        raise SchemaMismatch(field.name, given="a null within", wanted=str(field.type))
    return cast


def is_castable(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type may become the other's, if they lose nothing."""
    if given == wanted or pa.types.is_null(given):
        return True
    if pa.types.is_dictionary(given):
        return is_castable(given.value_type, wanted)
    if is_bytes_like(wanted):  # Text is its UTF-8.
        return is_bytes_like(given)
    if pa.types.is_floating(wanted) and pa.types.is_integer(given):
        return bool(wanted.bit_width >= 32)  # Of half floats, Arrow's safe cast does not look at the values.
    if pa.types.is_integer(wanted) and pa.types.is_decimal(given):
        return bool(given.scale == 0)
    return any(is_kind(wanted) and is_kind(given) and rule(given, wanted) for is_kind, rule in _RULES)


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """As Arrow casts, where Arrow does. ArrowException if a value has no place."""
    if len(column) and column.null_count == len(column):
        return pa.nulls(len(column), wanted)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if _has(pa.types.is_fixed_size_list, wanted):
        # Of lists without a single item, as they come over IPC, Arrow 26 reads the items from where no memory
        # is when it casts them to lists of a fixed size. A copy has some.
        column = pa.concat_arrays([column, column.slice(0, 0)])
    cast = column.cast(wanted)
    if _has(pa.types.is_float16, wanted) and not _keeps_halves(column, cast):
        raise pa.ArrowInvalid("a value has no half float")
    return cast


def _keeps_halves(given: pa.Array, cast: pa.Array) -> bool:
    """Whether every float that became a half is still the same number."""
    for before, half in zip(_leaves(given), _leaves(cast), strict=True):
        if pa.types.is_float16(half.type) and pa.types.is_float32(before.type):
            after = half.cast(before.type)
            is_same = pc.or_(pc.equal(before, after), pc.and_(pc.is_nan(before), pc.is_nan(after)))
            if not pc.all(is_same, min_count=0).as_py():
                return False
    return True


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """The columns that a column is made of, without what nulls hide; fields of structs by their names."""
    kind = column.type
    if pa.types.is_struct(kind):
        parts = dict(zip((kind.field(i).name for i in range(kind.num_fields)), column.flatten(), strict=True))
        for name in sorted(parts):
            yield from _leaves(parts[name])
    elif pa.types.is_map(kind):
        entries = map_entries(column.drop_null())
        yield from _leaves(entries.field(0))
        yield from _leaves(entries.field(1))
    elif _is_any_list(kind):
        yield from _leaves(column.flatten())
    else:
        yield column


def is_bytes_like(kind: pa.DataType) -> bool:
    """Text or bytes, in any of Arrow's forms."""
    return (
        is_text(kind)
        or is_bytes(kind)
        or bool(
            pa.types.is_string_view(kind)
            or pa.types.is_binary_view(kind)
            or pa.types.is_fixed_size_binary(kind)
        )
    )


def map_entries(column: pa.Array) -> pa.Array:
    """The entries of a column of maps without nulls, as structs: `flatten`, which Arrow has not for maps."""
    first, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return column.values.slice(first, end - first)


def _is_any_list(kind: pa.DataType) -> bool:
    # Not a list view: Arrow 26 casts one to a list and forgets its items.
    return is_list(kind) or bool(pa.types.is_fixed_size_list(kind))


def _is_float_for(given: pa.DataType, wanted: pa.DataType) -> bool:
    """As wide, or a float of 32 bits for a half."""
    return bool(given.bit_width <= max(wanted.bit_width, 32))


def _has_room_for(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Of decimals: as many digits on both sides of the point."""
    return bool(
        wanted.scale >= given.scale and wanted.precision - wanted.scale >= given.precision - given.scale
    )


def _has_castable_fields(given: pa.DataType, wanted: pa.DataType) -> bool:
    names = [given.field(i).name for i in range(given.num_fields)]
    wanted_fields = [wanted.field(i) for i in range(wanted.num_fields)]
    return sorted(names) == sorted(field.name for field in wanted_fields) and all(
        is_castable(given.field(field.name).type, field.type) for field in wanted_fields
    )


def _has_castable_items(given: pa.DataType, wanted: pa.DataType) -> bool:
    return is_castable(given.value_type, wanted.value_type)


def _has_castable_entries(given: pa.DataType, wanted: pa.DataType) -> bool:
    return is_castable(given.key_type, wanted.key_type) and is_castable(given.item_type, wanted.item_type)


def _agrees_on_zone(given: pa.DataType, wanted: pa.DataType) -> bool:
    """A time with a zone is an instant, one without is not; which zone does not matter."""
    return (given.tz is None) == (wanted.tz is None)


def _always(_given: pa.DataType, _wanted: pa.DataType) -> bool:
    return True


_RULES: Final[
    tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, pa.DataType], bool]], ...]
] = (
    (pa.types.is_integer, _always),
    (pa.types.is_floating, _is_float_for),
    (pa.types.is_timestamp, _agrees_on_zone),
    (pa.types.is_date, _always),
    (pa.types.is_time, _always),
    (pa.types.is_duration, _always),
    (pa.types.is_decimal, _has_room_for),
    (_is_any_list, _has_castable_items),
    (pa.types.is_struct, _has_castable_fields),
    (pa.types.is_map, _has_castable_entries),
)


@cache
def _has(is_kind: Callable[[pa.DataType], bool], kind: pa.DataType) -> bool:
    """Whether this type is such a one, or anything within it."""
    return is_kind(kind) or any(_has(is_kind, kind.field(i).type) for i in range(kind.num_fields))


@cache
def _has_required(kind: pa.DataType) -> bool:
    """Whether anything within this type must not be null."""
    fields = [kind.field(i) for i in range(kind.num_fields)]
    return any(not field.nullable or _has_required(field.type) for field in fields)


def lacks_required(column: pa.Array) -> bool:
    """Whether a null is where, within a value, none may be. Arrow keeps such a column without a word."""
    kind = column.type
    if not _has_required(kind):
        return False
    present = column.drop_null()  # What a null hides does not matter.
    if pa.types.is_struct(kind):
        parts = [(kind.field(i), present.field(i)) for i in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        entries = map_entries(present)
        parts = [(kind.key_field, entries.field(0)), (kind.item_field, entries.field(1))]
    else:
        parts = [(kind.value_field, present.flatten())]
    return any((not field.nullable and part.null_count > 0) or lacks_required(part) for field, part in parts)
