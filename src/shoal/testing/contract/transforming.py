"""Consume, transform, produce: records and the checkpoints of a group in one transaction of a producer.

Whoever decides in the group, the hub or a table of leases beside the log.
"""

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
    Worker,
)
from shoal.core.checkpoint import Save
from shoal.core.errors import DeliveryTimeout, Fenced, InvalidInput, LeaseLost, NotOwner
from shoal.core.model import ShardId
from shoal.ports import GroupSaves, HubService, Pledge
from shoal.testing.contract.suite import ConnectAgain, HubSuite
from shoal.testing.contract.transacting import LostAnswers
from shoal.testing.members import eventually, holds
from shoal.testing.reading import read_stream, unchanged, until, values_by_key

_AT_ONCE = FailureRules(policy=Policy.STRICT, backoff=Backoff(first_s=0.01, max_s=0.01))
both_kinds = pytest.mark.parametrize("coordination", ["coordinated", "leased"])


def billing(hub: Hub, orders: str, coordination: str, *, shards: int = 1, into: int = 1) -> str:
    """Orders, a group that bills them, and the stream for its bills, whose name is given back."""
    bills = f"{orders}-bills"
    hub.create_stream(orders, shards=shards)
    hub.create_stream(bills, shards=into)
    hub.create_group(orders, "billing", coordination=coordination, timeout=10.0)
    return bills


