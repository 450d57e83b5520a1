"""A server and bad input: what makes no sense, is too large, comes too slowly, or is no request at all."""

import json
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

import shoal
from shoal import Hub
from shoal.core.errors import TooLarge
from shoal.core.limits import PLACES_MAX
from shoal.core.model import Compression
from shoal.core.names import stream_name
from shoal.native.calls import CALLS
from shoal.native.forms import AppendLabel, SentBatch
from shoal.server.options import ServerOptions
from shoal.testing.serving import served
from shoal.wire.fitting import fit_records
from shoal.wire.frame import CONTENT_TYPE, packed
from shoal.wire.layout import Layout
from tests.scenario.asking import asked, figure

SETTINGS = b'{"name":"orders","group":"g","settings":{%s},"start":{}}'
BEAT = (
    b'{"name":"orders","group_id":77,"beat":{"incarnation":"%s","number":1,'
    b'"timeout_ms":%d,"interval_ms":%d,"held":{},"seen":0}}'
)

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
    (400, "InvalidInput", "hub/read", b'{"name":"orders","shard":0,"offset":1e400,"limits":{}}'),
    (400, "InvalidInput", "hub/read", b'{"name":"orders","shard":0,"offset":0,"limits":{"wait_s":-1e400}}'),
    (416, "OffsetOutOfRange", "hub/read", b'{"name":"orders","shard":0,"offset":99,"limits":{}}'),
    (400, "InvalidInput", "groups/beat", b'{"name":"orders","group_id":99999999999999999999}'),
    (400, "InvalidInput", "groups/beat", BEAT % (b"x" * 300, 1000, 100)),
    (400, "InvalidInput", "groups/beat", BEAT % (b"x", 10**15, 100)),
    (400, "InvalidInput", "groups/beat", BEAT % (b"x", 1000, 0)),
    (404, "UnknownConsumer", "groups/beat", BEAT % (b"x", 1000, 100)),
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


@pytest.fixture
def url(sqlite_url: str) -> Iterator[str]:
    with served(sqlite_url, ServerOptions(port=0, body_bytes_max=2_000_000, body_s=0.5, head_s=0.5)) as url:
        yield url


@pytest.fixture
def hub(url: str) -> Iterator[Hub]:
    with shoal.connect(url) as hub:
        yield hub


def append_body(hub: Hub, stream: str, payload: bytes, **changes: Any) -> bytes:
    info = hub.describe_stream(stream)
    sent = SentBatch(**{"shard": info.shards[0].id, "layout": 0, "bytes": len(payload), **changes})
    label = AppendLabel(name=info.full_name, stream_id=info.id, batches=[sent])
    return b"".join(packed(AppendLabel, label, [payload]))


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_answered_with_its_error_and_changes_nothing(
    url: str, hub: Hub, bad: tuple[int, str, str, bytes]
) -> None:
    status, error, path, body = bad
    hub.create_stream("orders", shards=1)
    found, told = asked(url, f"/v1/{path}", body)
    assert (found, told["error"]) == (status, error), told
    assert {"text", "retriable", "fields", "request"} <= told.keys()
    assert "Traceback" not in json.dumps(told)
    assert [str(info.full_name) for info in hub.list_streams()] == ["orders"]
    assert hub.list_groups("orders") == []


def test_too_many_different_places_are_refused_by_name_and_equal_ones_count_once(url: str, hub: Hub) -> None:
    stream = hub.create_stream("orders", shards=2)

    def watched(ids: Iterable[int]) -> tuple[int, Any]:
        places = [[{"type": "StreamRoutes", "stream_id": id}, 0] for id in ids]
        return asked(url, "/v1/hub/watch", json.dumps({"places": places, "wait_for_s": 0.01}).encode())

    def refreshed(shards: Sequence[int]) -> tuple[int, Any]:
        known = {"name": "orders", "stream_id": stream.id, "version": stream.version, "shards": [*shards]}
        return asked(url, "/v1/hub/refresh_stream", json.dumps(known).encode())

    for field, (status, told) in (
        ("places", watched(range(PLACES_MAX + 1))),
        ("shards", refreshed(range(PLACES_MAX + 1))),
    ):
        assert (status, told["error"]) == (400, "InvalidInput")
        assert told["text"].startswith(f"{field}='{PLACES_MAX + 1} {field}': ")
        assert str(PLACES_MAX) in told["text"]
    assert watched([stream.id] * (PLACES_MAX + 1))[0] == 200
    status, told = refreshed([1, 0] * PLACES_MAX)
    assert (status, [shard["id"] for shard in told["shards"]]) == (200, [1, 0])


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


