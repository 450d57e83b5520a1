"""Records that no client of Aliyun's wrote, as logs: whatever a stream can hold has a text, within bounds."""

import subprocess
import sys
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.model import Compression
from shoal.server.sls import foreign
from shoal.server.sls.records import SCHEMA, groups_of
from shoal.server.sls.wire import parsed
from shoal.wire.layout import Layout, stored_schema
from tests.sls.foreign_columns import COLUMNS, OURS

FLAT = st.sampled_from(
    [
        *(
            pa.timestamp(unit, zone)
            for unit in ("s", "ms", "us", "ns")
            for zone in (None, "UTC", "Mars/Olympus")
        ),
        *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
        *(pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.null()),
        *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
        *(pa.decimal32(6, 2), pa.decimal128(38, -3), pa.decimal256(76, 10), pa.month_day_nano_interval()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3), pa.binary(0)),
    ]
)
TYPES = st.recursive(
    FLAT,
    lambda inner: (
        inner.map(pa.list_)
        | inner.map(pa.large_list)
        | st.tuples(inner, st.integers(0, 3)).map(lambda drawn: pa.list_(*drawn))
        | st.lists(inner, max_size=3).map(
            lambda kinds: pa.struct([(f"f{i}", kind) for i, kind in enumerate(kinds)])
        )
        | inner.map(lambda kind: pa.map_(pa.string(), kind))
    ),
    max_leaves=4,
)


def pulled(*batches: pa.RecordBatch) -> list[dict[str, bytes]]:
    """What a client gets of each record."""
    found: list[dict[str, bytes]] = []
    for count, listed in groups_of(batches):
        group = parsed(_inner(listed))
        begins = [0, *group.ends.tolist()]
        keys, values = group.keys.to_pylist(), group.values.to_pylist()
        assert len(begins) == count + 1
        for low, high in pairwise(begins):
            found.append({key.decode(): values[low + i] for i, key in enumerate(keys[low:high])})
    return found


def _inner(listed: bytes) -> bytes:
    """A group, without what stands before it in the list."""
    at = 1
    while listed[at] >= 0x80:
        at += 1
    return listed[at + 1 :]


def stored(**columns: pa.Array) -> pa.RecordBatch:
    """The columns as a stream has them, through all that happens to them when they are stored."""
    layout = Layout(stored_schema(pa.schema([(name, column.type) for name, column in columns.items()])))
    rows = len(next(iter(columns.values())))
    times, keys = pa.array([5_000_000] * rows, pa.timestamp("us", "UTC")), pa.nulls(rows, pa.binary())
    batch = pa.record_batch([times, keys, *columns.values()], schema=layout.stored(with_headers=False))
    return layout.decode(*layout.encode(batch, Compression.LZ4))


@pytest.mark.parametrize(("column", "text"), COLUMNS.values(), ids=list(COLUMNS))
def test_every_value_that_a_stream_can_hold_has_a_text(column: pa.Array, text: bytes | None) -> None:
    nothing = pa.nulls(1, column.type)
    batch = stored(c=pa.concat_arrays([nothing, column, nothing]))
    assert pulled(batch) == [{}, {} if text is None else {"c": text}, {}]
    assert pulled(batch.slice(1, 1)) == [{} if text is None else {"c": text}]


@pytest.mark.parametrize("changed", OURS.values(), ids=list(OURS))
def test_columns_with_the_names_of_logs_and_other_types_are_fields(changed: dict[str, Any]) -> None:
    columns = {field.name: pa.nulls(1, field.type) for field in SCHEMA}
    columns |= {name: column for name, (column, _) in changed.items()}
    (found,) = pulled(stored(**columns))
    assert found == {name: text for name, (_, text) in changed.items()}


def test_maps_whose_values_may_not_be_null_are_those_of_logs_all_the_same() -> None:
    logs = pa.map_(pa.string(), pa.field("v", pa.binary(), nullable=False))
    columns = {field.name: pa.nulls(1, field.type) for field in SCHEMA}
    (found,) = pulled(stored(**{**columns, "contents": pa.array([[("k", b"v")]], logs)}))
    assert found == {"k": b"v"}


@given(st.data())
def test_columns_of_all_types_and_any_bytes_are_written_and_slices_of_them_alike(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 4))
    column = _any_array(data, data.draw(TYPES), rows)
    batch = stored(c=column)
    whole = pulled(batch)
    assert len(whole) == rows
    assert [one for i in range(rows) for one in pulled(batch.slice(i, 1))] == whole
    assert [bool(one) for one in whole] == [value.is_valid for value in column]


