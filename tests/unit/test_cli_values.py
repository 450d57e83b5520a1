"""Words of the command line as values."""

from datetime import UTC, datetime, timedelta

import pytest

from shoal.cli.values import (
    AtOffset,
    AtTime,
    Earliest,
    Latest,
    parse_bound,
    parse_duration,
    parse_offsets,
    parse_place,
    parse_position,
    parse_schema,
    parse_seconds,
    parse_size,
    parse_start,
)
from shoal.core.errors import InvalidInput

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("90s", timedelta(seconds=90)),
        ("10m", timedelta(minutes=10)),
        ("12h", timedelta(hours=12)),
        ("7d", timedelta(days=7)),
        ("2w", timedelta(weeks=2)),
        ("500ms", timedelta(milliseconds=500)),
        ("1.5h", timedelta(minutes=90)),
    ],
)
def test_an_age_is_a_number_with_a_unit(text: str, wanted: timedelta) -> None:
    assert parse_duration("retention", text) == wanted


@pytest.mark.parametrize("text", ["", "7", "d", "7x", "-7d", "7 days", "1e3s", "999999999999999w"])
def test_an_age_that_is_none_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(InvalidInput, match="retention="):
        parse_duration("retention", text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("10GB", 10**10), ("10GiB", 10 * 2**30), ("500mb", 5 * 10**8), ("1.5k", 1500), ("42", 42), ("7 B", 7)],
)
def test_a_size_counts_in_thousands_unless_it_says_otherwise(text: str, wanted: int) -> None:
    assert parse_size("retention_bytes", text) == wanted


@pytest.mark.parametrize("text", ["", "GB", "10XB", "-1MB", "ten"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="retention_bytes="):
        parse_size("retention_bytes", text)


def test_a_schema_is_names_and_types() -> None:
    assert parse_schema("amount:int64, at:timestamp[us]") == {"amount": "int64", "at": "timestamp[us]"}


@pytest.mark.parametrize("text", ["", "amount", "amount:", ":int64", "a:int64,", "a:int64,a:string"])
def test_a_schema_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="schema="):
        parse_schema(text)


def test_a_start_is_a_word_an_offset_a_time_or_a_time_ago() -> None:
    assert parse_start("earliest", NOW) == Earliest()
    assert parse_start("latest", NOW) == Latest()
    assert parse_start("42", NOW) == AtOffset(42)
    assert parse_start("10m", NOW) == AtTime(NOW - timedelta(minutes=10))
    assert parse_start("2026-01-31T08:00Z", NOW) == AtTime(datetime(2026, 1, 31, 8, tzinfo=UTC))
    assert parse_start("2026-01-31T08:00+02:00", NOW) == AtTime(datetime(2026, 1, 31, 6, tzinfo=UTC))


def test_a_time_without_a_zone_is_local() -> None:
    start = parse_start("2026-01-31 08:00", NOW)
    assert start == AtTime(datetime(2026, 1, 31, 8).astimezone())


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "2026-13-01", "999999999999999w"])
def test_a_start_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="from="):
        parse_start(text, NOW)


# --- Seconds, and where a group goes on. ------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"), [("30s", 30), ("5m", 300), ("1h", 3600), ("500ms", 0.5), ("20", 20), (" 1.5 ", 1.5)]
)
def test_seconds_need_no_unit(text: str, wanted: float) -> None:
    assert parse_seconds("timeout", text) == wanted
    assert parse_bound("timeout", text) == wanted


@pytest.mark.parametrize("text", ["", "soon", "-1", "1e3", "nan", "5 minutes"])
def test_seconds_that_are_none_are_refused_with_their_field(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"timeout=.*such as 500ms, 30s"):
        parse_seconds("timeout", text)


def test_a_bound_may_be_none() -> None:
    assert parse_bound("handover_timeout", "none") is None


def test_a_position_is_a_word_a_time_or_offsets_by_shard() -> None:
    assert parse_position("to", ["latest"], NOW) == "latest"
    assert parse_position("to", ["2026-01-31T08:00Z"], NOW) == datetime(2026, 1, 31, 8, tzinfo=UTC)
    assert parse_position("to", ["10m"], NOW) == NOW - timedelta(minutes=10)
    assert parse_position("to", ["3=120"], NOW) == {3: 120}
    assert parse_position("to", ["3=120", " 0 = 7 "], NOW) == {3: 120, 0: 7}


@pytest.mark.parametrize("text", ["", "42", "yesterday", "3=", "=4", "3=-1", "a=1", "999999999999999w"])
def test_a_position_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="to="):
        parse_position("to", [text], NOW)


@pytest.mark.parametrize("words", [["3"], ["3=1", "3=2"], ["3=1", "latest"]])
def test_offsets_that_are_none_are_refused(words: list[str]) -> None:
    with pytest.raises(InvalidInput, match="shard="):
        parse_offsets("shard", words)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("127.0.0.1:7510", ("127.0.0.1", 7510)),
        ("0.0.0.0", ("0.0.0.0", 7400)),  # noqa: S104
        ("host", ("host", 7400)),
        ("[::1]:0", ("::1", 0)),
    ],
)
def test_a_place_is_a_host_with_or_without_its_port(text: str, wanted: tuple[str, int]) -> None:
    assert parse_place("listen", text, 7400) == wanted


@pytest.mark.parametrize(
    "text", ["7510", "²", ":7510", "", ":", "host:", "host:x", "host:-1", "127.0.0.1:²", "h:" + "1" * 5000]
)
def test_a_place_that_is_none_is_refused_with_the_form_of_one(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"HOST:PORT, such as 127\.0\.0\.1:7400"):
        parse_place("listen", text, 7400)
