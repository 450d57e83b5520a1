"""Split, merge and reshard over values: the ring stays covered, ids are dense, and no way is shorter."""

from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shoal.core.errors import InvalidInput, ShardChangeRefused
from shoal.core.model import Shard, ShardStatus
from shoal.core.resharding import first_shards, merge, reshard, split
from shoal.core.ring import LOGICAL_PARTITIONS, PARTITION_SIZE, RING_SIZE
from tests.unit.lineages import Shards, covers, cuts_of, lineages


def steps_between(before: Shards, after: Shards) -> int:
    """Splits and merges that the lineage shows: each made children of one set of parents."""
    born = Counter(shard.parents for shard in after[len(before) :])
    assert all(len(parents) in {1, 2} for parents in born)
    for parents, children in born.items():
        assert children == (2 if len(parents) == 1 else 1)
    return len(born)


@given(lineages(), st.data())
def test_any_change_keeps_the_ring_covered_ids_dense_and_the_past_as_it_was(
    before: Shards, data: st.DataObject
) -> None:
    alive = sorted((shard for shard in before if shard.is_open), key=lambda shard: shard.begin)
    one = data.draw(st.integers(0, len(alive) - 1))
    kind = data.draw(st.sampled_from(["split", "merge", "reshard"]))
    if kind == "split":
        assume(alive[one].end - alive[one].begin > 1)
        after = split(before, alive[one], None, 99)
    elif kind == "merge":
        assume(one + 1 < len(alive))
        after = merge(before, alive[one], alive[one + 1], 99)
    else:
        after = reshard(before, data.draw(st.integers(1, 40)), 99)
    assert covers(after)
    assert [shard.id for shard in after] == list(range(len(after)))
    for old, new in zip(before, after, strict=False):
        closed = replace(old, status=ShardStatus.CLOSED, closed_ms=99)
        assert new in ({old, closed} if old.is_open else {old})
    for child in after[len(before) :]:
        assert all(parent < child.id for parent in child.parents)
        assert not any(after[parent].is_open for parent in child.parents)
        inherited = sorted((after[parent].begin, after[parent].end) for parent in child.parents)
        assert inherited[0][0] <= child.begin < child.end <= inherited[-1][1]
        assert (child.first_offset, child.next_offset, child.created_ms) == (0, 0, 99)


@given(lineages(shards_max=30), st.integers(1, 60))
def test_reshard_gets_to_equal_shards_in_as_many_steps_as_cuts_differ(before: Shards, count: int) -> None:
    after = reshard(before, count, 1)
    alive = sorted((shard for shard in after if shard.is_open), key=lambda shard: shard.begin)
    sizes = [shard.end - shard.begin for shard in alive]
    assert len(alive) == count
    assert max(sizes) - min(sizes) <= PARTITION_SIZE
    assert all(shard.begin % PARTITION_SIZE == 0 for shard in alive)
    assert steps_between(before, after) == len(cuts_of(before) ^ cuts_of(after))


@given(lineages(changes_max=6), st.sampled_from([1, 2, 3, 4, 5, 6, 7, 9, 11, 12]))
def test_of_all_equal_shards_reshard_takes_those_with_the_fewest_steps(before: Shards, count: int) -> None:
    # A split adds one cut and a merge takes one away, so that the way to some cuts is never shorter than the
    # number of cuts that differ. Here are all ways to give out the partitions that are left over.
    size, extra = divmod(LOGICAL_PARTITIONS, count)
    have = cuts_of(before)
    fewest = min(
        len(have ^ {sum(size + (j in long) for j in range(i)) * PARTITION_SIZE for i in range(1, count)})
        for long in combinations(range(count), extra)
    )
    assert steps_between(before, reshard(before, count, 1)) == fewest


def test_on_a_small_ring_no_way_of_splits_and_merges_is_shorter_than_the_cuts_that_differ() -> None:
    # All cuts of a ring of six cells, and by breadth first the least number of steps from each to each.
    all_cuts = [frozenset(cuts) for n in range(6) for cuts in combinations(range(1, 6), n)]
    for start in all_cuts:
        steps = {start: 0}
        waiting = [start]
        for state in waiting:
            for cut in range(1, 6):
                after = state ^ {cut}  # A split at this cut, or a merge over it.
                if after not in steps:
                    steps[after] = steps[state] + 1
                    waiting.append(after)
        assert steps == {goal: len(start ^ goal) for goal in all_cuts}


