"""A server with many clients: who waits costs little, and nobody has more of it than the bounds say."""

import http.client
import itertools
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import psutil
import pytest

import shoal
from shoal import Hub
from shoal.core.errors import HubClosed
from shoal.core.membership import Beat
from shoal.core.model import ShardId
from shoal.core.names import stream_name
from shoal.ports import Newcomer, ShardEnd
from shoal.server.options import ServerOptions
from shoal.testing.members import eventually
from shoal.testing.serving import ServerProcess, served
from tests.scenario.asking import asked, figure

pytestmark = pytest.mark.alone


@pytest.fixture
def url(sqlite_url: str) -> Iterator[str]:
    with served(sqlite_url) as url:
        yield url


class Beating:
    """A consumer that holds what it is given, and beats when it is told to."""

    def __init__(self, hub: Hub, number: int) -> None:
        self._groups = hub.service.groups
        self.incarnation = f"c{number}-1"
        newcomer = Newcomer(name=f"c{number}", incarnation=self.incarnation)
        self.joined = self._groups.join(stream_name("orders"), "billing", newcomer)
        self.seen = self._number = 0
        self._held: Mapping[ShardId, int] = {}

    def beat(self) -> None:
        self._number += 1
        beat = Beat(
            incarnation=self.incarnation,
            number=self._number,
            timeout_ms=self.joined.timeout_ms,
            interval_ms=self.joined.interval_ms,
            held=self._held,
            seen=self.seen,
        )
        answer = self._groups.beat(stream_name("orders"), self.joined.group_id, beat)
        self.seen = answer.version
        if answer.granted is not None:
            self._held = {grant.shard: grant.epoch for grant in answer.granted}


def test_who_waits_takes_no_thread_and_the_limit_of_those_is_kept(sqlite_url: str) -> None:
    with (
        served(sqlite_url, ServerOptions(port=0, waiting_max=60, threads=4)) as url,
        shoal.connect(url) as hub,
        ExitStack() as stack,
    ):
        hub.create_stream("orders", shards=1)
        host, _, port = url.removeprefix("http://").partition(":")
        body = b'{"name":"orders","shard":0,"offset":0,"limits":{"wait_s":30}}'
        head = b"POST /v1/hub/read HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        waiting = [stack.enter_context(socket.create_connection((host, int(port)), 20)) for _ in range(60)]
        for sock in waiting:
            sock.sendall(head + body)

        def figure() -> str:
            return str(asked(url, "/metrics", method="GET")[1].decode())

        eventually(lambda: "shoal_server_waiting 60.0" in figure(), "all of them wait")
        assert (
            hub.describe_stream("orders").shards[0].next_offset == 0
        )  # Four threads, and others are served.
        status, told = asked(url, "/v1/hub/read", body)
        assert (status, told["error"], told["untouched"]) == (503, "StoreBusy", True)
        waiting.pop().close()
        eventually(lambda: "shoal_server_waiting 59.0" in figure(), "one that went away is forgotten")
        hub.append("orders", 0, [b"news"])
        for sock in waiting:
            assert b"200 OK" in sock.recv(4096)


def test_one_client_that_has_all_places_to_wait_leaves_one_to_another(sqlite_url: str) -> None:
    with (
        served(sqlite_url, ServerOptions(port=0, waiting_max=20)) as url,
        shoal.connect(url) as hub,
        ExitStack() as stack,
    ):
        hub.create_stream("orders", shards=1)
        body = b'{"name":"orders","shard":0,"offset":0,"limits":{"wait_s":30}}'
        head = b"POST /v1/hub/read HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)

        def waiting(address: str) -> socket.socket:
            sock = stack.enter_context(socket.socket())
            sock.bind((address, 0))
            sock.connect(("127.0.0.1", int(url.rpartition(":")[2])))
            sock.settimeout(5)
            sock.sendall(head + body)
            return sock

        first = waiting("127.0.0.1")
        eventually(lambda: figure(url, "waiting") == 1, "it waits")
        for _ in range(19):
            waiting("127.0.0.1")
        eventually(lambda: figure(url, "waiting") == 20, "all of them wait")
        assert b"503" in waiting("127.0.0.1").recv(20)  # It has all of them.
        other = waiting("127.0.0.2")
        assert b"200 OK" in first.recv(20)  # Nothing came: it may ask again.
        assert figure(url, "waiting") == 20
        hub.append("orders", 0, [b"news"])
        assert b"200 OK" in other.recv(20)


