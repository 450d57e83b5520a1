"""What users find natural to give, as values: or an error that names the field, the value and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TypeVar

from shoal.core.checking import is_number
from shoal.core.errors import InvalidInput
from shoal.core.group import Coordination, Delivery
from shoal.core.limits import RETENTION_MAX
from shoal.core.model import Compression, KeyHash
from shoal.core.positions import Start, StartKind
from shoal.core.retry import Policy
from shoal.wire.timestamps import timestamp_ms


def start_of(field: str, value: object) -> Start:
    """A position as users name it."""
    if isinstance(value, datetime):
        return Start(kind=StartKind.TIME, time_ms=timestamp_ms(value))
    if isinstance(value, Mapping):
        return Start(kind=StartKind.OFFSETS, offsets=dict(value))
    if isinstance(value, str) and value in {StartKind.EARLIEST, StartKind.LATEST}:
        return Start(kind=StartKind(value))
    raise InvalidInput(field, value, "'earliest', 'latest', a datetime with a time zone, or {shard: offset}")


def flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(field, value, "True or False")
    return value


_Kind = TypeVar("_Kind", KeyHash, Compression, Coordination, Delivery, Policy)


def choice(field: str, value: str, kinds: type[_Kind]) -> _Kind:
    try:
        return kinds(value)
    except ValueError as error:
        raise InvalidInput(field, value, f"one of {', '.join(kind.value for kind in kinds)}") from error


def retention_ms(value: timedelta | float | None, field: str = "retention") -> int | None:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if value is None:
        return None
    if not is_number(value) or not 0 < value <= RETENTION_MAX / 1000:
        raise InvalidInput(field, value, "seconds, or a timedelta, more than 0; None keeps for ever")
    return max(1, int(value * 1000))
