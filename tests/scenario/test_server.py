"""A server under bad input, bad clients and bad days. What the calls mean, the contract says."""

import http.client
import itertools
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import shoal
from shoal import Batch, Checkpointer, Hub, Worker
from shoal.core.errors import HubClosed, InvalidInput, InvalidUrl, StoreUnavailable, TooLarge, UnknownStream
from shoal.core.lease import InstanceRow
from shoal.core.membership import Beat
from shoal.core.model import Compression, ShardId
from shoal.core.names import stream_name
from shoal.native.calls import CALLS
from shoal.native.forms import AppendLabel, SentBatch
from shoal.ports import Newcomer, ShardEnd
from shoal.server.options import ServerOptions
from shoal.testing.members import eventually
from shoal.testing.server import Server
from shoal.testing.serving import ServerProcess, served
from shoal.wire.fitting import fit_records
from shoal.wire.frame import CONTENT_TYPE, packed
from shoal.wire.layout import Layout

JSON = "application/json"
SETTINGS = b'{"name":"orders","group":"g","settings":{%s},"start":{}}'


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shoal.db'}"


@pytest.fixture
def url(store: str) -> Iterator[str]:
    with served(store, ServerOptions(port=0, body_bytes_max=2_000_000, body_s=0.5, head_s=0.5)) as url:
        yield url


@pytest.fixture
def hub(url: str) -> Iterator[Hub]:
    with shoal.connect(url) as hub:
        yield hub


def asked(
    url: str,
    path: str,
    body: bytes = b"{}",
    *,
    method: str = "POST",
    content_type: str = JSON,
    **headers: str,
) -> tuple[int, Any]:
    """The status and the body of one request."""
    host, _, port = url.removeprefix("http://").partition(":")
    with closing(http.client.HTTPConnection(host, int(port), timeout=20)) as connection:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {"Content-Type": content_type, **given})
        response = connection.getresponse()
        text = response.read()
    is_json = response.headers["Content-Type"] == JSON
    return response.status, json.loads(text) if is_json else text


def append_body(hub: Hub, stream: str, payload: bytes, **changes: Any) -> bytes:
    info = hub.describe_stream(stream)
    sent = SentBatch(**{"shard": info.shards[0].id, "layout": 0, "bytes": len(payload), **changes})
    label = AppendLabel(name=info.full_name, stream_id=info.id, batches=[sent])
    return b"".join(packed(AppendLabel, label, [payload]))


# --- Bad input. ---------------------------------------------------------------------------------------


BAD = [
    (400, "InvalidInput", "hub/describe_stream", b"{"),
    (400, "InvalidName", "hub/describe_stream", b'{"name":"../../x"}'),
    (400, "InvalidInput", "hub/describe_stream", b'{"name":"orders","more":1}'),
    (404, "UnknownStream", "hub/describe_stream", b'{"name":"missing"}'),
    (400, "InvalidName", "hub/delete_project", b'{"project":"..%2f"}'),
    (400, "InvalidName", "hub/delete_project", b'{"project":".."}'),
    (400, "InvalidName", "hub/create_stream", b'{"name":"../orders","settings":{},"shards":1}'),
    (400, "InvalidName", "hub/create_stream", b'{"name":".","settings":{},"shards":1}'),
    (400, "InvalidInput", "hub/create_stream", b'{"name":"a","settings":{"schema":"AAAA"},"shards":1}'),
    (400, "InvalidInput", "hub/create_stream", b'{"name":"a","settings":{},"shards":100000}'),
    (400, "InvalidInput", "hub/read", b'{"name":"orders","shard":0,"offset":0,"limits":{"wait_s":-1}}'),
    (416, "OffsetOutOfRange", "hub/read", b'{"name":"orders","shard":0,"offset":99,"limits":{}}'),
    (400, "InvalidInput", "groups/beat", b'{"name":"orders","group_id":99999999999999999999}'),
    (400, "InvalidInput", "groups/create", SETTINGS % b'"timeout_ms":1'),
    (400, "InvalidInput", "groups/create", SETTINGS % b'"rules":9'),
    (400, "InvalidInput", "groups/create", SETTINGS % b'"delivery":"shared","in_order":false'),
    (404, "UnknownGroup", "groups/leased", b'{"group_id":77}'),
    (400, "InvalidInput", "hub/append", b"\xff\xff\xff\xff"),
    (400, "InvalidInput", "hub/append", b""),
    (404, "InvalidInput", "hub/close", b"{}"),
    (404, "InvalidInput", "../etc/passwd", b"{}"),
    (400, "InvalidInput", "hub/watch", b'{"places":[],"wait_for_s":1}'),
]


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_answered_with_its_error_and_changes_nothing(
    url: str, hub: Hub, bad: tuple[int, str, str, bytes]
) -> None:
    status, error, path, body = bad
    hub.create_stream("orders", shards=1)
    found, told = asked(url, f"/v1/{path}", body)
    assert (found, told["error"]) == (status, error)
    assert {"text", "retriable", "fields", "request"} <= told.keys()
    assert "Traceback" not in json.dumps(told)
    assert [str(info.full_name) for info in hub.list_streams()] == ["orders"]
    assert hub.list_groups("orders") == []