@pytest.mark.parametrize("count", [1, 2, 3, 1000, 1023, 1024, 1025, 3000, 4095, 4096])
def test_reshard_reaches_any_number_from_any_other_and_comes_back_along_a_shallow_lineage(count: int) -> None:
    start = first_shards(7, 0)
    there = reshard(start, count, 1)
    assert covers(there)
    assert sum(shard.is_open for shard in there) == count
    back = reshard(there, 7, 2)
    assert covers(back)
    assert max(_depths(back)) <= 2 * 14


def _depths(shards: Shards) -> list[int]:
    depths: list[int] = []
    for shard in shards:
        depths.append(1 + max((depths[parent] for parent in shard.parents), default=0))
    return depths


@given(lineages())
def test_reshard_to_the_number_of_equal_shards_there_are_changes_nothing(shards: Shards) -> None:
    count = sum(shard.is_open for shard in shards)
    equal = reshard(shards, count, 1)
    assert reshard(equal, count, 2) == equal


@given(st.integers(0, 1023), st.integers(1, 1024))
def test_the_middle_of_a_shard_of_whole_partitions_is_between_partitions(first: int, count: int) -> None:
    last = min(first + count, 1024)
    shard = Shard(id=0, begin=first * PARTITION_SIZE, end=last * PARTITION_SIZE)  # type: ignore[arg-type]
    cut = split((shard,), shard, None, 1)[1].end
    if last - first > 1:
        assert cut % PARTITION_SIZE == 0
    low, high = cut - shard.begin, shard.end - cut
    assert min(low, high) > 0
    assert abs(low - high) <= PARTITION_SIZE


def test_splitting_again_and_again_ends_at_one_place() -> None:
    shards = first_shards(1, 0)
    for _ in range(128):
        shards = split(shards, shards[-1], None, 1)
    narrow = shards[-1]
    assert narrow.end - narrow.begin >= 1
    while narrow.end - narrow.begin > 1:
        shards = split(shards, narrow, None, 1)
        narrow = shards[-1]
    with pytest.raises(ShardChangeRefused):
        split(shards, narrow, None, 1)


@given(lineages(changes_max=3), st.data())
def test_a_split_takes_any_hash_inside_and_none_outside_or_on_the_edge(
    shards: Shards, data: st.DataObject
) -> None:
    shard = data.draw(st.sampled_from([shard for shard in shards if shard.is_open]))
    assume(shard.end - shard.begin > 1)
    inside = data.draw(st.integers(shard.begin + 1, shard.end - 1))
    left, right = split(shards, shard, inside, 1)[-2:]
    assert (left.begin, left.end, right.begin, right.end) == (shard.begin, inside, inside, shard.end)
    outside = data.draw(st.integers(0, RING_SIZE - 1).filter(lambda at: not shard.begin < at < shard.end))
    with pytest.raises(ShardChangeRefused, match="at="):
        split(shards, shard, outside, 1)


@given(lineages(), st.data())
def test_only_open_neighbours_are_merged(shards: Shards, data: st.DataObject) -> None:
    left, right = data.draw(st.sampled_from(shards)), data.draw(st.sampled_from(shards))
    may = left.is_open and right.is_open and (left.end == right.begin or right.end == left.begin)
    if may:
        child = merge(shards, left, right, 1)[-1]
        assert (child.begin, child.end) == (min(left.begin, right.begin), max(left.end, right.end))
    else:
        with pytest.raises(ShardChangeRefused):
            merge(shards, left, right, 1)


@given(lineages())
def test_without_a_second_shard_the_right_neighbour_is_merged(shards: Shards) -> None:
    alive = sorted((shard for shard in shards if shard.is_open), key=lambda shard: shard.begin)
    for left, right in pairwise(alive):
        assert merge(shards, left, None, 1) == merge(shards, left, right, 1)
    with pytest.raises(ShardChangeRefused, match="no right neighbour"):
        merge(shards, alive[-1], None, 1)


def test_a_stream_has_no_more_open_shards_than_the_limit() -> None:
    shards = first_shards(4096, 0)
    with pytest.raises(ShardChangeRefused, match="4096 open shards"):
        split(shards, shards[0], None, 1)
    with pytest.raises(InvalidInput, match="1 to 4096"):
        reshard(shards, 4097, 1)
