"""Where numbered records go by the user's own function, and what producers count."""

from __future__ import annotations

from shoal import Hub
from shoal.core.model import ShardId
from shoal.testing.contract.routing import by_region
from shoal.testing.contract.suite import HubSuite
from shoal.testing.reading import read_stream, values_by_key


class PlacingContract(HubSuite):
    def test_a_numbered_record_goes_where_the_partitioner_says_in_every_life(
        self, hub: Hub, orders: str
    ) -> None:
        """With a key, by the partitioner; without one by its number; in transactions, too."""
        hub.create_stream(orders, shards=2)
        for records in (6, 12):
            with hub.producer(orders, name="till-1", partitioner=by_region) as producer:
                for number in range(records):
                    key = ("alpha", "omega", None)[number % 3]
                    producer.send(b"%d" % number, key=key, number=number)
                producer.flush()
                if records == 6:
                    hub.reshard(orders, 3)
                    with producer.transaction() as transaction:
                        transaction.send(b"in one", key="omega")
        found = values_by_key(hub, orders)
        assert found[b"alpha"] == [b"0", b"3", b"6", b"9"]
        assert found[b"omega"] == [b"1", b"4", b"in one", b"7", b"10"]
        assert set(found[None]) == {b"2", b"5", b"8", b"11"}
        assert len(found[None]) == 4
        shards = {shard.id: shard for shard in hub.describe_stream(orders).shards}
        for shard, records_of in read_stream(hub, orders).items():
            for record in records_of:
                if record.key is not None:
                    place = by_region(record.key)
                    assert shards[ShardId(shard)].begin <= place < shards[ShardId(shard)].end

    def test_a_producer_counts_what_it_does(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        with hub.producer(orders, name="till-1") as producer:
            for number in range(10):
                producer.send(b"x", key=b"%d" % number, number=number)
            producer.flush()
            hub.reshard(orders, 3)
            with producer.transaction() as transaction:
                for number in range(5):
                    transaction.send(b"x", key=b"%d" % number)
            producer.send(b"x", deliver_at=0)
            producer.flush()
            stats = producer.stats
            assert (stats.records, stats.delayed, stats.transactions) == (16, 1, 1)
            assert (stats.failed, stats.repeats, stats.lives, stats.buffered_bytes) == (0, 0, 1, 0)
            assert 0 < stats.batches <= 16
            assert stats.bytes > 16
            assert 0 < stats.calls <= stats.batches + stats.retries + stats.refused
            stats.records = 0  # A copy: nobody else sees this.
            assert producer.stats.records == 16
        with hub.producer(orders, name="till-1") as producer:
            for number in range(12):
                producer.send(b"x", key=b"%d" % number, number=number)
            producer.flush()
            assert (producer.stats.repeats, producer.stats.records) == (10, 2)
