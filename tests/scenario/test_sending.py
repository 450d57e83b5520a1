"""Producers whose hub is busy, or gives no answer: strict records keep their place, best-tried ones go on."""

import random
import threading
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import cast

import pytest

import shoal
from shoal import Hub, Outbox, OutboxFallback, OutboxRelay, RelayOptions, SendFuture
from shoal.core.errors import BufferFull, DeliveryTimeout
from shoal.outbox.journal import create_outbox
from shoal.ports import HubService, Submission
from shoal.producer.setting_aside import AsideRecord
from shoal.testing.reading import read_stream, until, values_by_key
from tests.scenario.troubled import Trouble, Troubled

QUICK = RelayOptions(poll_s=0.01, lease_s=0.5, retry_s=0.05)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with shoal.connect(f"sqlite:///{tmp_path / 'shoal.db'}") as hub:
        yield hub


def troubled(hub: Hub, trouble: Trouble, delay_s: float = 0.0) -> tuple[Hub, Troubled]:
    service = Troubled(hub.service, trouble, delay_s)
    return Hub(cast("HubService", service), "troubled"), service


def at_random(seed: int, *what: str, share: float = 0.4) -> Trouble:
    chance = random.Random(seed)
    return lambda _: chance.choice(what) if chance.random() < share else None


def in_order(count: int, keys: int) -> dict[bytes | None, list[object]]:
    return {b"k%d" % k: [b"%d" % i for i in range(k, count, keys)] for k in range(keys)}


@pytest.mark.parametrize("calls_max", [1, 4])
@pytest.mark.parametrize("seed", range(3))
def test_strict_records_are_stored_once_and_in_order_whatever_becomes_of_calls(
    hub: Hub, seed: int, calls_max: int
) -> None:
    hub.create_stream("orders", shards=2)
    bad, service = troubled(hub, at_random(seed, "busy", "lost", "unanswered"), delay_s=0.002)
    reshards = iter((4, 3, 7, 1))
    with bad.producer(
        "orders", batch_records=3, linger_s=0.0, retry_first_s=0.001, retry_most_s=0.01, calls_max=calls_max
    ) as producer:
        for i in range(1200):
            producer.send(b"%d" % i, key=b"k%d" % (i % 10))
            if i % 250 == 249:
                hub.reshard("orders", next(reshards))
        producer.flush()
        stats = producer.stats
    assert values_by_key(hub, "orders") == in_order(1200, 10)
    assert stats.retries > 5
    assert (stats.failed, stats.reordered) == (0, 0)
    assert (service.at_once > 1) == (calls_max > 1)


def test_nothing_of_a_shard_overtakes_a_strict_batch_that_fails(hub: Hub) -> None:
    hub.create_stream("orders", shards=2)
    is_over = threading.Event()

    def trouble(batches: Sequence[Submission]) -> str | None:
        return "busy" if not is_over.is_set() and any(one.shard == 0 for one in batches) else None

    bad, _ = troubled(hub, trouble)
    with bad.producer("orders", batch_records=1, linger_s=0.0, retry_most_s=0.02) as producer:
        held = [producer.send(b"%d" % i, hash_key=0) for i in range(5)]
        assert producer.send(b"beside it", hash_key=2**127).result(10) == (1, 0)
        assert not any(future.done() for future in held)
        is_over.set()
        assert [future.result(10).offset for future in held] == [0, 1, 2, 3, 4]
    assert hub.next_offset("orders", 1) == 1


def test_what_is_best_tried_goes_to_another_shard_and_is_counted(hub: Hub) -> None:
    hub.create_stream("orders", shards=2)
    bad, _ = troubled(hub, lambda batches: "busy" if any(x.shard == 0 for x in batches) else None)
    with bad.producer("orders", strategy="best_tried", retry_most_s=0.02) as producer:
        future = producer.send(b"x", key="k", hash_key=0)
        assert future.result(10).shard == 1
        assert producer.stats.reordered == 1
    assert hub.next_offset("orders", 0) == 0


