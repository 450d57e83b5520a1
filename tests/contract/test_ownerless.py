"""Groups without owners on every database: bounds, rows that are made at once, and clocks of shards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import shoal
from shoal import BroadcastConsumer, SharedConsumer
from shoal.core.errors import TooManyPositions
from shoal.core.model import ShardId
from shoal.core.share import How, Receive, Settle, Settled, ShareRules
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


def test_a_shard_clock_goes_on_by_what_is_shown_to_it_and_a_row_that_went_back_gives_no_number_twice(
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

        def touch(act: Receive | Settle, clock_ms: int, seen: int = 0) -> ShareTouch:
            return ShareTouch(
                group_id=group.id,
                stream_id=stream.id,
                shard=ShardId(0),
                act=act,
                rules=RULES,
                clock_ms=clock_ms,
                seen=seen,
            )

        asked = Receive(consumer="ada", max_records=1, visibility_ms=100)
        first, second = store.share([touch(asked, 0), touch(asked, 50)], 0)
        assert isinstance(first, tuple)
        assert isinstance(second, tuple)
        assert (first[0].clock_ms, second[0].clock_ms) == (0, 50)
        late = Settle(consumer="ada", hold=1, ranges=[(0, 1)], how=How.ACK)
        (refused,) = store.share([touch(late, 100)], 0)
        assert isinstance(refused, tuple)
        assert isinstance(refused[1], Settled)
        assert refused[1].taken == 0
        (after,) = store.share([touch(asked, 100, seen=1000)], 0)
        assert isinstance(after, tuple)
        assert after[0].version > 1000
        assert after[0].holds > 1000
        view = store.load_shares(group.id)
        assert view is not None
        assert view.states[ShardId(0)] == after[0]
    finally:
        store.close()
