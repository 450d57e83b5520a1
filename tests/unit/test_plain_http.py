"""The client's side of HTTP, against a peer that sends exactly these bytes."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shoal.remote.plain_http import BrokenAnswer, HttpAnswer, PlainHttp


@contextmanager
def answering(*pieces: bytes) -> Iterator[tuple[PlainHttp, list[bytes]]]:
    """A connection whose other side reads one request, sends these pieces, one packet each, and closes."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            peer, _ = listening.accept()
            with peer:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                request = b""
                while b"\r\n\r\n" not in request:
                    request += peer.recv(65536)
                head, _, body = request.partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                while len(body) < length:
                    body += peer.recv(65536)
                received.extend((head, body))
                for piece in pieces:
                    peer.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        http = PlainHttp("127.0.0.1", listening.getsockname()[1], None, 5.0)
        try:
            yield http, received
        finally:
            http.close()
            thread.join(5)


def asked(*pieces: bytes) -> HttpAnswer:
    with answering(*pieces) as (http, _):
        return http.exchange("/v1/x", "a/b", [b"body"], 5.0)


def test_a_request_carries_its_parts_in_order_and_large_ones_too() -> None:
    parts: list[bytes | memoryview] = [b"a" * 10, b"b" * 200_000, memoryview(b"c" * 5), b"d" * 70_000, b""]
    with answering(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") as (http, received):
        answer = http.exchange("/v1/hub/append", "a/b", parts, 5.0, authorization="SCHEME x=y")
    assert answer.status == 200
    head, body = received
    assert head.startswith(b"POST /v1/hub/append HTTP/1.1\r\n")
    assert b"\r\nAuthorization: SCHEME x=y" in head
    assert body == b"".join(parts)


@pytest.mark.parametrize("cut", [1, 7, 40, 48])
def test_an_answer_may_come_in_pieces(cut: int) -> None:
    whole = b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nhello"
    answer = asked(whole[:cut], whole[cut:])
    assert (answer.status, bytes(answer.body), answer.is_kept) == (404, b"hello", True)


def test_a_long_body_is_whole() -> None:
    body = bytes(range(256)) * 4000
    answer = asked(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:100], body[100:])
    assert bytes(answer.body) == body
    assert answer.is_kept


def test_after_a_body_of_megabytes_a_short_answer_is_heard_at_once() -> None:
    long, short = bytes(range(256)) * 12_001, b"short"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        http = PlainHttp("127.0.0.1", listening.getsockname()[1], None, 5.0)
        peer, _ = listening.accept()

        def serve() -> None:
            for body in (long, short):
                while b"\r\n\r\n" not in peer.recv(65_536):
                    pass
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
                for place in range(0, len(body), 100_000):
                    peer.sendall(body[place : place + 100_000])

        thread = threading.Thread(target=serve)
        thread.start()
        with peer:
            for body in (long, short):
                answer = http.exchange("/v1/x", "a/b", [b""], 5.0)
                assert (bytes(answer.body), answer.is_kept) == (body, True)
            thread.join(5)
        http.close()


def test_a_long_body_is_not_written_over_while_anything_refers_to_a_part_of_it() -> None:
    def body(number: int) -> bytes:
        return bytes([number]) * 2_000_000

    def answer(number: int) -> memoryview:
        return asked(b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n" + body(number)).body

    parts = [answer(number)[1_000_000:1_000_010] for number in range(8)]
    assert [bytes(part) for part in parts] == [bytes([number]) * 10 for number in range(8)]


def test_a_long_body_that_breaks_off_is_heard_of_at_once() -> None:
    with pytest.raises(BrokenAnswer, match="after 100 of 3000000"):
        asked(b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 100)


def test_how_a_long_answer_begins_is_told_before_the_rest_of_it_comes() -> None:
    told: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        http = PlainHttp("127.0.0.1", listening.getsockname()[1], None, 5.0)
        peer, _ = listening.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 20000\r\n\r\nbegin")

            def begun(first: bytes) -> None:
                told.append(first)
                peer.sendall(b"x" * (20_000 - len(first)))  # Not before: who waits for it waits for ever.

            answer = http.exchange("/v1/x", "a/b", [b"body"], 5.0, begun=begun)
        http.close()
    assert told == [b"begin"]
    assert bytes(answer.body) == b"begin" + b"x" * 19_995


def test_how_an_error_begins_is_told_to_nobody() -> None:
    with answering(b"HTTP/1.1 503 x\r\ncontent-length: 4\r\n\r\nbusy") as (http, _):
        answer = http.exchange("/v1/x", "a/b", [b"body"], 5.0, begun=lambda _: pytest.fail("told"))
    assert (answer.status, bytes(answer.body)) == (503, b"busy")


def test_promises_are_skipped_and_chunks_are_joined() -> None:
    answer = asked(
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"5;note=1\r\nhel",
        b"lo\r\n1\r\n!\r\n0\r\nTrailer: x\r\n\r\n",
    )
    assert (bytes(answer.body), answer.is_kept) == (b"hello!", True)


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok", b"ok"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n", b"ok"),
    ],
)
def test_a_connection_that_ends_or_has_more_to_say_is_not_used_again(sent: bytes, body: bytes) -> None:
    answer = asked(sent)
    assert (bytes(answer.body), answer.is_kept) == (body, False)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"SSH-2.0-OpenSSH_9.0\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000,
    ],
)
def test_what_is_no_whole_answer_is_broken(sent: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        asked(sent)


def test_an_answer_that_does_not_come_is_not_waited_for_without_an_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        http = PlainHttp("127.0.0.1", listening.getsockname()[1], None, 5.0)
        with pytest.raises(TimeoutError):
            http.exchange("/v1/x", "a/b", [b""], 0.1)
        http.close()


def test_a_slow_answer_is_not_silence() -> None:
    """A megabyte takes longer than the timeout; no two bytes are so far apart."""
    body, is_over = bytes(range(256)) * 4096 * 2, threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            peer, _ = listening.accept()
            with peer:
                while b"body" not in peer.recv(65536):
                    pass
                peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
                for begin in range(0, len(body), 1 << 17):
                    peer.sendall(body[begin : begin + (1 << 17)])
                    time.sleep(0.1)
                is_over.wait(5)

        thread = threading.Thread(target=serve)
        thread.start()
        http = PlainHttp("127.0.0.1", listening.getsockname()[1], None, 0.5)
        try:
            assert http.exchange("/v1/x", "a/b", [b"body"], 0.5).body == body
            with pytest.raises(TimeoutError):
                http.exchange("/v1/x", "a/b", [b"x"], 0.5)
        finally:
            is_over.set()
            http.close()
            thread.join(5)


def test_silence_within_a_long_answer_ends_it() -> None:
    silent = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            peer, _ = listening.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n" + b"x" * 500_000)
                silent.wait(5)

        thread = threading.Thread(target=serve)
        thread.start()
        http = PlainHttp("127.0.0.1", listening.getsockname()[1], None, 0.3)
        try:
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                http.exchange("/v1/x", "a/b", [b"body"], 0.3)
            assert time.monotonic() - began < 2
        finally:
            silent.set()
            http.close()
            thread.join(5)
