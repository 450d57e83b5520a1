"""Transactions in each other's way, or in that of a hub that goes wrong: none waits without an end."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

import shoal
from shoal.core.errors import DeliveryTimeout, InvalidInput, ShardClosed
from shoal.core.names import stream_name
from shoal.ports import HubService
from shoal.testing.members import eventually

ROUNDS = 100


@contextmanager
def at_work(hub: shoal.Hub, *, shards: int, parallelism: int) -> Iterator[list[shoal.Checkpointer]]:
    """A worker whose processors are all in the midst of a batch, and what each was given to save with."""
    given: list[shoal.Checkpointer] = []
    is_over = threading.Event()

    def process(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        given.append(checkpointer)
        assert is_over.wait(60)

    hub.create_stream("orders", shards=shards)
    hub.create_stream("bills", shards=1)
    hub.create_group("orders", "billing")
    with hub.producer("orders") as producer:
        for i in range(50):
            producer.send(b"%d" % i, b"k%d" % i)
    options = shoal.WorkerOptions(parallelism=parallelism)
    worker = shoal.Worker(hub, "orders", "billing", process, name="one", options=options).start()
    try:
        eventually(lambda: len(given) == shards * parallelism, "all of them have a batch")
        yield given
    finally:
        is_over.set()
        worker.stop()


def test_two_that_name_the_same_shards_in_opposite_orders_both_go_on(sqlite_url: str) -> None:
    with shoal.connect(sqlite_url) as hub, at_work(hub, shards=2, parallelism=1) as given:
        first, second = given

        def transact(checkpointers: list[shoal.Checkpointer]) -> None:
            with hub.producer("bills") as producer:
                for _ in range(ROUNDS):
                    with producer.transaction() as transaction:
                        transaction.send(b"bill")
                        for checkpointer in checkpointers:
                            transaction.checkpoint(checkpointer)

        threads = [
            threading.Thread(target=transact, args=(order,), daemon=True)
            for order in ([first, second], [second, first])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert hub.describe_stream("bills").shards[0].next_offset == 2 * ROUNDS


def test_two_lanes_of_one_shard_are_refused_when_the_second_is_given(sqlite_url: str) -> None:
    with (
        shoal.connect(sqlite_url) as hub,
        at_work(hub, shards=1, parallelism=2) as (first, second),
        hub.producer("bills") as producer,
    ):
        transaction = producer.transaction()
        transaction.send(b"bill")
        transaction.checkpoint(first)
        with pytest.raises(InvalidInput, match=r"of shard 0.*another lane's checkpoint"):
            transaction.checkpoint(second)
        transaction.checkpoint(first)
        transaction.commit()
        assert hub.describe_stream("bills").shards[0].next_offset == 1


class Behind:
    """A hub that refuses every transaction for a closed shard, and has no newer map."""

    def __init__(self, service: HubService) -> None:
        self._service = service
        self.calls = 0

    def transact(self, *_: object) -> None:
        self.calls += 1
        raise ShardClosed(stream=self._service.describe_stream(stream_name("bills")), shard=0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)


def test_one_that_is_refused_for_ever_ends_with_the_delivery_timeout(sqlite_url: str) -> None:
    with shoal.connect(sqlite_url) as hub:
        hub.create_stream("bills", shards=1)
        behind = Behind(hub.service)
        front = shoal.Hub(cast("HubService", behind), "behind")
        with front.producer("bills", delivery_timeout_s=0.5) as producer:
            transaction = producer.transaction()
            transaction.send(b"bill")
            with pytest.raises(DeliveryTimeout, match="closed"):
                transaction.commit()
        assert 1 < behind.calls < 20


def test_retention_that_has_gone_past_a_checkpoint_does_not_refuse_who_stays_there(sqlite_url: str) -> None:
    with (
        shoal.connect(sqlite_url) as hub,
        at_work(hub, shards=1, parallelism=1) as (given,),
        hub.producer("bills") as producer,
    ):
        saved = given.save()
        for _ in range(3):
            hub.append("orders", 0, [b"more"] * 10)
        hub.set_retention("orders", retention_bytes=1)
        hub.enforce_retention("orders")
        assert hub.describe_stream("orders").shards[0].first_offset > saved
        with producer.transaction() as transaction:
            transaction.send(b"bill")
            transaction.checkpoint(given)
        assert hub.describe_stream("bills").shards[0].next_offset == 1
