"""The map of a stream, against a plain look at every shard."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.model import StreamInfo, StreamName, StreamSettings
from shoal.core.ring import RING_SIZE
from shoal.core.routing import ShardMap
from tests.unit.lineages import Shards, lineages


def stream_of(shards: Shards) -> StreamInfo:
    return StreamInfo(
        full_name=StreamName("default", "s"), id=1, version=3, settings=StreamSettings(), shards=shards
    )


@given(lineages(), st.lists(st.integers(0, RING_SIZE - 1), max_size=20))
def test_every_place_has_exactly_the_open_shard_that_owns_it(shards: Shards, places: list[int]) -> None:
    shard_map = ShardMap.of(stream_of(shards))
    assert shard_map.version == 3
    edges = [edge for shard in shards for edge in (shard.begin, shard.end - 1)]
    for place in places + edges:
        (owner,) = [shard.id for shard in shards if shard.is_open and shard.begin <= place < shard.end]
        assert shard_map.shard_at(place) == owner


@given(lineages(), st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_the_upper_halves_route_64_bit_hashes_as_whole_places_do(shards: Shards, hashes: list[int]) -> None:
    shard_map = ShardMap.of(stream_of(shards))
    bounds = shard_map.upper_begins()
    near = [bound + step for bound in bounds for step in (-1, 0, 1) if 0 <= bound + step < 2**64]
    for value in hashes + near:
        index = sum(bound <= value for bound in bounds) - 1
        assert shard_map.ids[index] == shard_map.shard_at(value << 64)


@given(lineages(), st.data())
def test_a_map_of_the_past_is_followed_one_generation_at_a_time_to_the_map_of_today(
    shards: Shards, data: st.DataObject
) -> None:
    stream = stream_of(shards)
    by_id = {shard.id: shard for shard in shards}
    first = sum(not shard.parents for shard in shards)
    current = ShardMap.as_of(stream, data.draw(st.integers(first, len(shards)).filter(_is_whole(stream))))
    while shut := [shard for shard in current.ids if not by_id[shard].is_open]:
        closed = data.draw(st.sampled_from(shut))
        current = current.past(stream, closed)
        ranges = [(by_id[shard].begin, by_id[shard].end) for shard in current.ids]
        assert [begin for begin, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
        assert ranges[-1][1] == RING_SIZE
        assert closed not in current.ids
    assert current == ShardMap.of(stream)


def _is_whole(stream: StreamInfo) -> Callable[[int], bool]:
    """Whether the stream can have had so many shards: the two children of a split come together."""
    return lambda born: (
        born == len(stream.shards)
        or (
            stream.shards[born].parents == ()
            or stream.shards[born].parents != stream.shards[born - 1].parents
        )
    )