def test_who_names_a_place_thousands_of_times_waits_there_once_and_holds_nobody_up(url: str) -> None:
    with shoal.connect(url) as hub:
        stream = hub.create_stream("orders", shards=2)
        place = {"type": "ShardEnd", "stream_id": stream.id, "shard": 0}

        def watched(beyond: int, wait_for_s: float) -> tuple[int, Any]:
            places = [[place, beyond + number] for number in range(20_000, -1, -1)]
            body = json.dumps({"places": places, "wait_for_s": wait_for_s}).encode()
            return asked(url, "/v1/hub/watch", body)

        # Each of them used to take several seconds longer than the one before: the third took 20 s.
        for _ in range(8):
            assert watched(10**9, 0.01) == (200, [])
        hub.append("orders", 0, [b"a", b"b"])
        status, told = watched(1, 10)
        assert (status, [(moved["place"]["shard"], moved["number"]) for moved in told]) == (200, [(0, 2)])


def test_what_is_waited_for_counts_among_what_requests_hold_until_it_is_answered(url: str) -> None:
    with shoal.connect(url) as hub, ThreadPoolExecutor(1) as client:
        stream = hub.create_stream("orders", shards=1000)
        places = [
            [{"type": "ShardEnd", "stream_id": stream.id, "shard": shard.id}, 0] for shard in stream.shards
        ]
        body = json.dumps({"places": places, "wait_for_s": 20}).encode()
        before = figure(url, "body_bytes")
        waiting = client.submit(asked, url, "/v1/hub/watch", body)
        eventually(lambda: figure(url, "waiting") == 1, "it waits")
        assert figure(url, "body_bytes") > before + len(body) + 500 * len(places)
        hub.append("orders", 7, [b"a"])
        assert waiting.result(20)[0] == 200
        eventually(lambda: figure(url, "body_bytes") == before, "nothing is held of it any more")


def test_five_hundred_consumers_that_wait_and_beat_cost_little(sqlite_url: str) -> None:
    """A tenth of a core, by the time that the server's threads ran. The least of three looks counts: whoever
    else is on the machine only adds to it."""
    with ServerProcess(sqlite_url) as server, shoal.connect(server.url) as hub, ExitStack() as stack:
        hub.create_stream("orders", shards=8)
        hub.create_group("orders", "billing")
        consumers = [Beating(hub, number) for number in range(500)]
        threads = stack.enter_context(ThreadPoolExecutor(40))
        stop = threading.Event()
        stack.callback(stop.set)

        def beat_on(place: int) -> None:
            mine = consumers[place::40]
            pause_s = mine[0].joined.interval_ms / 1000 / len(mine)
            due_s = time.monotonic() + pause_s * place / 40
            for consumer in itertools.cycle(mine):
                if stop.wait(max(0.0, due_s - time.monotonic())):
                    return
                consumer.beat()
                due_s += pause_s

        beating = [threads.submit(beat_on, place) for place in range(40)]
        eventually(lambda: all(one.seen for one in consumers), "all have beaten", within_s=60)
        stream_id = hub.describe_stream("orders").id
        for number, one in enumerate(consumers):
            shard = {"type": "ShardEnd", "stream_id": stream_id, "shard": number % 8}
            view = {"type": "MemberView", "group_id": one.joined.group_id, "incarnation": one.incarnation}
            body = json.dumps({"places": [[shard, 0], [view, one.seen]], "wait_for_s": 30}).encode()
            head = b"POST /v1/hub/watch HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 20))
            sock.sendall(head + body)

        def figure(name: str) -> float:
            text = asked(server.url, "/metrics", method="GET")[1].decode()
            return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)[1])  # type: ignore[index]

        eventually(lambda: figure("shoal_server_waiting") == 500, "all wait")
        beats = 'shoal_server_requests_total{call="groups.beat",status="200"}'
        process = psutil.Process(server.pid)
        assert process.num_threads() < 60
        assert process.memory_info().rss < 400_000_000
        shares, beaten = [], figure(beats)
        began_s = time.monotonic()
        for _ in range(3):
            before, look_s = sum(process.cpu_times()[:2]), time.monotonic()
            time.sleep(4)
            shares.append((sum(process.cpu_times()[:2]) - before) / (time.monotonic() - look_s))
        assert min(shares) < 0.1
        assert figure(beats) - beaten > 80 * (time.monotonic() - began_s), "they have beaten all the while"
        assert figure("shoal_server_waiting") == 500
        stop.set()
        for one_thread in beating:
            one_thread.result(20)


