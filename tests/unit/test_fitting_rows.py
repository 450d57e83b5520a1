"""Single rows of typed streams: whatever passes `check_value` can be stored, as it was given."""

from collections import UserDict
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidTimestamp, SchemaMismatch, TooLarge
from shoal.wire.fitting import check_headers, check_row_sizes, check_value, fit_records, headers_size
from shoal.wire.layout import Layout, stored_schema
from shoal.wire.timestamps import timestamp_ms

NOT_NULL = pa.field("item", pa.int64(), nullable=False)
NAIVE = datetime(2020, 1, 1, 5)  # noqa: DTZ001 - for columns without a zone


class Clueless(tzinfo):
    def utcoffset(self, _when: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


def layout_of(kind: pa.DataType | str) -> Layout:
    return Layout(stored_schema({"x": kind}))


def stored(layout: Layout, *rows: Mapping[str, Any]) -> pa.RecordBatch:
    values = [check_value(layout, row)[0] for row in rows]
    return fit_records(layout, values, [None] * len(rows), [0] * len(rows), None)


def test_a_row_that_is_changed_after_it_was_given_is_stored_as_it_was() -> None:
    layout = Layout(
        stored_schema({"n": "int64", "x": pa.list_(pa.struct([("tags", pa.list_(pa.string()))]))})
    )
    row: dict[str, Any] = {"n": 1, "x": [{"tags": ["a"]}]}
    kept, _ = check_value(layout, row)
    row["x"][0]["tags"].append("b")
    row["x"].append(None)
    row["n"] = 2
    batch = fit_records(layout, [kept], [None], [0], None)
    assert batch.select(["n", "x"]).to_pylist() == [{"n": 1, "x": [{"tags": ["a"]}]}]


@pytest.mark.parametrize("row", [MappingProxyType({"x": 1}), UserDict({"x": 1}), {"x": np.int32(1)}])
def test_any_mapping_is_a_row(row: Mapping[str, Any]) -> None:
    assert stored(layout_of("int64"), row).column("x").to_pylist() == [1]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.string(), "\ud800"),
        (pa.list_(pa.string()), ["\ud800"]),
        (pa.string(), 5),
        (pa.string(), b"\xff"),
        (pa.int64(), True),
        (pa.int64(), 5.0),
        (pa.int64(), "5"),
        (pa.int64(), 2**63),
        (pa.int8(), 128),
        (pa.uint8(), -1),
        (pa.int64(), np.True_),
        (pa.list_(pa.int64()), [1.5]),
        (pa.list_(pa.int64()), np.array([1.5])),
        (pa.list_(pa.string()), "abc"),
        (pa.list_(pa.int64()), {1, 2}),
        (pa.list_(pa.int64(), 2), [1]),
        (pa.list_(NOT_NULL), [None]),
        (pa.float32(), 1e300),
        (pa.float32(), 3.4028235677973366e38),
        (pa.float16(), 65520.0),
        (pa.float64(), True),
        (pa.float64(), 2**53 + 1),
        (pa.float64(), "1"),
        (pa.bool_(), 1),
        (pa.binary(), 5),
        (pa.binary(2), b"abc"),
        (pa.date32(), "2020-01-01"),
        (pa.date32(), 5),
        (pa.date32(), NAIVE),
        (pa.timestamp("us"), 5),
        (pa.timestamp("us"), date(2020, 1, 1)),
        (pa.timestamp("us"), datetime(2020, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us", "UTC"), NAIVE),
        (pa.timestamp("us", "UTC"), NAIVE.replace(tzinfo=Clueless())),
        (pa.timestamp("s"), NAIVE.replace(microsecond=1)),
        (pa.timestamp("ns"), NAIVE.replace(year=1)),
        (pa.time32("s"), time(1, 2, 3, 4)),
        (pa.time64("us"), time(1, tzinfo=UTC)),
        (pa.duration("s"), timedelta(milliseconds=1)),
        (pa.duration("s"), 5),
        (pa.decimal128(5, 2), Decimal("1.234")),
        (pa.decimal128(5, 2), Decimal("NaN")),
        (pa.decimal128(5, 2), 10**6),
        (pa.decimal128(5, 2), 1.5),
        (pa.decimal128(5, 2), True),
        (pa.struct([("a", pa.int64())]), {"a": 1, "b": 2}),
        (pa.struct([("a", pa.int64())]), [("a", 1)]),
        (pa.struct([pa.field("a", pa.int64(), nullable=False)]), {}),
        (pa.map_(pa.string(), pa.int64()), {None: 1}),
        (pa.map_(pa.string(), pa.int64()), {"a": 1.5}),
        (pa.map_(pa.string(), pa.int64()), [("a",)]),
        (pa.null(), 5),
        (pa.month_day_nano_interval(), "x"),
    ],
    ids=str,
)
def test_a_value_of_another_kind_or_that_would_change_is_refused(kind: pa.DataType, value: Any) -> None:
    with pytest.raises(SchemaMismatch, match=r"x=.*the stream wants") as caught:
        check_value(layout_of(kind), {"x": value})
    assert caught.value.column == "x"
    assert str(kind) in caught.value.wanted


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (pa.string(), b"ab", "ab"),
        (pa.large_string(), np.str_("ä"), "ä"),
        (pa.binary(), "ä", "ä".encode()),
        (pa.binary(), bytearray(b"x"), b"x"),
        (pa.binary(2), "ab", b"ab"),
        (pa.uint64(), 2**64 - 1, 2**64 - 1),
        (pa.float64(), 5, 5.0),
        (pa.float32(), 1.5, 1.5),
        (pa.float32(), float("inf"), float("inf")),
        (pa.float32(), np.float32(1.25), 1.25),
        (pa.bool_(), np.True_, True),
        (pa.int64(), pa.scalar(5), 5),
        (pa.date32(), date(1, 1, 1), date(1, 1, 1)),
        (pa.date64(), date(9999, 12, 31), date(9999, 12, 31)),
        (pa.time64("ns"), time(23, 59, 59, 999_999), time(23, 59, 59, 999_999)),
        (pa.timestamp("s"), NAIVE, NAIVE),
        (pa.timestamp("us"), NAIVE.replace(tzinfo=Clueless()), NAIVE),
        (
            pa.timestamp("ms", "UTC"),
            datetime(2020, 1, 1, 5, tzinfo=timezone(timedelta(hours=2))),
            datetime(2020, 1, 1, 3, tzinfo=UTC),
        ),
        (pa.duration("ms"), timedelta(days=-1), timedelta(days=-1)),
        (pa.decimal128(5, 2), Decimal("-1.2"), Decimal("-1.20")),
        (pa.decimal256(50, 2), 7, Decimal("7.00")),
        (pa.list_(pa.int64()), (1, None), [1, None]),
        (pa.large_list(pa.int64()), np.array([1, 2]), [1, 2]),
        (pa.list_(pa.int64(), 2), [1, None], [1, None]),
        (
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
            MappingProxyType({"b": "x"}),
            {"a": None, "b": "x"},
        ),
        (pa.map_(pa.string(), pa.int64()), {"a": None}, [("a", None)]),
        (pa.map_(pa.string(), pa.list_(pa.int64())), [("a", [1])], [("a", [1])]),
        (pa.month_day_nano_interval(), pa.MonthDayNano([1, 2, 3]), pa.MonthDayNano([1, 2, 3])),
    ],
    ids=str,
)
def test_a_value_that_fits_comes_back(kind: pa.DataType, value: Any, found: Any) -> None:
    assert stored(layout_of(kind), {"x": value}).column("x").to_pylist() == [found]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.string(), "😀" * 1_000_001),
        (pa.list_(pa.string()), ["x" * 1_000_000] * 5),
        (pa.list_(pa.string()), [""] * 1_000_001),
        (pa.list_(pa.int64()), [0] * 600_000),
        (pa.struct([("a", pa.binary())]), {"a": b"x" * 4_000_001}),
        (pa.map_(pa.string(), pa.binary()), {"a": b"x" * 2_000_000, "b": b"x" * 2_000_001}),
    ],
    ids=["text", "texts", "empty texts", "numbers", "struct", "map"],
)
def test_a_row_over_the_limit_is_refused_whatever_holds_its_bytes(kind: pa.DataType, value: Any) -> None:
    with pytest.raises(TooLarge, match="4000000"):
        check_value(layout_of(kind), {"x": value})


