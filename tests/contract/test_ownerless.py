"""Groups without owners on every database: bounds, rows that are made at once, and waits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import shoal
from shoal import BroadcastConsumer, SharedConsumer
from shoal.core.errors import HeldByAnother, NameTaken, TooManyPositions
from shoal.core.model import ShardId
from shoal.core.share import ShareRules, ShareState
from shoal.core.share_acts import How, Receive, Settle, Settled
from shoal.share_port import ShareTouch
from shoal.store.sql.store import SQLStore

RULES = ShareRules(max_attempts=3)


def test_there_is_a_bound_to_the_names_of_a_broadcast_group(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.hub.broadcast.BROADCAST_CONSUMERS_MAX", 2)
    with shoal.connect(store_url) as hub:
        hub.create_stream("orders", shards=1)
        hub.create_group("orders", "screens", delivery="broadcast")
        for name in ("a", "b", "a"):
            BroadcastConsumer(hub, "orders", "screens", name).close()
        with pytest.raises(TooManyPositions, match="same name at every start"):
            BroadcastConsumer(hub, "orders", "screens", "c")


def test_a_forked_child_is_another_consumer_and_has_nothing_in_hand(sqlite_url: str) -> None:
    with shoal.connect(sqlite_url) as hub:
        hub.create_stream("orders", shards=1)
        hub.append("orders", 0, [b"a"])
        hub.create_group("orders", "queue", delivery="shared", visibility=60.0)
        hub.create_group("orders", "screens", delivery="broadcast")
        consumer = SharedConsumer(hub, "orders", "queue")
        received = consumer.receive()
        screen = BroadcastConsumer(hub, "orders", "screens", "hall")
        for one in (consumer, screen):
            one.renew()  # What a fork does to them in the child.
        with pytest.raises(HeldByAnother):
            consumer.ack(received)
        consumer.close()
        assert hub.describe_group("orders", "queue").shards[0].in_flight == 1
        with pytest.raises(NameTaken):
            screen.save()


def test_a_consumer_that_never_settles_keeps_no_list_of_what_it_had(sqlite_url: str) -> None:
    with shoal.connect(sqlite_url) as hub:
        hub.create_stream("orders", shards=1)
        hub.append("orders", 0, [b"a", b"b"])
        hub.create_group("orders", "queue", delivery="shared", visibility=60.0, max_attempts=10)
        consumer = SharedConsumer(hub, "orders", "queue")
        assert consumer.receive(1).offsets == range(1)
        for _ in range(3):
            assert consumer.receive(1, visibility=0.01, wait=10.0).offsets == range(1, 2)
        assert len(consumer._in_hand) == 2, "what is still ours, and the last"
        consumer.close()
        assert hub.describe_group("orders", "queue").shards[0].in_flight == 0, "both are given back"


def test_consumers_that_come_at_once_from_several_hubs_share_the_rows_of_new_shards(store_url: str) -> None:
    with shoal.connect(store_url) as hub:
        hub.create_stream("orders", shards=1)
        hub.create_group("orders", "queue", delivery="shared")
        hub.append("orders", 0, [b"before"])
        hub.split_shard("orders", 0)
        for shard in (1, 2):
            hub.append("orders", shard, [b"after"])

    def work(_: int) -> int:
        with shoal.connect(store_url) as hub, SharedConsumer(hub, "orders", "queue") as consumer:
            found = 0
            while received := consumer.receive(wait=0.3):
                found += consumer.ack(received)
            return found

    with ThreadPoolExecutor(5) as threads:
        assert sum(threads.map(work, range(5))) == 3


def test_a_wait_ends_by_what_is_told_of_it_and_a_row_that_went_back_gives_no_number_twice(
    store_url: str,
) -> None:
    with shoal.connect(store_url) as hub:
        stream = hub.create_stream("orders", shards=1)
        hub.append("orders", 0, [b"a", b"b"])
        hub.create_group("orders", "queue", delivery="shared")
        (group,) = hub.list_groups("orders")
        hub.describe_group("orders", "queue")  # Makes the rows.
    store = SQLStore.open(store_url)
    try:

        def done(act: Receive | Settle, left: dict[int, int], seen: int = 0) -> tuple[ShareState, object]:
            touch = ShareTouch(
                group_id=group.id,
                stream_id=stream.id,
                shard=ShardId(0),
                act=act,
                rules=RULES,
                left=left,
                seen=seen,
            )
            (answer,) = store.share([touch], 0)
            assert isinstance(answer, tuple)
            return answer

        asked = Receive(consumer="ada", max_records=1, visibility_ms=100)
        assert done(asked, {})[0].left == {1: 100}
        assert done(asked, {1: 50})[0].left == {1: 50, 2: 100}
        late = Settle(consumer="ada", hold=1, ranges=[(0, 1)], how=How.ACK)
        state, refused = done(late, {1: 0})
        assert isinstance(refused, Settled)
        assert (refused.taken, state.left) == (0, {2: 100})
        after, _ = done(asked, {}, seen=1000)
        assert after.version > 1000
        assert after.holds > 1000
        view = store.load_shares(group.id)
        assert view is not None
        assert view.states[ShardId(0)] == after
    finally:
        store.close()
