"""How a consumer reaches a hub: in its own process, or over a network through any of several servers.

A call over the network may be lost on either way, come late, come twice, and come long after its caller has
given up or died. The caller only ever learns an answer, an error of the hub's, or nothing in time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar, cast

from shoal.core.errors import ShoalError, StoreUnavailable
from sim.hub import Hub
from sim.loop import MS, Future, Process, Steps
from sim.stage import Stage

T = TypeVar("T")
Call: TypeAlias = Callable[[Hub], Steps[T]]

ANSWER_TIMEOUT_US: Final = 700 * MS


class Network:
    """One consumer's way to its hub."""

    def __init__(self, stage: Stage, process: Process, own: Hub | None, servers: list[Hub]) -> None:
        self._stage, self._process, self._own, self._servers = stage, process, own, servers

    def call(self, call: Call[T]) -> Steps[T]:
        """The hub's answer; StoreUnavailable if none came."""
        # Between reading the clock and sending, and between an answer and looking at it, time passes too.
        yield self._stage.rng.randrange(20, 400)
        if self._own is not None:
            return (yield from call(self._own))
        answer = Future(self._stage.loop)
        self._send(call, answer)
        if self._stage.is_so("duplicate"):
            self._stage.history.fault("duplicate", self._process.name)
            self._send(call, answer, late=True)
        self._stage.loop.after(ANSWER_TIMEOUT_US, answer.resolve)
        yield answer
        if isinstance(answer.result, ShoalError):
            raise answer.result
        if answer.result is None:
            raise StoreUnavailable("no answer")
        return cast("tuple[T]", answer.result)[0]

    def _send(self, call: Call[T], answer: Future, *, late: bool = False) -> None:
        stage = self._stage
        servers = [hub for hub in self._servers if hub.process.is_up]
        if self._is_lost() or not servers:
            return
        hub = stage.rng.choice(servers)
        delay = self._delay() + (stage.rng.randrange(2000) * MS if late else 0)

        def serve() -> Steps[None]:
            try:
                result: object = ((yield from call(hub)),)
            except ShoalError as error:
                result = error
            if not self._is_lost():
                stage.loop.after(self._delay(), lambda: answer.resolve(result))

        stage.loop.after(delay, lambda: hub.process.spawn(serve()))

    def _is_lost(self) -> bool:
        if self._stage.loop.now < self._process.cut_until:
            return True
        if self._stage.is_so("drop"):
            self._stage.history.fault("drop", self._process.name)
            return True
        return False

    def _delay(self) -> int:
        delay = self._stage.rng.randrange(100, 2000)
        if self._stage.is_so("late"):
            self._stage.history.fault("late", self._process.name)
            delay += self._stage.rng.randrange(self._stage.rng.choice((200, 1200))) * MS
        return delay
