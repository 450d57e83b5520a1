"""Servers that are silent: connections to them stand, and nothing comes.

A server that is killed closes its connections; one whose machine is frozen, cut off or gone does not. Whoever
waits for its answer would wait as long as an answer may take at most, although another server is there. So
while calls are under way that take long, their server is asked for next to nothing, on a connection of its
own; if it does not even answer that, calls that may be made again are ended, and go elsewhere. A store that
is slow is not taken for that: the question does not come near it.

With one server there is nowhere else to go, and nothing is asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from shoal.remote.connection import Connection
from shoal.remote.plain_http import is_silent

Place = tuple[str, int]

LOOK_S: Final = 1.0
QUIET_S: Final = 3.0
"""How long a call goes on, and nothing else has come from its server, before that is asked."""
WAITING_S: Final = 8.0
"""The same for a call that waits for something to happen: these go on for long, of every client, and each
question is a connection more."""
ANSWER_S: Final = 2.0
"""How long it has to answer that: it costs it next to nothing, and another server waits."""
AVOIDED_S: Final = 30.0
"""How long others are tried before one that was silent."""
_IDLE: Final = 30
"""So often nothing is under way before the thread that looks ends: to begin one takes longer than a look."""


class Silence:
    """Which servers are silent. `used` tells, under a lock of its own, which connections are under way.

    Writer of the fields: any thread, under `_lock`; the looks are made by one thread, which ends when nothing
    is under way.
    """

    def __init__(
        self,
        used: Callable[[], Collection[Connection]],
        end: Callable[[Place, Mapping[Connection, float]], None],
    ) -> None:
        """`end` is told of each server that was found silent, and of the calls that were under way when it
        was asked, with when they began: a connection may be at another call by now."""
        self._used, self._end = used, end
        self._lock = threading.Lock()
        self._is_looking = False
        self._heard: dict[Place, float] = {}
        self._silent: dict[Place, float] = {}

    def heard(self, place: Place) -> None:
        """An answer came from there."""
        self._heard[place] = time.monotonic()

    def is_avoided(self, place: Place) -> bool:
        """Whether it was silent a moment ago."""
        since_s = self._silent.get(place)
        return since_s is not None and time.monotonic() - since_s < AVOIDED_S

    def begin(self) -> None:
        """A call is under way: see to it that someone looks."""
        with self._lock:
            if not self._is_looking:
                thread = threading.Thread(target=self._run, name="shoal-servers", daemon=True)
                with suppress(RuntimeError):  # The program ends, or there are no threads to be had.
                    thread.start()
                    self._is_looking = True

    def _run(self) -> None:
        try:
            idle = 0
            while idle < _IDLE:
                time.sleep(LOOK_S)
                used = self._used()
                idle = 0 if used else idle + 1
                self._look(used)
        finally:
            with self._lock:
                self._is_looking = False
        if self._used():  # It began before that was said.
            self.begin()

    def _look(self, used: Iterable[Connection]) -> None:
        """Ask the servers of calls that take long, and end what goes on with one that does not answer."""
        calls = {connection: connection.began_s for connection in used}
        for place in doubtful(calls, self._heard, time.monotonic()):
            here = {connection: began_s for connection, began_s in calls.items() if connection.place == place}
            if is_silent(*place, next(iter(here)).context, ANSWER_S):
                self._silent[place] = time.monotonic()
                self._end(place, here)
            else:
                self.heard(place)


def doubtful(calls: Mapping[Connection, float], heard: Mapping[Place, float], now_s: float) -> list[Place]:
    """The places of calls that have gone on for a while, from which nothing else came meanwhile."""
    found = {
        connection.place
        for connection, began_s in calls.items()
        if now_s - max(began_s, heard.get(connection.place, began_s))
        > (WAITING_S if connection.waits else QUIET_S)
    }
    return sorted(found)
