"""Delayed records whose map is an old one by the time that they are delivered, or whose clock was set."""

import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest

import shoal
from shoal import Hub
from shoal.core.delaying import DELAYED, Delay
from shoal.core.errors import InvalidInput, ShoalError
from shoal.core.model import StreamInfo
from shoal.ports import Place, ShardEnd, Submission
from shoal.testing.reading import read_shard, until, values_by_key
from shoal.testing.serving import served
from shoal.wire.fitting import fit_records
from shoal.wire.layout import Layout

DAY_NS = 86_400_000_000_000


def test_nobody_is_told_of_records_that_an_old_map_kept_out(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shoal.connect(sqlite_url) as hub:
        old = hub.create_stream("orders", shards=2)
        hub.split_shard("orders", 0)
        store: Any = vars(hub.service)["_store"]
        load, ring = store.load_stream_by_id, store.signal.ring
        late = [old]
        rung: list[tuple[int, bool]] = []

        def load_late(stream_id: int) -> StreamInfo | None:
            is_delivering = threading.current_thread().name == "shoal-delays"
            found: StreamInfo | None = late.pop() if late and is_delivering else load(stream_id)
            return found

        def ring_and_look(places: Sequence[tuple[Place, int]]) -> None:
            ends = [(place.shard, end) for place, end in places if isinstance(place, ShardEnd)]
            rung.extend((shard, end <= hub.next_offset("orders", shard)) for shard, end in ends)
            ring(places)

        monkeypatch.setattr(store, "load_stream_by_id", load_late)
        monkeypatch.setattr(store.signal, "ring", ring_and_look)
        with hub.producer("orders") as producer, producer.transaction() as transaction:
            transaction.send(b"low", key="a", hash_key=0, deliver_at=0)
            transaction.send(b"high", key="b", hash_key="f" * 32, deliver_at=0)
        until(lambda: hub.count_delayed("orders") == 0)
        until(lambda: len(rung) >= 2)
        assert not late
        assert sorted(rung) == [(1, True), (2, True)]
        assert values_by_key(hub, "orders") == {b"a": [b"low"], b"b": [b"high"]}


class Wall:
    """The wall clock of this process, which can be set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_ns, real_ns = 0, time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + self.ahead_ns)


def delay(hub: Hub, value: bytes, how: Delay) -> None:
    batch = fit_records(Layout(None), [value], [None], [0], None)
    submission = Submission(shard=DELAYED, batch=batch, delays=[how])
    (answer,) = hub.service.append(hub.describe_stream("orders"), [submission])
    if isinstance(answer, ShoalError):
        raise answer
    assert answer == (-1, -1, -1)


@pytest.mark.parametrize("is_seen", [True, False], ids=["by who took it", "by one who opens it later"])
def test_what_was_to_wait_for_so_long_waits_no_longer_when_the_wall_clock_is_set_back(
    store_url: str, monkeypatch: pytest.MonkeyPatch, is_seen: bool
) -> None:
    wall = Wall(monkeypatch)
    wall.ahead_ns = DAY_NS
    hub = shoal.connect(store_url)
    try:
        hub.create_stream("orders", shards=1)
        delay(hub, b"a while", Delay(0, None, 800))
        delay(hub, b"at that time", Delay(time.time_ns() // 1_000_000 + 3_600_000, None))
        if not is_seen:
            hub.close()
        wall.ahead_ns = 0
        if not is_seen:
            hub = shoal.connect(store_url, housekeeping_s=0.05)
        until(lambda: hub.stats("orders").appended == 1)
        assert [record.value for record in read_shard(hub, "orders", 0)] == [b"a while"]
        assert hub.count_delayed("orders") == 1, "a time that was named is still to come"
        wall.ahead_ns = 2 * DAY_NS
        until(lambda: hub.count_delayed("orders") == 0)
    finally:
        hub.close()


def test_a_delayed_record_that_is_damaged_holds_up_its_stream_alone(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with shoal.connect(sqlite_url) as hub:
        for name in ("orders", "others"):
            hub.create_stream(name, shards=1)
        at = time.time_ns() // 1_000_000 + 3_600_000
        with hub.producer("orders") as orders:
            orders.send(b"damaged", deliver_at=at)
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as file:
        file.execute("UPDATE shoal_delayed SET payload = zeroblob(length(payload)), due_ms = 0")
        file.commit()
    with shoal.connect(sqlite_url) as hub, hub.producer("others") as others:
        others.send(b"sound", deliver_at=1)
        until(lambda: hub.stats("others").appended == 1)
        assert hub.count_delayed("orders") == 1
    assert "delayed records of stream" in caplog.text
    assert "damaged" in caplog.text


def test_a_servers_clock_counts_and_not_its_clients(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(sqlite_url) as url, shoal.connect(url) as hub:
        hub.create_stream("orders", shards=1)
        Wall(monkeypatch).ahead_ns = DAY_NS
        delay(hub, b"a while", Delay(0, None, 200))
        until(lambda: hub.stats("orders").appended == 1)


@pytest.mark.parametrize(
    ("field", "how"),
    [
        ("due_ms", Delay(-1, None)),
        ("due_ms", Delay(1 << 60, None)),
        ("wait_ms", Delay(0, None, -1)),
        ("wait_ms", Delay(0, None, 8 * 24 * 3_600_000)),
    ],
)
def test_a_server_takes_no_delay_that_makes_no_sense(sqlite_url: str, field: str, how: Delay) -> None:
    with served(sqlite_url) as url, shoal.connect(url) as hub:
        hub.create_stream("orders", shards=1)
        with pytest.raises(InvalidInput, match=f"{field}="):
            delay(hub, b"odd", how)
        assert hub.count_delayed("orders") == 0
