"""HTTP/1.1 from a client's side, on one connection: as much of it as our server and proxies before it use.

Written here because it is what a client of ours does all day: the standard library's parses the head of every
answer as if it were mail, which takes several times as long as the server needs for a small append. Measured
by `make bench`, on the line of small appends.
"""

from __future__ import annotations

import errno
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

from shoal.native.calls import HEALTH_PATH
from shoal.remote.bodies import BODIES

Parts = Sequence[bytes | memoryview]
Begun = Callable[[bytes], None]
"""Told how a long answer begins, before the rest of it has come."""

_HEAD_BYTES_MAX: Final = 65_536
_TOGETHER: Final = 65_536
"""Parts of a request up to this are sent as one: to copy them costs less than another packet."""
_RECEIVED: Final = 65_536
_WOKEN: Final = 1_048_576
"""Who waits for a long answer is woken when so much of it has come, or all: each time costs both ends, and
took a tenth of reading a stream from end to end. Of a connection with TLS it is not known how much
of what comes lies unpacked already."""
_END_OF_HEAD: Final = b"\r\n\r\n"
_NO_WAY: Final = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN})
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
)
"""A machine that is gone says nothing: the system of who waits for its answer finds out within half a minute.
Not every system has all of them."""


class BrokenAnswer(ConnectionError):
    """What came is no answer, or only the beginning of one."""


class HttpAnswer(NamedTuple):
    """What a server answered."""

    status: int
    body: memoryview
    is_kept: bool
    """The connection can be used again."""


class _Head(NamedTuple):
    status: int
    length: int | None
    is_chunked: bool
    is_kept: bool


