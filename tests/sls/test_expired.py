"""What retention took, as Aliyun's clients meet it."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal import Hub
from shoal.core.group import ShardState
from shoal.hub.local import LocalHub
from shoal.server.options import ServerOptions
from shoal.server.sls.records import SCHEMA
from shoal.testing.reading import until
from shoal.testing.serving import served

STREAM, PATH = "proj/store", "/logstores/store"
ROW = {"time": 1, "contents": [("k", b"v")]}


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with served(f"sqlite:///{tmp_path / 'shoal.db'}", ServerOptions(port=0)) as url:
        yield url


@pytest.fixture
def hub(url: str) -> Iterator[Hub]:
    with shoal.connect(url) as hub:
        hub.create_stream(STREAM, shards=1, schema=SCHEMA)
        yield hub


def asked(url: str, method: str, path: str, body: Any = None) -> tuple[dict[str, str], bytes]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    try:
        sent = b"" if body is None else json.dumps(body).encode()
        connection.request(method, PATH + path, sent, {"Host": "proj.localhost"})
        answer = connection.getresponse()
        told = answer.read()
        assert answer.status == 200, told
        return dict(answer.getheaders()), told
    finally:
        connection.close()


def cursor(url: str, where: str) -> str:
    found: str = json.loads(asked(url, "GET", f"/shards/0?type=cursor&from={where}")[1])["cursor"]
    return found


def test_a_cursor_that_retention_has_overtaken_is_served_from_what_is_kept(hub: Hub, url: str) -> None:
    hub.append(STREAM, 0, [ROW] * 3)
    old = cursor(url, "begin")
    expire(hub)
    hub.append(STREAM, 0, [ROW])
    headers, body = asked(url, "GET", f"/shards/0?type=log&cursor={old}&count=10")
    assert headers["x-log-count"] == "1"
    assert headers["x-log-cursor"] == cursor(url, "end")
    assert body


def test_who_reads_up_to_an_end_that_retention_has_overtaken_is_given_that_end(hub: Hub, url: str) -> None:
    hub.append(STREAM, 0, [ROW] * 3)
    old, end = cursor(url, "begin"), cursor(url, "end")
    hub.append(STREAM, 0, [ROW] * 3)
    expire(hub)
    hub.append(STREAM, 0, [ROW])
    assert pulled_up_to(url, old, end) == ("0", end)
    assert pulled_up_to(url, end, end) == ("0", end)


def test_so_is_who_reads_while_retention_overtakes_it(
    hub: Hub, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.append(STREAM, 0, [ROW] * 3)
    old, end = cursor(url, "begin"), cursor(url, "end")
    hub.append(STREAM, 0, [ROW] * 3)
    before = hub.describe_stream(STREAM)
    expire(hub)
    monkeypatch.setattr(LocalHub, "describe_stream", lambda *_: before)
    assert pulled_up_to(url, old, end) == ("0", end)


def expire(hub: Hub) -> None:
    """Let retention take all that is there."""
    hub.set_retention(STREAM, retention=0.001)
    until(lambda: hub.enforce_retention(STREAM))
    hub.set_retention(STREAM)


def pulled_up_to(url: str, cursor: str, end: str) -> tuple[str, str]:
    """How many groups there were, and the next cursor."""
    headers, _ = asked(url, "GET", f"/shards/0?type=log&cursor={cursor}&count=10&end_cursor={end}")
    return headers["x-log-count"], headers["x-log-cursor"]


def test_a_closed_shard_of_which_nothing_is_kept_does_not_hold_up_its_children(hub: Hub, url: str) -> None:
    hub.append(STREAM, 0, [ROW] * 3)
    hub.split_shard(STREAM, 0)
    asked(url, "POST", "/consumergroups", {"consumerGroup": "g", "timeout": 20, "order": True})
    beat = "/consumergroups/g?type=heartbeat&consumer=one"
    assert json.loads(asked(url, "POST", beat, [])[1]) == [0]
    hub.set_retention(STREAM, retention=0.001)
    until(lambda: hub.enforce_retention(STREAM))
    asked(url, "POST", beat, [0])
    assert hub.describe_group(STREAM, "g").shards[0].state is ShardState.OVER
    assert json.loads(asked(url, "POST", beat, [0])[1]) == [1, 2]
