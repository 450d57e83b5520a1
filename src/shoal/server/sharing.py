"""One look for all who ask at once: what needs no key must not cost as often as it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Found = TypeVar("Found")


class Shared(Generic[Found]):
    """A look of which one is under way at a time: who comes meanwhile hears what it finds. For one event
    loop."""

    def __init__(self, look: Callable[[], Awaitable[Found]]) -> None:
        self._look = look
        self._task: asyncio.Future[Found] | None = None

    async def __call__(self) -> Found:
        if self._task is None:
            self._task = asyncio.ensure_future(self._look())
            self._task.add_done_callback(self._ended)
        return await asyncio.shield(self._task)

    def _ended(self, task: asyncio.Future[Found]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()  # Who has asked may be gone by now, and nobody else misses it.
