"""Servers that do not answer and do not close their connections either: what their callers do."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from shoal.core.errors import HubClosed, StoreUnavailable
from shoal.remote.connection import Connection
from shoal.remote.plain_http import is_silent
from shoal.remote.silence import ANSWER_S, LOOK_S, QUIET_S, WAITING_S, doubtful
from shoal.remote.transport import Transport

_FOUND_S = QUIET_S + LOOK_S + ANSWER_S
Place = tuple[str, int]


@contextmanager
def frozen() -> Iterator[Place]:
    """Its machine takes connections, and nobody reads what comes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()


@contextmanager
def answering(after_s: float = 0.0, *, keeps: bool = False) -> Iterator[tuple[Place, list[str]]]:
    """It answers `/healthz` at once, and all else after a while. `keeps`: its connections."""
    asked: list[str] = []
    close = b"" if keeps else b"connection: close\r\n"

    def answer(peer: socket.socket) -> None:
        with peer, suppress(OSError):
            while request := peer.recv(65_536):
                path = request.decode().split(" ")[1]
                asked.append(path)
                if path != "/healthz":
                    time.sleep(after_s)
                peer.sendall(b"HTTP/1.1 200 OK\r\n" + close + b"content-length: 4\r\n\r\nfine")
                if not keeps:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(peer,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname(), asked
        listening.shutdown(socket.SHUT_RDWR)


@contextmanager
def hanging_up() -> Iterator[Place]:
    """It leaves, or has too many connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    listening.accept()[0].close()

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()
        listening.shutdown(socket.SHUT_RDWR)


@contextmanager
def transport_to(*places: Place) -> Iterator[Transport]:
    transport = Transport("http://" + ",".join(f"{host}:{port}" for host, port in places))
    try:
        yield transport
    finally:
        transport.close()


def test_a_call_that_may_be_repeated_leaves_a_server_that_is_silent() -> None:
    with ExitStack() as stack:
        silent = stack.enter_context(frozen())
        other, asked = stack.enter_context(answering())
        transport = stack.enter_context(transport_to(silent, other))
        began = time.monotonic()
        # Longer than the call is patient: what was waited for the silent one is none of the other's.
        assert bytes(transport.call("/v1/x", [b"{}"], is_repeatable=True, patience_s=0.5)) == b"fine"
        assert time.monotonic() - began < _FOUND_S + 5
        assert asked == ["/v1/x"]
        began = time.monotonic()
        for _ in range(3):  # Each on a connection of its own: the other one closes them.
            transport.call("/v1/y", [b"{}"], is_repeatable=False)
        assert time.monotonic() - began < QUIET_S  # The silent one is not tried.


def test_a_server_that_was_silent_is_not_the_next_to_be_tried() -> None:
    """Also when it is no longer avoided: the finding moved the turn on, and the call that it ended again."""
    with ExitStack() as stack:
        silent = stack.enter_context(frozen())
        other, _ = stack.enter_context(answering(keeps=True))
        transport = stack.enter_context(transport_to(silent, other))
        assert bytes(transport.call("/v1/x", [b"{}"], is_repeatable=True)) == b"fine"
        assert transport.servers[transport._turn % 2] == other


def test_who_refuses_or_hangs_up_is_not_silent() -> None:
    with frozen() as silent, hanging_up() as leaving, answering() as (there, _):
        assert is_silent(*silent, None, 0.5)
        assert not is_silent(*leaving, None, ANSWER_S)
        assert not is_silent(*there, None, ANSWER_S)
    assert not is_silent(*there, None, ANSWER_S)


def test_a_call_that_may_not_be_repeated_waits_on_for_its_answer() -> None:
    with ExitStack() as stack:
        silent = stack.enter_context(frozen())
        other, asked = stack.enter_context(answering())
        transport = stack.enter_context(transport_to(silent, other))
        ended: list[Any] = []

        def call() -> None:
            try:
                ended.append(transport.call("/v1/x", [b"{}"], is_repeatable=False))
            except HubClosed as error:
                ended.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join(_FOUND_S + 2)
        assert thread.is_alive()
        assert asked == []
        transport.close()
        thread.join(5)
    assert [type(one) for one in ended] == [HubClosed]


def test_a_server_that_is_slow_is_not_taken_for_silent() -> None:
    """Its store may be away, or locked: it says that it is there."""
    with ExitStack() as stack:
        slow, asked = stack.enter_context(answering(after_s=_FOUND_S + 1))
        other, others = stack.enter_context(answering())
        transport = stack.enter_context(transport_to(slow, other))
        assert bytes(transport.call("/v1/x", [b"{}"], is_repeatable=True)) == b"fine"
        assert asked.count("/v1/x") == 1
        assert "/healthz" in asked
        assert others == []


def test_where_all_are_silent_the_call_ends() -> None:
    with frozen() as first, frozen() as second, transport_to(first, second) as transport:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="it is silent"):
            transport.call("/v1/x", [b"{}"], is_repeatable=True, patience_s=0.5)
        assert time.monotonic() - began < 8 * _FOUND_S


def test_a_place_is_in_doubt_when_a_call_goes_on_and_nothing_else_came_from_there() -> None:
    with ExitStack() as stack:
        here, there = (stack.enter_context(frozen()) for _ in range(2))
        old, young = (Connection(*place, None) for place in (here, there))
        stack.callback(old.close)
        stack.callback(young.close)
        calls = {old: 0.0, young: QUIET_S}
        now_s = QUIET_S + 0.1
        assert doubtful(calls, {}, now_s) == [here]
        assert doubtful(calls, {here: 1.0}, now_s) == []
        assert doubtful(calls, {there: 1.0}, 2 * now_s) == sorted([here, there])
        old.waits = True
        assert doubtful(calls, {}, now_s) == []
        assert doubtful(calls, {}, WAITING_S + 0.1) == sorted([here, there])
