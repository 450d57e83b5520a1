"""Parts of batches, lanes of keys, and a batch in the hands of user code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import LeaseLost
from shoal.wire.batch import Batch
from shoal.wire.delivered import Delivered
from shoal.wire.lanes import lanes_of
from shoal.wire.layout import HEADERS, Layout

TYPED = pa.schema([pa.field("amount", pa.int32()), pa.field("city", pa.string())])


def chunk(
    first: int, count: int, *, with_headers: bool = False, keys: Sequence[bytes | None] | None = None
) -> pa.RecordBatch:
    """Records whose values are their offsets."""
    offsets = range(first, first + count)
    columns = [
        pa.array([offset * 1000 for offset in offsets], pa.timestamp("us", tz="UTC")),
        pa.array([b"k%d" % (offset % 7) for offset in offsets] if keys is None else keys, pa.binary()),
    ]
    names = ["timestamp", "key"]
    if with_headers:
        columns.append(pa.array([[("o", b"%d" % offset)] for offset in offsets], HEADERS.type))
        names.append("headers")
    columns.append(pa.array([b"%d" % offset for offset in offsets], pa.binary()))
    return pa.record_batch(columns, names=[*names, "value"])


def batch(first: int, *chunks: pa.RecordBatch, is_end: bool = False) -> Batch:
    return Batch(
        stream="s", shard=2, first_offset=first, chunks=chunks, layout=Layout(None), end_of_shard=is_end
    )


def values(part: Batch) -> list[int]:
    return [int(record.value) for record in part]


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    first=st.integers(0, 1000),
    picked=st.sets(st.integers(0, 119)),
    again=st.sets(st.integers(0, 119)),
)
def test_a_part_of_a_part_holds_exactly_its_records_in_every_form(
    sizes: list[int], first: int, picked: set[int], again: set[int]
) -> None:
    chunks, at = [], first
    for number, size in enumerate(sizes):
        chunks.append(chunk(at, size, with_headers=number % 2 == 1))
        at += size
    whole = batch(first, *chunks)
    some = sorted(first + place for place in picked if place < len(whole))
    part = whole.part(some)
    fewer = [offset for place, offset in enumerate(some) if place in again]
    for found, wanted in ((part, some), (part.part(fewer), fewer)):
        assert len(found) == len(wanted)
        assert list(found.offsets) == wanted
        assert values(found) == wanted
        assert [record.offset for record in found] == wanted
        assert [record.timestamp for record in found] == wanted
        assert [record.headers.get("o", b"%d" % record.offset) for record in found] == [
            b"%d" % offset for offset in wanted
        ]
        arrow = found.to_arrow()
        assert arrow.schema == Layout(None).read_schema
        assert arrow.column("offset").to_pylist() == wanted
        assert [int(value) for value in arrow.column("value").to_pylist()] == wanted
        assert not found.end_of_shard
        if wanted:
            assert (found.first_offset, found.next_offset) == (wanted[0], wanted[-1] + 1)


def test_a_dense_part_is_no_copy() -> None:
    whole = batch(10, chunk(10, 100), chunk(110, 100))
    part = whole.part(range(50, 150))
    assert values(part) == list(range(50, 150))
    assert part.nbytes < whole.nbytes
    (column, _) = part.key_columns()
    assert column.buffers()[2].address == whole.key_columns()[0].buffers()[2].address


def test_parts_of_typed_streams_have_their_columns() -> None:
    layout = Layout(TYPED.serialize().to_pybytes())
    rows = pa.record_batch(
        [
            pa.array([0] * 6, pa.timestamp("us", tz="UTC")),
            pa.array([None] * 6, pa.binary()),
            pa.array(range(6), pa.int32()),
            pa.array(["a", "b", None, "d", "e", "f"]),
        ],
        names=["timestamp", "key", "amount", "city"],
    )
    whole = Batch(
        stream="s",
        shard=0,
        first_offset=4,
        chunks=[rows.slice(0, 2), rows.slice(2)],
        layout=layout,
        end_of_shard=True,
    )
    part = whole.part([5, 6, 9])
    assert [record.value for record in part] == [
        {"amount": 1, "city": "b"},
        {"amount": 2, "city": None},
        {"amount": 5, "city": "f"},
    ]
    assert part.to_arrow().select(["offset", "amount"]).to_pylist() == [
        {"offset": 5, "amount": 1},
        {"offset": 6, "amount": 2},
        {"offset": 9, "amount": 5},
    ]


def test_an_empty_part_is_a_batch_too() -> None:
    for part in (batch(3, chunk(3, 5)).part([]), batch(3).part([])):
        assert (len(part), list(part), part.next_offset) == (0, [], 3)
        assert part.to_arrow().num_rows == 0


# --- Lanes. ------------------------------------------------------------------------------------------

KEYS = st.none() | st.binary(max_size=12)


@given(keys=st.lists(KEYS, min_size=1, max_size=300), lanes=st.integers(1, 9), cut=st.integers(0, 300))
def test_lanes_divide_a_batch_and_a_keys_lane_depends_on_nothing_but_the_key(
    keys: list[bytes | None], lanes: int, cut: int
) -> None:
    cut = min(cut, len(keys))
    parts = [
        chunk(at, len(part), keys=part) for at, part in ((50, keys[:cut]), (50 + cut, keys[cut:])) if part
    ]
    found = lanes_of(batch(50, *parts), lanes)
    assert sorted(offset for lane in found for offset in lane) == list(range(50, 50 + len(keys)))
    assert all(list(lane) == sorted(lane) for lane in found)
    lane_of = {offset: number for number, lane in enumerate(found) for offset in lane}
    for place, key in enumerate(keys):
        alone = lanes_of(batch(50 + place, chunk(50 + place, 1, keys=[key])), lanes)
        (same,) = (number for number, lane in enumerate(alone) if lane)
        assert lane_of[50 + place] == same


def test_many_keys_and_records_without_one_go_to_all_lanes() -> None:
    keyed = lanes_of(batch(0, chunk(0, 4000, keys=[b"key-%d" % i for i in range(4000)])), 4)
    without = lanes_of(batch(0, chunk(0, 4000, keys=[None] * 4000)), 4)
    for found in (keyed, without):
        assert all(800 < len(lane) < 1200 for lane in found)


def test_lanes_of_a_sparse_part_keep_its_offsets() -> None:
    part = batch(0, chunk(0, 40)).part([1, 5, 8, 39])
    assert sorted(offset for lane in lanes_of(part, 3) for offset in lane) == [1, 5, 8, 39]
    assert lanes_of(batch(7), 3) == [(), (), ()]


# --- In the hands of user code. ----------------------------------------------------------------------


class Clock:
    """A deadline, and a clock that goes on by one with every look."""

    def __init__(self, until: int) -> None:
        self.now, self.until, self.asked = 0, until, 0

    def guard(self) -> int:
        self.asked += 1
        if self.now >= self.until:
            raise LeaseLost(shard=2, epoch=1)
        return min(self.until, self.now + 5)

    def look(self) -> int:
        self.now += 1
        return self.now


def delivered(whole: Batch, offsets: Sequence[int], until: int = 10**9) -> Delivered:
    clock = Clock(until)
    return Delivered.of(whole, offsets, clock.guard, clock.look)


def test_no_record_is_given_out_after_the_deadline() -> None:
    clock = Clock(20)
    mine = Delivered.of(batch(0, chunk(0, 100)), range(100), clock.guard, clock.look)
    given: list[tuple[int, int]] = []
    with pytest.raises(LeaseLost):
        given.extend((record.offset, clock.now) for record in mine)
    assert [offset for offset, _ in given] == list(range(len(given)))
    assert [now for _, now in given] == [now for now in range(1, 20) if now % 5], (
        "one in five renews the look"
    )
    assert mine.suspect == given[-1][0]


def test_a_batch_whose_deadline_has_passed_gives_out_nothing() -> None:
    mine = delivered(batch(0, chunk(0, 3)), range(3), until=0)
    with pytest.raises(LeaseLost):
        next(iter(mine))
    assert mine.declared is None, "a save in spite of that declares nothing of it done"


def test_a_save_in_an_empty_batch_declares_nothing_of_it_done() -> None:
    mine = delivered(batch(7), [])
    assert mine.declared is None
    assert list(mine) == []
    assert mine.declared is None


def test_a_deadline_that_is_extended_lets_the_loop_go_on() -> None:
    clock = Clock(5)

    def guard() -> int:
        clock.until += 5
        return clock.guard()

    mine = Delivered.of(batch(0, chunk(0, 50)), range(50), guard, clock.look)
    assert len(list(mine)) == 50


def test_what_a_save_means_follows_the_loop() -> None:
    mine = delivered(batch(10, chunk(10, 5)), [10, 12, 14])
    assert (mine.declared, mine.suspect) == (15, None), "never looped over: all of it"
    seen = []
    for record in mine:
        seen.append((record.offset, mine.declared))
    assert seen == [(10, 11), (12, 13), (14, 15)]
    assert (mine.declared, mine.suspect) == (15, None)


def test_a_loop_that_was_left_early_declares_only_what_it_came_to() -> None:
    mine = delivered(batch(0, chunk(0, 5)), range(5))
    for record in mine:
        if record.offset == 2:
            break
    assert (mine.declared, mine.suspect) == (3, 2)


def test_a_second_loop_is_a_loop_too() -> None:
    mine = delivered(batch(0, chunk(0, 5)), range(5))
    assert len(list(mine)) == 5
    for record in mine:
        assert mine.declared == record.offset + 1
        if record.offset == 1:
            break
    assert (mine.declared, mine.suspect) == (2, 1)


def test_only_the_last_part_of_an_ended_shard_says_that_it_ends() -> None:
    whole = batch(0, chunk(0, 5), is_end=True)
    assert delivered(whole, range(5)).end_of_shard
    assert delivered(whole, [2, 4]).end_of_shard
    assert not delivered(whole, range(4)).end_of_shard
    assert not delivered(whole, []).end_of_shard
    assert not delivered(batch(0, chunk(0, 5)), range(5)).end_of_shard


def test_columns_of_what_was_delivered_are_those_of_its_records() -> None:
    mine = delivered(batch(0, chunk(0, 5), chunk(5, 5)), [1, 4, 5, 9])
    assert np.array_equal(mine.to_arrow().column("offset").to_numpy(), [1, 4, 5, 9])
    assert values(mine.part([4, 9])) == [4, 9]
