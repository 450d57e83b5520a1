"""What a server does at the edges of HTTP: requests without a body to wait for, clients that stay silent,
and more of them than it takes.
"""

import gc
import json
import os
import re
import select
import signal
import socket
import sqlite3
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

import shoal
from shoal.core.errors import StoreUnavailable
from shoal.core.lease import Change, ChangeKind, LeaseRow
from shoal.core.limits import SHARDS_MAX
from shoal.core.model import ShardId
from shoal.native.calls import CALLS, PLAIN_BYTES_MAX, arguments_to
from shoal.server.options import ServerOptions
from shoal.server.requests import Held, Refused
from shoal.store.sql.store import SQLStore
from shoal.testing.members import eventually
from shoal.testing.serving import ServerProcess, served

ANSWER_S = 5.0
CALL = b"POST /v1/hub/list_projects HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shoal.db'}"


@pytest.fixture
def url(store: str) -> Iterator[str]:
    with served(store) as url:
        yield url


def dialled(url: str, from_address: str = "") -> socket.socket:
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=ANSWER_S, source_address=(from_address, 0))


def heard_by(sock: socket.socket, within_s: float) -> bytes:
    """What comes so soon, or nothing."""
    return heard(sock) if select.select([sock], [], [], within_s)[0] else b""


def heard(sock: socket.socket, until: bytes = b"\r\n\r\n") -> bytes:
    """What comes, up to the end of a head or of the connection."""
    found = b""
    while until not in found and (part := sock.recv(65_536)):
        found += part
    return found


@pytest.mark.parametrize("path", ["/healthz", "/logstores", "/v1/openapi.json", "/nowhere"])
def test_head_is_answered_at_once_without_a_body_and_the_connection_goes_on(url: str, path: str) -> None:
    with closing(dialled(url)) as sock:
        for method in ("HEAD", "GET"):
            sock.sendall(f"{method} {path} HTTP/1.1\r\nHost: proj.localhost\r\n\r\n".encode())
            head, _, body = heard(sock).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 "), head
            assert b"x-request-id: " in head
            assert bool(body) == (method == "GET")


def test_requests_that_were_answered_are_no_garbage_to_be_searched_for(url: str) -> None:
    count = 200

    def left(sock: socket.socket) -> int:
        gc.collect()
        for _ in range(count):
            sock.sendall(HEALTH)
            assert b" 200 " in heard(sock)
        return gc.collect()

    gc.disable()
    try:
        with closing(dialled(url)) as sock:  # Threads of tests before this one may leave some, too, once.
            assert min(left(sock) for _ in range(3)) < count
    finally:
        gc.enable()


@pytest.mark.parametrize("sent", [b"", b"{", b"{" + b" " * 100_000])
def test_bodies_that_do_not_come_hold_nothing_and_end(store: str, sent: bytes) -> None:
    options = ServerOptions(port=0, body_s=0.5, body_bytes_max=1_000_000, bodies_bytes_max=2_000_000)
    with served(store, options) as url, ExitStack() as stack:
        silent = [stack.enter_context(closing(dialled(url))) for _ in range(8)]
        for sock in silent:
            sock.sendall(CALL % 1_000_000 + sent)
        assert b" 200 " in called(url)
        for sock in silent:
            assert b" 408 " in heard(sock)


@pytest.mark.parametrize(
    ("asked", "stray"),
    [
        (HEALTH, b"\r\n"),
        (HEALTH.replace(b"\r\n\r\n", b"\r\nContent-Length: 1000000\r\n\r\n"), b"x"),
        (CALL.replace(b"/v1/hub/list_projects", b"/nowhere") % 1_000_000, b"x"),
    ],
)
def test_what_comes_behind_an_answer_and_begins_no_request_keeps_no_connection(
    store: str, asked: bytes, stray: bytes
) -> None:
    with served(store, ServerOptions(port=0, keep_alive_s=0.5)) as url, closing(dialled(url)) as sock:
        sock.sendall(asked)
        assert heard(sock).startswith(b"HTTP/1.1 ")
        sock.sendall(stray)
        with suppress(ConnectionResetError):
            while sock.recv(65_536):  # Times out after ANSWER_S if it is kept.
                pass


def test_a_body_that_trickles_is_ended_and_one_that_keeps_its_rate_is_not(store: str) -> None:
    options = ServerOptions(port=0, body_s=0.3, body_bytes_per_s_min=1_000_000)
    with served(store, options) as url:
        with closing(dialled(url)) as sock:
            sock.sendall(CALL % 1_000_000)
            began = time.monotonic()
            with suppress(OSError):
                while time.monotonic() - began < ANSWER_S and not readable(sock):
                    sock.sendall(b" ")
                    time.sleep(0.02)
            assert time.monotonic() - began < ANSWER_S / 2
            assert b" 408 " in heard(sock)
        with closing(dialled(url)) as sock:
            sock.sendall(CALL % 1_200_002 + b"{" + b" " * 1_000_000)
            time.sleep(0.6)
            sock.sendall(b" " * 200_000 + b"}")
            assert b" 200 " in heard(sock)


