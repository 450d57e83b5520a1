"""What strangers may send in Aliyun's dialect: each is answered with the right 4xx, and changes nothing."""

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import lz4.block
import pytest
import zstandard

import shoal
from shoal import Hub
from shoal.server.options import ServerOptions
from shoal.server.sls.records import SCHEMA
from shoal.testing.members import eventually
from shoal.testing.serving import served
from tests.scenario.asking import figure
from tests.sls.asking import asked
from tests.sls.messages import field, group

LB = "/logstores/store/shards/lb"
GOOD = b"\x0a\x02\x08\x01"
"""A group of one log without fields."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with served(f"sqlite:///{tmp_path / 'shoal.db'}", ServerOptions(port=0)) as url:
        yield url


@pytest.fixture
def hub(url: str) -> Iterator[Hub]:
    with shoal.connect(url) as hub:
        hub.create_stream("proj/store", shards=1, schema=SCHEMA)
        hub.create_stream("proj/plain", shards=1)
        yield hub


def test_bodies_that_are_not_what_they_say_are_refused_and_store_nothing(hub: Hub, url: str) -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(300_000_000))
    packed = lz4.block.compress(GOOD, store_size=False)
    refused = [
        (b"\x0a\x7f\x08\x01", {}, "PostBodyInvalid"),
        (b"\x0a\x00", {}, "PostBodyInvalid"),
        (b"\xff" * 50, {}, "PostBodyInvalid"),
        (packed, {"x_log_compresstype": "lz4"}, "PostBodyInvalid"),
        (packed, {"x_log_compresstype": "lz4", "x_log_bodyrawsize": "400"}, "PostBodyInvalid"),
        (packed, {"x_log_compresstype": "zstd", "x_log_bodyrawsize": "4"}, "PostBodyInvalid"),
        (packed, {"x_log_compresstype": "snappy", "x_log_bodyrawsize": "4"}, "InvalidCompressType"),
        (packed, {"x_log_compresstype": "lz4", "x_log_bodyrawsize": "-4"}, "InvalidBodyRawSize"),
        (bomb, {"x_log_compresstype": "zstd", "x_log_bodyrawsize": "1000"}, "PostBodyInvalid"),
        (bomb, {"x_log_compresstype": "zstd", "x_log_bodyrawsize": "300000000"}, "InvalidLogSize"),
    ]
    for body, headers, code in refused:
        assert asked(url, "POST", LB, body, **headers) == (400, code), (body[:20], headers)
    assert hub.stats("proj/store").appended == 0
    assert asked(url, "POST", LB, packed, x_log_compresstype="lz4", x_log_bodyrawsize="4") == (200, "")
    assert hub.stats("proj/store").appended == 1


def test_a_group_with_a_log_that_is_too_large_and_a_body_that_is_are_refused_whole(
    hub: Hub, url: str
) -> None:
    logs = group([(1, None, [(b"k", bytes(size))]) for size in (5, 5_000_000, 5)])
    assert asked(url, "POST", LB, logs) == (400, "InvalidLogSize")
    assert asked(url, "POST", LB, group([(1, None, [])] * 900, (b"t" * 100_000, b"", None))) == (
        400,
        "InvalidLogSize",
    )
    assert asked(url, "POST", LB, bytes(33_000_000)) == (400, "InvalidLogSize")
    assert hub.stats("proj/store").appended == 0


def test_what_records_take_beyond_their_body_counts_among_what_requests_hold(tmp_path: Path) -> None:
    raw = GOOD * 600 + field(3, b"t" * 100_000)
    body = zstandard.ZstdCompressor().compress(raw)
    assert len(body) < 100

    options = ServerOptions(port=0, bodies_bytes_max=40_000_000)
    with served(f"sqlite:///{tmp_path / 'shoal.db'}", options) as url, shoal.connect(url) as hub:
        hub.create_stream("proj/store", shards=1, schema=SCHEMA)

        def put() -> tuple[int, str]:
            size = str(len(raw))
            return asked(url, "POST", LB, body, x_log_compresstype="zstd", x_log_bodyrawsize=size)

        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), 20) as other:
            other.sendall(b"POST /v1/hub/append HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n1")
            eventually(lambda: figure(url, "body_bytes") == 1, "another request holds a byte")
            assert put() == (503, "ServerBusy")
        eventually(lambda: figure(url, "body_bytes") == 0, "nothing is held any more")
        assert hub.stats("proj/store").appended == 0
        assert put() == (200, "")  # Alone it is taken.
        assert figure(url, "body_bytes") == 0
        assert hub.stats("proj/store").appended == 600


def test_paths_names_and_parameters_that_lead_nowhere_are_refused(hub: Hub, url: str) -> None:
    group = "/logstores/store/consumergroups/g"
    assert asked(url, "POST", "/logstores/store/consumergroups", b'{"consumerGroup":"g"}') == (200, "")
    for method, path, body, answer in (
        ("GET", "/logstores?offset=--5", b"", (400, "ParameterInvalid")),
        ("GET", "/logstores?size=5-", b"", (400, "ParameterInvalid")),
        ("GET", "/logstores/none/shards", b"", (404, "LogStoreNotExist")),
        ("GET", "/logstores/..%2f..%2fetc/shards", b"", (400, "ParameterInvalid")),
        ("GET", "/logstores/%00/shards", b"", (400, "ParameterInvalid")),
        ("GET", "/logstores/store/shards/x", b"", (400, "ParameterInvalid")),
        ("GET", "/logstores/store/shards/0?type=log&cursor=%25&count=1", b"", (400, "InvalidCursor")),
        ("GET", "/logstores/store/shards/0?type=log&count=1", b"", (400, "ParameterInvalid")),
        ("GET", "/logstores/store/shards/0?type=a&type=b", b"", (400, "ParameterInvalid")),
        ("GET", "/logstores/store?type=log&query=*", b"", (400, "ParameterInvalid")),
        ("POST", "/logstores/store/logs", b"{}", (400, "ParameterInvalid")),
        ("POST", "/logstores/store/shards/route?key=xyz", GOOD, (400, "ParameterInvalid")),
        ("POST", "/logstores/plain/shards/lb", GOOD, (400, "ParameterInvalid")),
        ("POST", "/logstores", b"[", (400, "PostBodyInvalid")),
        ("POST", "/logstores", b"[" * 100_000, (400, "PostBodyInvalid")),
        ("POST", "/logstores", b'{"logstoreName":"a/b"}', (400, "ParameterInvalid")),
        ("POST", "/logstores", b'{"logstoreName":"a","ttl":true}', (400, "ParameterInvalid")),
        ("POST", f"{group}?type=heartbeat&consumer=c", b"{}", (400, "PostBodyInvalid")),
        ("POST", f"{group}?type=heartbeat&consumer=c", b'["0"]', (400, "PostBodyInvalid")),
        ("POST", f"{group}?type=heartbeat&consumer=a%2Fb", b"[]", (400, "ParameterInvalid")),
        ("POST", f"{group}?type=checkpoint&consumer=c", b'{"shard":"0"}', (400, "PostBodyInvalid")),
        (
            "POST",
            f"{group}?type=checkpoint&consumer=c",
            b'{"shard":9,"checkpoint":""}',
            (404, "ShardNotExist"),
        ),
        ("PUT", group, b'{"timeout":"soon"}', (400, "ParameterInvalid")),
        ("PATCH", group, b"", (404, "NotSupported")),
    ):
        assert asked(url, method, path, body) == answer, (method, path, body[:50])


def test_a_host_that_comes_twice_and_a_target_with_a_scheme(hub: Hub, url: str) -> None:
    def told(head: str) -> bytes:
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            # A client that is cut off must not see a reset before its answer.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 10, 0))
            sock.sendall(head.encode())
            return sock.recv(65_536)

    twice = told("GET /logstores HTTP/1.1\r\nHost: proj.localhost\r\nHost: other.localhost\r\n\r\n")
    assert twice.startswith(b"HTTP/1.1 400")
    absolute = told("GET http://proj.localhost:80/logstores HTTP/1.1\r\nHost: proj.localhost\r\n\r\n")
    assert absolute.startswith(b"HTTP/1.1 200")
    assert b'"store"' in absolute
