"""Heads of requests as nobody sends them by mistake: at the level of the socket. Each is refused or taken for
the one request that it is; nothing that hides behind it is done.
"""

import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain

import pytest

import shoal
from shoal import Hub
from shoal.server.sls.records import SCHEMA
from shoal.testing.serving import served

PUT = "POST /logstores/store/shards/lb HTTP/1.1\r\nHost: proj.localhost\r\n"
LOG = "\n\x02\x08\x01"
"""A group of one log."""
HIDDEN = "DELETE /logstores/store HTTP/1.1\r\nHost: proj.localhost\r\n\r\n"
LOOK = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
EMPTY_CHUNK = "0\r\n\r\n"
REST_S = 0.15

LENGTHS = {
    name: f"{PUT}{lines}\r\n\r\n{LOG}{HIDDEN}"
    for name, lines in {
        "twice, not equal": "Content-Length: 4\r\nContent-Length: 60",
        "a list": "Content-Length: 4, 4",
        "a sign": "Content-Length: +4",
        "negative": "Content-Length: -4",
        "hexadecimal": "Content-Length: 0x4",
        "beyond all numbers": "Content-Length: 99999999999999999999999",
        "on a line of its own": "Content-Length:\r\n 4",
        "a bare carriage return": "X: a\rContent-Length: 4",
        "a nought byte": "X: a\0b\r\nContent-Length: 4",
    }.items()
}
CHUNKS = {
    name: f"{PUT}{lines}\r\n\r\n{EMPTY_CHUNK}{HIDDEN}"
    for name, lines in {
        "length and chunks": "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "chunks and length": "Transfer-Encoding: chunked\r\nContent-Length: 4",
        "another coding": "Transfer-Encoding: xchunked",
        "chunks, then something else": "Transfer-Encoding: chunked, identity",
        "a space before the colon": "Transfer-Encoding : chunked",
        "two codings": "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    }.items()
}
CHUNK_SIZES = {
    name: f"{PUT}Transfer-Encoding: chunked\r\n\r\n{size}\r\n{LOG}\r\n{EMPTY_CHUNK}{HIDDEN}"
    for name, size in {
        "a chunk beyond all numbers": "f" * 18,
        "a negative chunk": "-4",
        "no size": "x",
    }.items()
}
LINES = {
    line: f"{line}\r\nHost: proj.localhost\r\n\r\n"
    for line in (
        "GET http://other.localhost/logstores HTTP/1.1",
        "GET http://x@proj.localhost/logstores HTTP/1.1",
        "GET ftp://proj.localhost/logstores HTTP/1.1",
        "CONNECT proj.localhost:80 HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "GET /logstores",
        "GET /logstores HTTP/3.7",
        "PRI * HTTP/2.0",
        "G\0T /logstores HTTP/1.1",
        "GET /logstores /x HTTP/1.1",
        "GET /logstores/../v1/openapi.json HTTP/1.1",
        "GET /logstores/%2e%2e/shards HTTP/1.1",
        "GET /logstores/%2E/shards HTTP/1.1",
        "GET /logstores/..%2f..%2fetc%2fpasswd/shards HTTP/1.1",
        "GET /logstores/..%5c/shards HTTP/1.1",
        "GET /logstores/%252e%252e/shards HTTP/1.1",
        "GET /logstores/%0d%0aX:%20y/shards HTTP/1.1",
        "GET /logstores/%ff/shards HTTP/1.1",
        f"GET /{'a' * 70_000} HTTP/1.1",
    )
}
HOSTS = {
    host: f"GET /logstores HTTP/1.1\r\nHost: {host}\r\n\r\n"
    for host in (
        "proj.localhost\r\nHost: other.localhost",
        "..localhost",
        ".127.0.0.1",
        "a/b.localhost",
        "%2e%2e.localhost",
        "",
    )
}
REFUSED = dict(chain.from_iterable(part.items() for part in (LENGTHS, CHUNKS, CHUNK_SIZES, LINES, HOSTS)))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(f"sqlite:///{tmp_path_factory.mktemp('heads')}/shoal.db") as url:
        yield url


@pytest.fixture(scope="module")
def hub(url: str) -> Iterator[Hub]:
    with shoal.connect(url) as hub:
        hub.create_stream("proj/store", shards=1, schema=SCHEMA)
        yield hub


def statuses(url: str, *sent: str) -> list[int]:
    """Of all answers that come before the server closes, or before it rests for a while. What is sent comes
    in packets of its own: each but the last is read before the next is sent."""
    host, _, port = url.removeprefix("http://").partition(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=10) as sock, suppress(TimeoutError):
        for part in sent[:-1]:
            sock.sendall(part.encode("latin-1"))
            assert statuses(url, LOOK) == [200]  # It was sent later, and is read later.
        sock.sendall(sent[-1].encode("latin-1"))
        while answer := sock.recv(65_536):
            received += answer
            sock.settimeout(REST_S)  # What is answered at all has been; a second answer would follow at once.
    # Not line by line: an answer's body may end without one, and the next answer follows it.
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", received)]


@pytest.mark.parametrize("sent", REFUSED.values(), ids=range(len(REFUSED)))
def test_what_is_not_one_plain_request_is_refused_and_nothing_behind_it_is_done(
    sent: str, hub: Hub, url: str
) -> None:
    (status,) = statuses(url, sent)
    assert status in (400, 404), sent[:200]
    assert hub.stats("proj/store").appended == 0


def test_what_stands_in_a_body_is_no_request(hub: Hub, url: str) -> None:
    head = "GET /logstores HTTP/1.1\r\nHost: proj.localhost\r\n"
    assert statuses(url, f"{head}Content-Length: {len(HIDDEN)}\r\n\r\n{HIDDEN}") == [200]
    assert hub.stats("proj/store").appended == 0


UPGRADES = {
    "any": "Connection: upgrade\r\nUpgrade: foo\r\n",
    "of Java": "Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\nUpgrade: h2c\r\n",
    "of Apache": "Upgrade: TLS/1.2\r\nConnection: Upgrade\r\n",
    "twice": "Upgrade: foo\r\nConnection: upgrade\r\nupgrade: websocket\r\n",
}


@pytest.mark.parametrize("upgrade", UPGRADES.values(), ids=UPGRADES)
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_that_comes_with_the_wish_for_another_protocol_is_no_request(
    hub: Hub, url: str, upgrade: str, is_chunked: bool
) -> None:
    """The parser skips such a body: in a packet of its own it was the next request, and was done."""
    head = f"GET /logstores HTTP/1.1\r\nHost: proj.localhost\r\n{upgrade}"
    if is_chunked:
        head += "Transfer-Encoding: chunked\r\n\r\n"
        body = f"{len(HIDDEN):x}\r\n{HIDDEN}\r\n{EMPTY_CHUNK}"
    else:
        head += f"Content-Length: {len(HIDDEN)}\r\n\r\n"
        body = HIDDEN
    middle = len(body) // 2
    for sent in (
        [head + body],
        [head, body],
        [head[:-1], head[-1] + body],
        [head, body[:middle], body[middle:]],
    ):
        assert statuses(url, *sent) == [200]
    assert statuses(url, LOOK + head, body + LOOK) == [200, 200, 200]
    assert [str(stream.full_name) for stream in hub.list_streams("proj")] == ["proj/store"]


def test_a_request_is_answered_with_its_body_whatever_other_protocol_it_asks_for(hub: Hub, url: str) -> None:
    del hub
    body = '{"name":"proj/store"}'
    for upgrade in UPGRADES.values():
        head = "POST /v1/hub/describe_stream HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Length: {len(body)}\r\n{upgrade}\r\n"
        assert statuses(url, head + body) == statuses(url, head, body) == [200]
        assert statuses(url, head + "x" * len(body) + head + body) == [400, 200]


def test_there_is_no_tunnel_and_what_comes_behind_one_is_not_read(hub: Hub, url: str) -> None:
    for target in ("/logstores", "proj.localhost:80"):
        tunnel = f"CONNECT {target} HTTP/1.1\r\nHost: proj.localhost\r\nContent-Length: {len(HIDDEN)}\r\n\r\n"
        assert statuses(url, tunnel + HIDDEN) == statuses(url, tunnel, HIDDEN) == [400]
    assert hub.stats("proj/store").appended == 0


def test_what_comes_behind_a_body_is_no_part_of_the_head(hub: Hub, url: str) -> None:
    """Otherwise whoever looks at heads before us is passed by, and a head would have no end."""
    head = "POST /logstores/store/shards/lb HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"
    trailers = (
        "x-log-compresstype: none\r\nHost: other.localhost\r\nx-log-bodyrawsize: 9\r\nx-more: 1\r\n\r\n"
    )
    assert statuses(url, f"{head}Host: proj.localhost\r\n\r\n0\r\n{trailers}") == [200]
    assert statuses(url, f"{head}\r\n0\r\n{trailers}") == [400]
    assert hub.stats("proj/store").appended == 0