def test_who_is_connected_is_served_when_there_is_no_room_for_more(store: str) -> None:
    with served(store, ServerOptions(port=0, connections_max=3)) as url, ExitStack() as stack:
        first = stack.enter_context(closing(dialled(url)))
        first.sendall(HEALTH)
        assert b" 200 " in heard(first)
        others = [stack.enter_context(closing(dialled(url))) for _ in range(2)]
        for _ in range(3):
            head, _, body = called(url).partition(b"\r\n\r\n")
            assert b" 503 " in head
            assert b"x-request-id: " in head
            told = json.loads(body)
            assert (told["error"], told["untouched"]) == ("StoreBusy", True)
            first.sendall(HEALTH)
            assert b" 200 " in heard(first)
        others[0].close()
        eventually(lambda: b" 200 " in called(url), "there is room again")


def test_an_address_that_has_most_connections_and_rests_on_them_gives_way_to_another(store: str) -> None:
    wait = b'{"name":"orders","shard":0,"offset":0,"limits":{"wait_s":20}}'
    call = b"POST /v1/hub/read HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(wait)
    with shoal.connect(store) as hub:
        hub.create_stream("orders", shards=1)
    with served(store, ServerOptions(port=0, connections_max=4)) as url, ExitStack() as stack:
        waiting, *resting = [stack.enter_context(closing(dialled(url))) for _ in range(4)]
        waiting.sendall(call + wait)
        for sock in (resting[1], resting[0], resting[2]):
            sock.sendall(HEALTH)
            assert b" 200 " in heard(sock)
        newcomer = stack.enter_context(closing(dialled(url, "127.0.0.2")))
        newcomer.sendall(HEALTH.replace(b"/healthz", b"/readyz"))
        assert b" 200 " in heard(newcomer)
        assert resting[1].recv(1) == b"", "the one that has been at rest for longest"
        for sock in (resting[0], resting[2]):
            sock.sendall(HEALTH)
            assert b" 200 " in heard(sock)
        told = called(url)
        assert b" 503 " in told, "nobody gives way to another of its own"
        assert b"busy for now: the server has its 4 connections" in told
        with shoal.connect(store) as hub:
            hub.append("orders", 0, [b"x"])
        assert b" 200 " in heard(waiting), "who waits is not at rest"


def test_what_reaches_a_server_as_it_leaves_is_answered_and_told_to_go_elsewhere(store: str) -> None:
    def answer(sock: socket.socket) -> bytes:
        sock.sendall(HEALTH)
        return heard(sock).lower()

    with ServerProcess(store) as server, ExitStack() as stack:
        one, other = [stack.enter_context(closing(dialled(server.url))) for _ in range(2)]
        for sock in (one, other):
            assert b"connection: close" not in answer(sock)
        os.kill(server.pid, signal.SIGTERM)
        eventually(lambda: b"connection: close" in answer(one), "it leaves")
        told = answer(other)
        assert b" 200 " in told
        assert b"connection: close" in told


def test_the_health_of_a_server_is_told_also_when_there_is_no_room_for_more(store: str) -> None:
    with served(store, ServerOptions(port=0, connections_max=1)) as url, ExitStack() as stack:
        first = stack.enter_context(closing(dialled(url)))
        first.sendall(HEALTH)
        assert b" 200 " in heard(first)
        for _ in range(3):
            with closing(dialled(url)) as probe:
                probe.sendall(HEALTH[:10])
                time.sleep(0.05)
                probe.sendall(HEALTH[10:])
                answer = heard(probe, b"never")  # To the end: it is not kept.
                assert b" 200 " in answer
                assert b"connection: close" in answer.lower()
        assert b" 503 " in called(url)
        with closing(dialled(url)) as silent:
            assert b" 503 " in heard(silent)
        with closing(dialled(url)) as sock:
            sock.sendall(
                b"POST /logstores/s/shards/lb HTTP/1.1\r\nHost: p.localhost\r\nContent-Length: 2\r\n\r\nab"
            )
            head, _, body = heard(sock, b"never").partition(b"\r\n\r\n")
            assert b" 503 " in head
            assert b"x-log-requestid: " in head
            assert json.loads(body)["errorCode"] == "ServerBusy"


