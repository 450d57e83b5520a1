"""Shared groups: each record to one of many consumers, settled once, or dead; none lost, none silently."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

import shoal
from shoal import Consumer, Hub, SharedConsumer
from shoal.core.errors import (
    AlreadySettled,
    ConsumerClosed,
    GroupInUse,
    HeldByAnother,
    HoldExpired,
    InvalidInput,
    NeverReceived,
    UnknownGroup,
    WrongDelivery,
)
from shoal.core.group import ShardState
from shoal.testing.contract.suite import ConnectAgain, HubSuite, of_rules

WAIT_S = 20.0
LONG = 600.0
"""A visibility that no test lives to see the end of."""
SHORT = 0.15


def values(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


class ReceivingContract(HubSuite):
    # --- Records. ---

    def test_each_record_goes_to_one_consumer_and_is_gone_when_it_is_acknowledged(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, values(10))
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG)
        ada, bob = SharedConsumer(hub, orders, "queue", "ada"), SharedConsumer(hub, orders, "queue", "bob")
        mine, yours = ada.receive(6), bob.receive(6)
        assert [record.value for record in mine] == values(10)[:6]
        assert [record.value for record in yours] == values(10)[6:]
        assert (mine.shard, list(mine.offsets), mine.attempts(3)) == (0, [0, 1, 2, 3, 4, 5], 1)
        assert 0 < mine.deadline_s < LONG
        assert mine.to_arrow().num_rows == 6
        assert not ada.receive(1)
        assert ada.ack(mine) == 6
        assert bob.ack(yours, range(6, 8)) == 2
        assert bob.ack(yours, next(iter(yours)).offset + 2) == 1
        info = hub.describe_group(orders, "queue")
        (shard,) = info.shards
        assert (info.state, info.lag, shard.in_flight, shard.checkpoint, shard.acknowledged) == (
            "active",
            1,
            1,
            9,
            9,
        )
        assert [(one.name, one.in_flight) for one in info.consumers] == [("bob", 1)]
        assert bob.ack(yours, list(yours)[3]) == 1
        assert hub.describe_group(orders, "queue").state == "empty"

    @of_rules
    def test_single_records_in_any_order_and_ranges_are_acknowledged_and_gaps_are_shown(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, values(100))
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG)
        consumer = SharedConsumer(hub, orders, "queue")
        received = consumer.receive(100)
        consumer.ack(received, [90, 3, 50])
        consumer.ack(received, range(10, 20))
        (shard,) = hub.describe_group(orders, "queue").shards
        assert (shard.checkpoint, shard.lag, shard.in_flight, shard.gaps) == (0, 87, 87, 5)
        done = {3, 50, 90, *range(10, 20)}
        consumer.ack(received, [record for record in received if record.offset not in done])
        (shard,) = hub.describe_group(orders, "queue").shards
        assert (shard.checkpoint, shard.lag, shard.gaps) == (100, 0, 0)

    @of_rules
    def test_what_is_released_comes_again_at_once_or_later_with_its_attempts_counted(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, values(3))
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG)
        consumer = SharedConsumer(hub, orders, "queue")
        first = consumer.receive(3)
        consumer.release(first, 1)
        consumer.release(first, 2, delay=0.2)
        second = consumer.receive(3)
        assert ([*second.offsets], second.attempts(1)) == ([1], 2)
        began = time.monotonic()
        third = consumer.receive(3, wait=WAIT_S)
        assert ([*third.offsets], third.attempts(2)) == ([2], 2)
        assert time.monotonic() - began > 0.1
        consumer.ack(first, 0)
        consumer.ack(second)
        consumer.ack(third)
        assert hub.describe_group(orders, "queue").lag == 0

    def test_what_is_not_settled_in_time_comes_to_another_without_anyone_asking(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, values(4))
        hub.create_group(orders, "queue", delivery="shared", visibility=SHORT)
        gone = SharedConsumer(hub, orders, "queue", "gone").receive(4)
        assert len(gone) == 4
        other = SharedConsumer(connect_again(), orders, "queue", "other")
        found = other.receive(10, wait=WAIT_S, visibility=LONG)
        assert ([*found.offsets], found.attempts(0)) == ([0, 1, 2, 3], 2)
        assert other.ack(found) == 4

    @of_rules
    def test_more_time_can_be_asked_for(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, values(2))
        hub.create_group(orders, "queue", delivery="shared", visibility=1.0)
        consumer = SharedConsumer(hub, orders, "queue")
        received = consumer.receive(2)
        assert consumer.extend(received, visibility=LONG) == 2
        assert received.deadline_s > 100
        assert not consumer.receive(1, wait=1.1)
        assert consumer.ack(received) == 2

    @of_rules
    def test_a_batch_that_would_be_too_large_is_cut_and_the_rest_stays_untouched(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"x" * 1000] * 20)
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG)
        consumer = SharedConsumer(hub, orders, "queue")
        some = consumer.receive(20, max_bytes=5000)
        assert 1 <= len(some) <= 5
        consumer.ack(some)
        rest = consumer.receive(20)
        assert len(rest) == 20 - len(some)
        assert rest.attempts(rest.offsets[0]) == 1, "it was never handed out"

    # --- Dead letters. ---

    def test_a_rejected_record_is_in_the_dead_stream_and_never_comes_again(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        with hub.producer(orders) as producer:
            producer.send(b"poison", key="ada", headers={"trace": b"1"}).result()
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG)
        consumer = SharedConsumer(hub, orders, "queue")
        received = consumer.receive()
        assert consumer.reject(received, reason="no such customer") == 1
        (letter,) = hub.dead_letters(orders, "queue")
        assert (letter.key, letter.value, letter.headers["trace"]) == (b"ada", b"poison", b"1")
        assert (letter.origin.shard, letter.origin.offset, letter.origin.attempts) == (0, 0, 1)
        assert letter.origin.error == "no such customer"
        (shard,) = hub.describe_group(orders, "queue").shards
        assert (shard.dead, shard.lag, shard.acknowledged) == (1, 0, 0)
        assert not consumer.receive()

    def test_after_its_last_attempt_a_record_is_dead_however_it_failed(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, values(2))
        hub.create_group(orders, "queue", delivery="shared", visibility=SHORT, max_attempts=2)
        consumer = SharedConsumer(hub, orders, "queue")
        for attempt in (1, 2):
            received = consumer.receive(1, wait=WAIT_S, visibility=LONG)
            assert received.attempts(0) == attempt
            consumer.release(received)
        assert [letter.value for letter in hub.dead_letters(orders, "queue")] == [b"0"]
        for attempt in (1, 2):  # The other is never settled: its time runs out.
            received = consumer.receive(1, wait=WAIT_S)
            assert received.attempts(1) == attempt
        until = time.monotonic() + WAIT_S
        while len(letters := hub.dead_letters(orders, "queue")) < 2 and time.monotonic() < until:
            assert not consumer.receive(1, wait=SHORT)
        assert [(letter.value, letter.origin.attempts) for letter in letters] == [(b"0", 2), (b"1", 2)]
        assert hub.describe_group(orders, "queue").lag == 0

    def test_dead_letters_are_given_back_to_a_shared_group(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, values(3))
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG)
        consumer = SharedConsumer(hub, orders, "queue")
        received = consumer.receive()
        consumer.reject(received, 1)
        consumer.ack(received, [0, 2])
        hub.replay_dead_letters(orders, "queue")
        again = consumer.receive()
        assert ([record.value for record in again], again.attempts(1)) == ([b"1"], 1)
        assert not hub.dead_letters(orders, "queue")
        consumer.ack(again)
        assert hub.describe_group(orders, "queue").shards[0].dead == 0

    @of_rules
    def test_a_typed_stream_keeps_its_columns_on_the_way_to_the_dead_stream(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1, schema={"amount": "int64", "who": "string"})
        hub.append(orders, 0, [{"amount": 1, "who": "ada"}, {"amount": 2, "who": None}])
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG)
        consumer = SharedConsumer(hub, orders, "queue")
        consumer.reject(consumer.receive(), reason="sums are wrong")
        assert [letter.value for letter in hub.dead_letters(orders, "queue")] == [
            {"amount": 1, "who": "ada"},
            {"amount": 2, "who": None},
        ]

    # --- Keys. ---

    @of_rules
    def test_with_keys_in_order_one_record_of_a_key_is_in_flight_and_the_next_comes_when_it_is_settled(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        with hub.producer(orders) as producer:
            for number in range(3):
                for key in ("ada", "bob"):
                    producer.send(b"%d" % number, key=key)
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG, key_ordered=True)
        consumer = SharedConsumer(hub, orders, "queue")
        seen: dict[bytes | None, list[bytes]] = {}
        for _ in range(3):
            received = consumer.receive(10)
            assert sorted(record.key or b"" for record in received) == [b"ada", b"bob"]
            assert not consumer.receive(10), "both keys are in flight"
            for record in received:
                seen.setdefault(record.key, []).append(record.value)
            consumer.ack(received)
        assert seen == {b"ada": [b"0", b"1", b"2"], b"bob": [b"0", b"1", b"2"]}

    def test_a_consumer_that_waits_for_a_key_is_woken_when_the_one_before_it_is_settled(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        hub.create_stream(orders, shards=1)
        with hub.producer(orders) as producer:
            producer.send(b"first", key="ada")
            producer.send(b"second", key="ada")
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG, key_ordered=True)
        ada = SharedConsumer(hub, orders, "queue", "ada")
        bob = SharedConsumer(connect_again(), orders, "queue", "bob")
        first = ada.receive(10)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(bob.receive, 10, wait=WAIT_S)
            time.sleep(0.2)
            assert not waiting.done()
            ada.ack(first)
            assert [record.value for record in waiting.result(WAIT_S)] == [b"second"]

    @of_rules
    def test_children_of_a_split_wait_for_their_parent_only_if_keys_are_in_order(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, values(2))
        hub.create_group(orders, "free", delivery="shared", visibility=LONG)
        hub.create_group(orders, "keyed", delivery="shared", visibility=LONG, key_ordered=True)
        hub.split_shard(orders, 0)
        hub.append(orders, 1, [b"left"])
        hub.append(orders, 2, [b"right"])
        free, keyed = SharedConsumer(hub, orders, "free"), SharedConsumer(hub, orders, "keyed")
        assert sorted(free.receive(10).shard for _ in range(3)) == [0, 1, 2]
        parent = keyed.receive(10)
        assert parent.shard == 0
        assert not keyed.receive(10)
        states = [shard.state for shard in hub.describe_group(orders, "keyed").shards]
        assert states == [ShardState.ALREADY_ALLOC, ShardState.WAIT, ShardState.WAIT]
        keyed.ack(parent)
        found = [keyed.receive(10) for _ in range(2)]
        assert sorted(record.value for received in found for record in received) == [b"left", b"right"]
        assert hub.describe_group(orders, "keyed").shards[0].state is ShardState.OVER

    # --- Bad input. ---

    @of_rules
    def test_what_was_never_received_cannot_be_settled(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, values(5))
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG)
        consumer = SharedConsumer(hub, orders, "queue")
        received = consumer.receive(2)
        with pytest.raises(NeverReceived, match="settle only what receive"):
            consumer.ack(received, 4)
        with pytest.raises(NeverReceived):
            consumer.ack(received, [0, 77])
        with pytest.raises(InvalidInput, match="which="):
            consumer.ack(received, "all of it")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="received="):
            consumer.ack([0])  # type: ignore[arg-type]
        assert hub.describe_group(orders, "queue").lag == 5

    @of_rules
    def test_a_record_is_acknowledged_once_and_the_second_time_says_so(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, values(5))
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG)
        consumer = SharedConsumer(hub, orders, "queue")
        received = consumer.receive(5)
        consumer.ack(received, [1, 2])
        with pytest.raises(AlreadySettled) as caught:
            consumer.ack(received)
        assert (list(caught.value.offsets), caught.value.taken) == ([1, 2], 3)
        assert hub.describe_group(orders, "queue").shards[0].acknowledged == 5

    @of_rules
    def test_an_acknowledgement_after_the_hold_has_ended_does_not_count(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, values(3))
        hub.create_group(orders, "queue", delivery="shared", visibility=SHORT)
        late, quick = (
            SharedConsumer(hub, orders, "queue", "late"),
            SharedConsumer(hub, orders, "queue", "quick"),
        )
        received = late.receive(3)
        again = quick.receive(2, wait=WAIT_S, visibility=LONG)
        with pytest.raises(HoldExpired) as caught:
            late.ack(received)
        assert list(caught.value.offsets) == [0, 1, 2]
        assert hub.describe_group(orders, "queue").shards[0].acknowledged == 0
        quick.ack(again)
        assert hub.describe_group(orders, "queue").shards[0].acknowledged == 2

    @of_rules
    def test_another_consumer_cannot_settle_what_one_has_even_under_its_name(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, values(3))
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG)
        ada, twin = SharedConsumer(hub, orders, "queue", "ada"), SharedConsumer(hub, orders, "queue", "ada")
        received = ada.receive(3)
        for attempt in (twin.ack, twin.release, twin.extend, twin.reject):
            with pytest.raises(HeldByAnother):
                attempt(received)
        assert not hub.dead_letters(orders, "queue")
        assert ada.ack(received) == 3

    @of_rules
    def test_who_polls_is_kept_out_of_a_shared_group(self, hub: Hub, orders: str) -> None:
        """Also one that chose its shards by hand: a commit would end what others hold."""
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, values(3))
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG)
        ada = SharedConsumer(hub, orders, "queue", "ada")
        received = ada.receive(2)
        with Consumer(hub, group="queue") as polling, pytest.raises(WrongDelivery, match="SharedConsumer"):
            polling.subscribe([orders])
        with Consumer(hub, group="queue", auto_commit=False) as by_hand:
            by_hand.assign([(orders, 0)])
            by_hand.poll(timeout=WAIT_S)
            with pytest.raises(WrongDelivery, match="SharedConsumer"):
                by_hand.commit()
        assert ada.ack(received) == 2

    @of_rules
    def test_what_a_shared_consumer_is_asked_is_checked(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_group(orders, "queue", delivery="shared")
        hub.create_group(orders, "workers")
        with pytest.raises(WrongDelivery, match=r"Worker"):
            SharedConsumer(hub, orders, "workers")
        with pytest.raises(WrongDelivery, match=r"SharedConsumer"):
            hub.join_group(orders, "queue", "ada")
        with pytest.raises(UnknownGroup):
            SharedConsumer(hub, orders, "nobody")
        with pytest.raises(InvalidInput, match=r"hub=None: .*connect"):
            SharedConsumer(cast("Any", None), orders, "queue")
        consumer = SharedConsumer(hub, orders, "queue")
        for wrong in (
            {"max": 0},
            {"max": 1.5},
            {"max": 10**9},
            {"visibility": 0},
            {"visibility": 10**9},
            {"visibility": float("nan")},
            {"wait": -1},
            {"max_bytes": 0},
        ):
            with pytest.raises(InvalidInput, match=next(iter(wrong))):
                consumer.receive(**wrong)
        empty = consumer.receive()
        assert (len(empty), list(empty), empty.to_arrow(), bool(empty), empty.shard) == (
            0,
            [],
            None,
            False,
            -1,
        )
        assert consumer.ack(empty) == 0
        with pytest.raises(NeverReceived):
            consumer.ack(empty, 0)
        with pytest.raises(InvalidInput, match="delay="):
            consumer.release(empty, delay=-1)
        with pytest.raises(InvalidInput, match="reason="):
            consumer.reject(empty, reason="")
        consumer.close()
        consumer.close()
        with pytest.raises(ConsumerClosed):
            consumer.receive()

    @of_rules
    @pytest.mark.parametrize(
        ("settings", "field"),
        [
            ({"in_order": True}, "in_order"),
            ({"coordination": "leased"}, "coordination"),
            ({"strategy": "range"}, "strategy"),
            ({"handover_timeout": 5.0}, "handover_timeout"),
            ({"failure": "strict"}, "failure"),
            ({"visibility": 0}, "visibility"),
            ({"max_attempts": 0}, "max_attempts"),
            ({"max_attempts": 1000}, "max_attempts"),
            ({"key_ordered": "yes"}, "key_ordered"),
            ({"unused": 5.0}, "unused"),
            ({"delivery": "exclusive", "visibility": 5.0}, "visibility"),
            ({"delivery": "exclusive", "key_ordered": True}, "key_ordered"),
            ({"delivery": "broadcast", "max_attempts": 3}, "max_attempts"),
        ],
    )
    def test_settings_that_cannot_be_are_refused(
        self, hub: Hub, orders: str, settings: dict[str, object], field: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        with pytest.raises(InvalidInput, match=f"{field}="):
            hub.create_group(orders, "queue", **{"delivery": "shared", **settings})  # type: ignore[arg-type]

    @of_rules
    def test_at_ten_thousand_gaps_nothing_new_is_handed_out_and_nothing_is_lost(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        for _ in range(3):
            hub.append(orders, 0, values(10_000))
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG)
        consumer = SharedConsumer(hub, orders, "queue")
        received = [consumer.receive(10_000) for _ in range(2)]
        for one in received:
            consumer.ack(one, range(one.offsets[0], one.offsets[-1] + 1, 2))
        nothing = consumer.receive(10)
        assert not nothing
        assert "10000 gaps from offset 1" in nothing.waiting_for
        info = hub.describe_group(orders, "queue")
        assert (info.lag, info.shards[0].gaps) == (20_000, 10_000)
        assert "10000 gaps" in info.shards[0].waiting_for
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(consumer.receive, 10, wait=WAIT_S)
            time.sleep(0.1)
            consumer.ack(received[0], range(1, 10_000, 2))
            assert list(waiting.result(WAIT_S).offsets) == list(range(20_000, 20_010))

    # --- Days. ---

    def test_a_consumer_that_waits_is_woken_by_an_append_and_by_a_release_elsewhere(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        other = connect_again()
        hub.create_stream(orders, shards=2)
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG)
        ada = SharedConsumer(hub, orders, "queue", "ada")
        bob = SharedConsumer(other, orders, "queue", "bob")
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(ada.receive, wait=WAIT_S)
            time.sleep(0.2)
            other.append(orders, 1, [b"news"])
            received = waiting.result(WAIT_S)
            assert [record.value for record in received] == [b"news"]
            waiting = threads.submit(bob.receive, wait=WAIT_S)
            time.sleep(0.2)
            began = time.monotonic()
            ada.release(received)
            assert waiting.result(WAIT_S).attempts(0) == 2
            assert time.monotonic() - began < 3

    @of_rules
    def test_closing_gives_back_what_is_in_hand(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, values(4))
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG)
        with SharedConsumer(hub, orders, "queue") as ada:
            received = ada.receive(3)
            ada.ack(received, 1)
        with SharedConsumer(hub, orders, "queue") as bob:
            found = bob.receive(10)
            assert [(offset, found.attempts(offset)) for offset in found.offsets] == [(0, 2), (2, 2), (3, 1)]

    def test_many_consumers_at_once_settle_every_record_exactly_once(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        other = connect_again()
        hub.create_stream(orders, shards=2)
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG, max_attempts=100)
        for shard in (0, 1):
            hub.append(orders, shard, values(600))
        seen: Counter[tuple[int, int]] = Counter()
        lock = threading.Lock()

        def work(which: int) -> None:
            with SharedConsumer(hub if which % 2 else other, orders, "queue") as consumer:
                while received := consumer.receive(25, wait=0.2):
                    later = [offset for offset in received.offsets if offset % 11 == which % 11]
                    if received.attempts(received.offsets[0]) < 3 and later:
                        consumer.release(received, later)
                    else:
                        later = []
                    done = [offset for offset in received.offsets if offset not in later]
                    if done:
                        consumer.ack(received, done)
                    with lock:
                        seen.update((received.shard, offset) for offset in done)

        with ThreadPoolExecutor(6) as threads:
            list(threads.map(work, range(6)))
        assert seen == Counter((shard, offset) for shard in (0, 1) for offset in range(600))
        info = hub.describe_group(orders, "queue")
        assert (info.lag, [shard.acknowledged for shard in info.shards]) == (0, [600, 600])

    def test_retention_that_overtakes_is_counted(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1, retention_bytes=1)
        hub.append(orders, 0, values(5))
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG)
        consumer = SharedConsumer(hub, orders, "queue")
        received = consumer.receive(2)
        consumer.ack(received, 0)
        hub.append(orders, 0, [b"kept"])
        hub.enforce_retention(orders)
        with pytest.raises(AlreadySettled):
            consumer.ack(received, 1)
        assert [record.value for record in consumer.receive(10)] == [b"kept"]
        (shard,) = hub.describe_group(orders, "queue").shards
        assert (shard.lost, shard.acknowledged, shard.lag) == (4, 1, 1)

    def test_a_group_begins_where_it_is_told_and_is_reset_while_it_runs(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, values(5))
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG, start="latest")
        consumer = SharedConsumer(hub, orders, "queue")
        assert not consumer.receive()
        hub.append(orders, 0, [b"new"])
        received = consumer.receive()
        assert list(received.offsets) == [5]
        hub.reset_group(orders, "queue", {0: 3})
        with pytest.raises((NeverReceived, HoldExpired)):
            consumer.ack(received)
        assert list(consumer.receive().offsets) == [3, 4, 5]
        hub.checkpoint(orders, "queue", 0, 6, force=True)
        assert hub.describe_group(orders, "queue").lag == 0

    @of_rules
    def test_settings_can_be_changed_while_it_runs(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, values(1))
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG, max_attempts=9)
        info = hub.update_group(orders, "queue", max_attempts=1, visibility=20.0)
        assert (info.settings.max_attempts, info.settings.visibility_ms) == (1, 20_000)
        consumer = SharedConsumer(hub, orders, "queue")
        consumer.release(consumer.receive())
        assert len(hub.dead_letters(orders, "queue")) == 1
        with pytest.raises(InvalidInput, match="in_order"):
            hub.update_group(orders, "queue", in_order=True)

    def test_a_group_that_is_deleted_under_a_consumer_is_missed_by_name(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, values(2))
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG)
        consumer = SharedConsumer(hub, orders, "queue")
        received = consumer.receive(1)
        with pytest.raises(GroupInUse):
            hub.delete_group(orders, "queue")
        hub.delete_group(orders, "queue", force=True)
        with pytest.raises(UnknownGroup):
            consumer.ack(received)
        with pytest.raises(UnknownGroup):
            consumer.receive()
        hub.create_group(orders, "queue", delivery="shared")
        with pytest.raises(UnknownGroup):
            consumer.receive()
        assert len(shoal.SharedConsumer(hub, orders, "queue").receive()) == 2

    def test_a_stream_that_is_deleted_and_made_again_under_a_consumer_is_another(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, values(3))
        hub.create_group(orders, "queue", delivery="shared", visibility=LONG)
        consumer = SharedConsumer(hub, orders, "queue")
        received = consumer.receive(2)
        other = connect_again()
        other.delete_stream(orders)
        for call in (consumer.receive, lambda: consumer.ack(received), lambda: consumer.reject(received)):
            with pytest.raises(UnknownGroup, match="'queue'"):
                call()
        other.create_stream(orders, shards=1)
        other.create_group(orders, "queue", delivery="shared")
        other.append(orders, 0, [b"new"] * 5)
        for call in (consumer.receive, lambda: consumer.ack(received), lambda: consumer.reject(received)):
            with pytest.raises(UnknownGroup, match="'queue'"):
                call()
        consumer.close()
        with SharedConsumer(hub, orders, "queue") as fresh:
            assert [record.value for record in fresh.receive()] == [b"new"] * 5
        assert not hub.dead_letters(orders, "queue")
