"""Small requests of many clients go to the committer together, and their answers come back together.

The committer lets whatever waits share a commit; this sees that little is spent on the way there. What is
asked for in one turn of the event loop is handed over as one, and all of it is answered by one call back:
to wake another thread takes longer than to parse a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from shoal.core.limits import COMMIT_BYTES_MAX, COMMIT_REQUESTS_MAX

Request = TypeVar("Request")
Answer = TypeVar("Answer")

Done = Callable[[Sequence[Answer] | BaseException], None]
_Waiting = tuple[Sequence[Request], "asyncio.Future[Sequence[Answer]]"]


class Gathered(Generic[Request, Answer]):
    """For one event loop. `submit` hands requests of so many clients to the committer, which tells `done`, in
    its own thread."""

    def __init__(
        self, submit: Callable[[Sequence[Request], Done[Answer], int], None], size: Callable[[Request], int]
    ) -> None:
        self._submit = submit
        self._size = size
        self._waiting: list[_Waiting[Request, Answer]] = []
        self._requests = self._bytes = 0
        self._timer: asyncio.Handle | None = None
        self._is_due = False
        """It is handed over at the end of this turn."""

    async def commit(self, requests: Sequence[Request], *, within_s: float = 0.0) -> Sequence[Answer]:
        """The answers of the store. One that is in no hurry says `within_s`, and goes with one that is."""
        if not requests:
            return []
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sequence[Answer]] = loop.create_future()
        self._waiting.append((requests, future))
        self._requests += len(requests)
        self._bytes += sum(map(self._size, requests))
        if self._requests >= COMMIT_REQUESTS_MAX or self._bytes >= COMMIT_BYTES_MAX:
            self._hand_over()
        elif not within_s and not self._is_due:
            self._is_due = True
            self._begin(loop.call_soon(self._hand_over))
        elif within_s and self._timer is None:
            self._begin(loop.call_later(within_s, self._hand_over))
        return await future

    def _begin(self, timer: asyncio.Handle) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def _hand_over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        gathered, self._waiting = self._waiting, []
        self._requests = self._bytes = 0
        self._timer, self._is_due = None, False
        loop = asyncio.get_running_loop()

        def done(answers: Sequence[Answer] | BaseException) -> None:
            with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
                loop.call_soon_threadsafe(_settle, gathered, answers)

        try:
            self._submit([one for requests, _ in gathered for one in requests], done, len(gathered))
        except Exception as error:  # noqa: BLE001 - whoever waits hears of it, at the request's edge
            _settle(gathered, error)


def _settle(gathered: Sequence[_Waiting[Request, Answer]], answers: Sequence[Answer] | BaseException) -> None:
    place = 0
    for requests, future in gathered:
        if future.done():  # Its client went away.
            pass
        elif isinstance(answers, BaseException):
            future.set_exception(answers)
        else:
            future.set_result(answers[place : place + len(requests)])
        place += len(requests)
