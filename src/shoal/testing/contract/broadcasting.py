"""Broadcast groups: every consumer gets everything, from a position of its own that outlives it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from shoal import BroadcastConsumer, Hub
from shoal.core.errors import (
    ConsumerClosed,
    InvalidInput,
    InvalidName,
    NameTaken,
    OffsetExpired,
    UnknownGroup,
    UnknownPosition,
    UnknownStream,
    WrongDelivery,
)
from shoal.core.group import ShardState
from shoal.testing.contract.suite import ConnectAgain, HubSuite, of_rules

WAIT_S = 20.0


def drained(consumer: BroadcastConsumer) -> list[bytes]:
    """All values that are there for it now."""
    found = []
    while (batch := consumer.poll()) is not None:
        found += [record.value for record in batch]
    return found


class BroadcastContract(HubSuite):
    def test_each_consumer_gets_everything_and_goes_on_where_it_was_after_a_restart(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=2)
        hub.create_group(orders, "screens", delivery="broadcast")
        hub.append(orders, 0, [b"a", b"b"])
        hub.append(orders, 1, [b"c"])
        for name in ("hall", "roof"):
            with BroadcastConsumer(hub, orders, "screens", name) as consumer:
                assert sorted(drained(consumer)) == [b"a", b"b", b"c"]
        hub.append(orders, 0, [b"d"])
        with BroadcastConsumer(hub, orders, "screens", "hall") as consumer:
            assert drained(consumer) == [b"d"]
            assert consumer.position() == {0: 3, 1: 1}
        info = hub.describe_group(orders, "screens")
        assert (info.state, info.lag) == ("active", 1)
        assert [(one.consumer, one.lag, dict(one.offsets)) for one in info.positions] == [
            ("hall", 0, {0: 3, 1: 1}),
            ("roof", 1, {0: 2, 1: 1}),
        ]
        assert [shard.checkpoint for shard in info.shards] == [2, 1]

    @of_rules
    def test_what_was_returned_last_comes_again_unless_it_was_saved_or_polled_past(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_group(orders, "screens", delivery="broadcast")
        hub.append(orders, 0, [b"a", b"b"])

        def broken() -> None:
            with BroadcastConsumer(hub, orders, "screens", "hall", max_records=1) as consumer:
                assert consumer.poll() is not None
                assert consumer.poll() is not None
                raise RuntimeError("it breaks in the middle of the second")

        with pytest.raises(RuntimeError):
            broken()
        with BroadcastConsumer(hub, orders, "screens", "hall") as consumer:
            assert drained(consumer) == [b"b"]

    @of_rules
    def test_a_consumer_that_is_killed_repeats_only_what_was_not_saved(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_group(orders, "screens", delivery="broadcast")
        hub.append(orders, 0, [b"a"])
        killed = BroadcastConsumer(hub, orders, "screens", "hall")
        assert killed.poll() is not None
        killed.save()
        hub.append(orders, 0, [b"b"])
        assert killed.poll() is not None  # It is never heard of again.
        with BroadcastConsumer(hub, orders, "screens", "hall") as consumer:
            assert drained(consumer) == [b"b"]

    @of_rules
    def test_children_come_after_their_parent_and_from_their_beginning(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_group(orders, "screens", delivery="broadcast", start="latest")
        hub.append(orders, 0, [b"parent"] * 3)
        consumer = BroadcastConsumer(hub, orders, "screens", "hall", max_records=1)
        assert consumer.poll() is not None
        hub.split_shard(orders, 0)
        hub.append(orders, 1, [b"child"])
        hub.append(orders, 2, [b"child"])
        found = drained(consumer)
        assert found == [b"parent"] * 2 + [b"child"] * 2
        consumer.close()
        states = [shard.state for shard in hub.describe_group(orders, "screens").shards]
        assert states == [ShardState.OVER, ShardState.NOT_ALLOC, ShardState.NOT_ALLOC]

    def test_a_broadcast_consumer_that_waits_is_woken_by_an_append_elsewhere(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        other = connect_again()
        hub.create_stream(orders, shards=2)
        hub.create_group(orders, "screens", delivery="broadcast")
        with BroadcastConsumer(hub, orders, "screens", "hall") as consumer, ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(consumer.poll, WAIT_S)
            time.sleep(0.2)
            other.append(orders, 1, [b"news"])
            batch = waiting.result(WAIT_S)
            assert batch is not None
            assert [record.value for record in batch] == [b"news"]
            assert consumer.poll(0.05) is None

    @of_rules
    def test_iteration_goes_on_until_the_consumer_is_closed(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_group(orders, "screens", delivery="broadcast")
        for number in range(3):
            hub.append(orders, 0, [b"%d" % number])
        consumer = BroadcastConsumer(hub, orders, "screens", "hall", max_records=1)
        found = []
        for batch in consumer:
            found += [record.value for record in batch]
            if len(found) == 3:
                consumer.close()
        assert found == [b"0", b"1", b"2"]

    def test_a_newer_process_of_the_same_name_has_the_position(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"a"])
        hub.create_group(orders, "screens", delivery="broadcast")
        old = BroadcastConsumer(hub, orders, "screens", "hall")
        assert old.poll() is not None
        new = BroadcastConsumer(hub, orders, "screens", "hall")
        with pytest.raises(NameTaken):
            old.save()
        assert drained(new) == [b"a"], "what the old one had not saved"
        new.close()

    def test_a_position_that_is_not_used_for_long_is_dropped_and_listed(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        keeper = connect_again(housekeeping_s=0.05)
        keeper.create_stream(orders, shards=1)
        keeper.create_group(orders, "screens", delivery="broadcast", unused=1.0)
        keeper.append(orders, 0, [b"a"])
        with BroadcastConsumer(hub, orders, "screens", "gone") as consumer:
            drained(consumer)
        with BroadcastConsumer(hub, orders, "screens", "here") as consumer:
            until = time.monotonic() + WAIT_S
            while not hub.describe_group(orders, "screens").dropped and time.monotonic() < until:
                consumer.poll(0.1)  # To wait for records is to use a position.
            info = hub.describe_group(orders, "screens")
            assert (info.dropped, [one.consumer for one in info.positions]) == (("gone",), ["here"])
        (line,) = [note for _, note in hub.group_history(orders, "screens") if note.kind == "dropped"]
        assert (line.consumer, "{0: 1}" in line.detail) == ("gone", True)
        with BroadcastConsumer(hub, orders, "screens", "gone") as consumer:
            assert drained(consumer) == [b"a"], "it begins where the group does"

    def test_a_position_is_dropped_by_hand_and_a_living_consumer_makes_its_own_again(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_group(orders, "screens", delivery="broadcast")
        hub.append(orders, 0, [b"a"])
        consumer = BroadcastConsumer(hub, orders, "screens", "hall")
        drained(consumer)
        hub.drop_position(orders, "screens", "hall")
        assert not hub.describe_group(orders, "screens").positions
        with pytest.raises(UnknownPosition):
            hub.drop_position(orders, "screens", "hall")
        consumer.save()
        assert hub.describe_group(orders, "screens").positions[0].offsets == {0: 1}
        consumer.close()

    def test_a_reset_moves_every_position_also_of_those_who_read(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_group(orders, "screens", delivery="broadcast")
        hub.append(orders, 0, [b"a", b"b", b"c"])
        with BroadcastConsumer(hub, orders, "screens", "away") as away:
            drained(away)
        reading = BroadcastConsumer(hub, orders, "screens", "reading")
        assert len(drained(reading)) == 3
        reading.save()
        hub.reset_group(orders, "screens", {0: 1})
        reading.save()
        assert drained(reading) == [b"b", b"c"]
        reading.close()
        for name in ("away", "new"):
            with BroadcastConsumer(hub, orders, "screens", name) as consumer:
                assert drained(consumer) == [b"b", b"c"]

    @of_rules
    def test_retention_that_overtakes_stops_or_is_jumped_over_and_counted(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1, retention_bytes=1)
        hub.create_group(orders, "screens", delivery="broadcast")
        hub.append(orders, 0, [b"a", b"b"])
        stops = BroadcastConsumer(hub, orders, "screens", "stops")
        jumps = BroadcastConsumer(hub, orders, "screens", "jumps", on_expired="jump")
        leaps = BroadcastConsumer(hub, orders, "screens", "leaps", on_expired="end")
        hub.append(orders, 0, [b"kept"])
        hub.enforce_retention(orders)
        with pytest.raises(OffsetExpired):
            stops.poll()
        assert drained(jumps) == [b"kept"]
        assert jumps.skipped == 2
        jumps.close()
        assert not drained(leaps)
        assert leaps.skipped == 3
        hub.append(orders, 0, [b"new"])
        assert drained(leaps) == [b"new"]
        leaps.close()

    @of_rules
    def test_what_a_broadcast_consumer_is_asked_is_checked(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_group(orders, "screens", delivery="broadcast")
        hub.create_group(orders, "queue", delivery="shared")
        with pytest.raises(WrongDelivery, match="SharedConsumer"):
            BroadcastConsumer(hub, orders, "queue", "hall")
        with pytest.raises(WrongDelivery, match="BroadcastConsumer"):
            hub.join_group(orders, "screens", "hall")
        with pytest.raises(UnknownGroup):
            BroadcastConsumer(hub, orders, "nobody", "hall")
        with pytest.raises(InvalidInput, match=r"hub=None: .*connect"):
            BroadcastConsumer(cast("Any", None), orders, "screens", "hall")
        with pytest.raises(InvalidName, match="name="):
            BroadcastConsumer(hub, orders, "screens", "")
        for name, value in (("save_interval", -1), ("on_expired", "shrug"), ("max_records", 0)):
            with pytest.raises(InvalidInput, match=f"{name}="):
                BroadcastConsumer(hub, orders, "screens", "hall", **{name: value})  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="unused="):
            hub.create_group(orders, "other", delivery="broadcast", unused=0)
        consumer = BroadcastConsumer(hub, orders, "screens", "hall")
        with pytest.raises(InvalidInput, match="timeout="):
            consumer.poll(-1)
        consumer.close()
        consumer.close()
        for call in (consumer.poll, consumer.save):
            with pytest.raises(ConsumerClosed):
                call()

    @pytest.mark.parametrize("records", [1, 9])
    def test_a_stream_that_is_deleted_and_made_again_under_a_position_is_another(
        self, hub: Hub, orders: str, connect_again: ConnectAgain, records: int
    ) -> None:
        """Whether the new one reaches as far as the position does, or not."""
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"old"] * 5)
        hub.create_group(orders, "screens", delivery="broadcast")
        consumer = BroadcastConsumer(hub, orders, "screens", "hall")
        assert len(drained(consumer)) == 5
        other = connect_again()
        other.delete_stream(orders)
        with pytest.raises(UnknownStream):
            consumer.poll()
        other.create_stream(orders, shards=1)
        other.append(orders, 0, [b"new"] * records)
        other.create_group(orders, "screens", delivery="broadcast")
        with pytest.raises(UnknownStream):
            consumer.poll()
        with pytest.raises(UnknownGroup, match="'screens'"):
            consumer.save()
        consumer.close()
        with BroadcastConsumer(hub, orders, "screens", "hall") as fresh:
            assert drained(fresh) == [b"new"] * records
