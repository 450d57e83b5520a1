"""Where Aliyun's consumers begin: what they are told, whatever their own settings say."""

import json
from typing import Any

import pytest

import shoal
from shoal import Hub
from shoal.server.sls.records import SCHEMA
from shoal.testing.serving import served
from tests.sls.asking import told
from tests.sls.running import STREAM, numbers, send

GROUP = "/logstores/store/consumergroups/g"


def made(url: str, hub: Hub, shards: int = 1) -> None:
    """A stream with a few records, and a group that begins where its consumers want to."""
    hub.create_stream(STREAM, shards=shards, schema=SCHEMA)
    send(hub, numbers(0, 10))
    asked(
        url, "POST", "/logstores/store/consumergroups", {"consumerGroup": "g", "timeout": 20, "order": True}
    )


def asked(url: str, method: str, path: str, body: Any = None) -> Any:
    status, answer = told(url, method, path, b"" if body is None else json.dumps(body).encode())
    assert status == 200, answer
    return answer


def checkpoints(url: str) -> list[str]:
    return [one["checkpoint"] for one in asked(url, "GET", GROUP)]


def cursor(url: str, shard: int, where: str) -> str:
    found: str = asked(url, "GET", f"/logstores/store/shards/{shard}?type=cursor&from={where}")["cursor"]
    return found


def force(url: str, cursor: str, consumer: str = "") -> None:
    body = {"shard": 0, "checkpoint": cursor}
    asked(url, "POST", f"{GROUP}?type=checkpoint&consumer={consumer}&forceSuccess=true", body)


def test_a_shard_that_is_born_later_is_read_from_its_first_record_and_a_reset_counts_on_every_store(
    store_url: str,
) -> None:
    with served(store_url) as url, shoal.connect(url) as hub:
        made(url, hub)
        assert checkpoints(url) == [""]
        hub.split_shard(STREAM, 0)
        send(hub, numbers(10, 30))
        # Of a group that nobody was a member of meanwhile, too.
        asked(url, "POST", f"{GROUP}?type=heartbeat&consumer=one", [])
        assert checkpoints(url) == ["", cursor(url, 1, "begin"), cursor(url, 2, "begin")]
        assert asked(url, "GET", GROUP)[1]["updateTime"] > 0
        hub.reset_group(STREAM, "g", to={0: 0})
        assert checkpoints(url) == [cursor(url, shard, "begin") for shard in range(3)]
        hub.delete_stream(STREAM)


@pytest.mark.parametrize("consumer", ["", "one"])
def test_a_checkpoint_that_is_forced_where_the_shard_stands_is_one(consumer: str, url: str, hub: Hub) -> None:
    made(url, hub)
    force(url, cursor(url, 0, "begin"), consumer)
    assert checkpoints(url) == [cursor(url, 0, "begin")]
    assert asked(url, "GET", GROUP)[0]["updateTime"] > 0


def test_a_holders_checkpoint_at_the_beginning_is_one(url: str, hub: Hub) -> None:
    made(url, hub)
    assert asked(url, "POST", f"{GROUP}?type=heartbeat&consumer=one", []) == [0]
    force(url, cursor(url, 0, "begin"), "one")
    assert checkpoints(url) == [cursor(url, 0, "begin")]
    assert asked(url, "POST", f"{GROUP}?type=heartbeat&consumer=one", [0]) == [0]


def test_a_reset_to_where_the_group_stands_is_what_its_consumers_are_told(url: str, hub: Hub) -> None:
    made(url, hub, shards=2)
    assert checkpoints(url) == ["", ""]
    hub.reset_group(STREAM, "g", to="earliest")
    assert checkpoints(url) == [cursor(url, 0, "begin"), cursor(url, 1, "begin")]
    hub.reset_group(STREAM, "g", to="latest")
    assert checkpoints(url) == [cursor(url, 0, "end"), cursor(url, 1, "end")]
    hub.reset_group(STREAM, "g", to="earliest")
    assert checkpoints(url) == [cursor(url, 0, "begin"), cursor(url, 1, "begin")]


def test_a_group_that_was_made_to_begin_at_the_end_does_so_where_nothing_is_yet(url: str, hub: Hub) -> None:
    hub.create_stream(STREAM, shards=1, schema=SCHEMA)
    hub.create_group(STREAM, "g", start="latest")
    send(hub, numbers(0, 10))
    assert checkpoints(url) == [cursor(url, 0, "begin")]
