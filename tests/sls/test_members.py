"""Who is a member of which group by its heartbeats, asked one by one."""

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

import shoal
from shoal import Hub
from shoal.server.sls.records import SCHEMA
from shoal.testing.serving import served
from tests.sls.asking import told
from tests.sls.running import STREAM, numbers, send

GROUPS = "/logstores/store/consumergroups"
AGENT = "log-python-sdk-v-0.9.52, linux-consumergroup-g-one"


def beat(url: str, group: str, reported: list[int]) -> tuple[int, Any]:
    return told(url, "POST", f"{GROUPS}/{group}?type=heartbeat&consumer=one", json.dumps(reported).encode())


def test_first_heartbeats_of_one_consumer_that_come_at_once_make_one_member(store_url: str) -> None:
    with served(store_url) as first, served(store_url) as second, shoal.connect(first) as hub:
        hub.create_stream(STREAM, shards=8, schema=SCHEMA)
        at_once = Barrier(8)

        def beating(number: int, group: str) -> tuple[int, Any]:
            at_once.wait(20)
            return beat((first, second)[number % 2], group, [])

        with ThreadPoolExecutor(8) as pool:
            for group in ("a", "b", "c"):
                hub.create_group(STREAM, group, in_order=False)
                answers = list(pool.map(beating, range(8), [group] * 8))
                assert answers == [(200, [*range(8)])] * 8
                assert beat(first, group, [*range(8)]) == (200, [*range(8)])
                kinds = [note.kind for _, note in hub.group_history(STREAM, group)]
                assert (kinds.count("joined"), kinds.count("barred")) == (1, 0)
        hub.delete_stream(STREAM)


@pytest.mark.parametrize(
    "made", [{"coordination": "leased"}, {"delivery": "shared"}, {"delivery": "broadcast"}]
)
def test_a_group_that_has_no_members_of_this_kind_takes_neither_heartbeats_nor_checkpoints(
    made: dict[str, Any], url: str, hub: Hub
) -> None:
    hub.create_stream(STREAM, shards=1, schema=SCHEMA)
    send(hub, numbers(0, 10))
    hub.create_group(STREAM, "g", **made)
    end = told(url, "GET", "/logstores/store/shards/0?type=cursor&from=end")[1]["cursor"]
    body = json.dumps({"shard": 0, "checkpoint": end}).encode()
    for answer in (
        beat(url, "g", []),
        told(url, "GET", f"{GROUPS}/g"),
        told(url, "POST", f"{GROUPS}/g?type=checkpoint&consumer=&forceSuccess=true", body),
        told(url, "POST", f"{GROUPS}/g?type=checkpoint&consumer=one&forceSuccess=True", body),
    ):
        status, error = answer
        assert (status, error["errorCode"]) == (400, "ParameterInvalid")
        assert next(iter(made.values())) in error["errorMessage"]
    assert [note.kind for _, note in hub.group_history(STREAM, "g")] == []
    # Who names such a group in its User-Agent may pull all the same.
    hub.split_shard(STREAM, 0)
    idle = told(url, "GET", "/logstores/store/shards/0?type=cursor&from=end", user_agent=AGENT)[1]["cursor"]
    path = f"/logstores/store/shards/0?type=log&count=10&cursor={idle}"
    assert told(url, "GET", path, user_agent=AGENT)[0] == 200


def test_a_consumer_whose_name_is_none_is_refused_whatever_it_asks_on_every_store(store_url: str) -> None:
    with served(store_url) as url, shoal.connect(url) as hub:
        hub.create_stream(STREAM, shards=1, schema=SCHEMA)
        hub.create_group(STREAM, "g", in_order=False)
        begin = told(url, "GET", "/logstores/store/shards/0?type=cursor&from=begin")[1]["cursor"]
        body = json.dumps({"shard": 0, "checkpoint": begin}).encode()
        for name in ("%00", "a%00b", "%F0%9F%98%80", "x" * 5000, "host:1234", ".."):
            for path, sent in (
                (f"{GROUPS}/g?type=checkpoint&consumer={name}&forceSuccess=True", body),
                (f"{GROUPS}/g?type=checkpoint&consumer={name}&forceSuccess=false", body),
                (f"{GROUPS}/g?type=heartbeat&consumer={name}", b"[]"),
            ):
                status, error = told(url, "POST", path, sent)
                assert (status, error["errorCode"]) == (400, "ParameterInvalid"), path
        assert [note.kind for _, note in hub.group_history(STREAM, "g")] == []
        hub.delete_stream(STREAM)
