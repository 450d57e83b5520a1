"""Several servers of one store, asked in Aliyun's dialect: what one is told, the others know."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

import shoal
from shoal import Hub
from shoal.core.group import ShardState
from shoal.core.model import StreamName
from shoal.core.names import stream_name
from shoal.hub.groups import LocalGroups
from shoal.server.sls.records import SCHEMA
from shoal.testing.members import eventually
from shoal.testing.reading import until
from shoal.testing.servers import PostgresServer
from shoal.testing.serving import ServerProcess, served
from tests.sls.asking import asked
from tests.sls.messages import group as encoded
from tests.sls.running import STREAM, Start, Writer, check_order, held, lag, reading

AGENT = "log-python-sdk-v-0.9.52, linux-consumergroup-g-one"
ROW = {"time": 1, "contents": [("k", b"v")]}

Ask = Callable[..., tuple[dict[str, str], Any]]


@pytest.fixture
def ask(sqlite_url: str) -> Iterator[Ask]:
    """Asks, as a consumer of the library, one server and then the other."""
    with ExitStack() as opened:
        urls = [opened.enter_context(served(sqlite_url)) for _ in range(2)]

        def asked(method: str, path: str, body: Any = None, agent: str = AGENT) -> tuple[dict[str, str], Any]:
            urls.append(urls.pop(0))
            with closing(
                http.client.HTTPConnection(urls[0].removeprefix("http://"), timeout=20)
            ) as connection:
                sent = b"" if body is None else json.dumps(body).encode()
                headers = {"Host": "proj.localhost", "User-Agent": agent}
                connection.request(method, "/logstores/store" + path, sent, headers)
                answer = connection.getresponse()
                told = answer.read()
                assert answer.status == 200, told
                is_json = answer.getheader("content-type") == "application/json"
                return dict(answer.getheaders()), json.loads(told) if is_json else told

        yield asked


@pytest.fixture
def one(ask: Ask, sqlite_url: str) -> Iterator[Hub]:
    """A group in order, whose only member holds the only shard, with one record."""
    with shoal.connect(sqlite_url) as hub:
        hub.create_stream(STREAM, shards=1, schema=SCHEMA)
        hub.append(STREAM, 0, [ROW])
        ask("POST", "/consumergroups", {"consumerGroup": "g", "timeout": 20, "order": True})
        assert ask("POST", "/consumergroups/g?type=heartbeat&consumer=one", [])[1] == [0]
        yield hub


def cursor(ask: Ask, where: str) -> str:
    assert ask("GET", "/consumergroups/g?shard=0")[1][0]["checkpoint"] == ""
    found: str = ask("GET", f"/shards/0?type=cursor&from={where}")[1]["cursor"]
    return found


def pulled(ask: Ask, cursor: str, more: str = "", agent: str = AGENT) -> tuple[int, str]:
    """How many groups there were, and the next cursor."""
    headers, _ = ask("GET", f"/shards/0?type=log&count=10&cursor={cursor}{more}", agent=agent)
    return int(headers["x-log-count"]), headers["x-log-cursor"]


def save(ask: Ask, group: str, consumer: str, cursor: str) -> None:
    """As the Python library does it: forced."""
    path = f"/consumergroups/{group}?type=checkpoint&consumer={consumer}&forceSuccess=True"
    ask("POST", path, {"shard": 0, "checkpoint": cursor})


def state(hub: Hub) -> ShardState:
    return hub.describe_group(STREAM, "g").shards[0].state


def test_who_begins_at_the_end_of_a_closed_shard_has_done_with_it_whichever_server_it_asks(
    ask: Ask, one: Hub
) -> None:
    one.split_shard(STREAM, 0)
    assert pulled(ask, cursor(ask, "end"))[0] == 0
    assert state(one) is ShardState.OVER
    assert ask("POST", "/consumergroups/g?type=heartbeat&consumer=one", [0])[1] == [1, 2]


def test_who_began_at_the_end_and_was_given_nothing_until_the_shard_was_closed_has_done_with_it(
    ask: Ask, one: Hub
) -> None:
    at = cursor(ask, "end")
    assert pulled(ask, at) == (0, at)
    one.split_shard(STREAM, 0)
    assert pulled(ask, at)[0] == 0
    assert state(one) is ShardState.OVER


@pytest.mark.parametrize("agent", [AGENT, "a person"])
def test_so_has_who_would_read_up_to_an_end_behind_which_it_began(agent: str, ask: Ask, one: Hub) -> None:
    at = cursor(ask, "end")
    end = ask("GET", "/shards/0?type=cursor&from=end", agent=agent)[1]["cursor"]
    assert pulled(ask, at, f"&end_cursor={end}") == (0, at)
    one.split_shard(STREAM, 0)
    assert pulled(ask, at, f"&end_cursor={end}")[0] == 0
    assert state(one) is ShardState.OVER
    assert ask("POST", "/consumergroups/g?type=heartbeat&consumer=one", [0])[1] == [1, 2]


def test_so_has_javas_consumer_however_it_spells_its_group(ask: Ask, one: Hub) -> None:
    agent = "Consumer-Library-G/one"
    at = ask("GET", "/shards/0?type=cursor&from=end", agent=agent)[1]["cursor"]
    one.split_shard(STREAM, 0)
    assert pulled(ask, at, agent=agent)[0] == 0
    assert state(one) is ShardState.OVER
    assert ask("POST", "/consumergroups/G?type=heartbeat&consumer=one", [0], agent=agent)[1] == [1, 2]


def test_who_pulls_is_not_told_that_a_group_is_deleted_in_that_moment(
    ask: Ask, one: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.split_shard(STREAM, 0)
    at = cursor(ask, "end")
    before = one.service.groups.list(stream_name(STREAM))
    ask("DELETE", "/consumergroups/g")
    monkeypatch.setattr(LocalGroups, "list", lambda *_: before)
    assert pulled(ask, at)[0] == 0


def test_a_forced_checkpoint_does_not_lead_back_one_who_takes_the_shard_in_that_moment(
    ask: Ask, one: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = cursor(ask, "begin")
    ask("POST", "/consumergroups", {"consumerGroup": "h", "timeout": 20, "order": True})
    look = LocalGroups.whole

    def looked(groups: LocalGroups, name: StreamName, group: str) -> Any:
        found = look(groups, name, group)
        monkeypatch.undo()
        assert ask("POST", "/consumergroups/h?type=heartbeat&consumer=one", [])[1] == [0]
        save(ask, "h", "one", ask("GET", "/shards/0?type=cursor&from=end")[1]["cursor"])
        return found

    monkeypatch.setattr(LocalGroups, "whole", looked)
    save(ask, "h", "late", begin)
    assert one.describe_group(STREAM, "h").lag == 0


def test_a_native_consumer_of_the_same_name_loses_nothing_to_what_aliyuns_one_pulls_and_saves(
    ask: Ask, one: Hub
) -> None:
    one.create_group(STREAM, "h", timeout=20, in_order=True)
    agent = AGENT.replace("-g-", "-h-")
    begin, end = (cursor(ask, where) for where in ("begin", "end"))
    one.split_shard(STREAM, 0)
    with shoal.Consumer(one, "h", name="one", auto_commit=False, auto_offset_reset="earliest") as native:
        native.subscribe([STREAM])
        until(lambda: native.poll(0.1))
        assert pulled(ask, end, agent=agent)[0] == 0
        save(ask, "h", "one", end)
        assert one.describe_group(STREAM, "h").lag == 1
        native.commit()
        assert one.describe_group(STREAM, "h").lag == 0
        save(ask, "h", "one", begin)
        assert one.describe_group(STREAM, "h").lag == 0


def test_who_is_silent_keeps_its_shards_for_as_long_as_it_believes_to_hold_them(ask: Ask, one: Hub) -> None:
    # A client with a timeout of 1 s beats every 0.5 s, and lets go 1.5 s after its last answer; but it looks
    # at the clock only after a heartbeat that was tried for ten seconds.
    ask("PUT", "/consumergroups/g", {"timeout": 1, "order": True})
    assert ask("POST", "/consumergroups/g?type=heartbeat&consumer=one", [0])[1] == [0]
    last = time.monotonic()
    eventually(
        lambda: ask("POST", "/consumergroups/g?type=heartbeat&consumer=two", [])[1] == [0], "it goes on", 40
    )
    assert time.monotonic() - last > 11.5


@pytest.mark.parametrize("bound", ["", "end"])
def test_who_was_given_something_has_not_done_with_it_before_it_saves(bound: str, ask: Ask, one: Hub) -> None:
    more = f"&end_cursor={cursor(ask, bound)}" if bound else ""
    one.split_shard(STREAM, 0)
    count, following = pulled(ask, cursor(ask, "begin"), more)
    assert count == 1
    # It reads ahead, while what it was given may be under way.
    assert pulled(ask, following, more)[0] == 0
    assert state(one) is not ShardState.OVER
    save(ask, "g", "one", following)
    assert state(one) is ShardState.OVER


def test_groups_whose_names_differ_in_capitals_are_two_on_every_store(store_url: str) -> None:
    with served(store_url) as url, shoal.connect(url) as hub:
        hub.create_stream(STREAM, shards=1, schema=SCHEMA)
        for name in ("g", "G"):
            hub.create_group(STREAM, name)
        assert sorted(group.name for group in hub.list_groups(STREAM)) == ["G", "g"]


def test_workers_that_turn_from_server_to_server_lose_nothing_when_one_is_killed(
    postgres_server: PostgresServer, start: Start
) -> None:
    store = postgres_server.fresh_database()
    with ServerProcess(store) as first, ServerProcess(store) as second, shoal.connect(second.url) as hub:
        hub.create_stream(STREAM, shards=4, schema=SCHEMA)
        through = f"through={first.url},{second.url}"
        with (
            reading(start, first.url, "g", "one", through) as one,
            reading(start, first.url, "g", "two", through) as two,
        ):
            eventually(lambda: held(hub) == [2, 2], "they share", 30)
            writer = Writer(hub, keys=8)
            try:
                eventually(lambda: len(one.texts) > 20 and len(two.texts) > 20, "both read", 30)
                first.end(kill=True)
                before = writer.sent
                eventually(lambda: writer.sent > before + 40, "more is written", 30)
            finally:
                sent = writer.end()
            eventually(lambda: sent <= {*one.texts, *two.texts}, "everything is read", 60)
            eventually(lambda: lag(hub) == 0, "everything is saved", 30)
            check_order(one.seen, two.seen)
    postgres_server.drop_database(store)


def test_workers_go_on_when_their_only_server_is_killed_and_started_again(
    sqlite_url: str, start: Start
) -> None:
    with ServerProcess(sqlite_url) as server, shoal.connect(server.url) as hub:
        hub.create_stream(STREAM, shards=4, schema=SCHEMA)
        with (
            reading(start, server.url, "g", "one") as one,
            reading(start, server.url, "g", "two") as two,
        ):
            eventually(lambda: held(hub) == [2, 2], "they share", 30)
            writer = Writer(hub, keys=8)
            try:
                eventually(lambda: min(len(one.texts), len(two.texts)) > 0, "both read", 30)
                server.end(kill=True)
                server.start()
                before = writer.sent
                eventually(lambda: writer.sent > before + 20, "more is written", 30)
            finally:
                sent = writer.end()
            eventually(lambda: sent <= {*one.texts, *two.texts}, "everything is read", 60)
            eventually(lambda: lag(hub) == 0 and held(hub) == [2, 2], "all is saved and shared", 30)
            check_order(one.seen, two.seen)


def test_a_put_goes_where_the_stream_is_now_whatever_another_server_did_to_it(
    sqlite_url: str,
) -> None:
    put = ("POST", "/logstores/store/shards/route?key=" + "f" * 32, encoded([(1, None, [(b"k", b"v")])]))
    with served(sqlite_url) as here, shoal.connect(sqlite_url) as hub:
        hub.create_stream(STREAM, shards=1, schema=SCHEMA)
        assert asked(here, *put) == (200, "")
        hub.split_shard(STREAM, 0)
        assert asked(here, *put) == (200, "")
        assert [s.next_offset for s in hub.describe_stream(STREAM).shards] == [1, 0, 1]
        hub.delete_stream(STREAM)
        assert asked(here, *put) == (404, "LogStoreNotExist")
        hub.create_stream(STREAM, shards=1)
        assert asked(here, *put) == (400, "ParameterInvalid")
        hub.delete_stream(STREAM)
        hub.create_stream(STREAM, shards=1, schema=SCHEMA)
        assert asked(here, *put) == (200, "")
        assert asked(here, *put) == (200, "")
        hub.delete_stream(STREAM)
        hub.create_stream(STREAM, shards=1, schema=SCHEMA)
        assert asked(here, *put) == (200, "")
        assert hub.stats(STREAM).appended == 1