values_of = st.one_of(
    st.tuples(st.just(pa.string()), st.none() | st.text(st.characters(codec="utf-8"))),
    st.tuples(st.just(pa.list_(pa.string())), st.lists(st.none() | st.text("aé😀", max_size=5), max_size=20)),
    st.tuples(st.just(pa.list_(pa.int8())), st.lists(st.none() | st.integers(-128, 127), max_size=200)),
    st.tuples(
        st.just(pa.map_(pa.string(), pa.struct([("a", pa.int64()), ("b", pa.list_(pa.binary()))]))),
        st.dictionaries(
            st.text("ab"),
            st.none() | st.fixed_dictionaries({"a": st.none(), "b": st.lists(st.binary(max_size=9))}),
        ),
    ),
)


@given(values_of)
def test_a_row_is_counted_at_what_arrow_takes_for_it(case: tuple[pa.DataType, Any]) -> None:
    layout = layout_of(case[0])
    _, size = check_value(layout, {"x": case[1]})
    taken = stored(layout, {"x": case[1]}).column("x").nbytes
    assert taken - 16 <= size + 8
    assert size <= 2 * taken + 64


def test_headers_count_in_bytes() -> None:
    headers = check_headers({"ä😀": "ö", "h": b"xyz"})
    assert headers is not None
    assert headers_size(headers) == 6 + 2 + 1 + 3


def test_a_record_at_the_limit_that_send_takes_is_taken_in_its_batch() -> None:
    layout = layout_of(pa.list_(pa.binary()))
    value, size = check_value(layout, {"x": [b"x" * 3_999_900, b""]})
    check_row_sizes(fit_records(layout, [value], [b"k" * (4_000_000 - size)], [0], None))


def test_a_time_zone_that_does_not_know_its_offset_is_no_time_zone() -> None:
    with pytest.raises(InvalidTimestamp, match="time zone"):
        timestamp_ms(NAIVE.replace(tzinfo=Clueless()))
