"""One connection to a server: requests signed for the server it leads to, and what it refuses as errors."""

from __future__ import annotations

import select
import socket
import ssl
import time
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from shoal.core.errors import (
    ClockSkewed,
    ShoalError,
    SignedForAnother,
    StoreBusy,
    StoreFailure,
    StoreUnavailable,
)
from shoal.remote.plain_http import Begun, HttpAnswer, Parts, PlainHttp
from shoal.remote.signing import Signer
from shoal.wire.faults import error_from
from shoal.wire.signing import digest_of
from shoal.wire.values import decode_field, parsed

_CONNECT_S: Final = 5.0
_IDLE_S: Final = 30.0
"""A connection that was not used for so long is not used again: the server is about to close it."""
_SIGNED_TRIES: Final = 3
"""As first known, for the server that answered, for any of its store."""


class Connection:
    """One connection. For one thread at a time; `abort` may come from any."""

    def __init__(
        self, host: str, port: int, context: ssl.SSLContext | None, signer: Signer | None = None
    ) -> None:
        self.place = (host, port)
        self.context = context
        self._signer = signer
        self._server = "" if signer is None else signer.server_at(self.place)
        self._http = PlainHttp(host, port, context, _CONNECT_S)
        self._arrivals = select.poll()
        self._arrivals.register(self._http.socket, select.POLLIN)
        self.used_s = self.began_s = time.monotonic()
        """`began_s`: when it was taken for the call that is under way."""
        self.is_repeatable = False
        """Whether the call that is under way may be made again: see `silence`, which ends it then."""
        self.waits = False
        """Whether it waits for something to happen."""
        self.is_aborted = False

    @property
    def is_stale(self) -> bool:
        """Closed by the other side, or about to be: something to read on a connection at rest is its end."""
        return time.monotonic() - self.used_s > _IDLE_S or bool(self._arrivals.poll(0))

    def exchange(
        self,
        path: str,
        content_type: str,
        parts: Parts,
        timeout_s: float,
        *,
        is_repeatable: bool = False,
        waits: bool = False,
        begun: Begun | None = None,
    ) -> HttpAnswer:
        """Send a request, and its answer.

        One that was signed for another server than this connection leads to is signed again, and sent again:
        nothing was done.
        """
        self.is_repeatable, self.waits = is_repeatable, waits
        if self._signer is None:
            answer = self._http.exchange(path, content_type, parts, timeout_s, begun=begun)
        else:
            answer = self._signed_exchange(self._signer, path, content_type, parts, timeout_s, begun=begun)
        self.used_s = time.monotonic()
        return answer

    def _signed_exchange(
        self,
        signer: Signer,
        path: str,
        content_type: str,
        parts: Parts,
        timeout_s: float,
        *,
        begun: Begun | None,
    ) -> HttpAnswer:
        digest = digest_of(*parts)
        tried, is_set = 0, False
        while True:
            header = signer.header(path, digest, self._server)
            answer = self._http.exchange(
                path, content_type, parts, timeout_s, authorization=header, begun=begun
            )
            if answer.status != HTTPStatus.UNAUTHORIZED:
                return answer
            refusal = answered_error(answer.status, answer.body).error
            if isinstance(refusal, ClockSkewed) and not is_set:
                signer.set_clock(refusal)
                is_set = True
            elif isinstance(refusal, SignedForAnother):
                self._server = signer.learn(self.place, refusal, is_again=tried > 0, is_kept=answer.is_kept)
                tried += 1
            else:
                return answer
            if tried == _SIGNED_TRIES or not answer.is_kept:
                return answer

    def abort(self) -> None:
        """Let whoever waits for an answer fail at once."""
        self.is_aborted = True
        with suppress(OSError):  # It is closed already.
            self._http.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._http.close()


class Refusal(NamedTuple):
    """What was answered instead of a value."""

    error: ShoalError
    is_untouched: bool
    """Nothing was done."""
    is_lost: bool = False
    """There is no answer, as the server says, or what lies between: it may have been done."""


def answered_error(status: int, body: memoryview) -> Refusal:
    """What was answered, by a server or by what lies before it."""
    try:
        given: Any = parsed(body)
        if not isinstance(given, dict) or "error" not in given:
            raise ValueError("no error of ours")
        error = error_from(given, decode_field)
        return Refusal(error, given.get("untouched") is True, given.get("lost") is True)
    except (ValueError, ShoalError):
        text = bytes(body[:200]).decode("utf-8", "replace")
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            return Refusal(StoreBusy(f"HTTP {status}: {text}", 0.0), True)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            # Not our words: those of a proxy, or of a server that was ended at its work. Some balancers say
            # 503 also of a server that was lost after it was sent the request.
            return Refusal(StoreUnavailable(f"HTTP {status}: {text}"), False, True)
        return Refusal(StoreFailure(f"HTTP {status}: {text}"), False)
