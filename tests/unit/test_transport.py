"""Which calls are made again, by what a server answers, or what lies before it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shoal.core.errors import StoreBusy, StoreFailure, StoreUnavailable
from shoal.remote.transport import Transport

FINE = (200, b"fine")


@contextmanager
def answering(*answers: tuple[int, bytes]) -> Iterator[tuple[Transport, list[int]]]:
    """A server that gives these answers, one to each request, and the last one to all that follow."""
    given: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listening.accept()
                except OSError:
                    return
                with peer:
                    if not peer.recv(65_536):
                        return
                    status, body = answers[min(len(given), len(answers) - 1)]
                    given.append(status)
                    head = b"HTTP/1.1 %d x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
                    peer.sendall(head % (status, len(body)) + body)

        thread = threading.Thread(target=serve)
        thread.start()
        transport = Transport(f"http://127.0.0.1:{listening.getsockname()[1]}")
        try:
            yield transport, given
        finally:
            transport.close()
            socket.create_connection(listening.getsockname()).close()
            thread.join(5)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_what_a_balancer_has_no_answer_to_is_asked_again_if_that_does_no_harm(status: int) -> None:
    with answering((status, b"no healthy upstream"), FINE) as (transport, given):
        assert bytes(transport.call("/v1/x", [b"{}"], is_repeatable=True)) == b"fine"
    assert given == [status, 200]


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_what_a_balancer_has_no_answer_to_may_be_done_and_is_not_asked_twice(status: int) -> None:
    with answering((status, b"upstream reset"), FINE) as (transport, given):
        with pytest.raises(StoreUnavailable, match="upstream reset") as raised:
            transport.call("/v1/x", [b"{}"], is_repeatable=False)
        assert not raised.value.untouched
    assert given == [status]


def test_what_says_that_nothing_was_done_is_asked_again() -> None:
    ours = b'{"error":"StoreBusy","text":"busy","fields":{"detail":"busy","waited_s":0.0},"untouched":true}'
    with answering((503, ours), (429, b"slow down"), FINE) as (transport, given):
        assert bytes(transport.call("/v1/x", [b"{}"], is_repeatable=False)) == b"fine"
    assert given == [503, 429, 200]
    touched = ours.replace(b"true", b"false")
    with answering((503, touched), FINE) as (transport, given), pytest.raises(StoreBusy):
        transport.call("/v1/x", [b"{}"], is_repeatable=True)
    assert given == [503]


def test_what_a_server_had_no_time_to_answer_is_asked_again_if_that_does_no_harm() -> None:
    ours = b'{"error":"StoreUnavailable","text":"it ends","fields":{"detail":"it ends"},"untouched":false}'
    lost = ours[:-1] + b',"lost":true}'
    with answering((503, lost), FINE) as (transport, given):
        assert bytes(transport.call("/v1/x", [b"{}"], is_repeatable=True)) == b"fine"
    assert given == [503, 200]
    for body, is_repeatable in ((lost, False), (ours, True)):
        with answering((503, body), FINE) as (transport, given):
            with pytest.raises(StoreUnavailable, match="it ends") as raised:
                transport.call("/v1/x", [b"{}"], is_repeatable=is_repeatable)
            assert not raised.value.untouched
        assert given == [503]


def test_what_our_server_says_of_itself_is_final() -> None:
    ours = b'{"error":"StoreFailure","text":"broken","fields":{"detail":"broken"},"untouched":false}'
    with answering((500, ours), FINE) as (transport, given), pytest.raises(StoreFailure):
        transport.call("/v1/x", [b"{}"], is_repeatable=True)
    assert given == [500]