class PlainHttp:
    """One connection. For one thread at a time."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None, timeout_s: float) -> None:
        self.socket = _connected(host, port, context, timeout_s)
        self._timeout_s = timeout_s
        self._host = _host_of(host, port)
        self._heads: dict[tuple[str, str], bytes] = {}
        self._gathers = context is None and sys.platform == "linux"

    def exchange(
        self,
        path: str,
        content_type: str,
        parts: Parts,
        timeout_s: float,
        *,
        authorization: str = "",
        begun: Begun | None = None,
    ) -> HttpAnswer:
        """POST, and the answer; or an OSError. Of a broken one nobody knows what became of the request."""
        if timeout_s != self._timeout_s:
            self.socket.settimeout(timeout_s)
            self._timeout_s = timeout_s
        size = sum(len(part) for part in parts)
        head = b"%b%d\r\n" % (self._head(path, content_type), size)
        if authorization:
            head += b"Authorization: %b\r\n" % authorization.encode("ascii")
        self._send([head + b"\r\n", *parts])
        head_of, rest = self._receive_head()
        if begun is not None and head_of.status == HTTPStatus.OK and rest:
            begun(rest)
        return self._with_body(head_of, rest)

    def _head(self, path: str, content_type: str) -> bytes:
        """What is the same in every request of a kind, up to the length of its body."""
        found = self._heads.get((path, content_type))
        if found is None:
            text = (
                f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nAccept-Encoding: identity\r\n"
                f"Content-Type: {content_type}\r\nContent-Length: "
            )
            found = self._heads[path, content_type] = text.encode("ascii")
        return found

    def _send(self, parts: Parts) -> None:
        """All of them. Small ones are joined, large ones are not copied."""
        small: list[bytes | memoryview] = []
        size = 0
        for part in parts:
            if len(part) > _TOGETHER:
                self.socket.sendall(b"".join(small))
                self.socket.sendall(part)
                small, size = [], 0
                continue
            small.append(part)
            size += len(part)
            if size > _TOGETHER:
                self.socket.sendall(b"".join(small))
                small, size = [], 0
        if small:
            self.socket.sendall(b"".join(small))

    def _receive_head(self) -> tuple[_Head, bytes]:
        """The head of the answer, and what came after it. Heads that only promise one are skipped."""
        received = b""
        while True:
            end = received.find(_END_OF_HEAD)
            if end >= 0:
                head = _parsed(received[:end])
                received = received[end + len(_END_OF_HEAD) :]
                if head.status >= 200:
                    return head, received
                continue
            if len(received) > _HEAD_BYTES_MAX:
                raise BrokenAnswer(f"the head of an answer is longer than {_HEAD_BYTES_MAX} bytes")
            received += self._some("the head of an answer")

    def _some(self, of: str) -> bytes:
        data = self.socket.recv(_RECEIVED)
        if not data:
            raise BrokenAnswer(f"the connection ended within {of}")
        return data

    def _with_body(self, head: _Head, rest: bytes) -> HttpAnswer:
        if head.is_chunked:
            body, is_clean = self._chunks(rest)
            return HttpAnswer(head.status, memoryview(body), head.is_kept and is_clean)
        if head.length is None:
            parts = [rest]
            while data := self.socket.recv(_RECEIVED):
                parts.append(data)
            return HttpAnswer(head.status, memoryview(b"".join(parts)), False)
        if len(rest) >= head.length:
            is_clean = len(rest) == head.length
            return HttpAnswer(head.status, memoryview(rest)[: head.length], head.is_kept and is_clean)
        return HttpAnswer(head.status, self._long_body(head.length, rest), head.is_kept)

    def _long_body(self, length: int, rest: bytes) -> memoryview:
        memory, body = BODIES.take(length)
        place = len(rest)
        memory[:place] = rest
        least = 1
        while place < length:
            least = self._wake_at(min(length - place, _WOKEN), least)
            try:
                got = self.socket.recv_into(memory[place:])
            except TimeoutError:
                got, least = self._come_so_far(memory[place:], least), 1
            if not got:
                raise BrokenAnswer(f"the connection ended after {place} of {length} bytes")
            place += got
        self._wake_at(1, least)
        return body

    def _come_so_far(self, into: memoryview, least: int) -> int:
        """What has come of an answer while its reader was not woken: the line is slow, and from now on it is
        for every byte. TimeoutError: nothing has."""
        if least == 1:
            raise TimeoutError("timed out")
        self._wake_at(1, least)
        self._gathers = False
        self.socket.settimeout(0.0)
        try:
            return self.socket.recv_into(into)
        except BlockingIOError:
            raise TimeoutError("timed out") from None
        finally:
            self.socket.settimeout(self._timeout_s)

    def _wake_at(self, size: int, before: int) -> int:
        """Be woken when so many bytes have come, or the connection has ended, if that is to be had."""
        if size == before or not self._gathers:
            return before
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
        except OSError:
            self._gathers = False
            return before
        return size

    def _chunks(self, rest: bytes) -> tuple[bytes, bool]:
        """A body in chunks, as proxies send one; and whether nothing followed it."""
        parts = []
        while True:
            line, rest = self._line(rest)
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError as error:
                raise BrokenAnswer(f"a chunk of {line[:40]!r} bytes") from error
            if size < 0:
                raise BrokenAnswer(f"a chunk of {size} bytes")
            if size == 0:
                break
            while len(rest) < size + 2:
                rest += self._some("a chunk")
            if rest[size : size + 2] != b"\r\n":
                raise BrokenAnswer("a chunk is longer than it says")
            parts.append(rest[:size])
            rest = rest[size + 2 :]
        while line:  # Trailers, and the empty line after them.
            line, rest = self._line(rest)
        return b"".join(parts), not rest

    def _line(self, rest: bytes) -> tuple[bytes, bytes]:
        while (end := rest.find(b"\r\n")) < 0:
            if len(rest) > _HEAD_BYTES_MAX:
                raise BrokenAnswer("a line of an answer does not end")
            rest += self._some("a line of an answer")
        return rest[:end], rest[end + 2 :]

    def close(self) -> None:
        self.socket.close()


def is_silent(host: str, port: int, context: ssl.SSLContext | None, timeout_s: float) -> bool:
    """Whether nothing comes from a server that is asked, on a connection of its own, for what costs it next
    to nothing. One that refuses, or hangs up, is there: it leaves, or has too many connections."""
    request = f"GET {HEALTH_PATH} HTTP/1.1\r\nHost: {_host_of(host, port)}\r\nConnection: close\r\n\r\n"
    try:
        with _connected(host, port, context, timeout_s) as asked:
            asked.sendall(request.encode("ascii"))
            asked.recv(_RECEIVED)
    except OSError as error:
        return isinstance(error, TimeoutError) or error.errno in _NO_WAY
    return False


def _connected(host: str, port: int, context: ssl.SSLContext | None, timeout_s: float) -> socket.socket:
    plain = socket.create_connection((host, port), timeout_s)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for level, name, value in _KEEPALIVE:
            if hasattr(socket, name):
                plain.setsockopt(level, getattr(socket, name), value)
        return plain if context is None else context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def _host_of(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _parsed(head: bytes) -> _Head:
    lines = head.split(b"\r\n")
    version, _, rest = lines[0].partition(b" ")
    status = rest[:3]
    if not version.startswith(b"HTTP/1.") or not status.isdigit() or len(status) != 3:
        raise BrokenAnswer(f"this is no answer of HTTP/1: {lines[0][:60]!r}")
    length: int | None = None
    is_chunked, is_kept = False, version != b"HTTP/1.0"
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        name = name.lower()
        if name == b"content-length":
            length = _length(value.strip(), length)
        elif name == b"transfer-encoding":
            is_chunked = True
            if value.strip().lower() != b"chunked":
                raise BrokenAnswer(f"an answer in the encoding {value[:40]!r}")
        elif name == b"connection" and b"close" in value.lower():
            is_kept = False
    if int(status) in (204, 304):
        length, is_chunked = 0, False
    return _Head(int(status), length, is_chunked, is_kept)


def _length(value: bytes, known: int | None) -> int:
    if not value.isdigit() or (known is not None and known != int(value)):
        raise BrokenAnswer(f"an answer of {value[:40]!r} bytes")
    return int(value)