class TransformContract(HubSuite):
    @both_kinds
    def test_consume_transform_produce_loses_nothing_and_repeats_nothing(
        self, hub: Hub, orders: str, coordination: str
    ) -> None:
        bills, total = billing(hub, orders, coordination, shards=2, into=2), 300
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

    @both_kinds
    def test_of_several_checkpoints_of_one_checkpointer_the_last_counts(
        self, hub: Hub, orders: str, coordination: str
    ) -> None:
        bills = billing(hub, orders, coordination)
        hub.append(orders, 0, [b"%d" % number for number in range(10)])
        with hub.producer(bills) as producer:

            def process(batch: Batch, checkpointer: Checkpointer) -> None:
                with producer.transaction() as transaction:
                    for record in batch:
                        transaction.send(record.value, key="a")
                        transaction.checkpoint(checkpointer, offset=record.offset + 1)

            with Worker(hub, orders, "billing", process, batch_records=4):
                until(lambda: hub.describe_group(orders, "billing").shards[0].lag == 0)
        assert values_by_key(hub, bills) == {b"a": [b"%d" % number for number in range(10)]}

    def test_a_consumer_gives_its_offsets_one_after_the_other_or_all_at_once(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=2)
        hub.create_group(orders, "billing", timeout=10.0)
        for shard in range(2):
            hub.append(orders, shard, [b"x"] * 5)
        with hub.producer(orders) as producer, Consumer(hub, group="billing", auto_commit=False) as consumer:
            consumer.subscribe([orders])
            polled = 0

            def have_all() -> bool:
                nonlocal polled
                polled += sum(len(batch) for batch in consumer.poll(timeout=0.1))
                return polled == 10

            until(have_all)
            with producer.transaction() as transaction:
                for shard, offset in ((0, 1), (1, 2), (0, 3)):
                    transaction.checkpoint(consumer, offset={(orders, shard): offset})
            assert [one.checkpoint for one in hub.describe_group(orders, "billing").shards] == [3, 2]
            with producer.transaction() as transaction:
                for _ in range(2):
                    transaction.checkpoint(consumer)
                with pytest.raises(InvalidInput, match="offset="):
                    transaction.checkpoint(consumer, offset={(orders, 0): 4})
            assert [one.checkpoint for one in hub.describe_group(orders, "billing").shards] == [5, 5]

    @both_kinds
    def test_one_who_polls_saves_what_it_has_polled_with_what_it_sends(
        self, hub: Hub, orders: str, coordination: str
    ) -> None:
        bills, total = billing(hub, orders, coordination, shards=3, into=2), 120
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

    @both_kinds
    @pytest.mark.parametrize("is_saved", [False, True])
    def test_a_checkpoint_that_is_refused_keeps_the_records_out(
        self, hub: Hub, orders: str, coordination: str, is_saved: bool
    ) -> None:
        """Also one that leads nowhere new: only the owner may commit with it."""
        bills = billing(hub, orders, coordination)
        hub.append(orders, 0, [b"a", b"b"])
        raised: list[BaseException] = []

        with hub.producer(bills) as producer:

            class Billing(Processor):
                def process(self, batch: Batch, checkpointer: Checkpointer) -> None:
                    transaction = producer.transaction()
                    transaction.send(b"bill of %d" % len(batch))
                    if is_saved:
                        checkpointer.save()
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
            until(lambda: bool(raised) and hub.describe_group(orders, "billing").shards[0].lag == 0)
            worker.stop()
        assert len(raised) == 1
        assert [record.value for record in read_stream(hub, bills)[0]] == [b"bill of 2"]

    @both_kinds
    @pytest.mark.parametrize("is_made", [False, True])
    def test_a_worker_loses_and_repeats_nothing_of_a_commit_that_was_given_up(
        self, hub: Hub, orders: str, coordination: str, is_made: bool
    ) -> None:
        bills = billing(hub, orders, coordination)
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

    @both_kinds
    @pytest.mark.parametrize("is_made", [False, True])
    def test_what_a_commit_that_was_given_up_did_ahead_of_other_lanes_is_not_undone(
        self, hub: Hub, orders: str, coordination: str, is_made: bool
    ) -> None:
        bills, keys = billing(hub, orders, coordination), 16
        with hub.producer(orders) as source:
            for number in range(4 * keys):
                source.send(b"%d" % number, key=b"%d" % (number % keys))
        service = cast("HubService", LostAnswers(hub.service, lost=1, is_made=is_made))
        given_up = threading.Event()

        def process(batch: Batch, checkpointer: Checkpointer) -> None:
            if any(record.value == b"0" for record in batch):
                given_up.wait(30)  # Until then nothing moves the offset; the other lane leaves a mark.
            try:
                with producer.transaction() as transaction:
                    for record in batch:
                        transaction.send(record.value, key=record.key)
                    transaction.checkpoint(checkpointer)
            except DeliveryTimeout:
                given_up.set()
                raise

        with (
            Producer(service, hub.describe_stream(bills), ProducerOptions(delivery_timeout_s=0)) as producer,
            Worker(hub, orders, "billing", process, parallelism=2, failure=_AT_ONCE),
        ):
            until(lambda: hub.describe_group(orders, "billing").shards[0].lag == 0)
        assert given_up.is_set()
        assert values_by_key(hub, bills) == {
            b"%d" % key: [b"%d" % number for number in range(key, 4 * keys, keys)] for key in range(keys)
        }

    @both_kinds
    @pytest.mark.parametrize("is_made", [False, True])
    def test_one_who_polls_loses_and_repeats_nothing_of_a_commit_that_was_given_up(
        self, hub: Hub, orders: str, coordination: str, is_made: bool
    ) -> None:
        bills = billing(hub, orders, coordination, shards=2)
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

    @both_kinds
    def test_a_shard_that_ends_with_a_transaction_is_followed_by_its_children(
        self, hub: Hub, orders: str, coordination: str
    ) -> None:
        bills, total = billing(hub, orders, coordination, shards=2), 60
        with hub.producer(orders) as source, hub.producer(bills) as producer:

            def bill(batch: Batch, checkpointer: Checkpointer) -> None:
                with producer.transaction() as transaction:
                    for record in batch:
                        transaction.send(record.value, key=record.key)
                    transaction.checkpoint(checkpointer)

            with Worker(hub, orders, "billing", bill, batch_records=7):
                for shards in (3, 1, 2):
                    for number in range(total):
                        source.send(b"%d-%d" % (shards, number), key=b"%d" % (number % 7))
                    source.flush()
                    hub.reshard(orders, shards)
                until(lambda: hub.stats(bills).appended == 3 * total)
        assert values_by_key(hub, bills) == {
            b"%d" % key: [b"%d-%d" % (shards, n) for shards in (3, 1, 2) for n in range(key, total, 7)]
            for key in range(7)
        }

    def test_of_a_leased_group_only_the_owner_saves_and_only_under_its_epoch(
        self, hub: Hub, orders: str
    ) -> None:
        bills = billing(hub, orders, "leased")
        hub.append(orders, 0, [b"a", b"b", b"c"])
        with hub.join_group(orders, "billing", "anna") as anna:
            holds(anna, [0])
            first = anna.saves({0: 1})
            _transact(hub, bills, [first])
            assert hub.describe_group(orders, "billing").shards[0].checkpoint == 1
            (save,) = anna.saves({0: 2}).saves
            for other, refusal in (
                (_save(anna.saves({0: 2}), epoch=save.epoch, holder="bert.0123"), NotOwner),
                (_save(anna.saves({0: 2}), epoch=save.epoch - 1, holder=first.holder), Fenced),
                (_save(anna.saves({0: 2}), epoch=save.epoch + 1, holder=first.holder), NotOwner),
                (_save(anna.saves({0: 2}), epoch=save.epoch - 1, holder=None), Fenced),
            ):
                with unchanged(hub, bills), pytest.raises(refusal):
                    _transact(hub, bills, [other])
            late = anna.saves({0: 3})
        with unchanged(hub, bills), pytest.raises(NotOwner):
            _transact(hub, bills, [late])  # She has let go.
        with hub.join_group(orders, "billing", "bert") as bert:
            holds(bert, [0])
            with unchanged(hub, bills), pytest.raises(Fenced):
                _transact(hub, bills, [late])
            _transact(hub, bills, [bert.saves({0: 2})])
            # What the transaction wrote is not taken for another's: the lease goes on, and so do saves.
            bert.checkpoint({0: 3})
        assert hub.describe_group(orders, "billing").shards[0].checkpoint == 3
        assert hub.stats(bills).appended == 2

    def test_checkpoints_of_both_kinds_of_group_are_saved_together_or_not_at_all(
        self, hub: Hub, orders: str
    ) -> None:
        bills = f"{orders}-bills"
        hub.create_stream(orders, shards=2)
        hub.create_stream(bills, shards=1)
        kinds = ("leased", "coordinated")
        for kind in kinds:
            hub.create_group(orders, kind, coordination=kind, timeout=10.0)
        for shard in (0, 1):
            hub.append(orders, shard, [b"a", b"b", b"c"])

        def saved() -> list[list[int]]:
            return [[shard.checkpoint for shard in hub.describe_group(orders, kind).shards] for kind in kinds]

        with (
            hub.join_group(orders, "leased", "anna") as anna,
            hub.join_group(orders, "coordinated", "bert") as bert,
        ):
            for member in (anna, bert):
                holds(member, [0, 1])
            _transact(hub, bills, [bert.saves({1: 2}), anna.saves({1: 1}), anna.saves({0: 2})])
            assert saved() == [[2, 1], [0, 2]]
            stale = _save(bert.saves({0: 1}), epoch=1, holder=None)
            with unchanged(hub, bills), pytest.raises((Fenced, NotOwner)):
                _transact(hub, bills, [anna.saves({0: 3}), stale])
            stale = _save(anna.saves({0: 3}), epoch=1, holder=None)
            with unchanged(hub, bills), pytest.raises((Fenced, NotOwner)):
                _transact(hub, bills, [bert.saves({0: 1}), stale])
            assert saved() == [[2, 1], [0, 2]]

    def test_leases_in_another_database_are_refused_before_anything_is_sent(
        self, connect_again: ConnectAgain, orders: str, tmp_path: Any
    ) -> None:
        hub = connect_again(leases=f"sqlite:///{tmp_path / 'leases.db'}")
        bills = billing(hub, orders, "leased")
        hub.append(orders, 0, [b"a"])
        raised: list[str] = []
        with hub.producer(bills) as producer:

            def bill(_: Batch, checkpointer: Checkpointer) -> None:
                transaction = producer.transaction()
                transaction.send(b"bill")
                try:
                    transaction.checkpoint(checkpointer)
                except InvalidInput as error:
                    raised.append(str(error))
                transaction.abort()

            with Worker(hub, orders, "billing", bill):
                eventually(lambda: bool(raised), "it is refused")
            assert "another database" in raised[0]
            assert "connect(leases=…)" in raised[0]
            with Consumer(hub, group="billing", auto_commit=False) as consumer:
                consumer.subscribe([orders])
                until(lambda: bool(consumer.poll(timeout=0.2)) or bool(consumer.assignment))
                with pytest.raises(InvalidInput, match="another database"):
                    producer.transaction().checkpoint(consumer)
            with hub.join_group(orders, "billing", "anna") as anna:
                holds(anna, [0])
                save = Save(shard=ShardId(0), epoch=anna.leases[ShardId(0)].epoch, offset=1)
                forged = GroupSaves(stream=anna.stream, group_id=anna.group_id, saves=[save])
                with pytest.raises(InvalidInput, match="another database"):
                    _transact(hub, bills, [forged])
        assert hub.stats(bills).appended == 0

    def test_what_is_read_by_hand_is_refused_when_it_is_given_to_a_transaction(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"a"])
        with (
            hub.producer(orders) as producer,
            Consumer(hub, group="billing", auto_commit=False) as consumer,
            unchanged(hub, orders),
        ):
            consumer.assign([(orders, 0)])
            until(lambda: bool(consumer.poll(timeout=0.2)))
            transaction = producer.transaction()
            transaction.send(b"b")
            with pytest.raises(InvalidInput, match="subscribe"):
                transaction.checkpoint(consumer)
            transaction.abort()


class Pledged:
    """See Checkpointing: these checkpoints, as they are."""

    def __init__(self, saves: list[GroupSaves]) -> None:
        self._saves = saves

    def pledge(self, offset: object = None) -> Pledge:
        assert offset is None
        return Pledge({(0, 0): None}, lambda commit: commit(self._saves))


def _transact(hub: Hub, stream: str, saves: list[GroupSaves]) -> None:
    """One record, and these checkpoints."""
    with hub.producer(stream) as producer:
        transaction = producer.transaction()
        transaction.send(b"bill")
        transaction.checkpoint(Pledged(saves))
        transaction.commit()


def _save(made: GroupSaves, *, epoch: int, holder: str | None) -> GroupSaves:
    """The same under another epoch, by another owner."""
    (save,) = made.saves
    changed = Save(shard=save.shard, epoch=epoch, offset=save.offset)
    return GroupSaves(stream=made.stream, group_id=made.group_id, saves=[changed], holder=holder)
