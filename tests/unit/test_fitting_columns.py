"""Columns as they are given: cast within their kind where nothing is lost, refused otherwise."""

import math
import multiprocessing
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidInput, SchemaMismatch, TooLarge
from shoal.wire.fitting import check_row_sizes, fit_columns
from shoal.wire.layout import HEADERS, Layout, stored_schema
from shoal.wire.sizes import value_sizes

PLAIN = Layout(None)
NOT_NULL = pa.field("item", pa.int64(), nullable=False)


_floats, _halves = pa.struct([("a", pa.float32())]), pa.struct([("a", pa.float16())])


def fitted(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    layout = Layout(stored_schema({"x": wanted}))
    return fit_columns(layout, pa.table({"x": column}), None, 0).column("x")


def text(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array(["5"]), pa.int64()),
        (pa.array([5]), pa.string()),
        (pa.array([True]), pa.int64()),
        (pa.array([True]), pa.float64()),
        (pa.array([7]), pa.bool_()),
        (pa.array(["2020-01-01"]), pa.date32()),
        (pa.array([5], pa.int32()), pa.date32()),
        (pa.array([5]), pa.timestamp("us")),
        (pa.array([1.1]), pa.string()),
        (pa.array([1.0]), pa.int64()),
        (pa.array([2**40]), pa.int32()),
        (pa.array([2**53 + 1]), pa.float64()),
        (pa.array([2**24 + 1]), pa.float32()),
        (pa.array([1e300]), pa.float32()),
        (pa.array([1.5]), pa.float32()),
        (pa.array([2049]), pa.float16()),
        (pa.array([2049.0], pa.float32()), pa.float16()),
        (pa.array([1e10], pa.float32()), pa.float16()),
        (pa.array([1.5]), pa.float16()),
        (pa.array([[{"a": 0.1}]], pa.list_(_floats)), pa.list_(_halves)),
        (pa.array([[("a", 0.1)]], pa.map_(pa.string(), pa.float32())), pa.map_(pa.string(), pa.float16())),
        (pa.array([Decimal(2**64)]), pa.uint64()),
        (pa.array([Decimal(-1)]), pa.uint64()),
        (pa.array([Decimal("1.0")]), pa.int64()),
        (pa.array([1]), pa.decimal128(20, 0)),
        (pa.array([["1"]]), pa.list_(pa.int64())),
        (pa.array([[1.5]]), pa.list_(pa.int64())),
        (pa.array([[1, 2]]), pa.list_(pa.int64(), 3)),
        (pa.array([[1, 2]], pa.list_view(pa.int64())), pa.list_(pa.int64())),
        (pa.array([[None]], pa.list_(pa.int64())), pa.list_(NOT_NULL)),
        (pa.array([{"a": None}], pa.struct([("a", pa.int64())])), pa.struct([NOT_NULL.with_name("a")])),
        (pa.array([{"a": 1, "b": 2}]), pa.struct([("a", pa.int64())])),
        (pa.array([{"a": 1}]), pa.struct([("a", pa.int64()), ("b", pa.int64())])),
        (pa.array([{"a": "1"}]), pa.struct([("a", pa.int64())])),
        (pa.array([b"\xff"]), pa.string()),
        (pa.array([b"abc"]), pa.binary(2)),
        (pa.array([5], pa.timestamp("us")), pa.timestamp("s")),
        (pa.array([5], pa.timestamp("us", "UTC")), pa.timestamp("us")),
        (pa.array([5], pa.timestamp("us")), pa.timestamp("us", "UTC")),
        (pa.array([5], pa.timestamp("us")), pa.date32()),
        (pa.array([5], pa.time64("us")), pa.time32("s")),
        (pa.array([5], pa.duration("us")), pa.duration("s")),
        (pa.array([Decimal("1.23")]), pa.decimal128(5, 1)),
        (pa.array([Decimal("1.23")], pa.decimal128(10, 2)), pa.decimal128(9, 2)),
        (pa.array([[("a", "1")]], pa.map_(pa.string(), pa.string())), pa.map_(pa.string(), pa.int64())),
    ],
    ids=str,
)
def test_a_column_of_another_kind_or_that_would_lose_is_refused(
    column: pa.Array, wanted: pa.DataType
) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        fitted(column, wanted)
    assert caught.value.column == "x"
    assert str(wanted) in caught.value.wanted
    assert str(column.type) in caught.value.given or "null" in caught.value.given


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array([1, None], pa.int8()), pa.int64()),
        (pa.array([200], pa.int64()), pa.uint8()),
        (pa.array([1, 2]), pa.float64()),
        (pa.array([1.5], pa.float32()), pa.float64()),
        (pa.array([1.5], pa.float16()), pa.float32()),
        (pa.array([1.5, None, -0.0, float("inf"), 65504.0], pa.float32()), pa.float16()),
        (pa.array([[{"a": 1.5}, None], None, [{"a": None}]], pa.list_(_floats)), pa.list_(_halves)),
        (
            pa.array([[("a", 1.5)], None], pa.map_(pa.string(), pa.float32())),
            pa.map_(pa.string(), pa.float16()),
        ),
        (pa.array([Decimal(2**64 - 1), None, Decimal(0)], pa.decimal128(20, 0)), pa.uint64()),
        (
            pa.array([{"a": Decimal(2**64 - 1)}, None], pa.struct([("a", pa.decimal128(20, 0))])),
            pa.struct([("a", pa.uint64())]),
        ),
        (pa.array(["a"], pa.large_string()), pa.string()),
        (pa.array(["a"], pa.string_view()), pa.string()),
        (pa.array(["a", "a", None], pa.large_string()).dictionary_encode(), pa.string()),
        (pa.array([b"a"], pa.binary_view()), pa.binary()),
        (pa.array([b"ab"], pa.binary(2)), pa.large_binary()),
        (pa.array([b"ab"]), pa.binary(2)),
        (pa.array([1000], pa.timestamp("ms")), pa.timestamp("s")),
        (pa.array([1], pa.timestamp("s", "Europe/Berlin")), pa.timestamp("us", "UTC")),
        (pa.array([date(2020, 1, 1)]), pa.date64()),
        (pa.array([date(2020, 1, 1)], pa.date64()), pa.date32()),
        (pa.array([5], pa.time32("s")), pa.time64("us")),
        (pa.array([Decimal("1.23")]), pa.decimal256(50, 4)),
        (pa.nulls(2), pa.struct([("a", pa.int64())])),
        (pa.array([[]]), pa.list_(pa.string())),
        (pa.array([[1], None, []], pa.list_(pa.int32())), pa.large_list(pa.int64())),
        (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), pa.list_(pa.int64())),
        (pa.array([[1]]), pa.list_(NOT_NULL)),
        (pa.array([{"b": "x", "a": 1}]), pa.struct([("a", pa.int64()), ("b", pa.large_string())])),
        (pa.array([None, {"a": 1}]), pa.struct([NOT_NULL.with_name("a")])),
        (pa.array([[("a", 1)]], pa.map_(pa.large_string(), pa.int8())), pa.map_(pa.string(), pa.int64())),
    ],
    ids=str,
)
def test_a_column_of_the_same_kind_is_cast(column: pa.Array, wanted: pa.DataType) -> None:
    found = fitted(column, wanted)
    assert found.type == wanted
    if not pa.types.is_timestamp(wanted):
        assert found.to_pylist() == column.to_pylist()