def test_who_asks_too_often_is_told_when_to_come_again_and_our_client_does(sqlite_url: str) -> None:
    with served(sqlite_url, ServerOptions(port=0, requests_per_s_max=20)) as url, shoal.connect(url) as hub:
        hub.create_stream("orders", shards=1)
        answers = [asked(url, "/v1/hub/list_projects") for _ in range(30)]
        refused = [told for status, told in answers if status == 429]
        assert refused
        assert {status for status, _ in answers} == {200, 429}
        assert {(told["error"], told["untouched"], told["retriable"]) for told in refused} == {
            ("RateExceeded", True, True)
        }
        host, _, port = url.removeprefix("http://").partition(":")
        with closing(http.client.HTTPConnection(host, int(port), timeout=20)) as connection:
            after = None
            for _ in range(40):
                connection.request("POST", "/v1/hub/list_projects", body=b"{}")
                answer = connection.getresponse()
                answer.read()
                if answer.status == 429:
                    after = answer.headers["Retry-After"]
        assert after == "1"
        began = time.monotonic()
        for number in range(30):  # Each of them is a request, made again until it is let in.
            hub.append("orders", 0, [b"%d" % number])
        assert time.monotonic() - began > 0.5
        assert hub.stats("orders").records == 30
        assert asked(url, "/healthz", method="GET")[0] == 200  # Not counted: who watches over it looks often.


def test_who_does_not_take_its_answers_keeps_nobody_waiting_and_holds_only_so_much(sqlite_url: str) -> None:
    options = ServerOptions(port=0, answers_bytes_max=60_000_000, send_s=2)
    with served(sqlite_url, options) as url, shoal.connect(url) as hub, ExitStack() as stack:
        hub.create_stream("orders", shards=1)
        for _ in range(4):
            hub.append("orders", 0, [os.urandom(900_000) for _ in range(4)])
        body = b'{"name":"orders","shard":0,"offset":0,"limits":{"max_bytes":14000000}}'
        head = b"POST /v1/hub/read HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)

        def reader(address: str) -> socket.socket:
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.bind((address, 0))
            sock.connect(("127.0.0.1", int(url.rpartition(":")[2])))
            sock.settimeout(5)
            sock.sendall(head + body)
            return sock

        for _ in range(16):
            reader("127.0.0.1")
        eventually(lambda: figure(url, "answer_bytes") > 28_000_000, "answers are not taken")
        status, told = asked(url, "/v1/hub/read", body)
        assert (status, told["error"], told["untouched"]) == (503, "StoreBusy", True)
        assert reader("127.0.0.2").recv(20).startswith(b"HTTP/1.1 200 OK")  # Another client has room.
        assert figure(url, "answer_bytes") < 60_000_000
        began = time.monotonic()
        for _ in range(20):
            hub.append("orders", 0, [b"x"])
        assert time.monotonic() - began < 5
        beat = "/logstores/orders/consumergroups/billing?type=heartbeat&consumer=one"
        assert asked(url, beat, b"[]")[0] == 404  # Of the other dialect, too: nothing but reading is refused.
        eventually(lambda: figure(url, "answer_bytes") < 1000, "they are cut off")
        assert len(hub.read("orders", 0, 0)) > 0


