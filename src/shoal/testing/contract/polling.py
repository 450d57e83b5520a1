"""Consumers that poll, in both kinds of group: what they are given, what is committed, who is told what.

Defends invariants 1, 3, 4 and 5 of the design for user code that comes for its records: a planned hand-over
waits for the poller, and nothing that was declared done comes again.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from shoal import Consumer, Hub, StreamShard
from shoal.core.errors import (
    CheckpointMisuse,
    ConsumerClosed,
    DeserializationFailed,
    InvalidInput,
    NotOwner,
    ShoalError,
    WokenUp,
)
from shoal.testing.contract.suite import HubSuite
from shoal.testing.members import eventually
from shoal.testing.polling import Listening, append_to_all, numbers, polled_until
from shoal.testing.processing import append_numbers, checkpoints

GROUP = "billing"
Make = Callable[..., Consumer]


class ConsumerSuite(HubSuite):
    """A consumer of the test's group, in both kinds of group."""

    @pytest.fixture(params=["coordinated", "leased"])
    def coordination(self, request: pytest.FixtureRequest) -> str:
        """Both kinds of group keep the same promises."""
        found: str = request.param
        return found

    @pytest.fixture
    def consume(self, hub: Hub, coordination: str) -> Any:
        """Makes a consumer of the test's group; whatever is still open in the end is closed."""
        with ExitStack() as made:

            def make(name: str = "anna", group: str | None = GROUP, **options: Any) -> Consumer:
                options = {"timeout": 15.0, "coordination": coordination, "look_interval": 0.05, **options}
                consumer = Consumer(hub, group, name=name, **options)
                made.callback(consumer.close, timeout=5.0)
                return consumer

            yield make