@pytest.mark.parametrize(
    ("target", "header"),
    [
        (b"/logstores/store", b"X: y"),
        (b"http://proj.localhost/logstores", b"X: y"),
        (b"/", b"x-log-apiversion: 0.6.0"),
        (b"http://proj.localhost", b"x-log-date: Mon, 16 Nov 2026 04:00:00 GMT"),
        (b"/", b"Authorization: LOG id:c2ln"),
        (b"/", b"Authorization: SLS4-HMAC-SHA256 Credential=id"),
    ],
)
def test_what_is_no_request_of_an_aliyun_client_is_answered_in_their_form(
    url: str, target: bytes, header: bytes
) -> None:
    lengths = b"Content-Length: 3\r\nContent-Length: 4\r\n"
    with closing(dialled(url)) as sock:
        sock.sendall(
            b"POST " + target + b" HTTP/1.1\r\nHost: proj.localhost\r\n" + header + b"\r\n" + lengths
        )
        sock.sendall(b"\r\nabcd")
        head, _, body = heard(sock, b"never").partition(b"\r\n\r\n")
    assert b"HTTP/1.1 400 " in head
    assert b"x-log-requestid: " in head
    told = json.loads(body)
    assert told["errorCode"] == "ParameterInvalid"
    assert told["errorMessage"]


def test_bodies_of_one_client_leave_room_for_those_of_others(store: str) -> None:
    options = ServerOptions(port=0, body_s=ANSWER_S, body_bytes_max=1_000_000, bodies_bytes_max=2_000_000)
    with served(store, options) as url, ExitStack() as stack:
        greedy = [stack.enter_context(closing(dialled(url, "127.0.0.2"))) for _ in range(8)]
        for sock in greedy:
            sock.sendall(CALL % 500_000 + b"{" + b" " * 400_000)
        refused = [sock for sock in greedy if b" 503 " in heard_by(sock, 0.3)]
        assert len(refused) == 6
        with closing(dialled(url, "127.0.0.3")) as other:
            other.sendall(CALL % 900_000 + b"{" + b" " * 899_998 + b"}")
            assert b" 200 " in heard(other)
        for sock in set(greedy) - set(refused):
            sock.sendall(b" " * 99_998 + b"}")
            assert b" 200 " in heard(sock)


def test_one_client_holds_a_half_of_what_a_server_takes_and_one_request_alone_all_of_it() -> None:
    held = Held("requests", 100)
    held.check(90, "one")
    held.take(40, "one")
    held.check(50, "two")
    held.check(10, "one")
    for size in (11, 50):
        with pytest.raises(Refused):
            held.check(size, "one")
    held.check(50, "one", mine=40)
    held.take(50, "two")
    with pytest.raises(Refused):
        held.check(11, "three")
    held.give_back(40, "one")
    held.give_back(50, "two")
    held.check(100, "one")
    assert held.bytes == 0


