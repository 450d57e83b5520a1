"""Retention: by age and by size, on demand and by itself; what is kept stays dense and readable."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from shoal import Hub
from shoal.testing.contract.suite import ConnectAgain, HubSuite
from shoal.testing.reading import read_shard, read_stream, unchanged, until


class RetentionContract(HubSuite):
    def test_without_retention_nothing_goes(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"a"])
        with unchanged(hub, orders):
            assert hub.enforce_retention(orders) == []

    def test_what_is_younger_than_its_retention_stays(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1, retention=3600, retention_bytes=10**9)
        hub.append(orders, 0, [b"a"])
        with unchanged(hub, orders):
            assert hub.enforce_retention(orders) == []

    def test_by_age_a_shard_may_be_emptied_and_its_offsets_go_on(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2, retention=0.001)
        hub.append(orders, 0, [b"a"] * 3)
        until(lambda: hub.enforce_retention(orders))
        shard = hub.describe_stream(orders).shards[0]
        assert (shard.first_offset, shard.next_offset, shard.bytes) == (3, 3, 0)
        figures = hub.stats(orders)
        assert (figures.records, figures.bytes, figures.batches, figures.appended) == (0, 0, 0, 3)
        assert hub.append(orders, 0, [b"b"]).first_offset == 3

    def test_by_size_the_oldest_go_first_until_the_stream_is_within(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1, compression="none")
        for i in range(10):
            hub.append(orders, 0, [b"%d" % i * 1000])
        one = hub.stats(orders).bytes // 10
        hub.set_retention(orders, retention_bytes=one * 4)
        trimmed = hub.enforce_retention(orders)
        assert [(t.shard, t.first_offset, t.records) for t in trimmed] == [(0, 6, 6)]
        assert sum(t.bytes for t in trimmed) == one * 6
        figures = hub.stats(orders)
        assert (figures.records, figures.bytes, figures.batches) == (4, one * 4, 4)
        assert [record.value[:1] for record in read_shard(hub, orders, 0)] == [b"6", b"7", b"8", b"9"]

    def test_by_size_the_newest_batch_of_every_shard_stays(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=3, retention_bytes=1)
        for _ in range(3):
            for shard in (0, 2):
                hub.append(orders, shard, [b"x" * 100] * 5)
        until(lambda: hub.enforce_retention(orders))
        found = {shard: len(records) for shard, records in read_stream(hub, orders).items()}
        assert found == {0: 5, 1: 0, 2: 5}
        with unchanged(hub, orders):
            assert hub.enforce_retention(orders) == []

    def test_more_batches_than_one_step_removes_go_in_one_call(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        with hub.producer(orders, batch_records=1, linger_s=0) as producer:
            for i in range(600):
                producer.send(b"%d" % i)
        hub.set_retention(orders, retention_bytes=1)
        hub.enforce_retention(orders)
        assert hub.stats(orders).batches == 1
        assert [record.value for record in read_shard(hub, orders, 0)] == [b"599"]

    def test_closed_shards_are_trimmed_too(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1, retention=0.001)
        hub.append(orders, 0, [b"a"] * 3)
        hub.split_shard(orders, 0)
        until(lambda: hub.enforce_retention(orders))
        shard = hub.describe_stream(orders).shards[0]
        assert (shard.status, shard.first_offset, shard.next_offset) == ("closed", 3, 3)
        assert hub.read(orders, 0, 3).end_of_shard

    def test_retention_of_one_stream_leaves_others_alone(self, hub: Hub, project: str) -> None:
        for name in ("short", "long"):
            hub.create_stream(f"{project}/{name}", shards=1)
            hub.append(f"{project}/{name}", 0, [b"a"])
        hub.set_retention(f"{project}/short", retention=0.001)
        with unchanged(hub, f"{project}/long"):
            until(lambda: hub.enforce_retention(f"{project}/short"))
        assert hub.stats(f"{project}/short").records == 0

    def test_without_a_name_every_stream_is_kept_in_order(self, hub: Hub, project: str) -> None:
        for name in ("a", "b"):
            hub.create_stream(f"{project}/{name}", shards=1, retention=0.001)
            hub.append(f"{project}/{name}", 0, [b"x"])

        def is_empty() -> bool:
            hub.enforce_retention()
            return all(hub.stats(f"{project}/{name}").records == 0 for name in ("a", "b"))

        until(is_empty)

    def test_retention_runs_by_itself(self, hub: Hub, orders: str, connect_again: ConnectAgain) -> None:
        hub.create_stream(orders, shards=1, retention=0.001)
        hub.append(orders, 0, [b"a"] * 3)
        connect_again(housekeeping_s=0.02)
        until(lambda: hub.first_offset(orders, 0) == 3)

    def test_retention_goes_on_by_itself_while_shards_are_split_and_written(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        # A stream that is split between the keeper's look at it and its removing must not end the keeper.
        hub.create_stream(orders, shards=1, retention=0.001)
        keeper = connect_again()
        with ThreadPoolExecutor(1) as threads:
            is_over = False

            def keep() -> None:
                while not is_over:
                    keeper.enforce_retention(orders)

            keeping = threads.submit(keep)
            try:
                newest = 0
                for _ in range(8):
                    hub.append(orders, newest, [b"x"])
                    _, right = hub.split_shard(orders, newest)
                    newest = right.id
                    hub.append(orders, newest, [b"x"])
            finally:
                is_over = True
            keeping.result(20)
        until(lambda: hub.enforce_retention(orders) or hub.stats(orders).records == 0)
