"""Times as users give them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidTimestamp
from shoal.wire.record import Record
from shoal.wire.timestamps import timestamp_ms

LAST = 253_402_300_799_999


@given(st.integers(0, LAST), st.integers(-23, 23))
def test_milliseconds_and_datetimes_are_the_same_time_to_the_millisecond(ms: int, zone: int) -> None:
    assert timestamp_ms(ms) == ms
    time = Record(0, ms, None, b"").time
    assert time == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    assert timestamp_ms(time) == ms
    if 10**9 < ms < LAST - 10**9:
        assert timestamp_ms(time.astimezone(timezone(timedelta(hours=zone)))) == ms


@pytest.mark.parametrize(
    "value",
    [-1, LAST + 1, 1.0, True, "1", None, datetime(2020, 1, 1), datetime(1969, 12, 31, 23, tzinfo=UTC)],  # noqa: DTZ001
)
def test_what_is_no_time_from_1970_to_9999_is_refused(value: object) -> None:
    with pytest.raises(InvalidTimestamp, match="timestamp="):
        timestamp_ms(value)
