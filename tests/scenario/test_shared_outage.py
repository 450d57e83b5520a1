"""A store that goes away under consumers without owners: nothing is lost, nothing settled twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

import shoal
from shoal import BroadcastConsumer, SharedConsumer
from shoal.core.errors import StoreUnavailable
from shoal.core.model import StreamName
from shoal.core.share_acts import Settled
from shoal.share_port import Settling
from shoal.testing.servers import PostgresServer

pytestmark = pytest.mark.alone

WAIT_S = 60.0


def test_an_answer_that_is_lost_is_asked_for_again_and_nothing_is_settled_twice(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shoal.connect(sqlite_url) as hub:
        hub.create_stream("jobs", shards=1)
        hub.append("jobs", 0, [b"a", b"b"])
        hub.create_group("jobs", "queue", delivery="shared", visibility=60.0)
        consumer = SharedConsumer(hub, "jobs", "queue")
        received = consumer.receive()
        shares = hub.service.shares
        settle = shares.settle
        losses = iter([True, False])

        def lossy(name: StreamName, group_id: int, settlings: Sequence[Settling]) -> list[Settled]:
            answer = settle(name, group_id, settlings)
            if next(losses):
                raise StoreUnavailable("the answer was lost")
            return answer

        monkeypatch.setattr(shares, "settle", lossy)
        assert consumer.ack(received) == 2
        monkeypatch.undo()
        assert hub.describe_group("jobs", "queue").shards[0].acknowledged == 2


def test_an_outage_that_outlasts_the_hold_is_told_and_the_records_come_again(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shoal.connect(sqlite_url) as hub:
        hub.create_stream("jobs", shards=1)
        hub.append("jobs", 0, [b"a"])
        hub.create_group("jobs", "queue", delivery="shared", visibility=0.5)
        consumer = SharedConsumer(hub, "jobs", "queue")
        received = consumer.receive()

        def gone(*_: object) -> list[Settled]:
            raise StoreUnavailable("out of order")

        with monkeypatch.context() as patched:
            patched.setattr(hub.service.shares, "settle", gone)
            with pytest.raises(StoreUnavailable):
                consumer.ack(received)
        again = consumer.receive(wait=WAIT_S)
        assert again.attempts(0) == 2
        assert consumer.ack(again) == 1


def test_a_burial_that_was_cut_short_is_made_good_by_whoever_receives_next(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.hub.shared.BURY_MS", 300)

    def cut_short(*_: object, **__: object) -> None:
        raise OSError("the process ends here")

    with shoal.connect(sqlite_url) as hub, shoal.connect(sqlite_url) as other:
        hub.create_stream("jobs", shards=1)
        hub.append("jobs", 0, [b"poison"])
        hub.create_group("jobs", "queue", delivery="shared", visibility=60.0)
        consumer = SharedConsumer(hub, "jobs", "queue")
        received = consumer.receive()
        with monkeypatch.context() as patched:
            patched.setattr("shoal.hub.shared.letters", cut_short)
            with pytest.raises(OSError, match="ends here"):
                consumer.reject(received, reason="poison")
        assert not SharedConsumer(other, "jobs", "queue").receive(wait=0.5), "nobody receives it again"
        assert [letter.value for letter in hub.dead_letters("jobs", "queue")] == [b"poison"]
        assert hub.describe_group("jobs", "queue").lag == 0


def test_consumers_go_on_by_themselves_when_the_server_is_back(postgres_server: PostgresServer) -> None:
    url = postgres_server.fresh_database()
    with shoal.connect(url) as hub:
        hub.create_stream("jobs", shards=2)
        hub.create_group("jobs", "queue", delivery="shared", visibility=WAIT_S, max_attempts=50)
        hub.create_group("jobs", "screens", delivery="broadcast")
        for shard in (0, 1):
            hub.append("jobs", shard, [b"%d" % number for number in range(100)])
        consumer = SharedConsumer(hub, "jobs", "queue")
        in_hand = consumer.receive(30)
        watching = BroadcastConsumer(hub, "jobs", "screens", "hall")
        seen, done = [0], threading.Event()

        def watch() -> None:
            for batch in watching:
                seen[0] += len(batch)
                if seen[0] >= 201:
                    done.set()
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        with ThreadPoolExecutor(1) as threads:
            postgres_server.stop("immediate")
            try:
                with pytest.raises(StoreUnavailable):
                    consumer.receive(10)
                acking = threads.submit(consumer.ack, in_hand)
                time.sleep(0.5)
                assert not acking.done()
            finally:
                postgres_server.start()
            assert acking.result(WAIT_S) == 30
            hub.append("jobs", 0, [b"after"])
            assert done.wait(WAIT_S)
            watcher.join(WAIT_S)
            watching.close()
        taken = 30
        while received := consumer.receive(100, wait=0.5):
            taken += consumer.ack(received)
        info = hub.describe_group("jobs", "queue")
        assert (taken, info.lag, sum(shard.acknowledged for shard in info.shards)) == (201, 0, 201)
        consumer.close()
    postgres_server.drop_database(url)
