"""Records that come later: durable at once, delivered once, not before their time, in order per key."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from shoal import Hub, Producer
from shoal.core.errors import InvalidTimestamp
from shoal.testing.contract.suite import ConnectAgain, HubSuite
from shoal.testing.contract.transacting import LostAnswers
from shoal.testing.reading import read_stream, until, values_by_key

SOON_MS = 400


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def later_ms() -> int:
    return now_ms() + SOON_MS


class DelayContract(HubSuite):
    def test_a_record_comes_when_it_is_due_and_not_before(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        with hub.producer(orders) as producer:
            due = datetime.now(UTC) + timedelta(milliseconds=SOON_MS)
            future = producer.send(b"later", key="a", headers={"x": "y"}, timestamp=77, deliver_at=due)
            assert future.result() == (-1, -1)
            assert future.is_delayed
            assert not future.is_repeat
            producer.send(b"now", key="a").result()
        assert hub.count_delayed(orders) == 1
        until(lambda: hub.stats(orders).appended == 2)
        assert datetime.now(UTC) >= due
        assert datetime.now(UTC) < due + timedelta(seconds=10)
        assert values_by_key(hub, orders) == {b"a": [b"now", b"later"]}
        (late,) = [r for shard in read_stream(hub, orders).values() for r in shard if r.value == b"later"]
        assert (late.headers, late.timestamp) == ({"x": b"y"}, 77)
        assert hub.count_delayed(orders) == 0

    def test_those_of_a_key_come_in_the_order_in_which_they_are_due(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=3)
        at = later_ms()
        with hub.producer(orders) as producer:
            for number in range(60):
                # Sent backwards; of two that are due at once, the first sent comes first.
                producer.send(b"%d" % number, key=b"%d" % (number % 4), deliver_at=at - number // 8)
        hub.reshard(orders, 5)
        until(lambda: hub.stats(orders).appended == 60)
        for key, values in values_by_key(hub, orders).items():
            mine = [n for n in range(60) if n % 4 == int(key or b"")]
            assert values == [b"%d" % n for n in sorted(mine, key=lambda n: (-(n // 8), n))]

    def test_a_place_on_the_ring_is_kept_and_records_without_a_key_come_too(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=4)
        with hub.producer(orders) as producer:
            producer.send(b"placed", hash_key="f" * 32, deliver_at=0)
            producer.send(b"anywhere", deliver_at=0)
        until(lambda: hub.stats(orders).appended == 2)
        assert b"placed" in [record.value for record in read_stream(hub, orders)[3]]

    def test_another_hub_delivers_what_the_one_that_took_it_has_left(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        hub.create_stream(orders, shards=1)
        first = connect_again()
        with first.producer(orders) as producer:
            producer.send(b"left behind", deliver_at=later_ms())
        first.close()
        connect_again(housekeeping_s=0.05)
        until(lambda: hub.stats(orders).appended == 1)

    def test_several_hubs_deliver_each_record_once(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        hub.create_stream(orders, shards=2)
        hubs = [hub, *(connect_again(housekeeping_s=0.05) for _ in range(2))]
        at = later_ms()
        for turn in range(3):
            for each in hubs:
                with each.producer(orders) as producer:
                    for number in range(20):
                        producer.send(b"%d" % number, key=b"k", deliver_at=at + 30 * turn + number)
        until(lambda: sum(map(hub.count_delayed, [orders])) == 0)
        assert sorted(values_by_key(hub, orders)[b"k"], key=str) == sorted(
            [b"%d" % number for number in range(20)] * 9, key=str
        )

    def test_what_is_sent_again_waits_once(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        at = now_ms() + 3_600_000
        for highest in (-1, 9):
            with hub.producer(orders, name="till-1") as producer:
                assert producer.highest_number == highest
                for number in range(10):
                    producer.send(b"%d" % number, key=b"%d" % number, number=number, deliver_at=at)
        assert hub.count_delayed(orders) == 10

    def test_a_transaction_takes_delayed_records_too(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        service = LostAnswers(hub.service, lost=2)
        with Producer(service, hub.describe_stream(orders)) as producer:
            with producer.transaction() as transaction:
                transaction.send(b"now", key="a")
                future = transaction.send(b"later", key="a", deliver_at=later_ms())
            assert future.is_delayed
            transaction = producer.transaction()
            transaction.send(b"never", deliver_at=0)
            transaction.abort()
        until(lambda: hub.count_delayed(orders) == 0)
        assert values_by_key(hub, orders) == {b"a": [b"now", b"later"]}

    def test_much_that_is_due_at_once_comes_in_batches_that_fit(self, hub: Hub, orders: str) -> None:
        # It compresses to almost nothing, and all of it falls into one shard.
        hub.create_stream(orders, shards=1)
        with hub.producer(orders) as producer:
            for number in range(14):
                producer.send(b"%d" % (number % 10) * 1_500_000, key="a", deliver_at=number)
        until(lambda: hub.stats(orders).appended == 14)
        (values,) = values_by_key(hub, orders).values()
        assert [bytes(str(value), "ascii")[2:3] for value in values] == [b"%d" % (n % 10) for n in range(14)]

    def test_some_have_headers_and_some_have_none(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        at = later_ms()
        for number in range(4):
            with hub.producer(orders) as producer:
                headers = {"x": b"%d" % number} if number % 2 else None
                producer.send(b"%d" % number, key="a", headers=headers, deliver_at=at)
        until(lambda: hub.stats(orders).appended == 4)
        records = read_stream(hub, orders)[0]
        assert [(record.value, record.headers) for record in records] == [
            (b"0", {}),
            (b"1", {"x": b"1"}),
            (b"2", {}),
            (b"3", {"x": b"3"}),
        ]

    def test_a_stream_that_is_deleted_takes_what_waits_with_it(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        with hub.producer(orders) as producer:
            producer.send(b"x", deliver_at=now_ms() + 3_600_000)
        hub.delete_stream(orders)
        hub.create_stream(orders, shards=1)
        assert hub.count_delayed(orders) == 0

    def test_what_is_no_time_is_refused(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        with hub.producer(orders) as producer:
            for wrong in (-1, "soon", datetime(2030, 1, 1), 1.5):  # noqa: DTZ001 - that is what is wrong
                with pytest.raises(InvalidTimestamp, match="deliver_at="):
                    producer.send(b"x", deliver_at=wrong)  # type: ignore[arg-type]