@pytest.mark.parametrize(
    "sent",
    [
        b"NONSENSE\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n",
        b"GET http://proj.localhost HTTP/1.1\r\nHost: proj.localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /readyz HTTP/1.1\r\nHost: a\r\n\r\nNONSENSE\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: %b"
        % (b"y" * 300_000),
    ],
)
def test_what_is_no_request_is_answered_as_other_errors_are_counted_and_not_logged(
    url: str, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(dialled(url)) as sock:
        sock.sendall(sent)
        answer = b"".join(iter(lambda: sock.recv(65_536), b""))
        head, _, body = answer[answer.index(b"HTTP/1.1 400 ") :].partition(b"\r\n\r\n")
        assert b"content-type: application/json" in head
        told = json.loads(body)
        assert told["error"] == "InvalidInput"
        assert f"x-request-id: {told['request']}".encode() in head
    with closing(dialled(url)) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b'shoal_server_requests_total{call="malformed",status="400"} 1.0' in heard(sock, b"never")
    assert not caplog.records


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (HEALTH + b"NONSENSE\r\n\r\n", [200, 400]),
        (HEALTH + CALL % 2 + b"{}" + HEALTH + b"\0", [200, 200, 200, 400]),
        (
            HEALTH + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            [200, 400],
        ),
        (b"HEAD" + HEALTH[3:] + b"NONSENSE\r\n\r\n", [200, 400]),
        (HEALTH[:-2] + b"Connection: close\r\n\r\n" + b"NONSENSE\r\n\r\n", [200]),
        (CALL % 3 + b"{}" + HEALTH + HEALTH, [400, 400]),
    ],
)
def test_requests_that_came_whole_are_answered_before_what_is_none(
    url: str, sent: bytes, statuses: list[int]
) -> None:
    for cut in (len(sent), len(sent) // 2):
        with closing(dialled(url)) as sock:
            for part in (sent[:cut], sent[cut:]):
                sock.sendall(part)
                time.sleep(0.02)
            answer = heard(sock, b"never")
        assert [int(line[9:12]) for line in re.findall(rb"HTTP/1.1 \d+", answer)] == statuses


def test_one_that_waits_is_answered_before_what_is_no_request(url: str) -> None:
    body = b'{"name":"orders","shard":0,"offset":0,"limits":{"wait_s":30}}'
    with shoal.connect(url) as hub, closing(dialled(url)) as sock:
        hub.create_stream("orders", shards=1)
        sock.sendall(CALL.replace(b"list_projects", b"read") % len(body) + body + b"NONSENSE\r\n\r\n")
        eventually(lambda: b"shoal_server_waiting 1.0" in got(url, "/metrics"), "it waits")
        assert not readable(sock)
        hub.append("orders", 0, [b"news"])
        answer = heard(sock, b"never")
    assert [int(line[9:12]) for line in re.findall(rb"HTTP/1.1 \d+", answer)] == [200, 400]


@pytest.mark.parametrize("path", ["/v1/hub/list_projects", "/logstores", "/logstores/a/consumergroups"])
def test_only_calls_that_carry_batches_may_be_large(url: str, path: str) -> None:
    with closing(dialled(url)) as sock:
        size = PLAIN_BYTES_MAX + 1
        head = f"POST {path} HTTP/1.1\r\nHost: proj.localhost\r\nContent-Length: {size}\r\n\r\n"
        sock.sendall(head.encode() + b" " * size)
        assert f"over the limit of {PLAIN_BYTES_MAX} bytes".encode() in heard(sock)


def test_appends_may_be_larger_and_so_may_the_rows_of_all_shards() -> None:
    assert {call.body_bytes_max for call in CALLS.values() if call.sends_batches} == {None}
    row = LeaseRow(
        group="0123456789abcdef" * 2,
        shard=ShardId(SHARDS_MAX),
        born=10**9,
        revision=10**9,
        lease_id=10**9,
        lease_owner="0123456789abcdef" * 2,
        consumer_owner="0123456789abcdef" * 2,
        checkpoint=10**15,
        parents=(ShardId(1), ShardId(2)),
        timeout_ms=20_000,
        interval_ms=5_000,
        is_over=False,
    )
    rows = SHARDS_MAX * [Change(kind=ChangeKind.RELEASE, old=row, new=row)]
    attempt = CALLS["leases", "attempt"]
    body = arguments_to(attempt, {"group_id": 2**63 - 1, "changes": rows, "together": True})
    assert len(body) < (attempt.body_bytes_max or 0)


def test_without_its_store_a_server_is_not_ready_and_still_tells_what_it_counted(tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    with served(f"sqlite:///{path}") as url:
        assert b"shoal_server_store_up 1.0" in got(url, "/metrics")
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("drop table shoal_project")
        assert got(url, "/readyz").startswith(b"HTTP/1.1 503 ")
        figures = got(url, "/metrics")
        assert figures.startswith(b"HTTP/1.1 200 ")
        assert b"shoal_server_store_up 0.0" in figures
        assert b'shoal_server_requests_total{call="metrics",status="200"} 1.0' in figures


def test_a_file_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    store = SQLStore.open(f"sqlite:///{path}")
    try:
        assert store.list_projects() == []
        store._database.engine.dispose()  # As after a fork: the next one opens a connection.
        for one in tmp_path.iterdir():
            one.unlink()
        with pytest.raises(StoreUnavailable, match="unable to open"):
            store.list_projects()
        assert list(tmp_path.iterdir()) == []
    finally:
        store.close()


def got(url: str, path: str) -> bytes:
    """All of the answer."""
    with closing(dialled(url)) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: sock.recv(65_536), b""))


def called(url: str) -> bytes:
    """The head of the answer to a call."""
    with closing(dialled(url)) as sock:
        sock.sendall(CALL % 2 + b"{}")
        return heard(sock)


def readable(sock: socket.socket) -> bool:
    return bool(select.select([sock], [], [], 0)[0])


def test_a_body_that_its_client_holds_back_until_the_head_was_acknowledged_comes_at_once(url: str) -> None:
    def usual_s(no_delay: int) -> float:
        took = []
        with closing(dialled(url)) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, no_delay)
            for _ in range(30):
                began = time.perf_counter()
                sock.sendall(CALL % 2)
                sock.sendall(b"{}")
                assert b" 200 " in heard(sock, b"[]")
                took.append(time.perf_counter() - began)
        return statistics.median(took)

    # A kernel that is not asked waits for 40 ms at least before it acknowledges.
    assert usual_s(no_delay=0) < usual_s(no_delay=1) + 0.025