def test_who_asks_for_much_that_it_does_not_take_keeps_nobody_waiting_and_holds_only_so_much(
    sqlite_url: str,
) -> None:
    """Lists, which are no records: of each, tenths of a second are spent, and a megabyte and more is held."""
    options = ServerOptions(port=0, answers_bytes_max=30_000_000)
    with served(sqlite_url, options) as url, ExitStack() as stack:
        with shoal.connect(url) as hub:
            for number in range(30):
                hub.create_stream(f"many-{number}", shards=1024)
        body = b'{"project":null}'
        head = b"POST /v1/hub/list_streams HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16\r\n\r\n"
        greedy = []
        for _ in range(24):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", int(url.rpartition(":")[2])))
            sock.settimeout(30)
            sock.sendall(head + body)
            greedy.append(sock)
        with socket.socket() as modest:
            modest.bind(("127.0.0.2", 0))
            modest.connect(("127.0.0.1", int(url.rpartition(":")[2])))
            modest.settimeout(15)
            began = time.monotonic()
            modest.sendall(head.replace(b"list_streams", b"list_projects").replace(b"16", b"2") + b"{}")
            assert modest.recv(20).startswith(b"HTTP/1.1 200 OK")
            took_s = time.monotonic() - began
        eventually(lambda: figure(url, "answer_bytes") > 10_000_000, "answers are not taken")
        assert took_s < 3, f"{took_s:.1f} s: twenty-four lists take much longer"
        assert figure(url, "answer_bytes") < 20_000_000, "what is beyond its half is refused"
        assert any(sock.recv(20).startswith(b"HTTP/1.1 503") for sock in greedy[-8:])


def test_all_who_ask_for_figures_at_once_cost_one_look_at_the_store(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need no key, and a look at all groups takes a while."""
    looks: list[int] = []

    def slow_look(_: object) -> bytes:
        looks.append(1)
        time.sleep(0.5)
        return b"slow 1\n"

    monkeypatch.setattr("shoal.server.app.lag_text", slow_look)
    with ThreadPoolExecutor(40) as threads:
        told = list(threads.map(lambda _: asked(url, "/metrics", method="GET"), range(40)))
    assert all(status == 200 and text.endswith(b"slow 1\n") for status, text in told)
    looked = len(looks)
    assert looked < 10
    assert asked(url, "/metrics", method="GET")[0] == 200
    assert len(looks) == looked + 1  # One who comes later is told what there is then.


def test_a_store_that_answers_is_not_said_to_be_down_when_lag_takes_too_long(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = threading.Event()

    def slow_look(_: object) -> bytes:
        is_over.wait(20)
        return b"slow 1\n"

    monkeypatch.setattr("shoal.server.app.lag_text", slow_look)
    monkeypatch.setattr("shoal.server.app._LAG_S", 0.3)
    status, figures = asked(url, "/metrics", method="GET")
    is_over.set()
    assert status == 200
    assert b"shoal_server_store_up 1.0" in figures
    assert b"slow" not in figures


def test_a_call_that_waits_ends_when_its_hub_is_closed(url: str) -> None:
    hub = shoal.connect(url)
    hub.create_stream("orders", shards=1)
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            hub.read("orders", 0, 0, wait=30)
        except shoal.ShoalError as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    place = ShardEnd(hub.describe_stream("orders").id, hub.describe_stream("orders").shards[0].id)
    following = hub.service.follow(lambda _: None)
    following.add(place, 0)
    time.sleep(0.2)
    hub.close()
    thread.join(10)
    assert [type(error) for error in ended] == [HubClosed]


@pytest.mark.parametrize("path", ["/nowhere", "/v1/openapi.json", "/metrics"])
def test_what_needs_no_key_counts_against_the_rate_of_its_address(sqlite_url: str, path: str) -> None:
    with served(sqlite_url, ServerOptions(port=0, requests_per_s_max=5)) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        statuses = []
        with closing(http.client.HTTPConnection(host, int(port), timeout=20)) as connection:
            for _ in range(30):
                connection.request("GET", path)
                answer = connection.getresponse()
                answer.read()
                statuses.append(answer.status)
        assert statuses[0] in {200, 404}
        assert 429 in statuses
