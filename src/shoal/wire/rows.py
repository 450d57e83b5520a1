"""One row of a typed stream: checked by its columns' types when it is given, so no batch fails for it later.

A row becomes a copy that nobody else holds, of plain values that Arrow takes without a change: times are
counts of their unit. The rules are those of `casting.py`; a Python float has no width, and is rounded to its
column's, but not to infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import cache, partial
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from shoal.core.errors import SchemaMismatch
from shoal.wire.sizes import is_bytes, is_list, is_text, room

Fit: TypeAlias = Callable[[Any], tuple[Any, int]]
"""A value that is not None as it is kept, and its size; ValueError or TypeError if it does not fit."""


class RowFitter:
    """Fits rows to the columns of a schema."""

    def __init__(self, columns: pa.Schema) -> None:
        self._columns = [(each.name, fitter(each.type), room(each.type), each.nullable) for each in columns]
        self._names = frozenset(columns.names)
        self._schema = columns

    def fit(self, value: Any) -> tuple[dict[str, Any], int]:
        """A copy of a row, and its size, or SchemaMismatch."""
        if type(value) is not dict:
            if not isinstance(value, Mapping):
                raise SchemaMismatch(
                    "value", given=type(value).__name__, wanted=f"a dict with {self._told()}"
                )
            value = dict(value)
        if not value.keys() <= self._names:
            name = next(name for name in value if name not in self._names)
            raise SchemaMismatch(str(name), given=type(value[name]).__name__, wanted=f"only {self._told()}")
        row: dict[str, Any] = {}
        size = 0
        for name, fit, null_size, nullable in self._columns:
            given = value.get(name)
            if given is None:
                if not nullable:
                    raise SchemaMismatch(name, given="null", wanted=f"{self._kind(name)}, not null")
                size += null_size  # A null takes its place in the column all the same.
                continue
            try:
                row[name], taken = fit(given)
            except (ValueError, TypeError, OverflowError, ArithmeticError, pa.ArrowException) as error:
                raise SchemaMismatch(
                    name, given=f"{type(given).__name__} ({error})", wanted=self._kind(name)
                ) from error
            size += taken
        return row, size

    def _kind(self, name: str) -> str:
        return str(self._schema.field(name).type)

    def _told(self) -> str:
        return ", ".join(self._schema.names)


@cache
def fitter(kind: pa.DataType) -> Fit:
    """What fits values to a type."""
    for is_kind, make in _MAKERS:
        if is_kind(kind):
            return make(kind)
    return partial(_fit_by_arrow, kind)


def _fit_by_arrow(kind: pa.DataType, given: Any) -> tuple[Any, int]:
    """A type that is seldom used: Arrow decides, and must give back what it was given."""
    if pa.scalar(given, kind).as_py() != given:
        raise ValueError("it would not come back as it is")
    return given, room(kind)


def _plain(given: Any) -> Any:
    """A number or a text of numpy or Arrow as Python's own."""
    if isinstance(given, np.generic):
        return given.item()
    if isinstance(given, pa.Scalar):
        return given.as_py()
    return given


def _wrong(given: Any) -> TypeError:
    return TypeError(f"{str(given)[:50]!r} is of another kind")


# --- Numbers. ---------------------------------------------------------------------------------------


def _bools(_kind: pa.DataType) -> Fit:
    def fit(given: Any) -> tuple[bool, int]:
        plain = given if type(given) is bool else _plain(given)
        if type(plain) is not bool:
            raise _wrong(given)
        return plain, 1

    return fit


def _integers(kind: pa.DataType) -> Fit:
    size = room(kind)
    end = 1 << (kind.bit_width - (1 if pa.types.is_signed_integer(kind) else 0))
    begin = -end if pa.types.is_signed_integer(kind) else 0

    def fit(given: Any) -> tuple[int, int]:
        if type(given) is not int:
            given = _whole(given)
        if not begin <= given < end:
            raise ValueError(f"{given} is out of range")
        return given, size

    return fit


def _whole(given: Any) -> int:
    plain = _plain(given)
    if isinstance(plain, bool) or not isinstance(plain, int):
        raise _wrong(given)
    return int(plain)


