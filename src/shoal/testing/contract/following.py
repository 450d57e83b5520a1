"""Consumers that poll: where they go on, which streams they follow, shards by hand, and bad days.

Defends invariants 2 and 4 of the design: a seek moves no checkpoint back, and nothing that a group wants is
skipped unless the user says so.
"""

from __future__ import annotations

import re
import threading
import time
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from shoal import Consumer, Hub, RebalanceListener, StreamShard
from shoal.core.errors import (
    ConsumerBusy,
    ConsumerClosed,
    GroupInUse,
    InvalidInput,
    LeaseLost,
    NotFound,
    NotOwner,
    OffsetExpired,
    OffsetOutOfRange,
    PollTooLate,
    ShoalError,
    UnknownGroup,
    UnknownStream,
)
from shoal.testing.contract.polling import GROUP, ConsumerSuite, Make
from shoal.testing.members import eventually
from shoal.testing.polling import Listening, append_to_all, assigned, numbers, polled_until
from shoal.testing.processing import append_numbers, checkpoints


class FollowingContract(ConsumerSuite):
    # --- Where one goes on. ---

    def test_one_seeks_back_and_ahead_and_the_checkpoint_leads_forward(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        append_numbers(hub, orders, 0, range(20))
        consumer = consume(auto_commit=False, max_poll_records=5)
        consumer.subscribe([orders])
        assert numbers(consumer, 5) == list(range(5))
        consumer.commit()
        consumer.seek(0, 2)
        assert consumer.position(0) == 2
        assert numbers(consumer, 3) == [2, 3, 4]
        consumer.commit()
        assert consumer.committed(0) == 5
        consumer.seek(0, 15)
        consumer.close()
        assert checkpoints(hub, orders, GROUP) == {0: 5}, "who leaps and says no more has saved nothing"
        consumer = consume(auto_commit=False)
        consumer.subscribe([orders])
        numbers(consumer, 15)
        consumer.seek_to_beginning(0)
        assert numbers(consumer, 20) == list(range(20))
        consumer.seek_to_end(0)
        consumer.commit()
        assert consumer.committed(0) == 20
        assert consumer.poll(0.05) == []
        append_numbers(hub, orders, 0, [20])
        assert numbers(consumer, 1) == [20]

    def test_who_seeks_back_has_not_done_what_it_was_given_and_who_seeks_ahead_has(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        append_numbers(hub, orders, 0, range(20))
        consumer = consume(max_poll_records=5)
        consumer.subscribe([orders])
        assert numbers(consumer, 5) == list(range(5))
        consumer.seek(0, 2)
        assert numbers(consumer, 1)[0] == 2
        consumer.close(timeout=5)
        at = checkpoints(hub, orders, GROUP)[0]
        assert 2 < at <= 7
        consumer = consume()
        consumer.subscribe([orders])
        assert numbers(consumer, 1)[0] == at
        hub.split_shard(orders, 0)
        consumer.seek_to_end(0)
        append_to_all(hub, orders, [20, 21])
        assert sorted(numbers(consumer, 2)) == [20, 21], "it has ended, though nothing came of it"

    def test_one_cannot_seek_outside_the_log_or_in_what_is_not_held(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=1, retention_bytes=1)
        append_numbers(hub, orders, 0, range(10))
        append_numbers(hub, orders, 0, range(10, 20))
        hub.enforce_retention(orders)
        first = hub.first_offset(orders, 0)
        assert first == 10
        consumer = consume()
        consumer.subscribe([orders])
        assigned(consumer, [0])
        bad: list[tuple[type[ShoalError], object, Any]] = [
            (OffsetOutOfRange, 0, 21),
            (OffsetOutOfRange, 0, -1),
            (OffsetExpired, 0, 9),
            (InvalidInput, 0, "five"),
            (NotOwner, 4, 0),
            (InvalidInput, "zero", 0),
        ]
        for kind, shard, offset in bad:
            with pytest.raises(kind):
                consumer.seek(shard, offset)  # type: ignore[arg-type]
        consumer.seek(0, 20)
        assert consumer.poll(0.05) == []

    def test_offsets_of_the_log_are_told(self, hub: Hub, orders: str, consume: Make) -> None:
        hub.create_stream(orders, shards=2)
        append_numbers(hub, orders, 0, range(10))
        later = datetime.now(UTC)
        consumer = consume()
        consumer.subscribe([orders])
        assigned(consumer, [0, 1])
        places = [StreamShard(orders, shard) for shard in (0, 1)]
        assert consumer.beginning_offsets() == dict.fromkeys(places, 0)
        assert consumer.end_offsets([(orders, 0), 1]) == {places[0]: 10, places[1]: 0}
        old = datetime(2001, 1, 1, tzinfo=UTC)
        assert consumer.offsets_for_times({0: old, (orders, 1): later}) == {places[0]: 0, places[1]: 0}
        with pytest.raises(InvalidInput):
            consumer.offsets_for_times([old])  # type: ignore[arg-type]

    def test_what_is_paused_is_kept_and_not_polled_until_it_is_resumed(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=2)
        for shard in (0, 1):
            append_numbers(hub, orders, shard, range(5))
        consumer = consume()
        consumer.subscribe([orders])
        numbers(consumer, 10)
        consumer.pause([0])
        assert consumer.paused == [StreamShard(orders, 0)]
        for shard in (0, 1):
            append_numbers(hub, orders, shard, [7 + shard])
        assert numbers(consumer, 1) == [8]
        assert consumer.poll(0.1) == []
        assert len(consumer.assignment) == 2
        consumer.resume()
        assert numbers(consumer, 1) == [7]

    @pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
    def test_where_there_is_no_position_the_reset_says_where_to_begin(
        self, hub: Hub, orders: str, consume: Make, reset: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        append_numbers(hub, orders, 0, range(5))
        consumer = consume(auto_offset_reset=reset)
        if reset == "none":
            with pytest.raises(UnknownGroup):
                consumer.subscribe([orders])
            return
        consumer.subscribe([orders])
        append_numbers(hub, orders, 0, [5])
        assert numbers(consumer, 1)[0] == (0 if reset == "earliest" else 5)

    @pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
    def test_when_retention_was_faster_the_reset_says_where_to_go_on(
        self, hub: Hub, orders: str, consume: Make, coordination: str, reset: str
    ) -> None:
        hub.create_stream(orders, shards=1, retention_bytes=1)
        hub.create_group(orders, GROUP, coordination=coordination)
        append_numbers(hub, orders, 0, range(5))
        append_numbers(hub, orders, 0, range(5, 10))
        hub.enforce_retention(orders)
        consumer = consume(auto_offset_reset=reset)
        consumer.subscribe([orders])
        if reset == "none":
            with pytest.raises(OffsetExpired) as caught:
                numbers(consumer, 1)
            assert caught.value.first_offset == 5
            consumer.seek_to_beginning(0)
        if reset == "latest":
            polled_until([consumer], lambda: consumer.stats.skipped == 10, "it goes to the end")
            append_numbers(hub, orders, 0, [10])
        assert numbers(consumer, 1)[0] == (10 if reset == "latest" else 5)

    # --- Streams. ---

    def test_subscribing_replaces_and_hands_over_what_is_not_among_it(
        self, hub: Hub, project: str, consume: Make
    ) -> None:
        names = [f"{project}/{name}" for name in "abc"]
        for place, name in enumerate(names):
            hub.create_stream(name, shards=1)
            append_numbers(hub, name, 0, [place])
        consumer = consume()
        consumer.subscribe(names[:2])
        assert sorted(numbers(consumer, 2)) == [0, 1]
        consumer.subscribe(names[1:])
        assert consumer.subscription == names[1:]
        assert hub.describe_group(names[0], GROUP).members == ()
        assert checkpoints(hub, names[0], GROUP) == {0: 1}
        assert numbers(consumer, 1) == [2]
        consumer.unsubscribe()
        assert consumer.subscription == []
        with pytest.raises(InvalidInput, match="subscribe"):
            consumer.poll(0)
        consumer.subscribe([names[0]])
        append_numbers(hub, names[0], 0, [7])
        assert numbers(consumer, 1) == [7]

    def test_streams_that_match_join_by_themselves_and_those_of_set_aside_records_do_not(
        self, hub: Hub, project: str, consume: Make
    ) -> None:
        consumer = consume()
        consumer.subscribe(re.compile(f"{project}/orders-.*"))
        assert consumer.poll(0.05) == [], "a pattern that matches nothing waits for what will"
        for name in ("orders-a", "orders-b", "orders-a.billing.retry", "invoices"):
            hub.create_stream(f"{project}/{name}", shards=1)
            append_numbers(hub, f"{project}/{name}", 0, [len(name)])
        assert sorted(numbers(consumer, 2)) == [8, 8]
        assert consumer.subscription == [f"{project}/orders-a", f"{project}/orders-b"]
        hub.delete_stream(f"{project}/orders-a")
        polled_until([consumer], lambda: len(consumer.subscription) == 1, "one less matches")
        consumer.subscribe(pattern=f"{project}/inv.*")
        assert numbers(consumer, 1) == [8]

    def test_what_is_no_subscription_is_refused_and_nothing_is_changed(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        append_numbers(hub, orders, 0, range(3))
        consumer = consume()
        consumer.subscribe([orders])
        bad: list[dict[str, Any]] = [
            {"streams": orders},
            {"streams": []},
            {"streams": None},
            {"streams": [5]},
            {"pattern": "("},
            {"pattern": 5},
            {"pattern": re.compile(b"x")},
            {"streams": [orders], "pattern": "x"},
        ]
        for given in bad:
            with pytest.raises(InvalidInput):
                consumer.subscribe(**given)
        with pytest.raises(UnknownStream):
            consumer.subscribe([orders, f"{orders}-nowhere"])
        with pytest.raises(InvalidInput):
            consumer.assign([(orders, 0)])
        assert numbers(consumer, 3) == [0, 1, 2]
        with pytest.raises(InvalidInput, match="group"):
            consume(group=None).subscribe([orders])

    def test_a_stream_that_is_deleted_is_told_once_and_one_made_again_is_read_from_its_start(
        self, hub: Hub, project: str, consume: Make
    ) -> None:
        names = [f"{project}/{name}" for name in "ab"]
        for name in names:
            hub.create_stream(name, shards=1)
            append_numbers(hub, name, 0, range(2))
        listener = Listening()
        consumer = consume(timeout=1.0)
        consumer.subscribe(names, listener=listener)
        numbers(consumer, 4)
        consumer.poll(0)
        hub.delete_stream(names[0])
        with pytest.raises(NotFound):
            polled_until([consumer], lambda: False, "it is told")
        assert listener.told[-1] in [("lost", 0), ("revoked", 0)]
        append_numbers(hub, names[1], 0, [2])
        assert numbers(consumer, 1) == [2], "the other goes on"
        hub.create_stream(names[0], shards=1)
        append_numbers(hub, names[0], 0, [70, 71])
        assert numbers(consumer, 2) == [70, 71]

    def test_several_streams_are_spread_evenly_over_the_members(
        self, hub: Hub, project: str, consume: Make, coordination: str
    ) -> None:
        if coordination == "leased":
            pytest.skip("consumers of a leased group level each stream by itself")
        names = [f"{project}/s{number}" for number in range(6)]
        for name in names:
            hub.create_stream(name, shards=1)
        anna, bert = consume("anna"), consume("bert")
        anna.subscribe(names)
        polled_until([anna], lambda: len(anna.assignment) == 6, "all are hers")
        bert.subscribe(names)
        polled_until(
            [anna, bert],
            lambda: len(anna.assignment) + len(bert.assignment) == 6 and len(bert.assignment) >= 2,
            "some move",
        )
        polled_until([anna, bert], lambda: abs(len(anna.assignment) - len(bert.assignment)) <= 2, "evenly")

    # --- By hand. ---

    def test_shards_assigned_by_hand_are_read_beside_any_group(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=2)
        for shard in (0, 1):
            append_numbers(hub, orders, shard, range(4))
        member = consume("anna")
        member.subscribe([orders])
        assert len(numbers(member, 8)) == 8
        reader = consume("reader", group=None)
        reader.assign([(orders, 1)])
        assert numbers(reader, 4) == [0, 1, 2, 3]
        assert reader.position(1) == 4
        assert reader.committed(1) is None
        with pytest.raises(InvalidInput, match="group"):
            reader.commit()
        reader.seek(1, 2)
        assert numbers(reader, 2) == [2, 3]
        reader.assign([(orders, 0)])
        assert [place.shard for place in reader.assignment] == [0]
        with pytest.raises(NotFound):
            reader.assign([(orders, 9)])
        assert len(hub.list_groups(orders)) == 1

    def test_what_is_assigned_by_hand_is_committed_to_a_group_that_nobody_is_in(
        self, hub: Hub, orders: str, consume: Make, coordination: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        append_numbers(hub, orders, 0, range(4))
        for wanted in ([0, 1], [2, 3]):
            reader = consume("reader", "by-hand", auto_commit=False, max_poll_records=2)
            reader.assign([(orders, 0)])
            assert numbers(reader, 2) == wanted
            reader.commit()
            reader.close()
        assert checkpoints(hub, orders, "by-hand") == {0: 4}
        append_numbers(hub, orders, 0, range(4))
        hub.create_group(orders, GROUP, coordination=coordination, in_order=False)
        member = consume("anna")
        member.subscribe([orders])
        assigned(member, [0])
        reader = consume("reader", GROUP, auto_commit=False)
        reader.assign([(orders, 0)])
        numbers(reader, 4)
        with pytest.raises(GroupInUse):
            reader.commit()

    # --- Bad days. ---

    def test_two_threads_do_not_poll_one_consumer(self, hub: Hub, orders: str, consume: Make) -> None:
        hub.create_stream(orders, shards=1)
        consumer = consume()
        consumer.subscribe([orders])
        came: list[Any] = []
        thread = threading.Thread(target=lambda: came.append(consumer.poll(10.0)))
        thread.start()
        eventually(consumer._polling._busy.locked, "the other polls")
        with pytest.raises(ConsumerBusy, match="poll"):
            consumer.poll(0)
        append_numbers(hub, orders, 0, [1])
        thread.join(10)
        assert [len(batch) for batch in came[0]] == [1]

    def test_a_close_ends_a_poll_of_another_thread(self, hub: Hub, orders: str, consume: Make) -> None:
        hub.create_stream(orders, shards=1)
        consumer = consume()
        consumer.subscribe([orders])
        seen: list[Any] = []
        thread = threading.Thread(target=lambda: seen.extend(consumer))
        thread.start()
        eventually(consumer._polling._busy.locked, "the other polls")
        consumer.close()
        thread.join(10)
        assert not thread.is_alive()
        assert hub.describe_group(orders, GROUP).members == ()

    def test_who_does_not_poll_for_too_long_gives_up_and_is_told_so(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        append_numbers(hub, orders, 0, range(3))
        listener = Listening()
        anna = consume("anna", max_poll_interval=0.4)
        anna.subscribe([orders], listener=listener)
        numbers(anna, 3)
        bert = consume("bert")
        bert.subscribe([orders])
        assert numbers(bert, 3) == [0, 1, 2]
        with pytest.raises((LeaseLost, NotOwner)):
            anna.commit({0: 3})
        with pytest.raises(PollTooLate):
            anna.poll(0)
        assert listener.told[-1] == ("lost", 0)
        bert.close()
        append_numbers(hub, orders, 0, [3])
        assert numbers(anna, 1) == [3], "with the next poll it is back"

    def test_without_an_interval_nobody_is_too_late(self, hub: Hub, orders: str, consume: Make) -> None:
        hub.create_stream(orders, shards=1)
        append_numbers(hub, orders, 0, range(3))
        anna = consume("anna", timeout=0.5)
        anna.subscribe([orders])
        numbers(anna, 3)
        time.sleep(1.0)
        assert anna.commit() == {StreamShard(orders, 0): 3}

    def test_a_close_within_its_time_gives_up_what_is_not_handed_over(
        self, hub: Hub, orders: str, consume: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        append_numbers(hub, orders, 0, range(3))
        consumer = consume()
        consumer.subscribe([orders])
        numbers(consumer, 3)
        began = time.monotonic()
        consumer.close(timeout=0.5)
        consumer.close()
        assert time.monotonic() - began < 5
        assert hub.describe_group(orders, GROUP).members == ()
        with pytest.raises(ConsumerClosed):
            consumer.subscribe([orders])

    @pytest.mark.parametrize(
        "options",
        [
            {"auto_offset_reset": "middle"},
            {"max_poll_records": 0},
            {"fetch_max_bytes": "8"},
            {"max_poll_interval": -1},
            {"auto_commit": "yes"},
            {"auto_commit_interval": 0},
            {"value_deserializer": 5},
            {"nonsense": 1},
            {"group": "no group name"},
            {"name": ""},
        ],
        ids=str,
    )
    def test_options_that_make_no_sense_are_refused(self, hub: Hub, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput):
            Consumer(hub, **{"group": GROUP, **options})
        with Consumer(hub, GROUP) as consumer, pytest.raises(InvalidInput):
            consumer.poll(-1)

    def test_what_is_no_list_of_shards_and_what_is_no_listener_is_refused(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        given: Any = 5
        with Consumer(hub, GROUP) as consumer:
            for call in (consumer.pause, consumer.resume, consumer.end_offsets, consumer.beginning_offsets):
                for given in (5, orders, StreamShard(orders, 0)):
                    with pytest.raises(InvalidInput, match=r"shards=.*a list of"):
                        call(given)
            for given in (5, RebalanceListener):
                with pytest.raises(InvalidInput, match=r"listener=.*on_assigned, on_revoked, on_lost"):
                    consumer.subscribe([orders], listener=given)
            assert consumer.subscription == []
        with (
            Consumer(hub, auto_offset_reset="none") as consumer,
            pytest.raises(InvalidInput, match=r"auto_offset_reset='none': .*seek"),
        ):
            consumer.assign([(orders, 0)])
        with pytest.raises(InvalidInput, match="options=5"):
            Consumer(hub, GROUP, options=cast("Any", 5))
