"""Transactions of a producer: records for several shards and streams as one step."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from shoal import Checkpointer, Hub, Producer, SendFuture
from shoal.core.errors import (
    DeliveryTimeout,
    InvalidInput,
    ProducerFenced,
    ShoalError,
    StoreReadOnly,
    StoreUnavailable,
    TooLarge,
    TransactionEnded,
    UnknownStream,
)
from shoal.ports import HubService
from shoal.producer.transaction import Transaction
from shoal.testing.contract.suite import HubSuite
from shoal.testing.reading import unchanged, values_by_key


class LostAnswers:
    """A hub that does what it is asked for, and does not say so; or that never hears of it."""

    def __init__(self, service: HubService, lost: int, *, is_made: bool = True) -> None:
        self._service, self.lost, self._is_made = service, lost, is_made
        self.last: ShoalError | None = None
        """What is said to the one who asks again, once."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    def transact(self, *arguments: Any) -> Any:
        if not self.lost:
            last, self.last = self.last, None
            if last is not None:
                raise last
            return self._service.transact(*arguments)
        self.lost -= 1
        if self._is_made:
            self._service.transact(*arguments)
        raise StoreUnavailable("the answer was lost")


class TransactionContract(HubSuite):
    def test_records_for_several_streams_are_stored_together_and_in_order(
        self, hub: Hub, orders: str
    ) -> None:
        bills = f"{orders}-bills"
        hub.create_stream(orders, shards=4)
        hub.create_stream(bills, shards=2)
        with hub.producer(orders) as producer:
            producer.send(b"before", key="a")
            with producer.transaction() as transaction:
                sent = [transaction.send(b"%d" % i, key="a") for i in range(3)]
                other = transaction.send(b"bill", key="b", stream=bills)
                producer.flush()
                assert not sent[0].done()
                assert hub.stats(orders).appended == 1
            producer.send(b"after", key="a")
        where = [future.result() for future in sent]
        assert [position.offset for position in where] == [1, 2, 3]
        assert hub.read(bills, other.result().shard, other.result().offset).to_arrow().num_rows == 1
        assert values_by_key(hub, orders) == {b"a": [b"before", b"0", b"1", b"2", b"after"]}

    def test_after_an_error_or_an_abort_nothing_is_stored(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        with hub.producer(orders) as producer:
            futures: list[SendFuture] = []

            def fail(transaction: Transaction) -> None:
                with transaction:
                    futures.append(transaction.send(b"x", key="a"))
                    raise KeyError

            transaction = producer.transaction()
            with unchanged(hub, orders), pytest.raises(KeyError):
                fail(transaction)
            with pytest.raises(TransactionEnded, match="aborted"):
                futures[0].result()
            for act in (transaction.commit, lambda: transaction.send(b"y")):
                with pytest.raises(TransactionEnded, match="begin another"):
                    act()
            nowhere = f"{orders}-nowhere"
            with unchanged(hub, orders):
                transaction = producer.transaction()
                transaction.send(b"x")
                with pytest.raises(UnknownStream):
                    transaction.send(b"x", stream=nowhere)
                transaction.abort()
            with unchanged(hub, orders), producer.transaction():
                pass  # Nothing in it.
            producer.send(b"the producer goes on").result()

    def test_one_stream_that_is_gone_keeps_all_of_it_out(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        hub.create_stream(f"{orders}-2", shards=1)
        with hub.producer(orders) as producer:
            transaction = producer.transaction()
            transaction.send(b"x", key="a")
            transaction.send(b"x", key="a", stream=f"{orders}-2")
            hub.delete_stream(f"{orders}-2")
            with unchanged(hub, orders), pytest.raises(UnknownStream):
                transaction.commit()
            producer.send(b"the producer goes on").result()

    def test_a_reshard_between_sending_and_commit_keeps_it_whole_and_in_order(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=3)
        hub.create_stream(f"{orders}-2", shards=1)
        with hub.producer(orders) as producer:
            for turn, shards in enumerate((5, 2, 1, 4)):
                with producer.transaction() as transaction:
                    sent = [
                        transaction.send(
                            b"%d" % (turn * 20 + i), key=b"%d" % (i % 5), stream=(None, f"{orders}-2")[i % 2]
                        )
                        for i in range(20)
                    ]
                    hub.reshard(orders, shards)
                    hub.reshard(f"{orders}-2", shards + 1)
                assert all(future.done() for future in sent)
        both = [values_by_key(hub, name) for name in (orders, f"{orders}-2")]
        for parity, found in enumerate(both):
            for key, values in found.items():
                wanted = [i for i in range(80) if i % 20 % 2 == parity and i % 20 % 5 == int(key or b"")]
                assert values == [b"%d" % i for i in wanted]
            assert sum(map(len, found.values())) == 40

    @pytest.mark.parametrize("name", [None, "till-1"])
    def test_a_commit_whose_answer_is_lost_is_made_once(
        self, hub: Hub, orders: str, name: str | None
    ) -> None:
        hub.create_stream(orders, shards=3)
        hub.create_stream(f"{orders}-2", shards=2)
        service = LostAnswers(hub.service, lost=0)
        stream = hub.describe_stream(orders)
        with Producer(cast("HubService", service), stream, name=name) as producer:
            for turn in range(4):
                service.lost = turn
                with producer.transaction() as transaction:
                    for i in range(10):
                        transaction.send(b"%d" % (turn * 10 + i), key=b"%d" % i)
                        transaction.send(b"%d" % (turn * 10 + i), key=b"%d" % i, stream=f"{orders}-2")
                    if turn == 2:
                        hub.reshard(orders, 2)
                producer.send(b"%d-plain" % turn, key="plain")
        for each in (orders, f"{orders}-2"):
            found = values_by_key(hub, each)
            found.pop(b"plain", None)
            assert found == {b"%d" % i: [b"%d" % (turn * 10 + i) for turn in range(4)] for i in range(10)}

    @pytest.mark.parametrize("name", [None, "till-1"])
    def test_one_that_was_made_and_then_refused_is_in_doubt_and_the_next_is_no_repeat_of_it(
        self, hub: Hub, orders: str, name: str | None
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_stream(f"{orders}-2", shards=1)
        service = LostAnswers(hub.service, lost=0)
        stream = hub.describe_stream(orders)
        with Producer(cast("HubService", service), stream, name=name) as producer:
            for number in range(6):
                transaction = producer.transaction()
                transaction.send(b"%d" % number, key="a")
                transaction.send(b"%d" % number, key="a", stream=f"{orders}-2")
                if number % 2:
                    transaction.commit()
                    continue
                service.lost, service.last = 1, StoreReadOnly("fails over")
                with pytest.raises(DeliveryTimeout, match="fails over"):
                    transaction.commit()
        for each in (orders, f"{orders}-2"):
            assert values_by_key(hub, each) == {b"a": [b"%d" % number for number in range(6)]}

    def test_one_who_is_fenced_commits_nothing_to_whatever_stream(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_stream(f"{orders}-2", shards=1)
        old = hub.producer(orders, name="till-1")
        transaction = old.transaction()
        transaction.send(b"late", stream=f"{orders}-2")
        with hub.producer(orders, name="till-1"), unchanged(hub, f"{orders}-2"):
            with pytest.raises(ProducerFenced):
                transaction.commit()
            with pytest.raises(ProducerFenced):
                old.transaction()
        with pytest.raises(ProducerFenced):
            old.close()

    def test_a_reader_never_sees_half_of_one(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        low, high = "0", "f" * 32
        total = 40
        ends: list[tuple[int, int]] = []
        done = threading.Event()

        def look() -> None:
            # Whatever is in the shard that is looked at first is in the other one, too.
            while not done.is_set():
                for first, second in ((0, 1), (1, 0)):
                    ends.append((hub.next_offset(orders, first), hub.next_offset(orders, second)))

        looker = threading.Thread(target=look)
        looker.start()
        try:
            with hub.producer(orders) as producer:
                for number in range(total):
                    with producer.transaction() as transaction:
                        for place in (low, high) if number % 2 else (high, low):
                            transaction.send(b"%d" % number, hash_key=place)
        finally:
            done.set()
            looker.join(30)
        assert all(first <= second for first, second in ends)
        assert hub.next_offset(orders, 0) == hub.next_offset(orders, 1) == total

    def test_what_does_not_fit_or_makes_no_sense_is_refused(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        with hub.producer(orders) as producer, unchanged(hub, orders):
            transaction = producer.transaction()
            for _ in range(6):
                transaction.send(b"x" * 3_000_000)
            with pytest.raises(TooLarge, match="transaction="):
                transaction.send(b"x" * 3_000_000)
            with pytest.raises(InvalidInput, match="checkpointer="):
                transaction.checkpoint(cast("Checkpointer", object()))
            transaction.abort()
            transaction.abort()  # Twice is once.
