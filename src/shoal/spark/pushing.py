"""Spark's filters as bounds of a read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from shoal.core.checking import is_whole
from shoal.spark.plan.filters import Bounds
from shoal.wire.timestamps import EPOCH, timestamp_ms

_NEVER_NULL = {"stream", "shard", "offset", "timestamp"}


def bounds_of(filters: Sequence[Filter]) -> tuple[Bounds, list[Filter]]:
    """All bounds together, and the filters that Spark must still check."""
    bounds, left = Bounds(), []
    for one in filters:
        found, is_exact = _bound(one)
        bounds = bounds.both(found)
        if not is_exact:
            left.append(one)
    return bounds, left


def _bound(one: Filter) -> tuple[Bounds, bool]:  # noqa: PLR0911 - a table of filters
    """What a filter leaves, and whether that is all that it says."""
    attribute: Sequence[str] = getattr(one, "attribute", ())
    column = attribute[0] if len(attribute) == 1 else ""
    match one:
        case IsNotNull():
            return Bounds(), column in _NEVER_NULL
        case EqualTo(_, str(value)) if column == "stream":
            return Bounds(streams=frozenset([value])), True
        case In(_, values) if column == "stream" and all(isinstance(value, str) for value in values):
            return Bounds(streams=frozenset(values)), True
        case In(_, values) if column == "shard" and all(is_whole(value) for value in values):
            return Bounds(shards=frozenset(values)), True
        case (
            EqualTo(_, datetime() as at)
            | GreaterThan(_, datetime() as at)
            | GreaterThanOrEqual(_, datetime() as at)
        ) if column == "timestamp":
            return Bounds(after_ms=timestamp_ms(max(at, EPOCH))), False
        case EqualTo(_, int(value)):
            return _range(column, value, value + 1)
        case GreaterThan(_, int(value)):
            return _range(column, value + 1, None)
        case GreaterThanOrEqual(_, int(value)):
            return _range(column, value, None)
        case LessThan(_, int(value)):
            return _range(column, None, value)
        case LessThanOrEqual(_, int(value)):
            return _range(column, None, value + 1)
    return Bounds(), False


def _range(column: str, low: int | None, high: int | None) -> tuple[Bounds, bool]:
    if column == "shard":
        return Bounds(shard_low=low, shard_high=high), True
    if column == "offset":
        return Bounds(low=max(0, low or 0), high=high), True
    return Bounds(), False
