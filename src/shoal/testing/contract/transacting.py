"""Transactions of a producer: records for several shards and streams, and checkpoints, as one step."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, cast

import pytest

from shoal import (
    Backoff,
    Batch,
    Checkpointer,
    Consumer,
    FailureRules,
    Hub,
    Policy,
    Processor,
    Producer,
    ProducerOptions,
    SendFuture,
    Worker,
)
from shoal.core.errors import (
    DeliveryTimeout,
    InvalidInput,
    LeaseLost,
    ProducerFenced,
    StoreUnavailable,
    TooLarge,
    TransactionEnded,
    UnknownStream,
)
from shoal.ports import HubService
from shoal.producer.transaction import Transaction
from shoal.testing.contract.suite import HubSuite
from shoal.testing.reading import read_stream, unchanged, until, values_by_key


class LostAnswers:
    """A hub that does what it is asked for, and does not say so; or that never hears of it."""

    def __init__(self, service: HubService, lost: int, *, is_made: bool = True) -> None:
        self._service, self.lost, self._is_made = service, lost, is_made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    def transact(self, *arguments: Any) -> Any:
        if not self.lost:
            return self._service.transact(*arguments)
        self.lost -= 1
        if self._is_made:
            self._service.transact(*arguments)
        raise StoreUnavailable("the answer was lost")


_AT_ONCE = FailureRules(policy=Policy.STRICT, backoff=Backoff(first_s=0.01, max_s=0.01))


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

    def test_consume_transform_produce_loses_nothing_and_repeats_nothing(self, hub: Hub, orders: str) -> None:
        bills, total = f"{orders}-bills", 300
        hub.create_stream(orders, shards=2)
        hub.create_stream(bills, shards=2)
        hub.create_group(orders, "billing", timeout=5.0)
        with hub.producer(orders) as source:
            for number in range(total):
                source.send(b"%d" % number, key=b"%d" % (number % 7))
        failures = iter([True, False] * total)

        with hub.producer(bills) as producer:

            class Billing(Processor):
                def process(self, batch: Batch, checkpointer: Checkpointer) -> None:
                    with producer.transaction() as transaction:
                        for record in batch:
                            transaction.send(record.value, key=record.key)
                        transaction.checkpoint(checkpointer)
                        if next(failures):
                            raise OSError("after half of the work")

            def is_done() -> bool:
                shards = hub.describe_group(orders, "billing").shards
                return all(shard.lag == 0 for shard in shards)

            for _ in range(2):  # Two workers, one after the other.
                worker = Worker(
                    hub, orders, "billing", Billing, batch_records=25, parallelism=2, failure=_AT_ONCE
                )
                worker.start()
                until(is_done)
                worker.stop()
        assert values_by_key(hub, bills) == {
            b"%d" % key: [b"%d" % number for number in range(key, total, 7)] for key in range(7)
        }

    def test_one_who_polls_saves_what_it_has_polled_with_what_it_sends(self, hub: Hub, orders: str) -> None:
        bills, total = f"{orders}-bills", 120
        hub.create_stream(orders, shards=3)
        hub.create_stream(bills, shards=2)
        with hub.producer(orders) as source:
            for number in range(total):
                source.send(b"%d" % number, key=b"%d" % (number % 7))
        stored = turn = 0
        with hub.producer(bills) as producer:
            while stored < total:
                # Each second one dies between the poll and the commit; another goes on from the checkpoint.
                turn += 1
                with Consumer(hub, group="billing", auto_commit=False, max_poll_records=25) as consumer:
                    consumer.subscribe([orders])
                    polled = consumer.poll(timeout=1.0)
                    transaction = producer.transaction()
                    for batch in polled:
                        for record in batch:
                            transaction.send(record.value, key=record.key)
                    transaction.checkpoint(consumer)
                    if turn % 2:
                        transaction.abort()
                    else:
                        transaction.commit()
                stored = hub.stats(bills).appended
                assert turn < 200
        lags = [shard.lag for shard in hub.describe_group(orders, "billing").shards]
        assert lags == [0, 0, 0]
        assert values_by_key(hub, bills) == {
            b"%d" % key: [b"%d" % number for number in range(key, total, 7)] for key in range(7)
        }

    def test_a_checkpoint_that_is_refused_keeps_the_records_out(self, hub: Hub, orders: str) -> None:
        bills = f"{orders}-bills"
        hub.create_stream(orders, shards=1)
        hub.create_stream(bills, shards=1)
        hub.create_group(orders, "billing", timeout=5.0)
        hub.append(orders, 0, [b"a", b"b"])
        raised: list[BaseException] = []

        with hub.producer(bills) as producer:

            class Billing(Processor):
                def process(self, batch: Batch, checkpointer: Checkpointer) -> None:
                    transaction = producer.transaction()
                    transaction.send(b"bill of %d" % len(batch))
                    transaction.checkpoint(checkpointer)
                    if not raised:
                        # Another epoch begins: what this one has read is not its own to declare any more.
                        hub.checkpoint(orders, "billing", 0, 0, force=True)
                        try:
                            transaction.commit()
                        except LeaseLost as error:
                            raised.append(error)
                    else:
                        transaction.commit()

            worker = Worker(hub, orders, "billing", Billing)
            worker.start()
            until(lambda: hub.describe_group(orders, "billing").shards[0].lag == 0)
            worker.stop()
        assert len(raised) == 1
        assert [record.value for record in read_stream(hub, bills)[0]] == [b"bill of 2"]

    @pytest.mark.parametrize("is_made", [False, True])
    def test_a_worker_loses_and_repeats_nothing_of_a_commit_that_was_given_up(
        self, hub: Hub, orders: str, is_made: bool
    ) -> None:
        bills = f"{orders}-bills"
        hub.create_stream(orders, shards=1)
        hub.create_stream(bills, shards=1)
        hub.create_group(orders, "billing", timeout=5.0)
        hub.append(orders, 0, [b"%d" % number for number in range(40)])
        service = cast("HubService", LostAnswers(hub.service, lost=1, is_made=is_made))
        raised: list[type[BaseException]] = []

        def bill(batch: Batch, checkpointer: Checkpointer) -> None:
            transaction = producer.transaction()
            for record in batch:
                transaction.send(record.value, key="a")
            transaction.checkpoint(checkpointer)
            transaction.commit()

        def process(batch: Batch, checkpointer: Checkpointer) -> None:
            try:
                bill(batch, checkpointer)
            except DeliveryTimeout as error:
                raised.append(type(error))
                with pytest.raises(LeaseLost):  # Who tries it again at once would store it again.
                    bill(batch, checkpointer)
                raise

        with Producer(service, hub.describe_stream(bills), ProducerOptions(delivery_timeout_s=0)) as producer:
            worker = Worker(hub, orders, "billing", process, batch_records=10, failure=_AT_ONCE)
            worker.start()
            until(lambda: hub.describe_group(orders, "billing").shards[0].lag == 0)
            worker.stop()
        assert raised == [DeliveryTimeout]
        assert values_by_key(hub, bills) == {b"a": [b"%d" % number for number in range(40)]}

    @pytest.mark.parametrize("is_made", [False, True])
    def test_one_who_polls_loses_and_repeats_nothing_of_a_commit_that_was_given_up(
        self, hub: Hub, orders: str, is_made: bool
    ) -> None:
        bills = f"{orders}-bills"
        hub.create_stream(orders, shards=2)
        hub.create_stream(bills, shards=1)
        for shard in (0, 1):
            hub.append(orders, shard, [b"%d" % number for number in range(20)])
        service = cast("HubService", LostAnswers(hub.service, lost=1, is_made=is_made))
        with (
            Producer(service, hub.describe_stream(bills), ProducerOptions(delivery_timeout_s=0)) as producer,
            Consumer(hub, group="billing", auto_commit=False, max_poll_records=7) as consumer,
        ):
            consumer.subscribe([orders])

            def step() -> bool:
                polled = [*consumer.poll(timeout=0.2), *consumer.poll(timeout=0.2)]
                with suppress(DeliveryTimeout), producer.transaction() as transaction:
                    for batch in polled:
                        for record in batch:
                            transaction.send(record.value, key=b"%d" % batch.shard)
                    transaction.checkpoint(consumer)
                return all(shard.lag == 0 for shard in hub.describe_group(orders, "billing").shards)

            until(step)
        assert values_by_key(hub, bills) == {
            b"%d" % shard: [b"%d" % number for number in range(20)] for shard in (0, 1)
        }

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
