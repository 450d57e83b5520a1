"""Which numbers are stored, against a model that sends record by record through splits and merges."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.model import Shard, ShardId, ShardStatus
from shoal.core.numbering import Stored, place_of_number
from shoal.core.resharding import first_shards, reshard
from shoal.core.ring import LOGICAL_PARTITIONS, PARTITION_SIZE

PLACES = [part * PARTITION_SIZE + 5 for part in range(0, LOGICAL_PARTITIONS, 73)]


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.lists(st.sampled_from(PLACES), max_size=12), st.data()), max_size=6
    )
)
def test_what_is_stored_is_known_and_what_is_not_stored_is_not(
    lives: list[tuple[int, list[int], st.DataObject]],
) -> None:
    shards: tuple[Shard, ...] = first_shards(2, 0)
    numbers: dict[ShardId, int] = {}
    sent: list[int] = []  # The place of each number.
    stored: set[int] = set()
    for count, more, chance in lives:
        shards = reshard(shards, count, 0)
        sent += more
        known = Stored.of(shards, numbers)
        assert {n for n, place in enumerate(sent) if known.has(place, n)} == stored
        # Each shard takes the records that fall into it in order, and stops anywhere.
        for shard in (shard for shard in shards if shard.status is ShardStatus.OPEN):
            due = [n for n, place in enumerate(sent) if shard.begin <= place < shard.end and n not in stored]
            took = due[: chance.draw(st.integers(0, len(due)))]
            stored |= set(took)
            if took:
                numbers[shard.id] = took[-1]
        shards = tuple(replace(shard, next_offset=1) for shard in shards)
    assert Stored.of(shards, numbers).highest == max(stored, default=-1)


def test_numbers_without_a_key_come_to_all_logical_partitions_in_runs() -> None:
    places = [place_of_number(number) for number in range(512 * LOGICAL_PARTITIONS)]
    assert len(set(places)) == LOGICAL_PARTITIONS
    assert len(set(places[:512])) == 1
    assert len({place // (PARTITION_SIZE * 256) for place in places[: 512 * 8]}) == 4
