"""Requests to a server with users: signed rightly, wrongly, twice, for another server, by another clock."""

import http.client
import itertools
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import shoal
from shoal import Hub
from shoal.core.errors import (
    ClockSkewed,
    NotSignedIn,
)
from shoal.hub.local import LocalHub
from shoal.native.calls import CALLS, arguments_to
from shoal.remote.connection import Connection
from shoal.remote.signing import Credentials, Signer
from shoal.server.options import ServerOptions
from shoal.server.sealing import new_secret
from shoal.server.starting import open_server
from shoal.testing.serving import served
from shoal.testing.users import ALL, Door
from tests.scenario.asking import Sent, asked
from tests.scenario.beating import ORDERS, Member


def test_nobody_gets_in_without_a_signature_and_nothing_is_changed(door: Door, admin: Hub) -> None:
    unsigned = asked(door.url, "/v1/hub/create_stream", Sent(Credentials(key="k", secret="s")).body)
    assert (unsigned[0], unsigned[1]["error"]) == (401, "NotSignedIn")
    with pytest.raises(NotSignedIn):
        shoal.connect(door.url)
    assert admin.list_streams() == []


def test_wrong_cut_and_forged_requests_are_refused_and_nothing_is_changed(door: Door, admin: Hub) -> None:
    key = door.key_of("writer", ALL)
    sent = Sent(key).for_server(door.url)
    other = Credentials(key=key.key, secret=new_secret())
    header = sent.header()
    forged = {
        "wrong secret": replace(sent, key=other).header(),
        "unknown key": replace(sent, key=Credentials(key="SKNONE", secret=key.secret)).header(),
        "cut": header[:-5],
        "empty": "",
        "another scheme": "Basic a2V5OnNlY3JldA==",
        "twice": header + "," + header,
        "another path": replace(sent, path="/v1/hub/list_projects").header(),
    }
    for name, given in forged.items():
        status, told = asked(door.url, sent.path, sent.body, Authorization=given)
        assert (status, told["error"]) == (401, "NotSignedIn"), name
        assert key.secret not in str(told)
    status, told = asked(door.url, sent.path, sent.body.replace(b"new", b"old"), Authorization=header)
    assert (status, told["error"]) == (401, "NotSignedIn")
    assert "body" in told["text"]
    assert admin.list_streams() == []


def test_the_same_request_is_taken_once_here_and_on_no_other_server(door: Door, admin: Hub) -> None:
    sent = Sent(door.key_of("writer", ALL)).for_server(door.url)
    header = sent.header()
    assert asked(door.url, sent.path, sent.body, Authorization=header)[0] == 200
    admin.delete_stream("new")
    status, told = asked(door.url, sent.path, sent.body, Authorization=header)
    assert (status, told["error"]) == (401, "ReplayedRequest")
    with served(door.store_url) as another:
        status, told = asked(another, sent.path, sent.body, Authorization=header)
        assert (status, told["error"]) == (401, "SignedForAnother")
    assert admin.list_streams() == []


def test_a_request_for_any_server_of_the_store_is_taken_once_by_all_of_them(door: Door, admin: Hub) -> None:
    key = door.key_of("writer", ALL)
    told = asked(
        door.url, "/v1/hub/list_projects", Authorization=Sent(key, "/v1/hub/list_projects", b"{}").header()
    )
    sent = Sent(key, server=told[1]["fields"]["store"])
    header = sent.header()
    with served(door.store_url) as another:
        assert asked(door.url, sent.path, sent.body, Authorization=header)[0] == 200
        for url in (another, door.url):
            status, refused = asked(url, sent.path, sent.body, Authorization=header)
            assert (status, refused["error"]) == (401, "ReplayedRequest")


def test_who_signs_for_any_server_while_nothing_can_be_written_keeps_only_itself_waiting(door: Door) -> None:
    path = "/v1/hub/list_projects"
    many, modest = door.key_of("many", ALL), door.key_of("modest", ALL)
    here = Sent(modest, path, b"{}").for_server(door.url)
    assert asked(door.url, path, Authorization=here.header())[0] == 200
    told = asked(door.url, path, Authorization=Sent(many, path, b"{}").header())
    anywhere = Sent(many, path, b"{}", server=told[1]["fields"]["store"])

    def ask(number: int) -> int:
        sent = replace(anywhere, nonce=f"{number:020}")
        return asked(door.url, path, Authorization=sent.header())[0]

    file = sqlite3.connect(door.store_url.removeprefix("sqlite:///"), isolation_level=None)
    with closing(file), ThreadPoolExecutor(40) as threads:
        file.execute("BEGIN IMMEDIATE")
        try:
            waiting = [threads.submit(ask, number) for number in range(40)]
            time.sleep(0.3)
            began = time.monotonic()
            assert asked(door.url, path, Authorization=replace(here, nonce="m" * 20).header())[0] == 200
            assert asked(door.url, "/readyz", method="GET")[0] == 200
            assert time.monotonic() - began < 1.5
            assert not any(one.done() for one in waiting), "their numbers are to be written down first"
        finally:
            file.execute("ROLLBACK")
        assert {one.result() for one in waiting} == {200}


