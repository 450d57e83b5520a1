"""Requests to a server, or to one of several: connections that are kept, retries, and what a lost answer
means.

A call is made again if that cannot do harm: it was never sent, the server says that it has touched nothing,
or the call may be repeated (see `native.calls`). Otherwise its fate is unknown, and StoreUnavailable says
so, as it does of a commit whose answer the database did not give.

Nothing to install: what a client package adds (cookies, redirects, pools that hide which connection was used
before) is what must not happen here.
"""

from __future__ import annotations

import random
import ssl
import threading
import time
from collections import deque
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

from shoal.core.errors import (
    HubClosed,
    RateExceeded,
    ShoalError,
    StoreUnavailable,
)
from shoal.forks import renew_in_child
from shoal.remote.address import servers_of
from shoal.remote.connection import Connection, answered_error
from shoal.remote.plain_http import Begun, Parts
from shoal.remote.signing import Signer, credentials
from shoal.remote.silence import Place, Silence

PATIENCE_S: Final = 5.0
"""How long a call that can be made again is: about as long as a server takes to be started anew."""
_ANSWER_S: Final = 60.0
"""How long an answer is waited for, beyond what the server was asked to wait: longer than a store's lock
is."""
_KEPT: Final = 64
_PAUSE_S: Final = (0.02, 1.0)
_JSON: Final = "application/json"


class _Attempt(NamedTuple):
    """What became of one."""

    outcome: memoryview | ShoalError
    is_harmless: bool = False
    """The server has surely touched nothing."""
    was_silent: bool = False
    """It was ended from our side, since its server is silent."""


