"""Splitting and merging by load, over values: loads fall on the ring, looks are taken, changes are made."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.model import Scaling, Shard, ShardId, StreamInfo, StreamName, StreamSettings
from shoal.core.resharding import first_shards
from shoal.core.ring import LOGICAL_PARTITIONS, PARTITION_SIZE, RING_SIZE
from shoal.core.scaling import Cut, Join, Load, Seen, Stuck, changes, cut_of, loads, overloaded, scaled
from tests.unit.lineages import covers

TELL = Scaling(records_per_s=100, shards_min=1, shards_max=16, cool_down_s=60)


def stream_of(shards: tuple[Shard, ...]) -> StreamInfo:
    return StreamInfo(
        full_name=StreamName("default", "orders"), id=1, version=1, settings=StreamSettings(), shards=shards
    )


class World:
    """A stream under a load: places on the ring, each with its records a second."""

    def __init__(self, shards: int, load: dict[int, float], scaling: Scaling = TELL) -> None:
        self.stream = stream_of(first_shards(shards, 0))
        self.load, self.scaling, self.now_ms = load, scaling, 0

    def of(self, shard: Shard) -> float:
        return sum(rate for place, rate in self.load.items() if shard.begin <= place < shard.end)

    def step(self, seconds: float = 61.0) -> list[Cut | Join | Stuck]:
        """Time passes, records come, somebody looks."""
        before = Seen.of(self.stream, self.now_ms)
        self.now_ms += int(seconds * 1000)
        grown = tuple(
            replace(shard, next_offset=shard.next_offset + int(self.of(shard) * seconds), bytes=0)
            if shard.is_open
            else shard
            for shard in self.stream.shards
        )
        self.stream = stream_of(grown)
        took = loads(before, self.stream, self.now_ms)
        places = {shard: self.sample(shard) for shard in overloaded(took, self.scaling)}
        steps = changes(self.stream, took, places, self.scaling, self.now_ms)
        self.stream = stream_of(scaled(self.stream, steps, self.scaling, self.now_ms))
        assert covers(self.stream.shards)
        return steps

    def sample(self, shard: ShardId) -> Sequence[int]:
        one = self.stream.shards[shard]
        inside = {place: rate for place, rate in self.load.items() if one.begin <= place < one.end}
        return random.Random(shard).choices(list(inside), list(inside.values()), k=1000)

    def settle(self) -> int:
        """Looks until nothing changes any more; how many it took."""
        for looks in range(60):
            if all(isinstance(step, Stuck) for step in self.step()):
                return looks
        raise AssertionError(f"still changing: {self.rates}")

    @property
    def rates(self) -> list[float]:
        return [self.of(shard) for shard in self.stream.open_shards]


def even(rate: float, places: int = 512) -> dict[int, float]:
    return {i * RING_SIZE // places: rate / places for i in range(places)}


def test_an_even_load_gets_as_many_shards_as_it_needs_and_no_more() -> None:
    """No shard was cut that had not too much: so there are at most two for each that is needed."""
    world = World(2, even(1200), replace(TELL, shards_max=64))
    world.settle()
    assert max(world.rates) <= 100
    assert 12 <= len(world.stream.open_shards) <= 24
    assert all(shard.begin % PARTITION_SIZE == 0 for shard in world.stream.open_shards)


def test_a_hot_range_is_cut_where_its_load_halves() -> None:
    """All of it in a hundredth of the ring: halving the ring would take seven splits to get there."""
    crowd = {RING_SIZE // 3 + i * RING_SIZE // 100_000: 0.36 for i in range(500)}
    world = World(1, crowd)
    assert world.settle() <= 2
    assert len(world.stream.open_shards) == 2
    assert max(world.rates) <= 100


def test_one_hot_key_is_not_cut_but_told() -> None:
    world = World(2, {**even(20), 12345 << 70: 500.0})
    steps = world.step()
    assert [type(step) for step in steps] == [Stuck]
    assert len(world.stream.open_shards) == 2


def test_when_the_load_has_gone_shards_are_merged_down_to_the_least() -> None:
    world = World(2, even(1500), replace(TELL, shards_min=3))
    world.settle()
    world.load = even(5)
    world.settle()
    assert len(world.stream.open_shards) == 3


def test_nothing_is_merged_while_something_else_must_be_split() -> None:
    world = World(4, {1: 0.1, **{RING_SIZE - 1 - i * RING_SIZE // 3000: 0.5 for i in range(500)}})
    assert [type(step) for step in world.step()] == [Cut]


def test_a_shard_born_within_the_cool_down_is_left_alone() -> None:
    world = World(1, even(1000))
    assert len(world.step(61)) == 1
    assert world.step(30) == []  # Born 30 s ago, and each still has five times too much.
    assert len(world.step(31)) == 2


def test_the_most_there_may_be_is_never_passed() -> None:
    world = World(1, even(10_000), replace(TELL, shards_max=5))
    world.settle()
    assert len(world.stream.open_shards) == 5


def test_who_decided_on_what_another_has_changed_changes_nothing() -> None:
    stream = stream_of(first_shards(2, 0))
    steps: list[Cut | Join] = [Cut(shard=ShardId(0), at=None), Join(left=ShardId(0), right=ShardId(1))]
    once = stream_of(scaled(stream, steps[:1], TELL, 5))
    assert scaled(once, steps, TELL, 6) == once.shards


def test_what_was_decided_elsewhere_meanwhile_does_not_lead_past_the_limits() -> None:
    """Two who look at once see the same room for one more, or one to spare, and take it each elsewhere."""
    stream = stream_of(first_shards(4, 0))
    one, other = (Cut(shard=ShardId(i), at=None) for i in (0, 3))
    at_most = replace(TELL, shards_max=5)
    after = stream_of(scaled(stream, [one], at_most, 5))
    assert scaled(after, [other], at_most, 6) == after.shards
    left, right = (Join(left=ShardId(i), right=ShardId(i + 1)) for i in (0, 2))
    at_least = replace(TELL, shards_min=3)
    after = stream_of(scaled(stream, [left], at_least, 5))
    assert scaled(after, [right], at_least, 6) == after.shards


def test_bytes_are_records_at_the_size_that_the_kept_ones_have() -> None:
    """Retention takes bytes away while records come: the difference of two sums would say nothing."""
    shard = replace(first_shards(1, 0)[0], first_offset=0, next_offset=100, bytes=1000)
    before = Seen.of(stream_of((shard,)), 0)
    later = replace(shard, first_offset=190, next_offset=200, bytes=100)
    found = loads(before, stream_of((later,)), 10_000)
    assert found == {0: Load(records=10.0, bytes=100.0)}
    assert found[ShardId(0)].of_limit(Scaling(records_per_s=100, bytes_per_s=50)) == 2
    assert loads(before, stream_of((later,)), 0) == {}


def test_shards_born_since_the_look_before_are_not_judged() -> None:
    before = Seen.of(stream_of(first_shards(1, 0)), 0)
    after = stream_of(scaled(stream_of(first_shards(1, 0)), [Cut(shard=ShardId(0), at=None)], TELL, 1))
    assert loads(before, after, 1000) == {}


@pytest.mark.parametrize("places", [[], [5] * 10])
def test_without_a_sample_that_says_more_the_middle_is_meant(places: list[int]) -> None:
    assert cut_of(first_shards(1, 0)[0], places) == (True, None)


def test_two_hot_keys_side_by_side_are_parted() -> None:
    places = [1000] * 500 + [1001] * 500
    helps, at = cut_of(first_shards(1, 0)[0], places)
    assert (helps, at) == (True, 1001)
    lone = replace(first_shards(1, 0)[0], begin=1000, end=1001)
    assert cut_of(lone, [1000] * 500) == (False, None)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 8),
    st.dictionaries(st.integers(0, RING_SIZE - 1), st.floats(0.01, 300), min_size=1, max_size=40),
    st.integers(1, 4),
    st.integers(4, 20),
    st.sampled_from([0.0, 0.1, 0.25, 0.5]),
)
def test_under_a_load_that_stays_changes_come_to_an_end_within_the_limits(
    shards: int, load: dict[int, float], least: int, most: int, merge_below: float
) -> None:
    told = replace(TELL, shards_min=least, shards_max=most, merge_below=merge_below)
    world = World(shards, load, told)
    began = len(world.stream.open_shards)
    world.settle()
    after = len(world.stream.open_shards)
    assert min(began, least) <= after <= max(began, most)
    if after < most:
        for shard, rate in zip(world.stream.open_shards, world.rates, strict=True):
            helps, _ = cut_of(shard, world.sample(shard.id) if rate else ())
            assert rate <= 101 or not helps, "too much is left on a shard that a cut would help"


def test_logical_partitions_stay_whole_where_it_costs_little() -> None:
    """A cut at an edge may be a tenth worse than the best."""
    spread = [i * RING_SIZE // 5000 + 17 for i in range(5000)]
    helps, at = cut_of(first_shards(1, 0)[0], spread)
    assert helps
    assert at is not None
    assert at % PARTITION_SIZE == 0
    assert abs(at // PARTITION_SIZE - LOGICAL_PARTITIONS // 2) <= 1