def test_what_is_no_number_is_none_as_a_half_float_either() -> None:
    (found,) = fitted(pa.array([float("nan")], pa.float32()), pa.float16()).to_pylist()
    assert math.isnan(found)


def test_text_becomes_bytes_and_bytes_that_are_utf8_become_text() -> None:
    assert fitted(pa.array(["ä"]), pa.binary()).to_pylist() == ["ä".encode()]
    assert fitted(pa.array(["ä".encode()]), pa.string()).to_pylist() == ["ä"]


_items, _pairs = pa.list_(pa.int16()), pa.list_(pa.int16(), 2)
_without_items = [
    (pa.array([None], _items), _pairs),
    (pa.array([None], pa.list_(pa.bool_())), pa.list_(pa.bool_(), 2)),
    (pa.array([[None], None], pa.list_(_items)), pa.list_(_pairs)),
    (pa.array([[None, None], None], pa.list_(_items)), pa.list_(_pairs, 2)),
    (pa.array([[("a", None)]], pa.map_(pa.string(), _items)), pa.map_(pa.string(), _pairs)),
    (pa.array([{"a": None}], pa.struct([("a", _items)])), pa.struct([("a", _pairs)])),
]


def _fit_what_came_over_ipc() -> None:
    for column, wanted in _without_items:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema({"x": column.type})) as writer:
            writer.write_batch(pa.record_batch({"x": column}))
        came = pa.ipc.open_stream(sink.getvalue()).read_next_batch()
        found = fit_columns(Layout(stored_schema({"x": wanted})), came, None, 0)
        assert found.column("x").to_pylist() == column.to_pylist()