def test_an_append_of_what_is_no_batch_stores_nothing(url: str, hub: Hub) -> None:
    hub.create_stream("orders", shards=1)
    layout = Layout(None)
    good = layout.encode(fit_records(layout, [b"x"], [None], [1], None), Compression.LZ4)[1]
    bomb = layout.encode(fit_records(layout, [bytes(40_000_000)], [None], [1], None), Compression.ZSTD)[1]
    path = CALLS["hub", "append"].path

    def answer(payload: bytes, **changes: Any) -> Any:
        body = append_body(hub, "orders", payload, **changes)
        return asked(url, path, body, content_type=CONTENT_TYPE)[1]

    for payload in (good[:-9], good[:20], b"\0" * 100, b"", good[:-8] + b"12345678"):
        assert answer(payload)[0]["error"] in {"InvalidInput", "TooLarge"}
    assert answer(bomb)[0]["error"] == "TooLarge"
    assert answer(good, layout=5)[0]["error"] == "InvalidInput"
    assert answer(good, producer="a b")[0]["error"] == "InvalidInput"
    assert answer(good, shard=9)["error"] == "UnknownShard"
    assert answer(good, bytes=3)["error"] == "InvalidInput"
    assert hub.stats("orders").records == 0
    assert answer(good)[0]["first_offset"] == 0
    assert [record.value for record in hub.read("orders", 0, 0)] == [b"x"]


def test_a_body_that_is_too_large_or_encoded_is_not_read(url: str, hub: Hub) -> None:
    status, told = asked(url, "/v1/hub/list_projects", b" " * 2_000_001)
    assert (status, told["error"], told["fields"]["limit"]) == (413, "TooLarge", 2_000_000)
    status, told = asked(url, "/v1/hub/list_projects", b"x", Content_Encoding="gzip")
    assert (status, told["error"]) == (415, "InvalidInput")
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 10) as sock:
        sock.sendall(b"POST /v1/hub/list_projects HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        with suppress(OSError):  # Chunk after chunk, without a length: ended at the limit.
            for _ in range(100):
                sock.sendall(b"186A0\r\n" + b" " * 100_000 + b"\r\n")
        with suppress(ConnectionError):
            assert b"413" in sock.recv(200)
    assert hub.list_projects() == []


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /v1/hub/list_projects HTTP/1.1\r\nHost: a\r\n",
        b"POST /v1/hub/list_projects HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{",
        b"",
    ],
)
def test_a_client_that_sends_slowly_is_cut_off_and_keeps_nobody_waiting(
    url: str, hub: Hub, sent: bytes
) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 10) as sock:
        sock.sendall(sent)
        assert hub.list_projects() == []
        began = time.monotonic()
        answer = b"".join(iter(lambda: sock.recv(4096), b""))
        assert time.monotonic() - began < 5
        assert answer == b"" or b"408" in answer.split(b"\r\n")[0]


