"""Times: as users give them, and as a batch holds them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa

from shoal.core.checking import is_whole
from shoal.core.errors import InvalidTimestamp
from shoal.core.limits import TIMESTAMP_MS_MAX

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp_ms(value: object, field: str = "timestamp") -> int:
    """An int in milliseconds, or a datetime with a time zone."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:  # Also if it has a tzinfo that does not know.
            raise InvalidTimestamp(field, value, "give the datetime a time zone, such as datetime.UTC")
        value = (value - EPOCH) // timedelta(milliseconds=1)
    if not is_whole(value):
        raise InvalidTimestamp(field, value, "give milliseconds since 1970 as an int, or a datetime")
    if not 0 <= value <= TIMESTAMP_MS_MAX:
        raise InvalidTimestamp(field, value, "milliseconds, from 1970 to the end of the year 9999")
    return value


def batch_timestamps(batch: pa.RecordBatch) -> list[int]:
    """Every timestamp of a batch in µs, in order."""
    stamps: list[int] = batch.column("timestamp").cast(pa.int64()).to_pylist()
    return stamps


def top_timestamp(batch: pa.RecordBatch) -> int:
    """The highest timestamp of a batch, in µs."""
    stamps = batch.column("timestamp")
    if len(stamps) == 1:
        only: int = stamps[0].value
        return only
    # By numpy, which looks at the same memory: Arrow's own functions take longer to begin than this takes.
    return int(stamps.view(pa.int64()).to_numpy().max())
