"""Requests that wait for something to move. None takes a thread: the store's one watcher tells the event
loop.

Who comes to wait is expected at once, and looked for once: something may have moved just before. Such looks
are gathered, since each takes a thread and a query, and consumers that were answered together come together.
What moved through this server is told without a look, so that one who follows a busy stream needs none.

When the server leaves, all who wait are told at once, and go elsewhere.

All waiting goes through here, and so does the question whether one who has waited may still hear what came:
its key may have been taken away meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from shoal.core.errors import StoreBusy, StoreUnavailable
from shoal.core.reading import has_moved
from shoal.ports import ChangeSignal, Place
from shoal.server.requests import ClientGone, Incoming, Refused

Run = Callable[..., Awaitable[Any]]
"""Calls a function in a thread."""

_Awaited = tuple[Sequence[tuple[Place, int]], "asyncio.Future[bool]"]

_GATHER_S: Final = 0.005
"""A look waits for others for so long. What moves meanwhile is told without it."""


class Waiting:
    """Those who wait. For one event loop."""

    def __init__(self, run: Run, limit: int) -> None:
        self._run = run
        self._limit = limit
        self._waiters: set[asyncio.Future[bool]] = set()
        self._of: dict[str, dict[asyncio.Future[bool], None]] = {}
        """The same by client, the longest waiting first."""
        self._looks: dict[ChangeSignal, _Looks] = {}
        self.is_leaving = False

    def __len__(self) -> int:
        return len(self._waiters)

    async def until_moved(
        self,
        signal: ChangeSignal,
        places: Sequence[tuple[Place, int]],
        timeout_s: float,
        request: Incoming,
    ) -> bool:
        """Wait until a place may be past its number; False: the time is over."""
        return await self.until_heard(signal, places, timeout_s, request) is not None

    async def until_heard(
        self,
        signal: ChangeSignal,
        places: Sequence[tuple[Place, int]],
        timeout_s: float,
        request: Incoming,
    ) -> Mapping[Place, int] | None:
        """The same; which places have come how far, as far as that was told. None: the time is over."""
        assert request.ask_again is not None, "who waits is asked for its key again"
        self.check_leaving()
        if len(self._waiters) >= self._limit and not self._make_room(request.client):
            raise Refused(StoreBusy(f"{self._limit} requests wait already", 0.0), is_untouched=True)
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()

        def told(_: Place) -> None:
            with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
                loop.call_soon_threadsafe(_wake, waiter, True)

        self._waiters.add(waiter)
        self._of.setdefault(request.client, {})[waiter] = None
        following = signal.follow(told)
        gone = loop.create_task(request.gone())
        gone.add_done_callback(lambda _: _wake(waiter, False))
        timer = loop.call_later(timeout_s, _wake, waiter, False)
        try:
            following.expect(places)
            self._looks_at(signal).add(places, waiter)
            has_moved = await waiter
            heard = following.heard()
        finally:
            timer.cancel()
            following.close()
            self._drop(request.client, waiter)
            is_gone = gone.done()
            gone.cancel()
        if is_gone:
            raise ClientGone
        self.check_leaving()
        await request.ask_again()
        return heard if has_moved else None

    def _make_room(self, client: str) -> bool:
        """One who has more than half of the places waits no longer in one of them, and comes again: there is
        room for another client."""
        greedy, theirs = max(self._of.items(), key=lambda one: len(one[1]))
        if greedy == client or len(theirs) <= self._limit // 2:
            return False
        oldest = next(iter(theirs))
        _wake(oldest, False)
        self._drop(greedy, oldest)
        return True

    def _drop(self, client: str, waiter: asyncio.Future[bool]) -> None:
        self._waiters.discard(waiter)
        theirs = self._of.get(client)
        if theirs is not None:
            theirs.pop(waiter, None)
            if not theirs:
                del self._of[client]

    def _looks_at(self, signal: ChangeSignal) -> _Looks:
        found = self._looks.get(signal)
        if found is None:
            found = self._looks[signal] = _Looks(self._run, signal)
        return found

    def check_leaving(self) -> None:
        """Whoever would wait on a server that is leaving waits elsewhere."""
        if self.is_leaving:
            raise Refused(
                StoreUnavailable("this server is leaving; ask another, or again"), is_untouched=True
            )

    def leave(self) -> None:
        """Tell all who wait, and all who come to."""
        self.is_leaving = True
        for waiter in self._waiters:
            _wake(waiter, False)


class _Looks:
    """First looks at places, gathered: one at a time is under way."""

    def __init__(self, run: Run, signal: ChangeSignal) -> None:
        self._run, self._signal = run, signal
        self._awaited: list[_Awaited] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, places: Sequence[tuple[Place, int]], waiter: asyncio.Future[bool]) -> None:
        self._awaited.append((places, waiter))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look_at_all())

    async def _look_at_all(self) -> None:
        try:
            while self._awaited:
                await asyncio.sleep(_GATHER_S)
                awaited, self._awaited = self._awaited, []
                await self._look(awaited)
        finally:
            self._task = None

    async def _look(self, awaited: Sequence[_Awaited]) -> None:
        wanted = {place for places, waiter in awaited if not waiter.done() for place, _ in places}
        if not wanted:
            return
        try:
            now = await self._run(self._signal.look, list(wanted))
        except Exception as error:  # noqa: BLE001 - each of them raises it again, at its request's edge
            for _, waiter in awaited:
                if not waiter.done():
                    waiter.set_exception(error)
            return
        for places, waiter in awaited:
            if any(has_moved(now.get(place), beyond) for place, beyond in places):
                _wake(waiter, True)


def _wake(waiter: asyncio.Future[bool], has_moved: bool) -> None:
    if not waiter.done():
        waiter.set_result(has_moved)