def test_heartbeats_that_are_signed_for_any_server_wait_for_no_slow_calls_of_their_user(
    door: Door, admin: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a balancer all are, and the workers of a farm may share one key."""
    path, key = "/v1/hub/list_projects", door.key_of("farm", ALL)
    told = asked(door.url, path, Authorization=Sent(key, path, b"{}").header())
    anywhere = Sent(key, path, b"{}", server=told[1]["fields"]["store"])
    admin.create_stream("orders", shards=1)
    admin.create_group("orders", "billing")
    member, call = Member(admin, "worker"), CALLS["groups", "beat"]
    member.beat()
    beat = {"name": ORDERS, "group_id": member.joined.group_id, "beat": member.next()}
    body = arguments_to(call, beat)
    is_over = threading.Event()
    monkeypatch.setattr(LocalHub, "list_projects", lambda _: is_over.wait(20) and [])
    with ThreadPoolExecutor(40) as threads:
        sent = [replace(anywhere, nonce=f"{number:020}") for number in range(40)]
        slow = [threads.submit(asked, door.url, path, Authorization=one.header()) for one in sent]
        try:
            time.sleep(0.5)
            began = time.monotonic()
            beaten = Sent(key, call.path, body, nonce="b" * 20, server=anywhere.server)
            status, told = asked(door.url, call.path, body, Authorization=beaten.header())
            assert status == 200, told
            assert time.monotonic() - began < 2
            assert not any(one.done() for one in slow)
        finally:
            is_over.set()
        assert {one.result()[0] for one in slow} == {200}


def test_a_request_that_is_refused_for_its_rate_is_not_taken_later_from_who_has_listened(door: Door) -> None:
    path, key = "/v1/hub/list_projects", door.key_of("writer", ALL)
    with served(door.store_url, ServerOptions(port=0, requests_per_s_max=3)) as url:
        told = asked(url, path, Authorization=Sent(key, path, b"{}").header())
        anywhere = Sent(key, path, b"{}", server=told[1]["fields"]["store"])
        answers: list[tuple[str, int, Any]] = []
        while not answers or answers[-1][1] == 200:
            header = replace(anywhere, nonce=f"{len(answers):020}").header()
            answers.append((header, *asked(url, path, Authorization=header)))
            assert len(answers) < 20
        header, _, told = answers[-1]
        assert told["error"] == "RateExceeded"
        for _ in range(3):
            time.sleep(0.4)
            status, told = asked(url, path, Authorization=header)
            assert (status, told["error"]) == (401, "ReplayedRequest")


def test_requests_that_are_signed_for_another_server_count_against_the_rate(door: Door) -> None:
    key = door.key_of("writer", ALL)
    with served(door.store_url, ServerOptions(port=0, requests_per_s_max=5)) as url:
        answers = []
        for number in range(30):
            sent = Sent(key, nonce=f"{number:020}")
            status, told = asked(url, sent.path, sent.body, Authorization=sent.header())
            answers.append((status, told["error"]))
    assert answers[0] == (401, "SignedForAnother")
    assert 429 in {status for status, _ in answers}


def test_a_skewed_clock_is_told_the_time(door: Door, admin: Hub) -> None:
    key = door.key_of("writer", ALL)
    server = Sent(key).for_server(door.url).server
    for skew_ms in (-61_000, 61_000):
        sent = Sent(key, skew_ms=skew_ms, server=server)
        status, told = asked(door.url, sent.path, sent.body, Authorization=sent.header())
        assert (status, told["error"]) == (401, "ClockSkewed")
        assert abs(told["fields"]["now_ms"] - time.time() * 1000) < 10_000
    assert admin.list_streams() == []
    assert ClockSkewed(sent_ms=1, now_ms=2, limit_ms=3).now_ms == 2


def test_a_change_of_server_is_survived_by_those_who_sign(door: Door) -> None:
    key = door.key_of("writer", ALL)
    server = open_server(door.store_url, ServerOptions(port=0), version="0").start()
    port = int(server.url.rpartition(":")[2])
    with shoal.connect(f"http://{key.key}:{key.secret}@127.0.0.1:{port}") as hub:
        hub.create_stream("orders", shards=1)
        server.stop()
        server = open_server(door.store_url, ServerOptions(port=port), version="0").start()
        hub.append("orders", 0, [b"a"])
        assert hub.stats("orders").records == 1
    server.stop()


@pytest.mark.parametrize("closes", [False, True], ids=["keeps", "closes"])
def test_a_balancer_that_spreads_requests_over_servers_is_survived(door: Door, *, closes: bool) -> None:
    key = door.key_of("writer", ALL)
    with (
        served(door.store_url) as another,
        balanced(door.url, another, closes=closes) as url,
        shoal.connect(url.replace("http://", f"http://{key.key}:{key.secret}@")) as hub,
    ):
        hub.create_stream("orders", shards=1)
        for number in range(6):
            hub.append("orders", 0, [b"%d" % number])
        assert hub.stats("orders").records == 6


def test_a_client_whose_clock_is_wrong_signs_by_the_server_s(door: Door) -> None:
    key = door.key_of("writer", ALL)
    signer = Signer(key)
    far_ms = time.time_ns() // 1_000_000 - 3_600_000
    signer.set_clock(ClockSkewed(sent_ms=0, now_ms=far_ms, limit_ms=0))  # An hour behind, as it now believes.
    host, _, port = door.url.removeprefix("http://").partition(":")
    connection = Connection(host, int(port), None, signer)
    answer = connection.exchange("/v1/hub/list_projects", "application/json", [b"{}"], 20)
    connection.close()
    assert answer.status == 200


@contextmanager
def balanced(*urls: str, closes: bool) -> Iterator[str]:
    """Sends each request, of whatever connection, to the next server; and closes the connection after it, or
    keeps it."""
    turns = itertools.cycle(url.removeprefix("http://") for url in urls)

    class Balancer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with closing(http.client.HTTPConnection(next(turns), timeout=20)) as connection:
                connection.request("POST", self.path, body, dict(self.headers))
                response = connection.getresponse()
                answer = response.read()
            self.send_response(response.status)
            self.send_header("Content-Type", response.headers["Content-Type"])
            self.send_header("Content-Length", str(len(answer)))
            if closes:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Balancer) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