class Transport:
    """Where calls go. Writer and reader of the fields: any thread, under `_lock`. A forked child begins
    anew."""

    def __init__(self, url: str, *, context: ssl.SSLContext | None = None) -> None:
        key, bare = credentials(url)
        self.scheme, self.servers = servers_of(bare)
        self._signer = None if key is None else Signer(key)
        self._context = context or (ssl.create_default_context() if self.scheme == "https" else None)
        self._kept: deque[Connection] = deque()
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed. The parent's connections are the parent's: our copies of them are only closed."""
        for connection in getattr(self, "_kept", ()):
            connection.close()
        self._lock = threading.Lock()
        self._kept = deque()
        self._used: set[Connection] = set()
        self._turn = 0
        self._closed = threading.Event()
        self._silence = Silence(self._under_way, self._leave) if len(self.servers) > 1 else None

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    @property
    def description(self) -> str:
        return f"{self.scheme}://{','.join(f'{host}:{port}' for host, port in self.servers)}"

    def call(
        self,
        path: str,
        parts: Parts,
        *,
        content_type: str = _JSON,
        is_repeatable: bool,
        patience_s: float = PATIENCE_S,
        wait_s: float = 0.0,
        begun: Begun | None = None,
    ) -> memoryview:
        """The body of the answer, or the error that was answered, or StoreUnavailable."""
        deadline = time.monotonic() + patience_s
        pause_s = _PAUSE_S[0]
        is_untouched = True
        silent = 0
        while True:
            failure, is_harmless, was_silent = self._try(
                path, parts, content_type, wait_s, begun, is_repeatable=is_repeatable
            )
            if isinstance(failure, memoryview):
                return failure
            is_untouched &= is_harmless
            if isinstance(failure, RateExceeded):
                pause_s = max(pause_s, 2 * failure.retry_s)  # At least half of it is waited.
            if was_silent and silent < len(self.servers):
                silent += 1
                deadline = time.monotonic() + patience_s  # What was waited for it is none of the others'.
            if not (is_harmless or is_repeatable) or time.monotonic() + pause_s > deadline:
                failure.untouched = is_untouched  # An attempt before it may have reached the store.
                raise failure
            if self._closed.wait(random.uniform(pause_s / 2, pause_s)):
                raise HubClosed
            pause_s = min(pause_s * 2, _PAUSE_S[1])

    def _try(
        self,
        path: str,
        parts: Parts,
        content_type: str,
        wait_s: float,
        begun: Begun | None,
        *,
        is_repeatable: bool,
    ) -> _Attempt:
        """The answer, or a failure that the call may outlive."""
        try:
            connection = self.take()
        except OSError as error:
            return _Attempt(StoreUnavailable(f"{self.description}: {error}"), is_harmless=True)
        try:
            status, body, is_kept = connection.exchange(
                path,
                content_type,
                parts,
                _ANSWER_S + wait_s,
                is_repeatable=is_repeatable,
                waits=wait_s > 0,
                begun=begun,
            )
        except OSError as error:
            self.give_back(connection, is_kept=False)
            if self._closed.is_set():
                raise HubClosed from error
            where = ":".join(map(str, connection.place))
            why = "it is silent" if connection.is_aborted else f"{type(error).__name__}: {error}"
            detail = f"{path}: no answer from {where} ({why})"
            return _Attempt(StoreUnavailable(detail), was_silent=connection.is_aborted)
        except BaseException:
            self.give_back(connection, is_kept=False)  # Ctrl-C: an answer may still come, to nobody.
            raise
        self.give_back(connection, is_kept=is_kept)
        if status == HTTPStatus.OK:
            return _Attempt(body)
        refusal = answered_error(status, body)
        if not refusal.is_untouched and not refusal.is_lost:
            refusal.error.untouched = False
            raise refusal.error
        return _Attempt(refusal.error, is_harmless=refusal.is_untouched)

    def take(self) -> Connection:
        """A connection: one that is kept, or a new one to the first server that answers."""
        with self._lock:
            if self._closed.is_set():
                raise HubClosed
            while self._kept:
                connection = self._kept.pop()
                if not connection.is_stale:
                    self._use(connection)
                    return connection
                connection.close()
        connection = self._connect()
        with self._lock:
            self._use(connection)
        if self._closed.is_set():
            self.give_back(connection, is_kept=False)
            raise HubClosed
        return connection

    def _use(self, connection: Connection) -> None:
        """Under the lock."""
        connection.began_s, connection.is_repeatable = time.monotonic(), False
        self._used.add(connection)
        if self._silence is not None:
            self._silence.begin()

    def _under_way(self) -> list[Connection]:
        with self._lock:
            return list(self._used)

    def _leave(self, place: Place, calls: Mapping[Connection, float]) -> None:
        """A server is silent: the next connection is made to another, none that was kept leads there, and of
        the calls that wait for it those end that may be made again."""
        with self._lock:
            for connection, began_s in calls.items():
                if connection in self._used and connection.began_s == began_s and connection.is_repeatable:
                    connection.abort()
            gone = [connection for connection in self._kept if connection.place == place]
            self._kept = deque(connection for connection in self._kept if connection.place != place)
        self._turn_from(place)
        for connection in gone:
            connection.close()

    def _turn_from(self, place: Place) -> None:
        """The next connection is made to another, if it would be made to this one."""
        with self._lock:
            if self.servers[self._turn % len(self.servers)] == place:
                self._turn += 1

    def _connect(self) -> Connection:
        """To the server whose turn it is, on to the others; those that were silent come last."""
        turns = range(self._turn, self._turn + len(self.servers))
        order = sorted(turns, key=self._is_avoided)
        for turn in order:
            host, port = self.servers[turn % len(self.servers)]
            try:
                connection = Connection(host, port, self._context, self._signer)
            except OSError:
                if turn == order[-1]:
                    raise
            else:
                self._turn = turn
                return connection
        raise AssertionError("there is a server")

    def _is_avoided(self, turn: int) -> bool:
        silence = self._silence
        return silence is not None and silence.is_avoided(self.servers[turn % len(self.servers)])

    def give_back(self, connection: Connection, *, is_kept: bool) -> None:
        """Keep it for the next call, or close it."""
        if self._silence is not None and connection.used_s > connection.began_s:
            self._silence.heard(connection.place)  # It has answered.
        with self._lock:
            self._used.discard(connection)
            if (
                is_kept
                and not connection.is_aborted
                and not self._closed.is_set()
                and len(self._kept) < _KEPT
            ):
                self._kept.append(connection)
                return
        connection.close()
        if not is_kept and not connection.is_aborted:
            self._turn_from(connection.place)  # It may be leaving.

    def close(self) -> None:
        """Close all connections. Calls under way end with HubClosed."""
        self._closed.set()
        with self._lock:
            kept, self._kept = list(self._kept), deque()
            used = list(self._used)
        for connection in kept:
            connection.close()
        for connection in used:
            connection.abort()
