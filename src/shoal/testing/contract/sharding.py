"""Split, merge and reshard: one step each, the ring covered, ids never reused, what is closed still there."""

from __future__ import annotations

import pytest

from shoal import Hub, Record, ShardClosed, StreamInfo
from shoal.core.ring import place
from shoal.testing.contract.suite import HubSuite
from shoal.testing.reading import read_shard, unchanged

RING_SIZE = 2**128


def assert_covered(stream: StreamInfo) -> None:
    """Invariant 7: open shards cover the ring exactly."""
    edges = [0]
    for shard in stream.open_shards:
        assert shard.begin == edges[-1]
        assert shard.end > shard.begin
        edges.append(shard.end)
    assert edges[-1] == RING_SIZE
    assert [shard.id for shard in stream.shards] == list(range(len(stream.shards)))


class ShardContract(HubSuite):
    def test_a_split_closes_one_shard_and_opens_two_that_divide_its_range(
        self, hub: Hub, orders: str
    ) -> None:
        before = hub.create_stream(orders, shards=2)
        left, right = hub.split_shard(orders, 1)
        after = hub.describe_stream(orders)
        assert_covered(after)
        assert after.version > before.version
        assert (left.begin, left.end, right.begin, right.end) == (
            RING_SIZE // 2,
            RING_SIZE // 4 * 3,
            RING_SIZE // 4 * 3,
            RING_SIZE,
        )
        assert after.shards[1].status == "closed"
        assert after.shards[1].closed_ms is not None
        assert after.shards[2:] == (left, right)
        assert (left.id, left.parents, right.id, right.parents) == (2, (1,), 3, (1,))

    def test_a_shard_can_be_split_at_any_hash_inside_it(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        left, right = hub.split_shard(orders, 0, at=1)
        assert (left.begin, left.end, right.begin) == (0, 1, 1)
        left, right = hub.split_shard(orders, right.id, at=f"{RING_SIZE - 1:x}")
        assert (left.end, right.begin, right.end) == (RING_SIZE - 1, RING_SIZE - 1, RING_SIZE)
        assert_covered(hub.describe_stream(orders))

    def test_a_merge_closes_two_neighbours_and_opens_one(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=4)
        child = hub.merge_shards(orders, 1, 2)
        after = hub.describe_stream(orders)
        assert_covered(after)
        assert (child.id, child.parents) == (4, (1, 2))
        assert (child.begin, child.end) == (RING_SIZE // 4, RING_SIZE // 4 * 3)
        assert [shard.status for shard in after.shards] == ["open", "closed", "closed", "open", "open"]

    def test_a_merge_without_a_second_shard_takes_the_right_neighbour(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=3)
        assert hub.merge_shards(orders, 1).parents == (1, 2)

    def test_a_merge_takes_its_two_shards_in_either_order(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        child = hub.merge_shards(orders, 1, 0)
        assert (child.begin, child.end) == (0, RING_SIZE)
        assert set(child.parents) == {0, 1}

    @pytest.mark.parametrize(("have", "want"), [(1, 8), (8, 1), (4, 6), (5, 3), (3, 3), (2, 1500)])
    def test_reshard_gets_to_equal_shards(self, hub: Hub, orders: str, have: int, want: int) -> None:
        hub.create_stream(orders, shards=have)
        after = hub.reshard(orders, want)
        assert after == hub.describe_stream(orders)
        assert_covered(after)
        sizes = [shard.end - shard.begin for shard in after.open_shards]
        assert len(sizes) == want
        assert max(sizes) - min(sizes) <= RING_SIZE // 1024

    def test_reshard_to_what_is_there_changes_nothing(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=6)
        with unchanged(hub, orders):
            hub.reshard(orders, 6)

    def test_a_closed_shard_keeps_its_records_and_says_where_it_ends(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"a", b"b"])
        hub.split_shard(orders, 0)
        batch = hub.read(orders, 0, 1)
        assert ([record.value for record in batch], batch.end_of_shard) == ([b"b"], True)
        end = hub.read(orders, 0, 2, wait=30)
        assert (len(end), end.end_of_shard, end.next_offset) == (0, True, 2)

    def test_an_open_shard_has_no_end_and_a_part_of_a_closed_one_is_not_the_end(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"a", b"b"])
        assert not hub.read(orders, 0, 0).end_of_shard
        hub.split_shard(orders, 0)
        assert not hub.read(orders, 0, 0, max_records=1).end_of_shard

    def test_a_child_begins_at_offset_zero_and_is_empty(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"a"])
        left, right = hub.split_shard(orders, 0)
        assert [(shard.first_offset, shard.next_offset) for shard in (left, right)] == [(0, 0), (0, 0)]
        assert hub.append(orders, right.id, [b"b"]).first_offset == 0

    def test_an_append_to_a_closed_shard_is_refused_with_the_new_map(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"a"])
        hub.split_shard(orders, 0)
        with unchanged(hub, orders), pytest.raises(ShardClosed, match=r"shards \[1, 2\]") as caught:
            hub.append(orders, 0, [b"late"])
        assert caught.value.stream == hub.describe_stream(orders)
        assert (caught.value.shard, caught.value.last_sequence) == (0, -1)

    def test_the_map_in_shard_closed_is_the_newest_not_that_of_the_split(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.split_shard(orders, 0)
        hub.merge_shards(orders, 1, 2)
        with pytest.raises(ShardClosed) as caught:
            hub.append(orders, 0, [b"late"])
        assert [shard.id for shard in caught.value.stream.open_shards] == [3]

    def test_every_key_has_one_open_shard_after_any_change(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        hub.split_shard(orders, 0)
        hub.merge_shards(orders, 1, 3)
        stream = hub.reshard(orders, 5)
        with hub.producer(orders) as producer:
            sent = {b"key-%d" % i: producer.send(b"", key=b"key-%d" % i) for i in range(40)}
            for key, future in sent.items():
                shard = future.result(10).shard
                assert stream.shards[shard].begin <= place(key) < stream.shards[shard].end
                assert stream.shards[shard].status == "open"

    def test_a_lineage_can_be_walked_from_children_to_parents(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [Record(0, 1, b"k", b"first")])
        hub.split_shard(orders, 0)
        child = next(s for s in hub.describe_stream(orders).open_shards if s.end > place(b"k"))
        hub.append(orders, child.id, [Record(0, 2, b"k", b"second")])
        (parent,) = child.parents
        chain = [*read_shard(hub, orders, parent), *read_shard(hub, orders, child.id)]
        assert [record.value for record in chain] == [b"first", b"second"]