class ConsumerContract(ConsumerSuite):
    # --- Polling. ---

    def test_a_consumer_polls_what_is_there_and_what_comes(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=2)
        append_to_all(hub, orders, range(10))
        consumer = consume()
        consumer.subscribe([orders])
        assert sorted(numbers(consumer, 10)) == list(range(10))
        assert consumer.poll(0) == []
        began = time.monotonic()
        append_to_all(hub, orders, range(10, 14))
        assert sorted(numbers(consumer, 4)) == list(range(10, 14))
        assert time.monotonic() - began < 10
        assert consumer.assignment == [StreamShard(orders, 0), StreamShard(orders, 1)]
        assert consumer.subscription == [orders]
        consumer.commit()
        consumer.close()
        assert checkpoints(hub, orders, GROUP) == {0: 7, 1: 7}
        with pytest.raises(ConsumerClosed):
            consumer.poll(0)

    def test_a_poll_returns_at_most_so_many_records_and_each_once_in_order(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=2)
        for shard in (0, 1):
            append_numbers(hub, orders, shard, range(25))
        consumer = consume(max_poll_records=10)
        consumer.subscribe([orders])
        seen: dict[int, list[int]] = {0: [], 1: []}
        while sum(map(len, seen.values())) < 50:
            batches = consumer.poll(5.0)
            assert 1 <= sum(map(len, batches)) <= 10
            for batch in batches:
                seen[batch.shard] += [int(record.value) for record in batch]
        assert seen == {0: list(range(25)), 1: list(range(25))}

    def test_members_of_a_group_share_and_groups_each_get_everything(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=2)
        append_to_all(hub, orders, range(8))
        anna, bert, other = consume("anna"), consume("bert"), consume("anna", "shipping")
        for consumer in (anna, bert, other):
            consumer.subscribe([orders])
        came = polled_until(
            [anna, bert], lambda: len(anna.assignment) == len(bert.assignment) == 1, "each has one"
        )
        append_to_all(hub, orders, range(8, 12))
        came += polled_until(
            [anna, bert],
            lambda: hub.describe_group(orders, GROUP).lag == 0 or self._commit(anna, bert),
            "all came",
        )
        assert sorted(came) == list(range(12)), "a queue: each once"
        assert sorted(numbers(other, 12)) == list(range(12)), "published to every group"

    @staticmethod
    def _commit(*consumers: Consumer) -> bool:
        for consumer in consumers:
            consumer.commit()
        return False

    def test_batches_come_one_by_one_in_a_loop_until_someone_wakes_it_up(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        append_numbers(hub, orders, 0, range(3))
        consumer = consume()
        consumer.subscribe([orders])
        seen = []
        for batch in consumer:
            seen += [int(record.value) for record in batch]
            threading.Timer(0.05, consumer.wakeup).start()
        assert seen == [0, 1, 2]
        consumer.wakeup()
        with pytest.raises(WokenUp):
            consumer.poll(5.0)
        consumer.close()
        assert checkpoints(hub, orders, GROUP) == {0: 3}

    @pytest.mark.parametrize("auto_commit", [True, False])
    def test_a_loop_that_is_left_has_done_what_it_was_given_and_nothing_else(
        self, hub: Hub, orders: str, consume: Make, auto_commit: bool
    ) -> None:
        hub.create_stream(orders, shards=3)
        for shard in range(3):
            append_numbers(hub, orders, shard, range(5))
        consumer = consume(auto_commit=auto_commit)
        consumer.subscribe([orders])
        eventually(lambda: len(consumer._desk._offers) == 3, "batches of all shards are there")
        for _ in consumer:
            if not auto_commit:
                consumer.commit()
            break
        consumer.close()
        assert sorted(checkpoints(hub, orders, GROUP).values()) == [0, 0, 5]

    def test_keys_and_values_are_deserialized_and_what_cannot_be_is_named(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        with hub.producer(orders) as producer:
            for value in (b"1", None, b"x", b"4"):
                producer.send(value, key="k")
        consumer = consume(key_deserializer=bytes.decode, value_deserializer=int, max_poll_records=10)
        consumer.subscribe([orders])
        (batch,) = consumer.poll(5.0)
        seen: list[tuple[Any, Any]] = []
        with pytest.raises(DeserializationFailed, match="offset=2: the value") as caught:
            seen.extend((record.key, record.value) for record in batch)
        assert seen == [("k", 1), ("k", None)]
        assert isinstance(caught.value.__cause__, ValueError)
        (batch,) = consumer.poll(5.0)  # Whoever polls on has not got it, nor what comes after it.
        assert (batch.first_offset, checkpoints(hub, orders, GROUP)[0]) == (2, 0)
        with pytest.raises(DeserializationFailed, match="offset=2: the value"):
            list(batch)
        consumer.seek(0, caught.value.offset + 1)
        (batch,) = consumer.poll(5.0)
        assert [record.value for record in batch] == [4]

    def test_what_cannot_be_deserialized_is_not_committed_by_a_loop_that_shrugs(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"0", b"x", b"2"])
        consumer = consume(value_deserializer=int)
        consumer.subscribe([orders])
        (batch,) = consumer.poll(5.0)
        with pytest.raises(DeserializationFailed):
            list(batch)
        consumer.close()
        assert checkpoints(hub, orders, GROUP) == {0: 1}

    # --- Commits. ---

    def test_auto_commit_declares_what_was_returned_when_one_comes_back_and_not_before(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        append_numbers(hub, orders, 0, range(4))
        consumer = consume(max_poll_records=2, auto_commit_interval=0.05)
        consumer.subscribe([orders])
        assert [len(batch) for batch in consumer.poll(5.0)] == [2]
        time.sleep(0.2)
        assert consumer.committed(0) == 0
        assert [len(batch) for batch in consumer.poll(5.0)] == [2]
        eventually(lambda: consumer.committed(0) == 2, "the first two are committed")
        assert consumer.position(0) == 4
        consumer.close()
        assert checkpoints(hub, orders, GROUP) == {0: 4}, "a plain close is done with the last ones"

    def test_what_an_exception_is_about_is_not_committed_by_a_close_on_its_way_out(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        append_numbers(hub, orders, 0, range(4))

        def fail(consumer: Consumer) -> None:
            consumer.subscribe([orders])
            assert numbers(consumer, 4)
            raise ZeroDivisionError

        def with_finally() -> None:
            consumer = consume("bert")
            try:
                fail(consumer)
            finally:
                consumer.close()

        with pytest.raises(ZeroDivisionError), consume("anna") as consumer:
            fail(consumer)
        assert checkpoints(hub, orders, GROUP) == {0: 0}
        with pytest.raises(ZeroDivisionError):
            with_finally()
        assert checkpoints(hub, orders, GROUP) == {0: 0}

    def test_without_auto_commit_only_what_is_committed_is_done(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=2)
        for shard in (0, 1):
            append_numbers(hub, orders, shard, range(10))
        consumer = consume(auto_commit=False)
        consumer.subscribe([orders])
        numbers(consumer, 20)
        consumer.poll(0)
        assert consumer.commit({(orders, 0): 4}) == {StreamShard(orders, 0): 4}
        assert (consumer.committed((orders, 0)), consumer.committed((orders, 1))) == (4, 0)
        consumer.close()
        assert checkpoints(hub, orders, GROUP) == {0: 4, 1: 0}
        consumer = consume(auto_commit=False)
        consumer.subscribe([orders])
        assert sorted(numbers(consumer, 16)) == sorted([*range(4, 10), *range(10)])
        assert consumer.commit() == {StreamShard(orders, 0): 10, StreamShard(orders, 1): 10}
        assert hub.describe_group(orders, GROUP).lag == 0

    def test_a_commit_in_the_midst_of_a_loop_is_up_to_the_record_at_hand(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        append_numbers(hub, orders, 0, range(10))
        consumer = consume(auto_commit=False)
        consumer.subscribe([orders])
        (batch,) = consumer.poll(5.0)
        for record in batch:
            if record.offset == 3:
                assert consumer.commit() == {StreamShard(orders, 0): 4}

    def test_an_asynchronous_commit_tells_its_callback_in_a_later_poll(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        append_numbers(hub, orders, 0, range(3))
        consumer = consume(auto_commit=False)
        consumer.subscribe([orders])
        numbers(consumer, 3)
        told: list[tuple[Any, ShoalError | None, int]] = []

        def callback(offsets: Any, error: ShoalError | None) -> None:
            told.append((dict(offsets), error, threading.get_ident()))

        consumer.commit_async(callback=callback)
        polled_until([consumer], lambda: bool(told), "it is told")
        assert told == [({StreamShard(orders, 0): 3}, None, threading.get_ident())]
        assert consumer.committed(0) == 3
        consumer.commit_async({0: 3}, callback)
        consumer.close()
        assert len(told) == 2, "a close tells what is left to tell"

    def test_what_is_not_held_or_was_not_given_cannot_be_committed_and_nothing_is(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=2)
        append_numbers(hub, orders, 0, range(10))
        consumer = consume(auto_commit=False)
        consumer.subscribe([orders])
        numbers(consumer, 10)
        bad: list[tuple[type[ShoalError], Any]] = [
            (NotOwner, {0: 5, 7: 1}),
            (NotOwner, {("other", 0): 5}),
            (CheckpointMisuse, {0: 11}),
            (CheckpointMisuse, {0: 5, 1: 1}),
            (InvalidInput, {0: "five"}),
            (InvalidInput, {0: -1}),
            (InvalidInput, {"zero": 5}),
            (InvalidInput, [5]),
        ]
        for kind, offsets in bad:
            with pytest.raises(kind):
                consumer.commit(offsets)
        with pytest.raises(NotOwner, match=r"shard=0 of stream 'other': .*`assignment`"):
            consumer.position(("other", 0))
        assert consumer.committed(0) == 0
        consumer.close()
        for call in (consumer.commit, consumer.commit_async, consumer.pause):
            with pytest.raises(ConsumerClosed):
                call()

    # --- Hand-overs. ---

    def test_a_planned_hand_over_waits_for_the_poller_and_repeats_nothing(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=2)
        for shard in (0, 1):
            append_numbers(hub, orders, shard, [2 * number + shard for number in range(5)])
        anna = consume("anna")
        anna.subscribe([orders])
        came: list[int] = []
        in_hand: set[int] = set()
        while len(came) < 10:
            batches = anna.poll(5.0)
            in_hand = {batch.shard for batch in batches}
            came += [int(record.value) for batch in batches for record in batch]
        bert = consume("bert")
        bert.subscribe([orders])
        assert bert.poll(0.5) == []
        theirs = {place.shard for place in bert.assignment}
        assert not in_hand & theirs, "what anna has in her hands is waited for"
        polled_until([anna, bert], lambda: len(bert.assignment) == 1, "and comes when she is back")
        assert len(anna.assignment) == 1
        append_to_all(hub, orders, range(10, 14))
        came += polled_until(
            [anna, bert],
            lambda: hub.describe_group(orders, GROUP).lag == 0 or self._commit(anna, bert),
            "all",
        )
        assert sorted(came) == list(range(14))

    def test_the_listener_is_told_by_who_polls_and_may_commit_and_seek(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=2)
        for shard in (0, 1):
            append_numbers(hub, orders, shard, range(6))
        kept: dict[StreamShard, int] = {StreamShard(orders, 0): 4}
        anna, bert = consume("anna", auto_commit=False), consume("bert", auto_commit=False)
        listeners = {}
        for consumer in (anna, bert):

            def seek(place: StreamShard, consumer: Consumer = consumer) -> None:
                consumer.seek(place, kept.get(place, 0))

            def keep(place: StreamShard, consumer: Consumer = consumer) -> None:
                kept[place] = consumer.position(place)
                consumer.commit({place: kept[place]})

            listeners[consumer.name] = Listening(seek, keep)
        anna.subscribe([orders], listener=listeners["anna"])
        assert listeners["anna"].told == [], "only a poll tells"
        assert sorted(numbers(anna, 8)) == sorted([4, 5, *range(6)])
        bert.subscribe([orders], listener=listeners["bert"])
        polled_until([anna, bert], lambda: len(bert.assignment) == 1, "one moves")
        (moved,) = bert.assignment
        assert listeners["anna"].told[-1] == ("revoked", moved.shard)
        assert listeners["bert"].told == [("assigned", moved.shard)]
        assert kept[moved] == 6
        assert bert.position(moved) == 6
        assert checkpoints(hub, orders, GROUP)[moved.shard] == 6
        anna.close()
        assert Counter(what for what, _ in listeners["anna"].told) == {"assigned": 2, "revoked": 2}

    def test_a_listener_that_raises_is_heard_of_and_asked_again(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        append_numbers(hub, orders, 0, range(2))
        errors = [ZeroDivisionError()]

        def once(_: StreamShard) -> None:
            if errors:
                raise errors.pop()

        consumer = consume()
        consumer.subscribe([orders], listener=Listening(once))
        with pytest.raises(ZeroDivisionError):
            numbers(consumer, 2)
        assert numbers(consumer, 2) == [0, 1]

    def test_whatever_the_users_functions_raise_a_close_hands_everything_over(
        self, hub: Hub, project: str, consume: Make
    ) -> None:
        names = [f"{project}/one", f"{project}/two"]
        for name in names:
            hub.create_stream(name, shards=1)
            append_numbers(hub, name, 0, range(2))

        def fail(*_: object) -> None:
            raise ZeroDivisionError

        consumer = consume()
        consumer.subscribe(names, listener=Listening(on_revoked=fail))
        numbers(consumer, 4)
        consumer.commit_async({(names[0], 0): 1}, callback=fail)
        with pytest.raises(ZeroDivisionError):
            consumer.close()
        for name in names:
            assert hub.describe_group(name, GROUP).members == ()
            assert checkpoints(hub, name, GROUP) == {0: 2}
        consumer = consume()
        consumer.subscribe(names, listener=Listening(on_revoked=fail))
        polled_until([consumer], lambda: len(consumer.assignment) == 2, "both are there")
        with pytest.raises(ZeroDivisionError):
            consumer.unsubscribe()
        assert (consumer.subscription, consumer.assignment) == ([], [])
        consumer.close()

    def test_children_follow_when_all_of_their_parent_is_committed(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        append_numbers(hub, orders, 0, range(5))
        consumer = consume(auto_commit=False)
        consumer.subscribe([orders])
        assert numbers(consumer, 5) == list(range(5))
        hub.split_shard(orders, 0)
        append_to_all(hub, orders, range(5, 9))
        polled = [consumer.poll(0.05) for _ in range(6)]
        assert not any(polled), "the user may still hold on to the parent's records"
        consumer.commit()
        assert sorted(numbers(consumer, 4)) == list(range(5, 9))
        assert [place.shard for place in consumer.assignment] == [1, 2]
