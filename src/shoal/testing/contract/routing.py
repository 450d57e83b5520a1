"""Routing: a stream made by its first use, keys placed by the user's own function, maps known in time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from shoal import Hub
from shoal.core.errors import InvalidInput, InvalidName, UnknownProject
from shoal.core.ring import RING_SIZE
from shoal.testing.contract.suite import HubSuite
from shoal.testing.reading import read_stream, values_by_key


def by_region(key: bytes) -> int:
    """The first letter decides: a to z over the ring."""
    return (key[0] - ord("a")) * RING_SIZE // 26


class RoutingContract(HubSuite):
    def test_a_stream_is_made_by_its_first_use_only_if_that_is_said(self, hub: Hub, orders: str) -> None:
        with pytest.raises(UnknownProject):
            hub.producer(orders)
        with hub.producer(orders, create=True) as producer:
            producer.send(b"x", key="a").result()
        assert len(hub.describe_stream(orders).shards) == 2
        with hub.producer(orders, create=True) as producer:
            producer.send(b"y", key="a").result()
        assert len(hub.describe_stream(orders).shards) == 2
        assert values_by_key(hub, orders) == {b"a": [b"x", b"y"]}
        with pytest.raises(InvalidInput, match="create="):
            hub.producer(orders, create="yes")  # type: ignore[arg-type]
        with pytest.raises(InvalidName):
            hub.producer("no/such/name", create=True)

    def test_many_first_uses_at_once_make_one_stream(self, hub: Hub, orders: str) -> None:
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(lambda _: hub.ensure_stream(orders, shards=3), range(6)))
        assert len({info.id for info in found}) == 1
        assert [len(info.shards) for info in found] == [3] * 6

    def test_a_partitioner_places_keys_by_its_own_rule(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        table = pa.table({"key": ["apple", "zebra", None, "ant"], "value": ["3", "4", "5", "6"]})
        with hub.producer(orders, partitioner=by_region) as producer:
            for key in ("alpha", "omega"):
                producer.send(b"1", key=key)
            producer.send(b"2", key="omega", hash_key=0)
            producer.send_batch(table)
        found = {
            shard: {(record.key, record.value) for record in records if record.key is not None}
            for shard, records in read_stream(hub, orders).items()
        }
        assert found == {
            0: {(b"alpha", b"1"), (b"omega", b"2"), (b"apple", b"3"), (b"ant", b"6")},
            1: {(b"omega", b"1"), (b"zebra", b"4")},
        }

    def test_what_a_partitioner_placed_moves_with_its_shard(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        with hub.producer(orders, partitioner=by_region, linger_s=30, refresh_s=60) as producer:
            producer.send(b"0", key="alpha")
            producer.send(b"0", key="omega")
            hub.reshard(orders, 2)
            producer.send(b"1", key="omega")
            table = pa.table({"key": ["omega", "alpha"] * 50, "value": [str(i) for i in range(2, 102)]})
            producer.send_batch(table).result()
        found = read_stream(hub, orders)
        assert {shard: {record.key for record in records} for shard, records in found.items()} == {
            0: set(),
            1: {b"alpha"},
            2: {b"omega"},
        }
        assert values_by_key(hub, orders)[b"omega"] == [b"0", b"1", *(b"%d" % i for i in range(2, 102, 2))]

    @pytest.mark.parametrize("place", [-1, RING_SIZE, 1.5, "xyz", None])
    def test_a_partitioner_that_returns_nonsense_is_refused(
        self, hub: Hub, orders: str, place: int | str
    ) -> None:
        hub.create_stream(orders)
        with hub.producer(orders, partitioner=lambda _: place) as producer:
            with pytest.raises(InvalidInput, match=r"^partitioner="):
                producer.send(b"x", key="a")
            with pytest.raises(InvalidInput, match=r"^partitioner="):
                producer.send_batch(pa.table({"key": ["a"], "value": ["x"]}))
            producer.send(b"fine")
        assert values_by_key(hub, orders) == {None: [b"fine"]}
        with pytest.raises(InvalidInput, match=r"^partitioner="):
            hub.producer(orders, partitioner="by region")

    @pytest.mark.parametrize(("refresh_s", "refused"), [(0, 0), (600, 1)])
    def test_a_producer_follows_a_split_before_it_is_refused_if_it_looks_in_time(
        self, hub: Hub, orders: str, refresh_s: float, refused: int
    ) -> None:
        hub.create_stream(orders, shards=1)
        with hub.producer(orders, refresh_s=refresh_s, linger_s=0) as producer:
            producer.send(b"0", key="a").result()
            hub.split_shard(orders, 0)
            assert producer.send(b"1", key="a").result().shard in {1, 2}
            stats = producer.stats
        assert (stats.records, stats.batches, stats.moved, stats.failed) == (2, 2, 1, 0)
        assert stats.refused == refused
        assert values_by_key(hub, orders) == {b"a": [b"0", b"1"]}
