"""The protocol of a connection: uvicorn's, with bounds for what strangers send, and a short way for small
requests and answers, which are what a server does all day.
"""

from __future__ import annotations

import socket
from asyncio import TimerHandle, Transport
from contextlib import suppress
from typing import Any, ClassVar, Final, Protocol

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from shoal.server.options import ServerOptions
from shoal.server.requests import EXCHANGE, HEALTH_PATH, TARGET, Headers

_HEAD_BYTES_MAX: Final = 65_536


class Unasked(Protocol):
    """What is answered where there is no request."""

    @property
    def is_leaving(self) -> bool: ...
    def malformed(self, target: bytes, headers: Headers) -> bytes: ...
    def crowded(self, target: bytes, headers: Headers) -> bytes: ...


def patient_protocol(application: Unasked, options: ServerOptions) -> type[HttpToolsProtocol]:
    """The protocol of a connection, which ends those that send their heads too slowly, or too much of them,
    or nothing that is HTTP, and those that are one too many, unless they ask for the server's health; for a
    newcomer, one at rest of an address that has more."""

    class Patient(_Patient):
        _application = application
        _options = options
        _extra: ClassVar[set[HttpToolsProtocol]] = set()
        _by_address: ClassVar[dict[str, dict[_Patient, None]]] = {}

    return Patient


