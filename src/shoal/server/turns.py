"""Whose turn it is: the threads of a server, shared among its clients, so that one who asks for much keeps
nobody else waiting. What the server asks its store for itself, before it knows a client or for all of them,
has threads of its own.

Invariant: a client has at most its share of the threads at work, and what it asks for beyond waits behind its
own calls alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Final

_OWN: Final = 4
"""Threads of the server's own: its questions are few, short and gathered."""
_CLIENT: Final[ContextVar[str]] = ContextVar("client", default="")


class Turns:
    """Calls in threads. For one event loop."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="shoal-server")
        self._own = ThreadPoolExecutor(_OWN, thread_name_prefix="shoal-server-own")
        self._working: dict[str, int] = {}
        """By client, as long as it has any."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """The same; who began to wait first is first."""

    @staticmethod
    def are_of(client: str) -> None:
        """What the request that is at work calls from here on is this client's."""
        _CLIENT.set(client)

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that may wait for the store, in a thread, when it is the client's turn."""
        client = _CLIENT.get()
        loop = asyncio.get_running_loop()
        if client in self._waiting or not self._has_room(client):
            await self._turn(client, loop.create_future())
        else:
            self._begin(client)
        try:
            return await loop.run_in_executor(self._pool, function, *arguments)
        finally:
            self._end(client)

    async def run_own(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The same for the server itself, whoever has made it ask."""
        return await asyncio.get_running_loop().run_in_executor(self._own, function, *arguments)

    def _has_room(self, client: str) -> bool:
        """One who is alone has half of the threads; of two each a third: and nobody takes more than half of
        what others leave. So there is always one for the next."""
        working = self._working.get(client, 0)
        clients = len(self._working) + (working == 0)
        left = self._threads - sum(self._working.values()) + working
        return working < max(1, min(self._threads // (clients + 1), -(-left // 2)))

    def _begin(self, client: str) -> None:
        self._working[client] = self._working.get(client, 0) + 1

    async def _turn(self, client: str, turn: asyncio.Future[None]) -> None:
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # It was given, and nobody takes it.
                self._end(client)
            raise

    def _end(self, client: str) -> None:
        """Its thread is free: for whoever has waited longest and has room."""
        self._working[client] -= 1
        if not self._working[client]:
            del self._working[client]
        for other in list(self._waiting):
            turns = self._waiting[other]
            while turns and (turns[0].done() or self._has_room(other)):
                turn = turns.popleft()
                if not turn.done():
                    self._begin(other)
                    turn.set_result(None)
            if not turns:
                del self._waiting[other]

    def close(self) -> None:
        """When nothing is in flight any more."""
        self._pool.shutdown(wait=True)
        self._own.shutdown(wait=True)
