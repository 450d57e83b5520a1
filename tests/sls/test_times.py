"""Cursors by time, which are about when a server received a record, whatever time its producer gave it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import shoal
from shoal import Hub
from shoal.core.model import ShardId
from shoal.hub.local import LocalHub
from shoal.server.sls.records import SCHEMA
from shoal.testing.reading import until
from shoal.testing.serving import served
from tests.sls.asking import told
from tests.sls.running import STREAM

ROW = {"time": 1, "contents": [("k", b"v")]}
SHARD = "/logstores/store/shards/0"


def asked(url: str, query: str) -> Any:
    status, answer = told(url, "GET", f"{SHARD}?{query}")
    assert status == 200, answer
    return answer


def send(hub: Hub, at: datetime) -> None:
    with hub.producer(STREAM) as producer:
        producer.send(ROW, timestamp=at)


def test_cursors_by_time_and_the_times_of_cursors_agree_on_every_store(store_url: str) -> None:
    with served(store_url) as url, shoal.connect(url) as hub:
        hub.create_stream(STREAM, shards=1, schema=SCHEMA)
        for days in (-1, 1, -1):
            send(hub, datetime.now(UTC) + timedelta(days=days))
        begin, end = (asked(url, f"type=cursor&from={where}")["cursor"] for where in ("begin", "end"))
        received = asked(url, f"type=cursor_time&cursor={begin}")["cursor_time"]
        assert asked(url, f"type=cursor&from={received}")["cursor"] == begin
        assert asked(url, f"type=cursor&from={received - 3600}")["cursor"] == begin
        assert asked(url, f"type=cursor&from={received + 3600}")["cursor"] == end
        hub.delete_stream(STREAM)


def test_the_first_record_that_was_received_since_a_time_is_found_on_every_store(store_url: str) -> None:
    with shoal.connect(store_url) as hub:
        hub.create_stream(STREAM, shards=1, schema=SCHEMA)
        local = hub.service
        assert isinstance(local, LocalHub)
        now = datetime.now(UTC)
        at: list[int] = []

        def has_three_times() -> bool:
            send(hub, now - timedelta(days=len(at)))
            stream = hub.describe_stream(STREAM)
            received = local.appended_at(stream, ShardId(0), stream.shards[0].next_offset - 1)
            assert received is not None
            at.append(received)
            return len(set(at)) == 3

        until(has_three_times)
        stream = hub.describe_stream(STREAM)
        for received in {*at, at[0] - 1, at[-1] + 1}:
            wanted = next((i for i, one in enumerate(at) if one >= received), len(at))
            assert local.offset_appended(stream, stream.shards[0], received) == wanted
        hub.delete_stream(STREAM)