@pytest.mark.parametrize("max_attempts", [1, 2, 5])
@pytest.mark.parametrize("has_outbox", [False, True])
def test_what_lost_its_place_is_counted_once_however_often(
    hub: Hub, tmp_path: Path, max_attempts: int, has_outbox: bool
) -> None:
    hub.create_stream("orders", shards=3)
    database = f"sqlite:///{tmp_path / 'own.db'}"
    create_outbox(database, Outbox())
    bad, _ = troubled(hub, lambda _: "busy")
    with bad.producer(
        "orders",
        max_attempts=max_attempts,
        retry_most_s=0.01,
        outbox=OutboxFallback(database) if has_outbox else None,
    ) as producer:
        futures = [producer.send(b"x") for _ in range(100)]
        table = producer.send_batch(shoal_table(10))
        errors = [table.exception(10), *(future.exception(10) for future in futures)]
        assert {isinstance(error, DeliveryTimeout) for error in errors} == {not has_outbox}
        assert producer.stats.reordered == (110 if has_outbox or max_attempts > 1 else 0)


@pytest.mark.parametrize("is_table", [False, True])
def test_what_lost_its_place_and_then_moved_to_heirs_is_counted_once(hub: Hub, is_table: bool) -> None:
    hub.create_stream("orders", shards=2)

    def trouble(_: Sequence[Submission]) -> str | None:
        if service.calls == 4:
            hub.reshard("orders", 3)
        return "busy" if service.calls != 5 and service.calls < 9 else None

    bad, service = troubled(hub, trouble)
    with bad.producer("orders", strategy="best_tried", retry_most_s=0.02) as producer:
        if is_table:
            producer.send_batch(shoal_table(100))
        else:
            for i in range(100):
                producer.send(b"%d" % i, hash_key=0)
        producer.flush()
        assert producer.stats.moved > 0
        assert producer.stats.reordered == 100
    assert sum(len(records) for records in read_stream(hub, "orders").values()) == 100


def test_the_same_producer_sends_strict_and_best_tried_by_the_key_alone(hub: Hub) -> None:
    hub.create_stream("orders", shards=2)
    is_over = threading.Event()
    bad, _ = troubled(
        hub, lambda batches: "busy" if not is_over.is_set() and any(x.shard == 0 for x in batches) else None
    )
    key = next(b"k%d" % i for i in count() if _shard_of(hub, b"k%d" % i) == 0)
    with bad.producer("orders", linger_s=0.0, retry_most_s=0.01) as producer:
        kept = producer.send(b"kept", key=key)
        loose = [producer.send(b"x" * 300_000) for _ in range(20)]  # Over many places, shard 0 among them.
        assert {future.result(10).shard for future in loose} == {1}
        assert not kept.done()
        is_over.set()
        assert kept.result(10).shard == 0


def _shard_of(hub: Hub, key: bytes) -> int:
    from shoal.core.ring import place  # noqa: PLC0415 - only here
    from shoal.core.routing import ShardMap  # noqa: PLC0415 - only here

    return ShardMap.of(hub.describe_stream("orders")).shard_at(place(key))


def test_what_may_be_stored_keeps_its_shard_even_if_best_tried(hub: Hub) -> None:
    hub.create_stream("orders", shards=3)
    bad, _ = troubled(hub, at_random(5, "unanswered", share=0.6))
    with bad.producer("orders", batch_records=2, linger_s=0.0, retry_most_s=0.01) as producer:
        futures = [producer.send(b"%d" % i) for i in range(200)]
        producer.flush()
        assert producer.stats.reordered == 0
    assert len({future.result(0) for future in futures}) == 200
    assert sum(len(records) for records in read_stream(hub, "orders").values()) == 200


def test_after_max_attempts_the_outbox_takes_it_and_a_relay_sends_it(hub: Hub, tmp_path: Path) -> None:
    hub.create_stream("orders", shards=2)
    database = f"sqlite:///{tmp_path / 'own.db'}"
    create_outbox(database, Outbox())
    bad, service = troubled(hub, lambda _: "busy")
    with bad.producer(
        "orders", max_attempts=3, retry_most_s=0.01, outbox=OutboxFallback(database)
    ) as producer:
        future = producer.send(b"x", headers={"h": "1"})
        table = producer.send_batch(shoal_table(3))
        assert future.result(10).offset == -1
        assert (future.is_aside, future.is_repeat, future.is_delayed) == (True, False, False)
        assert len(table.result(10)) == 1
        assert (producer.stats.outboxed, producer.stats.reordered >= 4, producer.stats.failed) == (4, True, 0)
        assert producer.stats.records == 0
    assert service.calls >= 3
    with OutboxRelay(hub, database, options=QUICK) as relay:
        relay.run(until_empty=True)
    found = [record for records in read_stream(hub, "orders").values() for record in records]
    assert sorted(str(record.value) for record in found) == ["b'0'", "b'1'", "b'2'", "b'x'"]
    assert next(dict(record.headers) for record in found if record.value == b"x") == {"h": b"1"}


