"""One request and its answer: the body within its bounds, JSON or batches out, and the client that went
away."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from math import ceil
from typing import Any, Final, Protocol

from starlette.types import Receive, Scope, Send

from shoal.core.errors import InvalidInput, NotSignedIn, RateExceeded, ShoalError, StoreBusy, TooLarge
from shoal.native import calls
from shoal.native.statuses import status_of
from shoal.server.options import ServerOptions
from shoal.wire.faults import error_to
from shoal.wire.signing import digest_of
from shoal.wire.values import encode_field, text_of

JSON: Final = b"application/json"
HEALTH_PATH: Final = calls.HEALTH_PATH.encode()
TARGET: Final = "shoal.target"
"""In a scope: what was asked for, if it is more than a path, such as `http://host/path`."""
EXCHANGE: Final = "shoal.exchange"
"""In a scope: an Exchange, where the server has one."""
_JOINED: Final = 256_000
"""Parts of an answer up to this are sent as one: to copy them costs less than another message."""
_PIECE: Final = 1_000_000
"""Larger parts are sent in pieces of this size."""


Headers = Sequence[tuple[bytes, bytes]]


class ClientGone(Exception):
    """Nobody waits for an answer any more."""


class Refused(Exception):
    """An error with a status of its own, or of which the client may know that nothing was touched, or that
    what it asked for may still be done."""

    def __init__(
        self,
        error: ShoalError,
        status: HTTPStatus | None = None,
        *,
        is_untouched: bool = False,
        is_lost: bool = False,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(str(error))
        self.error, self.status, self.headers = error, status, headers
        self.is_untouched, self.is_lost = is_untouched, is_lost


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and a body."""

    parts: Sequence[bytes | memoryview]
    content_type: bytes = JSON
    status: HTTPStatus = HTTPStatus.OK
    closes: bool = False
    """The connection ends after it: what is left of the request is not read."""
    headers: Sequence[tuple[bytes, bytes]] = ()
    """Beside those that every answer has."""

    @property
    def size(self) -> int:
        return sum(len(part) for part in self.parts)


class Held:
    """How many bytes of requests, or of answers, are held at once. For one event loop.

    One client may hold a half of them, so that others are served beside it.
    """

    def __init__(self, what: str, limit: int) -> None:
        self._what, self._limit = what, limit
        self._of: dict[str, int] = {}
        """By client, as long as it holds any."""
        self.bytes = 0

    def check(self, size: int = 0, client: str = "", mine: int = 0) -> None:
        """Whether there is room for so much more, for a request of this client that holds `mine` already. By
        itself, a request may take more than the client's share."""
        if self.bytes + size > self._limit:
            raise Refused(
                StoreBusy(f"the server holds {self.bytes} bytes of {self._what}", 0.0), is_untouched=True
            )
        held = self._of.get(client, 0)
        if held > mine and held + size > self._limit // 2:
            raise Refused(
                StoreBusy(f"the server holds {held} bytes of {self._what} of {client}", 0.0),
                is_untouched=True,
            )

    def take(self, size: int, client: str = "") -> None:
        self.bytes += size
        if client and size:
            self._of[client] = self._of.get(client, 0) + size

    def give_back(self, size: int, client: str = "") -> None:
        self.bytes -= size
        if client and size:
            left = self._of.pop(client) - size
            if left:
                self._of[client] = left


class Exchange(Protocol):
    """The short way: a body that is there already, and an answer in one write. Everything else goes through
    `receive` and `send`."""

    def body(self) -> bytes | None:
        """All of it, once; None if more is to come."""

    def reply(self, head: bytes, body: bytes) -> bool:
        """Send an answer, whose head is not ended; False: nothing was sent."""