def _any_array(data: st.DataObject, kind: pa.DataType, rows: int) -> pa.Array:
    """A column of this type made from whatever bytes there are, where its values are any bytes."""
    if pa.types.is_fixed_size_list(kind) and kind.list_size:
        items = _any_array(data, kind.value_type, rows * kind.list_size)
        made = pa.FixedSizeListArray.from_arrays(items, kind.list_size)
    elif pa.types.is_struct(kind) and kind.num_fields:
        fields = [_any_array(data, kind.field(i).type, rows) for i in range(kind.num_fields)]
        made = pa.StructArray.from_arrays(fields, fields=[kind.field(i) for i in range(kind.num_fields)])
    elif pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        made = _any_list(data, kind, rows)
    elif pa.types.is_nested(kind):  # Without anything in it.
        made = pa.array([{} if pa.types.is_struct(kind) else []] * rows, kind)
    else:
        made = _any_flat(data, kind, rows)
    return made


def _any_list(data: st.DataObject, kind: pa.DataType, rows: int) -> pa.Array:
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    is_large = pa.types.is_large_list(kind)
    ends = pa.array(np.concatenate(([0], np.cumsum(sizes))), pa.int64() if is_large else pa.int32())
    if pa.types.is_map(kind):
        keys = pa.array(["k"] * sum(sizes), kind.key_type)  # A key is never null.
        return pa.MapArray.from_arrays(ends, keys, _any_array(data, kind.item_type, sum(sizes)))
    maker = pa.LargeListArray if is_large else pa.ListArray
    return maker.from_arrays(ends, _any_array(data, kind.value_type, sum(sizes)))


def _any_flat(data: st.DataObject, kind: pa.DataType, rows: int) -> pa.Array:
    if pa.types.is_null(kind) or not rows:
        return pa.nulls(rows, kind)
    if pa.types.is_decimal(kind):
        return pa.array([Decimal(7000)] * rows, kind)
    if pa.types.is_boolean(kind):
        flags = st.lists(st.none() | st.booleans(), min_size=rows, max_size=rows)
        return pa.array(data.draw(flags), kind)
    if not pa.types.is_primitive(kind) and not pa.types.is_interval(kind):
        texts = st.lists(st.none() | st.binary(min_size=3, max_size=3), min_size=rows, max_size=rows)
        if pa.types.is_fixed_size_binary(kind):
            drawn = [None if text is None else text[: kind.byte_width] for text in data.draw(texts)]
            return pa.array(drawn, kind)
        large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        made = pa.array(data.draw(texts), pa.large_binary() if large else pa.binary())
        return pa.Array.from_buffers(kind, rows, made.buffers())  # Text may be no UTF-8.
    size = rows * kind.bit_width // 8
    made_of = data.draw(
        st.sampled_from([bytes(size), b"\xff" * size]) | st.binary(min_size=size, max_size=size)
    )
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(made_of)])


def test_times_of_nanoseconds_need_no_pandas() -> None:
    program = """
import importlib.abc, sys

class WithoutPandas(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, WithoutPandas())
import pyarrow as pa
from shoal.server.sls.records import groups_of
stamps = pa.array([0], pa.timestamp("us", "UTC"))
for inner in (pa.timestamp("ns"), pa.duration("ns")):
    for kind, value in ((inner, 1234567890123456789), (pa.list_(inner), [1234567890123456789])):
        batch = pa.record_batch({"timestamp": stamps, "c": pa.array([value], kind)})
        ((_, group),) = groups_of([batch])
        print(b"23:31:30.123456789" in group or b"1234567890123456789" in group)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stdout.split(), ran.stderr) == (["True"] * 4, "")


# --- Bounds. ---


def test_lists_that_take_nothing_as_they_are_stored_are_not_written_at_length() -> None:
    for kind in (pa.null(), pa.struct([]), pa.list_(pa.int64(), 0), pa.list_(pa.null(), 50)):
        billion = pa.nulls(10**9 // 50, kind)
        ends = pa.array([0, 3, len(billion), len(billion)], pa.int32())
        batch = stored(c=pa.ListArray.from_arrays(ends, billion))
        first, second, third = pulled(batch)
        assert first["c"].startswith(b"[null, null, null") or first["c"].startswith(b"[{}, {}, {}"), first
        assert second["c"].startswith(b"<a value of about ")
        assert third == {"c": b"[]"}


def test_many_columns_and_long_names_are_written_a_part_at_a_time() -> None:
    flags = pa.array([True] * 2_000)
    for names in (["n" * 1_000_000], [f"column {i}" for i in range(2_000)]):
        batch = stored(**dict.fromkeys(names, flags))
        sizes, rows = [], 0
        for count, group in groups_of([batch]):
            sizes.append(len(group))
            rows += count
            if len(sizes) == 3:
                break
        assert max(sizes) <= foreign.WRITTEN_BYTES
        assert 0 < rows < 2_000


def test_rows_of_several_small_batches_stay_in_order_and_a_batch_is_a_group() -> None:
    batches = [stored(c=pa.array([first, first + 1])) for first in range(0, 40, 2)]
    assert [one["c"] for one in pulled(*batches)] == [b"%d" % number for number in range(40)]
    assert [count for count, _ in groups_of(batches)] == [2] * 20
