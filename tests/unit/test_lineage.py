"""Families of shards, and what a group may read when; against definitions written out plainly."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.lineage import ancestors, check_cover, children, descendants, ended, readable
from shoal.core.model import ShardStatus
from tests.unit.lineages import Shards, lineages


def plain_ancestors(shards: Shards, shard: int) -> set[int]:
    found: set[int] = set()
    for parent in shards[shard].parents:
        found |= {parent} | plain_ancestors(shards, parent)
    return found


@given(lineages())
def test_ancestors_and_descendants_are_two_sides_of_one_relation(shards: Shards) -> None:
    for shard in shards:
        assert ancestors(shards, shard.id) == sorted(plain_ancestors(shards, shard.id))
        assert descendants(shards, shard.id) == [
            other.id for other in shards if shard.id in plain_ancestors(shards, other.id)
        ]
        assert children(shards, shard.id) == [other.id for other in shards if shard.id in other.parents]


@st.composite
def partly_read(draw: st.DrawFn) -> tuple[Shards, dict[int, int]]:
    """A lineage with records in it, and the checkpoints of some group."""
    shards = tuple(replace(shard, next_offset=draw(st.integers(0, 2))) for shard in draw(lineages()))
    checkpoints: dict[int, int] = {
        shard.id: draw(st.integers(0, shard.next_offset)) for shard in shards if draw(st.booleans())
    }
    return shards, checkpoints


@given(partly_read())
def test_a_shard_is_ended_when_it_is_closed_read_and_so_is_every_ancestor(
    world: tuple[Shards, dict[int, int]],
) -> None:
    shards, checkpoints = world

    def is_read(shard: int) -> bool:
        found = shards[shard]
        return found.status is ShardStatus.CLOSED and (
            found.next_offset == 0 or checkpoints.get(shard, 0) == found.next_offset
        )

    wanted = {
        shard.id
        for shard in shards
        if is_read(shard.id) and all(is_read(parent) for parent in plain_ancestors(shards, shard.id))
    }
    assert ended(shards, checkpoints) == wanted


@given(partly_read())
def test_an_in_order_group_reads_a_shard_only_after_all_its_ancestors_have_ended(
    world: tuple[Shards, dict[int, int]],
) -> None:
    shards, checkpoints = world
    over = ended(shards, checkpoints)
    has_more = [s.id for s in shards if s.is_open or checkpoints.get(s.id, 0) < s.next_offset]
    assert readable(shards, checkpoints, in_order=False) == has_more
    assert readable(shards, checkpoints) == [
        shard for shard in has_more if plain_ancestors(shards, shard) <= over
    ]


@given(partly_read())
def test_a_group_that_reads_what_it_may_comes_to_the_open_shards_in_the_end(
    world: tuple[Shards, dict[int, int]],
) -> None:
    shards, checkpoints = world
    for _ in range(len(shards) + 1):
        for shard in readable(shards, checkpoints):
            checkpoints[shard] = shards[shard].next_offset
    assert readable(shards, checkpoints) == [shard.id for shard in shards if shard.is_open]


@given(lineages())
def test_reading_in_order_of_ids_puts_every_shard_after_its_ancestors(shards: Shards) -> None:
    for shard in shards:
        assert all(ancestor < shard.id for ancestor in ancestors(shards, shard.id))


@given(lineages(), st.data())
def test_a_ring_that_is_covered_has_no_fault_and_any_other_has(shards: Shards, data: st.DataObject) -> None:
    assert check_cover(shards) is None
    hurt = data.draw(st.sampled_from([shard for shard in shards if shard.is_open]))
    others = [shard for shard in shards if shard != hurt]
    assert check_cover([*others, replace(hurt, status=ShardStatus.CLOSED)]) is not None
    assert check_cover([*others, replace(hurt, end=hurt.end + 1)]) is not None
    assert check_cover([*others, replace(hurt, begin=hurt.begin + 1)]) is not None
    assert check_cover([*shards, hurt]) is not None
