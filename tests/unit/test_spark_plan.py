"""The plan of a Spark read, without Spark: which offsets, which tasks, what comes before what."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.checkpoint import Checkpoint, beyond
from shoal.core.errors import InvalidInput, OffsetExpired, OffsetOutOfRange, UnknownShard
from shoal.core.lineage import ancestors, families
from shoal.core.model import Shard, ShardId, ShardStatus, StreamInfo, StreamName, StreamSettings
from shoal.spark.plan import members
from shoal.spark.plan.filters import Bounds
from shoal.spark.plan.limits import Limits
from shoal.spark.plan.members import Tenure
from shoal.spark.plan.offsets import (
    Positions,
    StreamPositions,
    between,
    manifest,
    manifest_of,
    positions_in,
    positions_of,
)
from shoal.spark.plan.ordering import in_order
from shoal.spark.plan.spans import Owner, Span, awaited, due, kept, limited, reached, standing, turns
from shoal.spark.plan.starting import Kind, Place, check_streams, group_place, place_of, resolved
from shoal.spark.plan.tasks import TASKS_MAX, tasks
from tests.unit.lineages import lineages


def stream(shards: tuple[Shard, ...], number: int = 7) -> StreamInfo:
    return StreamInfo(
        full_name=StreamName("default", "orders"),
        id=number,
        version=1,
        settings=StreamSettings(),
        shards=shards,
    )


def span(shard: int, start: int, end: int, record_bytes: int = 0) -> Span:
    return Span(stream="orders", stream_id=7, shard=shard, start=start, end=end, record_bytes=record_bytes)


@st.composite
def filled(draw: st.DrawFn) -> StreamInfo:
    """A stream some time after its birth, with records in its shards."""
    return stream(
        tuple(
            replace(shard, next_offset=draw(st.integers(0, 50)), bytes=draw(st.integers(0, 5000)))
            for shard in draw(lineages())
        )
    )


spans_lists = st.lists(
    st.builds(span, st.integers(0, 40), st.integers(0, 50), st.integers(51, 5000), st.integers(0, 9)),
    max_size=20,
    unique_by=lambda one: one.shard,
)


# --- Order along the lineage. ---


@given(filled(), st.integers(1, 60))
def test_a_shard_is_read_in_a_later_batch_than_its_ancestors_last_records(
    info: StreamInfo, records_max: int
) -> None:
    positions: dict[int, int] = {}
    ended_in: dict[int, int] = {}
    for batch in range(10_000):
        spans = limited(due(info, positions, in_order=True), records_max=records_max)
        if not spans:
            break
        for one in spans:
            for ancestor in ancestors(info.shards, one.shard):
                if info.shards[ancestor].next_offset:
                    assert ended_in[ancestor] < batch, (
                        "an ancestor's last records came in this batch or later"
                    )
            assert one.start == positions.get(one.shard, 0)
            if one.end == info.shards[one.shard].next_offset:
                ended_in[one.shard] = batch
        positions = reached(positions, spans)
    assert {shard.id: shard.next_offset for shard in info.shards if shard.next_offset} == positions


@given(filled())
def test_out_of_order_everything_is_due_at_once(info: StreamInfo) -> None:
    found = due(info, {}, in_order=False)
    assert {one.shard for one in found} == {shard.id for shard in info.shards if shard.next_offset}


@given(filled(), st.data())
def test_nothing_beyond_the_end_of_an_available_now_run_is_due(info: StreamInfo, data: st.DataObject) -> None:
    until: dict[int, int] = {
        shard.id: data.draw(st.integers(0, shard.next_offset)) for shard in info.shards if shard.id % 3
    }
    for one in due(info, {}, in_order=False, until=until):
        assert one.end <= until[one.shard]


# --- Limits. ---


@given(spans_lists, st.integers(1, 20_000))
def test_a_limit_of_records_is_used_to_the_last_one(spans: list[Span], records_max: int) -> None:
    found = limited(spans, records_max=records_max)
    total = sum(one.records for one in spans)
    assert sum(one.records for one in found) == min(total, records_max)
    by_shard = {one.shard: one for one in spans}
    for one in found:
        whole = by_shard[one.shard]
        assert one.start == whole.start
        assert 0 < one.records <= whole.records


@given(spans_lists, st.integers(1, 20_000))
def test_a_limit_of_bytes_is_kept_but_for_one_record(spans: list[Span], bytes_max: int) -> None:
    found = limited(spans, bytes_max=bytes_max)
    assert bool(found) == bool(spans)
    widest = max((one.record_bytes for one in spans), default=0)
    # Of each the same part: records that rounding moved from small ones to large ones may be larger.
    assert sum(one.records * one.record_bytes for one in found) <= bytes_max + widest * (len(spans) + 1)


@given(spans_lists, st.integers(0, 100))
def test_no_shard_is_left_out_while_the_limit_has_a_record_for_each(spans: list[Span], more: int) -> None:
    """Or a shard with little in it would wait for as long as others have much, and its children with it."""
    found = limited(spans, records_max=len(spans) + more)
    assert [one.shard for one in found] == [one.shard for one in spans]


@given(
    st.lists(st.integers(0, 30), min_size=2, max_size=12),
    st.data(),
    st.booleans(),
)
def test_where_a_batch_has_not_a_record_for_each_shard_every_shard_has_its_turn(
    ends: list[int], data: st.DataObject, is_member: bool
) -> None:
    """Whatever comes meanwhile, and wherever."""
    at = [data.draw(st.integers(0, end)) for end in ends]
    starved = [0] * len(ends)
    for _ in range(40):
        records_max = data.draw(st.integers(1, len(ends)), label="records")
        info = stream(
            tuple(Shard(id=ShardId(n), begin=0, end=1, next_offset=end) for n, end in enumerate(ends))
        )
        if is_member:
            tenures = {n: Tenure(epoch=1, done=offset, saved=0) for n, offset in enumerate(at)}
            order = members.turns({"orders": tenures})
        else:
            order = turns({"orders": info}, {"orders": {n: offset for n, offset in enumerate(at) if offset}})
        spans = [span(n, at[n], ends[n]) for n in range(len(ends)) if at[n] < ends[n]]
        chosen = limited(spans, records_max=records_max, turns=order)
        assert chosen == limited(spans, records_max=records_max, turns=order)
        for one in spans:
            # What the batches had room for since it was served last.
            starved[one.shard] += records_max
        for one in chosen:
            starved[one.shard] = 0
            at[one.shard] = one.end
        assert max(starved) < 2 * len(ends), "a shard was left out for longer than once round"
        for n in data.draw(st.lists(st.integers(0, len(ends) - 1), max_size=6), label="appended to"):
            ends[n] += data.draw(st.integers(1, 20))


def test_small_shards_are_read_though_a_batch_has_fewer_records_than_there_are_shards() -> None:
    at, ends = [0] * 4, [1000, 900, 1, 1]
    for _ in range(4):
        spans = [span(n, at[n], ends[n]) for n in range(4) if at[n] < ends[n]]
        for one in limited(spans, records_max=2):
            at[one.shard] = one.end
    assert at[2:] == [1, 1]


def test_a_limit_is_shared_by_how_far_behind_each_shard_is() -> None:
    found = limited([span(0, 0, 900), span(1, 0, 100)], records_max=100)
    assert [(one.shard, one.records) for one in found] == [(0, 90), (1, 10)]


@pytest.mark.parametrize(
    ("available", "waited_s", "is_worth_it"),
    [(19, 0.0, False), (20, 0.0, True), (19, 5.0, True), (None, 0.0, True)],
)
def test_a_batch_waits_for_enough_and_not_for_what_cannot_come(
    available: int | None, waited_s: float, is_worth_it: bool
) -> None:
    assert Limits(records_min=20, delay_max_s=5.0).is_worth_it(available, waited_s) == is_worth_it


def test_the_rest_of_a_closed_shard_is_not_held_back_for_more() -> None:
    whole = Shard(id=ShardId(0), begin=0, end=2, next_offset=5)
    closed = replace(whole, status=ShardStatus.CLOSED)
    assert awaited([span(0, 1, 5)], {"orders": stream((whole,))}) == 4
    assert awaited([span(0, 1, 5)], {"orders": stream((closed,))}) is None


# --- Tasks. ---


@given(spans_lists, st.integers(1, 9), st.none() | st.integers(1, 900), st.booleans())
def test_tasks_hold_every_record_once(
    spans: list[Span], wanted: int, records_max: int | None, cuts: bool
) -> None:
    found = tasks(spans, wanted=wanted, records_max=records_max, cuts=cuts)
    pieces = sorted((one.shard, one.start, one.end) for task in found for one in task)
    for whole in spans:
        mine = [piece for piece in pieces if piece[0] == whole.shard]
        assert mine[0][1] == whole.start
        assert mine[-1][2] == whole.end
        assert all(before[2] == after[1] for before, after in pairwise(mine))
        if not cuts:
            assert len(mine) == 1, "in order, a shard is in one task, whole"
    total = sum(one.records for one in spans)
    if records_max is not None and cuts and total <= records_max * TASKS_MAX:
        assert all(sum(one.records for one in task) <= records_max for task in found)


@given(filled(), st.integers(1, 9))
def test_in_one_task_a_shard_is_read_after_its_ancestors(info: StreamInfo, wanted: int) -> None:
    spans = due(info, {}, in_order=False)
    kin = families(info.shards)
    found = tasks(spans, wanted=wanted, cuts=False, kin=lambda one: kin[one.shard])
    assert sorted(one.shard for task in found for one in task) == sorted(one.shard for one in spans)
    place = {one.shard: (number, at) for number, task in enumerate(found) for at, one in enumerate(task)}
    for shard, (number, at) in place.items():
        for older in ancestors(info.shards, shard):
            if older in place:
                assert place[older][0] == number
                assert place[older][1] < at


def test_small_shards_share_tasks_of_about_the_same_size() -> None:
    found = tasks([span(number, 0, 100) for number in range(64)], wanted=4, cuts=False)
    assert [sum(one.records for one in task) for task in found] == [1600] * 4


def test_a_large_backlog_of_one_shard_is_cut_only_where_order_does_not_matter() -> None:
    assert len(tasks([span(0, 0, 4_000_000)], wanted=2)) == 4
    assert len(tasks([span(0, 0, 4_000_000)], wanted=2, cuts=False)) == 1


# --- Where a read begins. ---

TWO = stream(
    tuple(
        Shard(id=number, begin=0, end=1, first_offset=10, next_offset=20)  # type: ignore[arg-type]
        for number in range(2)
    )
)


@pytest.mark.parametrize(
    ("given_place", "expected"),
    [
        ("earliest", {0: 10, 1: 10}),
        ("latest", {0: 20, 1: 20}),
        ({"orders": {"0": 15}}, {0: 15, 1: 10}),
        ({"default/orders": {"0": 15}}, {0: 15, 1: 10}),
        ({"0": 15, "1": -1}, {0: 15, 1: 20}),
        ({"0": -2}, {0: 10, 1: 10}),
    ],
)
def test_a_place_is_resolved(given_place: object, expected: dict[int, int]) -> None:
    place = place_of("startingOffsets", given_place)
    assert resolved(TWO, place, otherwise=Kind.EARLIEST) == expected


def test_a_shard_that_the_group_does_not_know_yet_is_read_from_its_beginning() -> None:
    place = Place(kind=Kind.GROUP)
    assert resolved(TWO, place, otherwise=Kind.EARLIEST, known={0: 12}) == {0: 12, 1: 10}


def test_a_time_that_lies_behind_what_was_looked_at_is_the_end_of_that() -> None:
    place = Place(kind=Kind.TIME, time_ms=1)
    assert resolved(TWO, place, otherwise=Kind.LATEST, known={0: 12, 1: 99}) == {0: 12, 1: 20}


@pytest.mark.parametrize(
    "given_place",
    [
        "first",
        {},
        {"0": "x"},
        {"0": -3},
        {"a": 1},
        {"0": True},
        {"0": 1, "00": 2},
        {"a": {"0": 1}, "default/a": {}},
    ],
)
def test_a_place_that_makes_no_sense_is_refused(given_place: object) -> None:
    with pytest.raises(InvalidInput, match="startingOffsets="):
        place_of("startingOffsets", given_place)


def test_offsets_outside_of_the_log_are_refused_or_moved_to_what_there_is() -> None:
    for offset, error, nearest in ((21, OffsetOutOfRange, 20), (9, OffsetExpired, 10)):
        with pytest.raises(error):
            kept("orders", TWO.shards[0], offset, strict=True)
        assert kept("orders", TWO.shards[0], offset, strict=False) == nearest
    with pytest.raises(UnknownShard):
        resolved(TWO, place_of("startingOffsets", {"7": 1}), otherwise=Kind.EARLIEST)


def test_offsets_of_a_stream_that_is_not_read_are_refused() -> None:
    with pytest.raises(InvalidInput, match="orders"):
        check_streams("startingOffsets", place_of("startingOffsets", {"carts": {"0": 1}}), {"orders": TWO})
    with pytest.raises(InvalidInput, match="name each"):
        check_streams("startingOffsets", place_of("startingOffsets", {"0": 1}), {"orders": TWO, "carts": TWO})


# --- What Spark keeps. ---


@given(st.permutations(range(12)))
def test_offsets_have_one_text_whatever_order_they_came_in(order: list[int]) -> None:
    def text(numbers: list[int]) -> str:
        shards = {number: number * 3 for number in numbers}
        streams = {str(number): StreamPositions(id=number, shards=shards) for number in numbers}
        return repr(Positions(query="q", streams=streams).to_json())

    assert text(order) == text(list(range(12)))


def test_offsets_survive_spark() -> None:
    positions = Positions(query="q", streams={"orders": StreamPositions(id=7, shards={0: 3, 11: 2**62})})
    assert positions_of(positions.to_json()) == positions
    batch = manifest_of("q", [replace(span(3, 5, 9), owner=Owner(1, 42, False))], {"orders": 7})
    assert manifest(batch.to_json()) == batch
    with pytest.raises(InvalidInput, match="member=true; go on as a member"):
        positions_of(batch.to_json())


@pytest.mark.parametrize(
    "foreign",
    [{"partition": 3}, {"shoal": 99, "query": "q", "streams": {}}, {"shoal": 1, "query": "q", "batch": []}],
)
def test_offsets_of_others_are_refused(foreign: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="checkpointLocation="):
        positions_of(foreign)


# --- Filters. ---


def test_bounds_cut_what_they_say() -> None:
    bounds = Bounds(shards=frozenset([0, 1]), low=5).both(Bounds(shard_high=1, high=9))
    assert bounds.cut("orders", 0, 0, 100) == (5, 9)
    assert bounds.cut("orders", 0, 9, 100) is None
    assert bounds.cut("orders", 1, 0, 100) is None
    assert Bounds(streams=frozenset(["carts"])).cut("orders", 0, 0, 1) is None


def test_what_lanes_have_done_beyond_a_position_is_left_out_until_it_has_been_passed() -> None:
    info = stream(TWO.shards)
    info = replace(
        info, shards=tuple(replace(shard, first_offset=0, next_offset=100) for shard in info.shards)
    )
    first = Positions(
        query="q", streams={"orders": StreamPositions(id=7, shards={0: Checkpoint(3, [(3, 50)]), 1: 9})}
    )
    seen: list[tuple[int, int, int, tuple[tuple[int, ...], ...]]] = []
    start = positions_of(first.to_json())
    while not seen or seen[-1][2] < 100:
        at = standing(info, start.streams["orders"].shards, strict=True)
        chosen = [one.part(one.start, min(one.start + 40, one.end)) for one in due(info, at, in_order=True)]
        shards = reached(at, chosen)
        end = Positions(query="q", streams={"orders": StreamPositions(id=7, shards=shards)})
        end = positions_of(end.to_json())
        seen += [(one.shard, one.start, one.end, one.beyond) for one in between(start, end)]
        start = end
    marks = ((3, 50),)
    assert [one for one in seen if one[0] == 0] == [(0, 3, 43, marks), (0, 43, 83, marks), (0, 83, 100, ())]
    assert all(not one[3] for one in seen if one[0] == 1)
    assert "beyond" not in start.to_json()["streams"]["orders"]


def test_of_a_first_batch_its_end_says_what_lanes_had_done_where_it_began() -> None:
    begun = {"orders": StreamPositions(id=7, shards={0: Checkpoint(3, [(3, 50)])})}
    end = Positions(query="q", streams={"orders": StreamPositions(id=7, shards={0: 60})}, first=begun)
    (one,) = between(Positions(query="other"), positions_of(end.to_json()))
    assert (one.start, one.end, one.beyond) == (3, 60, ((3, 50),))


def test_where_a_query_stands_is_where_it_can_read_on() -> None:
    shards = tuple(replace(shard, first_offset=5, next_offset=20) for shard in TWO.shards)
    info = replace(TWO, shards=shards)
    assert standing(info, {0: 7, 1: 20}, strict=True) == {0: 7, 1: 20}
    with pytest.raises(OffsetExpired):
        standing(info, {0: 4, 1: 20}, strict=True)
    passed = standing(info, {0: Checkpoint(4, [(4, 9)]), 1: 21}, strict=False)
    assert passed == {0: 5, 1: 20}
    assert beyond(passed[0]) == ((4, 9),), "what was done beyond it is done all the same"
    unread = replace(
        TWO, shards=tuple(replace(shard, first_offset=0, next_offset=20) for shard in TWO.shards)
    )
    assert standing(unread, {0: 0}, strict=True) == {0: 0}, "of one that was not begun nothing is said"


@pytest.mark.parametrize(
    ("asked", "said", "order"),
    [
        (None, {"a": None, "b": None}, {"a": True, "b": True}),
        (None, {"a": False, "b": None}, {"a": False, "b": False}),
        (None, {"a": False, "b": None, "c": True}, {"a": False, "b": True, "c": True}),
        (False, {"a": True, "b": None}, {"a": False, "b": False}),
        (True, {"a": False}, {"a": True}),
        (None, {}, {}),
    ],
)
def test_streams_are_in_order_as_their_groups_say_and_new_groups_as_the_others(
    asked: bool | None, said: dict[str, bool | None], order: dict[str, bool]
) -> None:
    assert in_order(asked, said) == order


def test_positions_of_a_stream_that_was_made_anew_are_none() -> None:
    positions = StreamPositions(id=7, shards={0: 3})
    assert positions_in(positions, 7) == {0: 3}
    assert positions_in(positions, 8) == positions_in(None, 7) == {}


@pytest.mark.parametrize(
    ("place", "at_first"),
    [
        (None, Place(kind=Kind.EARLIEST)),
        (Place(kind=Kind.GROUP), Place(kind=Kind.EARLIEST)),
        (Place(kind=Kind.LATEST), Place(kind=Kind.LATEST)),
        (Place(kind=Kind.TIME, time_ms=5), Place(kind=Kind.TIME, time_ms=5)),
    ],
)
def test_a_group_begins_where_the_query_does_and_on_later_streams_at_their_first_record(
    place: Place | None, at_first: Place
) -> None:
    assert group_place(place, is_first=True) == at_first
    assert group_place(place, is_first=False) == Place(kind=Kind.EARLIEST)