@pytest.mark.parametrize(
    "sent",
    [
        b"NONSENSE\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_a_request_that_is_none_gets_four_hundred_or_nothing(url: str, hub: Hub, sent: bytes) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 10) as sock:
        answer = b""
        try:
            sock.sendall(sent)
            answer = sock.recv(4096)
        except ConnectionError:
            pass
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert hub.list_projects() == []


# --- What operators look at. ----------------------------------------------------------------------------


def test_health_figures_and_the_document_are_there(url: str, hub: Hub) -> None:
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing")
    hub.append("orders", 0, [b"a", b"b"])
    assert len(hub.read("orders", 0, 0)) == 2
    with pytest.raises(UnknownStream):
        hub.read("missing", 0, 0)
    assert asked(url, "/healthz", method="GET")[1]["status"] == "ok"
    assert asked(url, "/readyz", method="GET")[1]["status"] == "ready"
    assert asked(url, "/v1/hub/append", method="GET")[0] == 405
    figures = asked(url, "/metrics", method="GET")[1].decode()
    for line in (
        "shoal_server_appended_records_total 2.0",
        "shoal_server_read_records_total 2.0",
        'shoal_group_lag_records{group="billing",shard="0",stream="orders"} 2.0',
        'shoal_server_requests_total{call="hub.read",status="404"} 1.0',
        'shoal_server_request_seconds_count{call="hub.append"} 1.0',
        "shoal_server_moves_total 0.0",
        "shoal_server_expiries_total 0.0",
    ):
        assert line in figures
    document = asked(url, "/v1/openapi.json", method="GET")[1]
    assert set(document["paths"]) == {call.path for call in CALLS.values()}
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])
    assert document["security"] == [{"signature": []}, {}]
    assert document["components"]["securitySchemes"]["signature"]["name"] == "Authorization"


def test_the_clients_request_id_is_answered_and_one_that_no_log_can_hold_is_not(url: str) -> None:
    assert asked(url, "/v1/hub/stats", b'{"name":"x"}', X_Request_Id="abc-1")[1]["request"] == "abc-1"
    assert (
        asked(url, "/v1/hub/stats", b'{"name":"x"}', X_Request_Id="a b\t" * 50)[1]["request"] != "a b\t" * 50
    )


def test_a_url_names_a_server_and_its_settings_are_not_ours_to_choose(url: str) -> None:
    for wrong in ("http://", "http://host:port", "http://user@host:7400", f"{url}/path"):
        with pytest.raises(InvalidUrl):
            shoal.connect(wrong)
    with pytest.raises(InvalidInput, match="shoal serve"):
        shoal.connect(url, groups_per_stream=9)
    hub = shoal.connect(url)
    assert repr(hub) == f"<Hub {url}>"
    hub.close()
    with pytest.raises(HubClosed):
        hub.list_projects()


# --- Waiting. -------------------------------------------------------------------------------------------


def test_who_waits_takes_no_thread_and_the_limit_of_those_is_kept(store: str) -> None:
    with (
        served(store, ServerOptions(port=0, waiting_max=60, threads=4)) as url,
        shoal.connect(url) as hub,
        ExitStack() as stack,
    ):
        hub.create_stream("orders", shards=1)
        host, _, port = url.removeprefix("http://").partition(":")
        body = b'{"name":"orders","shard":0,"offset":0,"limits":{"wait_s":30}}'
        head = b"POST /v1/hub/read HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
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


def test_five_hundred_consumers_that_wait_and_beat_cost_little(store: str) -> None:
    """A tenth of a core, by the time that the server's threads ran. The least of three looks counts: whoever
    else is on the machine only adds to it."""
    with ServerProcess(store) as server, shoal.connect(server.url) as hub, ExitStack() as stack:
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
            head = b"POST /v1/hub/watch HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
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


def test_who_asks_too_often_is_told_when_to_come_again_and_our_client_does(store: str) -> None:
    with served(store, ServerOptions(port=0, requests_per_s_max=20)) as url, shoal.connect(url) as hub:
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


