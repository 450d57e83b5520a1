"""Transactions that save checkpoints of several shards: none waits for another without an end."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import shoal
from shoal.core.errors import InvalidInput
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