def shoal_table(rows: int) -> "object":
    import pyarrow as pa  # noqa: PLC0415 - only here

    return pa.table({"value": [b"%d" % i for i in range(rows)]})


@pytest.mark.parametrize("has_outbox", [False, True])
def test_without_an_outbox_that_takes_it_the_future_fails(hub: Hub, tmp_path: Path, has_outbox: bool) -> None:
    hub.create_stream("orders", shards=2)
    own = tmp_path / "own.db"
    own.touch()  # There is no outbox in it.
    outbox = OutboxFallback(f"sqlite:///{own}") if has_outbox else None
    bad, service = troubled(hub, lambda _: "busy")
    producer = bad.producer("orders", max_attempts=3, retry_most_s=0.01, outbox=outbox)
    error = producer.send(b"x").exception(10)
    assert isinstance(error, DeliveryTimeout)
    assert bool(getattr(error, "__notes__", [])) == has_outbox
    assert (producer.stats.failed, producer.stats.outboxed) == (1, 0)
    assert service.calls == 3
    producer.close()


def test_whatever_an_outbox_raises_the_future_fails_and_the_producer_goes_on(hub: Hub) -> None:
    class Broken:
        def put(self, stream: str, records: Sequence[AsideRecord]) -> None:
            raise OSError("no space left")

    hub.create_stream("orders", shards=2)
    left = iter(range(3))
    bad, _ = troubled(hub, lambda _: "busy" if next(left, None) is not None else None)
    with bad.producer("orders", max_attempts=3, retry_most_s=0.01, outbox=Broken()) as producer:
        error = producer.send(b"x").exception(10)
        assert isinstance(error, DeliveryTimeout)
        assert any("no space left" in note for note in error.__notes__)
        assert producer.send(b"y").result(10).offset == 0


def test_a_callback_that_sends_while_the_buffer_is_full_is_not_waited_for(hub: Hub) -> None:
    hub.create_stream("orders", shards=1)
    raised: list[BaseException] = []
    with hub.producer("orders", buffer_bytes_max=2000, batch_bytes=1500, linger_s=0.0) as producer:

        def send_more(_: SendFuture) -> None:
            try:
                for _more in range(30):
                    producer.send(b"x" * 300, key="k")
            except BufferFull as error:
                raised.append(error)

        producer.send(b"x", key="k").add_done_callback(send_more)
        producer.flush(10)
        until(lambda: bool(raised))
        producer.send(b"x" * 300, key="k").result(10)


def test_strict_records_know_no_max_attempts(hub: Hub) -> None:
    hub.create_stream("orders", shards=2)
    left = iter(range(20))
    bad, _ = troubled(hub, lambda _: "busy" if next(left, None) is not None else None)
    with bad.producer("orders", max_attempts=3, retry_most_s=0.01) as producer:
        assert producer.send(b"x", key="k").result(10).offset == 0


def test_sends_by_the_new_map_wait_for_what_is_on_its_way_to_the_parents(hub: Hub) -> None:
    hub.create_stream("orders", shards=1)
    has_split = threading.Event()

    def trouble(batches: Sequence[Submission]) -> str | None:
        if batches[0].shard == 0 and not has_split.is_set():
            return "unanswered"  # It is stored; the producer does not know.
        return None

    bad, _ = troubled(hub, trouble)
    with bad.producer("orders", batch_records=1, linger_s=0.0, retry_first_s=0.3, refresh_s=0.0) as producer:
        first = producer.send(b"0", key="k")
        while hub.next_offset("orders", 0) == 0:
            pass
        hub.split_shard("orders", 0)
        has_split.set()
        second = producer.send(b"1", key="k")
        assert first.result(10).shard == 0
        assert second.result(10).shard in {1, 2}
    assert values_by_key(hub, "orders") == {b"k": [b"0", b"1"]}