class Incoming:
    """A request that is being read."""

    def __init__(self, scope: Scope, receive: Receive, options: ServerOptions, bodies: Held) -> None:
        self.scope = scope
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self._receive, self._options, self._bodies = receive, options, bodies
        self._exchange: Exchange | None = scope.get(EXCHANGE)
        self._held = 0
        self.client: str = _address(scope)
        """Whose request it is: that of an address, until its user is known."""
        self.digest: str | None = None
        """What its signature says of its body."""
        self.name = ""
        """The call that it is, once that is known, where its path alone does not say it."""
        self.ask_again: Callable[[], Awaitable[None]] | None = None
        """Raises what refuses it, if it would not be let in any more. See Waiting."""

    async def body(self, limit: int | None = None) -> bytes:
        """All of it, as it was signed, or an error. It is no larger than the limit, or than the server takes
        at all."""
        most = self._options.body_bytes_max
        body = await self._whole_body(most if limit is None else min(limit, most))
        if self.digest is not None:
            if len(body) <= _HASHED_HERE:
                found = digest_of(body)
            else:
                found = await asyncio.to_thread(digest_of, body)
            if found != self.digest:
                raise NotSignedIn("the body is not the one that was signed")
        return body

    async def _whole_body(self, limit: int) -> bytes:
        if self.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Refused(
                InvalidInput(
                    "Content-Encoding", _text(self.headers[b"content-encoding"]), "send it as it is"
                ),
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            )
        if b"transfer-encoding" in self.headers:
            for name, value in self.scope["headers"]:
                if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                    raise Refused(
                        InvalidInput("Transfer-Encoding", _text(value), "in chunks, or as it is"),
                        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                    )
        whole = None if self._exchange is None else self._exchange.body()
        if whole is not None:
            self._check_size(len(whole), limit)
            self._hold(len(whole))
            return whole
        announced = self.headers.get(b"content-length")
        if announced is not None and announced.isdigit():
            self._check_size(int(announced), limit)
            self._bodies.check(int(announced))
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._options.body_s) as until:
                first = until.when()
                assert first is not None
                is_more = True
                while is_more:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    part = message.get("body", b"")
                    size += len(part)
                    self._check_size(size, limit)
                    self._hold(size)  # What has come, not what was announced: that costs its client nothing.
                    parts.append(part)
                    is_more = message.get("more_body", False)
                    until.reschedule(first + size / self._options.body_bytes_per_s_min)
        except TimeoutError as error:
            late = InvalidInput("body", f"{size} bytes", "it came too slowly; send it in smaller parts")
            raise Refused(late, HTTPStatus.REQUEST_TIMEOUT) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _check_size(self, size: int, limit: int) -> None:
        if size > limit:
            raise TooLarge("body", size=size, limit=limit, remedy="send it in several requests")

    def _hold(self, size: int) -> None:
        """See that so much is counted."""
        if size > self._held:
            self._bodies.check(size - self._held, self.client, self._held)
            self._bodies.take(size - self._held, self.client)
            self._held = size

    def hold_more(self, size: int) -> None:
        """Count so much beside the body: what it will be unpacked to."""
        if self._bodies.bytes > self._held:  # Alone it is taken: it would never fit better.
            self._bodies.check(size, self.client, self._held)
        self._bodies.take(size, self.client)
        self._held += size

    async def discard(self) -> None:
        """Take what a refused client still sends, within bounds: cut off, it would not see its answer."""
        left = _DISCARDED * self._options.body_bytes_max
        with suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_S):
                while left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body"):
                        return

    def done(self) -> None:
        """Nothing of it is held any more."""
        self._bodies.give_back(self._held, self.client)
        self._held = 0

    async def gone(self) -> None:
        """Returns when the client has closed its side."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


def json_answer(value: Any, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer([text_of(value)], status=status)


def error_answer(refused: Refused | ShoalError, request_id: str) -> Answer:
    """The one form of errors."""
    if isinstance(refused, ShoalError):
        refused = Refused(refused, is_untouched=isinstance(refused, RateExceeded))
    status = refused.status or status_of(refused.error)
    told = {**error_to(refused.error, encode_field), "untouched": refused.is_untouched, "request": request_id}
    if refused.is_lost:
        told["lost"] = True
    closes = status in _UNREAD
    body = text_of(told)
    return Answer(
        [body], status=status, closes=closes, headers=(*refused.headers, *retry_after(refused.error))
    )


def retry_after(error: ShoalError) -> Sequence[tuple[bytes, bytes]]:
    """The header that says when to come again, in whole seconds, if there is such a time."""
    if not isinstance(error, RateExceeded):
        return ()
    return ((b"retry-after", str(ceil(error.retry_s)).encode()),)


def new_request_id() -> str:
    """A number of this process."""
    return f"{_PROCESS}-{next(_NUMBERS):x}"


def headers_of(answer: Answer, request_id: str) -> list[tuple[bytes, bytes]]:
    """What every answer says of itself, and what this one says beside that."""
    headers = [
        (b"content-type", answer.content_type),
        (b"content-length", str(answer.size).encode()),
        (b"x-request-id", request_id.encode()),
        *answer.headers,
    ]
    if answer.closes:
        headers.append((b"connection", b"close"))
    return headers


def written(answer: Answer, request_id: str) -> bytes:
    """The last answer of a connection, as it is on the wire, for where there is no request to send it to."""
    head = [f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n".encode()]
    for name, value in headers_of(replace(answer, closes=True), request_id):
        head += [name, b": ", value, b"\r\n"]
    return b"".join([*head, b"\r\n", *answer.parts])


async def send_answer(scope: Scope, send: Send, answer: Answer, request_id: str) -> None:
    """All of it."""
    parts, size = answer.parts, answer.size
    # It refers to the scope that it is in: left there, every request would be garbage to be searched for.
    exchange: Exchange | None = scope.pop(EXCHANGE, None)
    if exchange is not None and size <= _SMALL and not answer.closes and not answer.headers:
        head = _head(answer, size, request_id)
        if exchange.reply(head, bytes(parts[0]) if len(parts) == 1 else b"".join(parts)):
            return
    headers = headers_of(answer, request_id)
    await send({"type": "http.response.start", "status": answer.status.value, "headers": headers})
    if size <= _JOINED:
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        await send({"type": "http.response.body", "body": body})
        return
    for part in parts:
        # A piece at a time: what is written is kept, wherever it is, until the client takes it.
        for place in range(0, len(part), _PIECE):
            piece = part if len(part) <= _PIECE else memoryview(part)[place : place + _PIECE]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else "?"


def _head(answer: Answer, size: int, request_id: str) -> bytes:
    """What every answer says of itself, as it is on the wire, without the empty line after it."""
    status = answer.status
    return b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n" % (
        status.value,
        status.phrase.encode("ascii"),
        answer.content_type,
        size,
        request_id.encode("ascii"),
    )


def _text(value: bytes) -> str:
    return value[:80].decode("latin-1")


_PROCESS: Final = secrets.token_hex(4)
_NUMBERS: Final = itertools.count(1)
_SMALL: Final = 65_536
"""An answer up to this is put together and written at once."""
_HASHED_HERE: Final = 65_536
"""A body up to this is digested at once: to hand it to a thread takes longer."""
_DISCARDED: Final = 4
_DISCARD_S: Final = 2.0
_UNREAD: Final = {
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
}