def _floats(kind: pa.DataType) -> Fit:
    size = room(kind)
    exact, end = _FLOATS[kind.bit_width]

    def fit(given: Any) -> tuple[float, int]:
        if type(given) is not float:
            given = _plain(given)
            if not isinstance(given, float) and not -exact <= _whole(given) <= exact:
                raise ValueError(f"{given} has no exact place among {kind}")
            given = float(given)
        if abs(given) >= end and not math.isinf(given):
            raise ValueError(f"{given} is out of range")
        return given, size

    return fit


_FLOATS: Final = {64: (1 << 53, math.inf), 32: (1 << 24, 2.0**128 - 2.0**103), 16: (1 << 11, 65520.0)}
"""By width: up to where every whole number has an exact place, and what is rounded to infinity."""


def _decimals(kind: pa.DataType) -> Fit:
    size = room(kind)

    def fit(given: Any) -> tuple[Any, int]:
        plain = _plain(given)
        if isinstance(plain, bool):
            raise _wrong(given)
        pa.scalar(plain, kind)  # Takes an int or a Decimal, and only if all its digits have a place.
        return plain, size

    return fit


# --- Text and bytes. --------------------------------------------------------------------------------


def _texts(kind: pa.DataType) -> Fit:
    offset = room(kind)

    def fit(given: Any) -> tuple[str, int]:
        if type(given) is str:
            # Encoding is what finds half a surrogate pair; text of ASCII has none.
            return given, offset + (len(given) if given.isascii() else len(given.encode()))
        data = _as_bytes(given)
        return data.decode(), offset + len(data)

    return fit


def _binaries(kind: pa.DataType) -> Fit:
    offset = room(kind)

    def fit(given: Any) -> tuple[bytes, int]:
        data = given if type(given) is bytes else _as_bytes(given)
        return data, offset + len(data)

    return fit


def _fixed_binaries(kind: pa.DataType) -> Fit:
    width = int(kind.byte_width)

    def fit(given: Any) -> tuple[bytes, int]:
        data = _as_bytes(given)
        if len(data) != width:
            raise ValueError(f"{len(data)} bytes")
        return data, max(1, width)

    return fit


def _as_bytes(given: Any) -> bytes:
    plain = _plain(given)
    if isinstance(plain, str):
        return plain.encode()
    if not isinstance(plain, bytes | bytearray | memoryview):
        raise _wrong(given)
    return bytes(plain)


# --- Times, as counts of their unit. ----------------------------------------------------------------


def _dates(kind: pa.DataType) -> Fit:
    size = room(kind)
    per_day = 1 if pa.types.is_date32(kind) else 24 * 3600 * 1000

    def fit(given: Any) -> tuple[int, int]:
        plain = _plain(given)
        if not isinstance(plain, date) or isinstance(plain, datetime):
            raise _wrong(given)
        return (plain.toordinal() - _EPOCH_DAY) * per_day, size

    return fit


def _times(kind: pa.DataType) -> Fit:
    size = room(kind)

    def fit(given: Any) -> tuple[int, int]:
        plain = _plain(given)
        if not isinstance(plain, time):
            raise _wrong(given)
        if plain.tzinfo is not None:
            raise ValueError("a time of day here has no zone")
        seconds = (plain.hour * 60 + plain.minute) * 60 + plain.second
        return _count((seconds * 1_000_000 + plain.microsecond) * 1000, kind.unit), size

    return fit


