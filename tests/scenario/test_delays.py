"""Delayed records whose map is an old one by the time that they are delivered."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

import shoal
from shoal.core.model import StreamInfo
from shoal.ports import Place, ShardEnd
from shoal.testing.reading import until, values_by_key


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