class _Patient(HttpToolsProtocol):
    """One connection. What is on the class, all connections of a server share."""

    _application: ClassVar[Unasked]
    _options: ClassVar[ServerOptions]
    _extra: ClassVar[set[HttpToolsProtocol]]
    """Those that are one too many, and are heard out."""
    _by_address: ClassVar[dict[str, dict[_Patient, None]]]
    """The others, by where they come from; those that have been at rest for longest first."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._head: TimerHandle | None = None
        self._head_bytes = 0
        self._is_in_head = False
        self.url, self.headers = b"", []  # Until there is a request.
        self._is_body_due = False
        self._barren_bytes = 0
        """What has come of a request since the last of its body: the sizes of chunks, or fields behind it."""
        self._before: list[RequestResponseCycle] = []
        """Requests that were not answered yet when the next one came."""
        self._is_refused = False
        self._is_malformed = False
        """What came is no request, and that is still to be said."""
        self._address = ""
        self._is_upgrade = False
        """The head that has just come asks for another protocol, and is to be read once more."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._address = peer[0] if isinstance(peer, tuple) else ""
        if len(self.connections) > self._options.connections_max and not self._make_room():
            self._hear_out()
            return
        self._by_address.setdefault(self._address, {})[self] = None
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with suppress(OSError):
                # Who does not take an answer is cut off by the kernel: also while its window is closed.
                milliseconds = int(self._options.send_s * 1000)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        self._extra.discard(self)
        self._leave_address()
        self._give_up()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """As uvicorn's, without a warning for what strangers send."""
        if self._is_refused:
            return
        if self._head is not None:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES_MAX and self._head_bytes - len(data) > 0:
                self.transport.close()
                return
        self._barren_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.send_400_response("")
            return
        if self._is_body_due:
            if self._barren_bytes > _HEAD_BYTES_MAX and not self._is_refused:
                self.send_400_response("")
                return
            self._ask_for_the_rest()
        if self._is_in_head and self._head is None:  # Most heads come whole, and need no timer.
            self._expect_head(len(data))

    def _parse(self, data: bytes) -> None:
        """Read what came. Who asks for another protocol (`Upgrade: h2c` of Java's client, `TLS/1.2` of
        Apache's) is answered in this one, as RFC 9110, 7.8, allows. The parser would skip the body of such a
        request and take it for the next request, so its head is read once more, without that wish."""
        rest = memoryview(data)
        while True:
            try:
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                self._is_upgrade = False
                rest = rest[upgrade.args[0] :]
                head = self._head_without_upgrade()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # As uvicorn's.
                self.parser.feed_data(head)
            else:
                return

    def _head_without_upgrade(self) -> bytes:
        method = self.parser.get_method()
        if method == b"CONNECT":  # It is an upgrade with or without the header: to a tunnel.
            raise httptools.HttpParserError("there are no tunnels here")
        version = self.parser.get_http_version().encode("ascii")
        head = [b"%b %b HTTP/%b\r\n" % (method, self.url, version)]
        head += [b"%b: %b\r\n" % one for one in self.headers if one[0] != b"upgrade"]
        return b"".join([*head, b"\r\n"])

    def _ask_for_the_rest(self) -> None:
        """Say at once that the head has come. A client that gathers small packets (Nagle; urllib3 does
        through a proxy) sends the body only then, and the kernel would wait 40 ms before it says so."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """To what is no request, after the answers to those that came whole before it. What still comes is
        not read."""
        self._is_refused = self._is_malformed = True
        self._head_came()
        last: Any = self.cycle
        if last is not None and last.more_body:  # It is the one that cannot be read.
            self._disconnect(last)
            if self.pipeline and self.pipeline[0][0] is last:
                self.pipeline.popleft()
        self._say_malformed()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        theirs = self._by_address.get(self._address)
        if theirs is not None and theirs.pop(self, False) is None:
            theirs[self] = None  # From now on it is at rest.
        if self._is_malformed:
            self._say_malformed()

    def _say_malformed(self) -> None:
        """In our own form, or in that of the dialect which the request looks like, as far as it came; unless
        one that came before is to be answered yet. The answer has a moment to be heard."""
        if self.transport.is_closing() or any(
            not (cycle.response_complete or cycle.disconnected) for cycle in self._unanswered()
        ):
            return
        self._is_malformed = False
        self.transport.write(self._application.malformed(self.url, self.headers))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_EXTRA_S, self.transport.close)

    def _unanswered(self) -> list[RequestResponseCycle]:
        """Requests that may be so."""
        last: Any = self.cycle
        return self._before if last is None else [*self._before, last]

    def _give_up(self) -> None:
        """Nobody hears the answers any more that are still to come."""
        for cycle in self._unanswered():
            if not cycle.response_complete:
                self._disconnect(cycle)

    def _disconnect(self, cycle: RequestResponseCycle) -> None:
        cycle.disconnected = True
        cycle.message_event.set()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        # Not with any byte, as uvicorn does: what begins no request would keep the connection for ever.
        self._unset_keepalive_if_required()
        self._is_in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field that comes behind a body is let go of: it is no part of the head that was looked at, and
        there is no end to how many may come."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._barren_bytes = 0
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_upgrade:
            return
        self._is_body_due = False
        if not self._is_refused:
            super().on_message_complete()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            self._is_upgrade = True
            return
        self._is_in_head = False
        self._head_came()
        if self in self._extra and not _is_probe(self.parser.get_method(), self.url):
            self._refuse()
            return
        self._is_body_due = True
        self._barren_bytes = 0
        if not self.url.startswith(b"/"):
            self.scope[TARGET] = self.url  # type: ignore[typeddict-unknown-key]
        before: Any = self.cycle
        super().on_headers_complete()
        if before is not None and not before.response_complete:
            self._before.append(before)
        elif self._before:
            self._before.clear()
        if self in self._extra or self._application.is_leaving:
            self.cycle.keep_alive = False
        if self.scope["method"] != "HEAD":  # The answer to which has no body, and its head does not wait.
            self.cycle.transport = _HeadWithBody(self.transport)
            self.scope[EXCHANGE] = _Exchange(self.cycle, self.transport)  # type: ignore[typeddict-unknown-key]

    def _make_room(self) -> bool:
        """From the address that has most connections the one goes that has been at rest for longest: others
        are not to keep all of them by saying a word now and then. False: none of them is, or the newcomer
        would have as many."""
        address = max(self._by_address, key=lambda one: len(self._by_address[one]), default="")
        theirs = self._by_address.get(address, {})
        if len(theirs) <= len(self._by_address.get(self._address, ())) + 1:
            return False
        for one in theirs:
            last: Any = one.cycle
            if last is None or last.response_complete:
                one._leave_address()
                self.connections.discard(one)
                one.transport.close()
                return True
        return False

    def _leave_address(self) -> None:
        theirs = self._by_address.get(self._address)
        if theirs is not None:
            theirs.pop(self, None)
            if not theirs:
                del self._by_address[self._address]

    def _hear_out(self) -> None:
        """One too many. It has a moment to say what it wants: a probe of the server's health is answered,
        anything else, and nothing, is refused."""
        self.connections.discard(self)
        if len(self._extra) >= _EXTRA_MAX:
            self.transport.close()
            return
        self._extra.add(self)
        self._head = self.loop.call_later(_EXTRA_S, self._refuse)

    def _refuse(self) -> None:
        """It is told why, and has a moment to hear it: a connection that is closed upon what the client
        still sends takes the answer with it."""
        self._is_refused = True
        self.transport.write(self._application.crowded(self.url, self.headers))
        self.loop.call_later(_EXTRA_S, self.transport.close)

    def _expect_head(self, came: int = 0) -> None:
        self._head_bytes = came
        self._head = self.loop.call_later(self._options.head_s, self.transport.close)

    def _head_came(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


class _Exchange:
    """See requests.Exchange. It does to uvicorn's cycle what its `receive` and `send` do, in one step."""

    __slots__ = ("_cycle", "_transport")

    def __init__(self, cycle: RequestResponseCycle, transport: Transport) -> None:
        self._cycle, self._transport = cycle, transport

    def body(self) -> bytes | None:
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected or cycle.response_complete or cycle.waiting_for_100_continue:
            return None
        body = bytes(cycle.body)
        cycle.body = bytearray()
        cycle.message_event.clear()
        cycle.flow.resume_reading()
        return body

    def reply(self, head: bytes, body: bytes) -> bool:
        cycle = self._cycle
        if cycle.response_started or cycle.disconnected or cycle.flow.write_paused:
            return False
        end = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
        self._transport.write(b"".join((head, end, body)))
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
        if not cycle.keep_alive:
            self._transport.close()
        cycle.on_response()
        return True


class _HeadWithBody(Transport):
    """What an answer is written to. Its head waits for the beginning of its body: uvicorn writes them one
    after the other, and two small packets wake a client twice."""

    def __init__(self, transport: Transport) -> None:
        super().__init__()
        self._transport = transport
        self._head = b""
        self._is_begun = False

    def write(self, data: Any) -> None:
        if not self._is_begun and not data.startswith(_CONTINUE):
            self._is_begun, self._head = True, data
        elif self._head and len(data) <= _TOGETHER:
            head, self._head = self._head, b""
            self._transport.write(b"".join((head, data)))
        else:
            if self._head:
                head, self._head = self._head, b""
                self._transport.write(head)
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._transport.close()


def _is_probe(method: bytes, target: bytes) -> bool:
    return method in (b"GET", b"HEAD") and target.partition(b"?")[0] == HEALTH_PATH


_EXTRA_MAX: Final = 100
_EXTRA_S: Final = 0.5
_CONTINUE: Final = b"HTTP/1.1 100 "
_TOGETHER: Final = 65_536