def test_lists_without_an_item_that_came_over_ipc_become_lists_of_a_fixed_size() -> None:
    """In a process of its own, which Arrow ended."""
    process = multiprocessing.get_context("spawn").Process(target=_fit_what_came_over_ipc)
    process.start()
    process.join(60)
    assert process.exitcode == 0


nested = pa.struct([("a", pa.list_(pa.int32())), ("m", pa.map_(pa.string(), pa.int32()))])
wider = pa.struct([("m", pa.map_(pa.large_string(), pa.int64())), ("a", pa.large_list(pa.int64()))])
nested_rows = st.lists(
    st.none()
    | st.fixed_dictionaries(
        {
            "a": st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3),
            "m": st.none() | st.lists(st.tuples(st.text("ab", max_size=2), st.integers(0, 9)), max_size=3),
        }
    ),
    min_size=1,
    max_size=12,
)


@given(nested_rows, st.data())
def test_a_slice_of_nested_columns_is_cast_and_counted_as_that_slice(
    rows: list[Any], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))
    part = pa.array(rows, nested).slice(start)
    found = fitted(part, wider)
    assert found.to_pylist() == part.to_pylist()
    assert value_sizes(part).tolist() == [
        int(value_sizes(pa.array([row], nested))[0]) for row in rows[start:]
    ]


@pytest.mark.parametrize(
    ("kind", "small", "large"),
    [
        (pa.list_(pa.string()), ["s"], ["x" * 1_000_000] * 5),
        (pa.large_list(pa.int64()), [1], [1] * 500_001),
        (pa.list_(pa.list_(pa.int64(), 2)), [[1, 2]], [[1, 2]] * 250_001),
        (pa.struct([("a", pa.int8()), ("b", pa.binary())]), {"a": 1}, {"b": b"x" * 4_000_001}),
        (pa.map_(pa.string(), pa.binary()), [], [("a", b"x" * 4_000_001)]),
    ],
    ids=str,
)
def test_one_record_over_the_limit_is_refused_for_every_type(
    kind: pa.DataType, small: Any, large: Any
) -> None:
    layout = Layout(stored_schema({"x": kind}))
    few = pa.table({"x": pa.array([small, large, None], kind)})
    with pytest.raises(TooLarge, match="4000000"):
        check_row_sizes(fit_columns(layout, few, None, 0))
    many = pa.table({"x": pa.array([small] * 300_000, kind)})
    check_row_sizes(fit_columns(layout, many, None, 0))


def test_fixed_columns_count_too() -> None:
    layout = Layout(stored_schema({"a": pa.binary(3_000_000), "b": "binary"}))
    table = pa.table({"a": pa.array([bytes(3_000_000)], pa.binary(3_000_000)), "b": [bytes(1_000_001)]})
    with pytest.raises(TooLarge):
        check_row_sizes(fit_columns(layout, table, None, 0))


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ([(f"h{i}", b"") for i in range(65)], "at most 64"),
        ([("h", None)], "not null"),
        ([("h", b"1"), ("g", b"2"), ("h", b"1")], "once"),
    ],
)
def test_a_column_of_headers_keeps_to_what_headers_are(headers: Any, told: str) -> None:
    good: list[Any] = [[("h", b"1"), ("g", b"2")], None, [], [("h", b"1")]]
    for column in ([*good, headers], [headers, *good]):
        table = pa.table({"value": [b"x"] * 5, "headers": pa.array(column, HEADERS.type)})
        with pytest.raises(InvalidInput, match=f"headers=.*{told}"):
            fit_columns(PLAIN, table, None, 0)
        # A slice without the bad one is good.
        rest = table.slice(0, 4) if column[-1] is headers else table.slice(1)
        assert fit_columns(PLAIN, rest, None, 0).column("headers").to_pylist() == good


def test_headers_count_as_send_counts_them() -> None:
    def batch(size: int) -> pa.RecordBatch:
        headers = pa.array([[("a", b"x" * size), ("b", b"x" * 1_999_998)]] * 3, HEADERS.type)
        return fit_columns(PLAIN, pa.table({"value": [b""] * 3, "headers": headers}), None, 0).slice(1)

    check_row_sizes(batch(2_000_000))
    with pytest.raises(TooLarge):
        check_row_sizes(batch(2_000_001))