def _timestamps(kind: pa.DataType) -> Fit:
    is_instant = kind.tz is not None

    def fit(given: Any) -> tuple[int, int]:
        plain = _plain(given)
        if not isinstance(plain, datetime):
            raise _wrong(given)
        if (plain.utcoffset() is not None) != is_instant:
            raise ValueError("it must have a time zone" if is_instant else "it must not have a time zone")
        since = plain - _EPOCH if is_instant else plain.replace(tzinfo=None) - _NAIVE_EPOCH
        # A timestamp of pandas is a datetime that counts nanoseconds too.
        return _count((since // _MICROSECOND) * 1000 + getattr(plain, "nanosecond", 0), kind.unit), 8

    return fit


def _durations(kind: pa.DataType) -> Fit:
    def fit(given: Any) -> tuple[int, int]:
        plain = _plain(given)
        if not isinstance(plain, timedelta):
            raise _wrong(given)
        nanoseconds = (plain // _MICROSECOND) * 1000 + getattr(plain, "nanoseconds", 0) % 1000
        return _count(nanoseconds, kind.unit), 8

    return fit


def _count(nanoseconds: int, unit: str) -> int:
    count, rest = divmod(nanoseconds, _NANOSECONDS[unit])
    if rest:
        raise ValueError(f"it is finer than {unit}")
    if not -(1 << 63) <= count < 1 << 63:
        raise ValueError("it is out of range")
    return count


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH: Final = _EPOCH.replace(tzinfo=None)
_EPOCH_DAY: Final = _EPOCH.toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)
_NANOSECONDS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


# --- What holds other values. -----------------------------------------------------------------------


def _lists(kind: pa.DataType) -> Fit:
    offset, fit_item = room(kind), _fitter_of(kind.value_field)

    def fit(given: Any) -> tuple[list[Any], int]:
        kept, size = _fit_all(_sequence(given), fit_item)
        return kept, offset + size

    return fit


def _fixed_lists(kind: pa.DataType) -> Fit:
    length, fit_item = int(kind.list_size), _fitter_of(kind.value_field)

    def fit(given: Any) -> tuple[list[Any], int]:
        items = _sequence(given)
        if len(items) != length:
            raise ValueError(f"{len(items)} items")
        return _fit_all(items, fit_item)

    return fit


def _fit_all(items: Sequence[Any], fit_item: Fit) -> tuple[list[Any], int]:
    kept = []
    size = len(items) // 8 + 1  # A bit for each says whether it is null.
    for item in items:
        fitted, taken = fit_item(item)
        kept.append(fitted)
        size += taken
    return kept, size


def _sequence(given: Any) -> Sequence[Any]:
    plain = given.tolist() if isinstance(given, np.ndarray) else _plain(given)
    if isinstance(plain, str | bytes | bytearray | memoryview) or not isinstance(plain, Sequence):
        raise _wrong(given)
    return plain


def _structs(kind: pa.DataType) -> Fit:
    fields = [kind.field(i) for i in range(kind.num_fields)]
    parts = [(field.name, _fitter_of(field)) for field in fields]
    names = frozenset(field.name for field in fields)

    def fit(given: Any) -> tuple[dict[str, Any], int]:
        plain = _plain(given)
        if not isinstance(plain, Mapping):
            raise _wrong(given)
        for name in plain:
            if name not in names:
                raise ValueError(f"it has no field {name!r}")
        kept = {}
        size = 1 + len(parts) // 8
        for name, fit_part in parts:
            kept[name], taken = fit_part(plain.get(name))
            size += taken
        return kept, size

    return fit


def _maps(kind: pa.DataType) -> Fit:
    offset = room(kind)
    fit_key, fit_item = _fitter_of(kind.key_field), _fitter_of(kind.item_field)

    def fit(given: Any) -> tuple[list[tuple[Any, Any]], int]:
        plain = _plain(given)
        kept = []
        size = offset + 1
        for key, item in plain.items() if isinstance(plain, Mapping) else _sequence(plain):
            kept_key, key_size = fit_key(key)
            kept_item, item_size = fit_item(item)
            kept.append((kept_key, kept_item))
            size += key_size + item_size + 1
        return kept, size

    return fit


def _fitter_of(field: pa.Field) -> Fit:
    """As `fitter`, for a field within a value: None is one of its values, or is refused."""
    fit, null_size, nullable = fitter(field.type), room(field.type), field.nullable

    def fit_or_null(given: Any) -> tuple[Any, int]:
        if given is not None:
            return fit(given)
        if not nullable:
            raise ValueError(f"a null where {field.name} must not be null")
        return None, null_size

    return fit_or_null


_MAKERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Fit]], ...]] = (
    (pa.types.is_boolean, _bools),
    (pa.types.is_integer, _integers),
    (pa.types.is_floating, _floats),
    (pa.types.is_decimal, _decimals),
    (is_text, _texts),
    (is_bytes, _binaries),
    (pa.types.is_fixed_size_binary, _fixed_binaries),
    (pa.types.is_date, _dates),
    (pa.types.is_time, _times),
    (pa.types.is_timestamp, _timestamps),
    (pa.types.is_duration, _durations),
    (is_list, _lists),
    (pa.types.is_fixed_size_list, _fixed_lists),
    (pa.types.is_struct, _structs),
    (pa.types.is_map, _maps),
)