def test_who_does_not_take_its_answers_keeps_nobody_waiting_and_holds_only_so_much(store: str) -> None:
    options = ServerOptions(port=0, answers_bytes_max=20_000_000, send_s=2)
    with served(store, options) as url, shoal.connect(url) as hub, ExitStack() as stack:
        hub.create_stream("orders", shards=1)
        for _ in range(4):
            hub.append("orders", 0, [os.urandom(900_000) for _ in range(4)])
        body = b'{"name":"orders","shard":0,"offset":0,"limits":{"max_bytes":14000000}}'
        head = b"POST /v1/hub/read HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
        for _ in range(8):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", int(url.rpartition(":")[2])))
            sock.sendall(head + body)
        eventually(lambda: figure(url, "answer_bytes") > 20_000_000, "answers are not taken")
        status, told = asked(url, "/v1/hub/read", body)
        assert (status, told["error"], told["untouched"]) == (503, "StoreBusy", True)
        began = time.monotonic()
        for _ in range(20):
            hub.append("orders", 0, [b"x"])
        assert time.monotonic() - began < 5
        eventually(lambda: figure(url, "answer_bytes") < 1000, "they are cut off")
        assert len(hub.read("orders", 0, 0)) > 0


def figure(url: str, name: str) -> float:
    """One of the figures at /metrics."""
    text = asked(url, "/metrics", method="GET")[1].decode()
    found = re.search(rf"^shoal_server_{name} (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_rows_made_for_a_group_that_another_server_has_deleted_are_removed(store: str) -> None:
    with served(store) as one, served(store) as two, shoal.connect(one) as here, shoal.connect(two) as there:
        here.create_stream("orders", shards=1)
        here.create_group("orders", "billing", coordination="leased")
        (group,) = here.list_groups("orders")
        leased = here.service.groups.leased(group)
        there.delete_group("orders", "billing")
        row = InstanceRow(
            group=leased.key, name="late", incarnation="late-1", counter=1, timeout_ms=1000, interval_ms=250
        )
        leased.table.create(row)
        assert leased.table.instances(leased.key) == []
        with shoal.connect(store) as near:  # Whatever a server says, none is in the table.
            local = near.service.groups._leased.opened(group)  # type: ignore[attr-defined]
            assert local.table.instances(leased.key) == []


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


# --- Stopped, started again, another in its place. --------------------------------------------------------


def test_a_server_that_stops_answers_what_is_in_flight_and_sends_who_waits_elsewhere(store: str) -> None:
    with ServerProcess(store) as first, ServerProcess(store) as second:
        both = f"http://127.0.0.1:{first.port},127.0.0.1:{second.port}"
        with shoal.connect(both) as hub, shoal.connect(second.url) as other:
            hub.create_stream("orders", shards=1)
            found: list[Batch] = []
            reader = threading.Thread(target=lambda: found.append(hub.read("orders", 0, 0, wait=30)))
            reader.start()
            eventually(
                lambda: b"shoal_server_waiting 1.0" in asked(first.url, "/metrics", method="GET")[1],
                "it waits",
            )
            began = time.monotonic()
            first.end()
            assert first.code == 0
            assert time.monotonic() - began < 10
            other.append("orders", 0, [b"through the other"])
            reader.join(20)
            assert [record.value for record in found[0]] == [b"through the other"]


def test_producers_and_workers_survive_a_restart_and_nothing_is_lost_or_stored_twice(store: str) -> None:
    server = ServerProcess(store)
    seen: list[bytes] = []

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        seen.extend(record.value for record in batch)
        checkpointer.save()

    with server, shoal.connect(server.url) as hub:
        hub.create_stream("orders", shards=2)
        hub.create_group("orders", "billing", timeout=3)
        worker = Worker(hub, "orders", "billing", process, name="anna").start()
        with hub.producer("orders") as producer:
            for number in range(300):
                producer.send(b"%d" % number, key=b"%d" % (number % 7))
                if number in (100, 200):
                    server.end(kill=number == 100)
                    server.start()
                time.sleep(0.002)
        eventually(lambda: len(set(seen)) == 300, "all of them are processed", 40)
        worker.stop()
        kept = [record.value for shard in (0, 1) for record in hub.read("orders", shard, 0)]
        assert sorted(map(int, kept)) == list(range(300))
        assert hub.describe_group("orders", "billing").lag == 0


@pytest.mark.timeout(120)
def test_of_two_servers_on_one_database_one_may_be_killed_under_load(postgres_server: Server) -> None:
    """Section 10, 4: every acknowledged record is there once; and no group stalls."""
    store = postgres_server.fresh_database()
    acknowledged: list[bytes] = []
    seen: set[bytes] = set()

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        seen.update(record.value for record in batch)
        checkpointer.save()

    with ServerProcess(store) as first, ServerProcess(store) as second:
        both = f"http://127.0.0.1:{first.port},127.0.0.1:{second.port}"
        with shoal.connect(both) as hub, shoal.connect(second.url) as other, ExitStack() as stack:
            hub.create_stream("orders", shards=4)
            hub.create_group("orders", "billing", timeout=3)
            workers = [
                Worker(through, "orders", "billing", process, name=name).start()
                for through, name in ((hub, "anna"), (other, "bert"))
            ]

            def send(through: Hub, name: str) -> None:
                with through.producer("orders", linger_s=0.002) as producer:
                    for number in range(150):
                        value = f"{name}-{number}".encode()
                        producer.send(value, key=value).result(timeout=60)
                        acknowledged.append(value)

            senders = [
                threading.Thread(target=send, args=(through, f"p{i}"))
                for i, through in enumerate((hub, hub, other, other))
            ]
            for sender in senders:
                sender.start()
            eventually(lambda: len(acknowledged) > 100, "there is load", 40)
            first.end(kill=True)
            for sender in senders:
                sender.join(60)
            assert len(acknowledged) == 600
            eventually(lambda: len(seen) == 600, "the group goes on", 40)
            for worker in workers:
                stack.callback(worker.stop)
            kept = [record.value for shard in range(4) for record in other.read("orders", shard, 0)]
            assert sorted(kept) == sorted(acknowledged)
    postgres_server.drop_database(store)


def test_without_a_server_a_call_is_unavailable_after_a_while(store: str) -> None:
    with ServerProcess(store) as server, shoal.connect(server.url) as hub:
        hub.create_stream("orders", shards=1)
        server.end(kill=True)
        with pytest.raises(StoreUnavailable, match=str(server.port)):
            hub.append("orders", 0, [b"x"])
        server.start()
        assert hub.append("orders", 0, [b"x"]).first_offset == 0


# --- The command. -----------------------------------------------------------------------------------------


def test_beyond_this_machine_it_serves_only_if_told_to(store: str) -> None:
    with pytest.raises(RuntimeError, match="no user is defined, so anyone who reaches it"):
        ServerProcess(store, "--listen", "0.0.0.0:0").start()
    server = ServerProcess(store)
    server.start()
    written = server.end()
    assert "serves this machine alone at http://127.0.0.1:" in written
    assert "no user is defined" in written
    assert written.rstrip().endswith("stopped")


def test_it_speaks_tls_by_option(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=host"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)),
        ],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("there is no openssl to make a certificate with")
    options = ServerOptions(port=0, certificate=certificate, key=key)
    with served(store, options) as url:
        assert url.startswith("https://")
        with pytest.raises(StoreUnavailable, match="certificate"):
            shoal.connect(url)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with shoal.connect(url) as hub:
            hub.create_stream("orders", shards=1)
            hub.append("orders", 0, [b"x" * 100_000])
            assert len(hub.read("orders", 0, 0)) == 1


def test_a_record_that_no_hub_takes_is_refused_before_it_is_sent(hub: Hub) -> None:
    hub.create_stream("orders", shards=1)
    with pytest.raises(TooLarge):
        hub.append("orders", 0, [b"x" * 5_000_000])
    assert stream_name("orders") == hub.describe_stream("orders").full_name