def test_a_label_that_came_before_is_held_against_its_own_body_and_what_there_is_now(
    url: str, hub: Hub
) -> None:
    hub.create_stream("orders", shards=1)
    layout = Layout(None)
    good = layout.encode(fit_records(layout, [b"x"], [None], [1], None), Compression.LZ4)[1]
    body = append_body(hub, "orders", good)
    for _ in range(2):
        assert asked(url, "/v1/hub/append", body, content_type=CONTENT_TYPE)[0] == 200
        for wrong in (body + b"x", body[:-1]):
            assert asked(url, "/v1/hub/append", wrong, content_type=CONTENT_TYPE)[0] == 400
    hub.delete_stream("orders")
    status, told = asked(url, "/v1/hub/append", body, content_type=CONTENT_TYPE)
    assert (status, [one["error"] for one in told]) == (200, ["UnknownStream"])


def test_a_body_that_is_too_large_or_encoded_is_not_read(url: str, hub: Hub) -> None:
    status, told = asked(url, "/v1/hub/list_projects", b" " * 2_000_001)
    assert (status, told["error"], told["fields"]["limit"]) == (413, "TooLarge", 2_000_000)
    status, told = asked(url, "/v1/hub/list_projects", b"x", Content_Encoding="gzip")
    assert (status, told["error"]) == (415, "InvalidInput")
    chunks = b"2\r\n{}\r\n0\r\n\r\n"
    status, told = asked(url, "/v1/hub/list_projects", chunks, Transfer_Encoding="gzip, chunked")
    assert (status, told["error"]) == (415, "InvalidInput")
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 10) as sock:
        sock.sendall(
            b"POST /v1/hub/list_projects HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(30):  # Chunk after chunk, without a length, past the limit of 2 MB; the rest is taken.
            sock.sendall(b"186A0\r\n" + b" " * 100_000 + b"\r\n")
        assert sock.recv(200).startswith(b"HTTP/1.1 413 ")
    assert hub.list_projects() == []


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /v1/hub/list_projects HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /v1/hub/list_projects HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
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
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
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


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"], ["localhost", "elsewhere.example"]])
def test_a_request_has_one_host(url: str, hub: Hub, hosts: list[str]) -> None:
    place, _, port = url.removeprefix("http://").partition(":")
    body = json.dumps({"name": "orders", "shards": 1}).encode()
    head = ["POST /v1/hub/create_stream HTTP/1.1", *(f"Host: {host}" for host in hosts)]
    head += ["Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close", "", ""]
    with socket.create_connection((place, int(port)), 10) as sock:
        sock.sendall("\r\n".join(head).encode() + body)
        answer = b"".join(iter(lambda: sock.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"Host" in answer.partition(b"\r\n\r\n")[2]
    assert hub.list_streams() == []


def test_a_record_that_no_hub_takes_is_refused_before_it_is_sent(hub: Hub) -> None:
    hub.create_stream("orders", shards=1)
    with pytest.raises(TooLarge):
        hub.append("orders", 0, [b"x" * 5_000_000])
    assert stream_name("orders") == hub.describe_stream("orders").full_name


def test_the_history_of_a_group_is_told_by_those_who_make_it(url: str, hub: Hub) -> None:
    hub.create_stream("orders", shards=1)
    hub.create_group("orders", "coordinated")
    hub.create_group("orders", "leased", coordination="leased")
    ids = {group.name: group.id for group in hub.service.groups.list(stream_name("orders"))}

    def recorded(group: str, kind: str, **more: str) -> tuple[int, str]:
        notes = [{"kind": kind, "consumer": "one", **more}]
        body = json.dumps({"group_id": ids[group], "notes": notes}).encode()
        status, told = asked(url, "/v1/groups/record", body)
        return status, told["error"] if told else ""

    for refused in (
        recorded("coordinated", "expired"),
        recorded("leased", "renewed"),
        recorded("leased", "made up"),
        recorded("leased", "expired", consumer="x" * 200),
        recorded("leased", "expired", detail="x" * 3000),
    ):
        assert refused == (400, "InvalidInput")
    assert figure(url, "expiries_total") == 0
    assert recorded("leased", "expired") == (200, "")
    assert figure(url, "expiries_total") == 1
    told = {name: [note.kind for _, note in hub.group_history("orders", name)] for name in ids}
    assert told == {"coordinated": [], "leased": ["expired"]}
