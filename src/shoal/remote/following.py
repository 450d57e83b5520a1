"""Several places waited for on a server: one thread with one call under way, which waits there for all of
them.

A place that moved is told, and waited for from where it was found on. So a follower that reads what it was
told of, and says where it is now, changes nothing about the call that waits. Only a new place, or one that
is to be told sooner, ends that call, by closing its connection, and another begins with all of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Final

from shoal.complaints import Complaints
from shoal.core.errors import HubClosed, ShoalError, StoreUnavailable
from shoal.forks import renew_in_child
from shoal.native.calls import CALLS, arguments_to
from shoal.native.forms import Moved
from shoal.ports import Place
from shoal.remote.calling import WAIT_S
from shoal.remote.connection import Connection, answered_error
from shoal.remote.transport import Transport
from shoal.wire.values import from_json

_log: Final = logging.getLogger("shoal.remote")
_BROKEN_S: Final = 0.2
_LEFT_S: Final = 0.05
_GATHER_S: Final = 0.001
"""Places are often added one after another: they are waited for together."""
_ANSWER_S: Final = 15.0


class RemoteFollowing:
    """See ports.Following. Writer and reader of the fields: any thread, under `_changed`."""

    def __init__(self, transport: Transport, moved: Callable[[Place], None]) -> None:
        self._transport = transport
        self._moved = moved
        self._complaints = Complaints(_log)
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._changed = threading.Condition()
        self._places: dict[Place, int] = {}
        """By place, the number that it is waited to be past."""
        self._over: set[Place] = set()
        """Told to be over: they wait for nothing until they are added or moved again."""
        self._asked: dict[Place, int] = {}
        """What the call that is under way waits for."""
        self._connection: Connection | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def add(self, place: Place, beyond: int) -> None:
        """See ports.Following."""
        self.add_all([(place, beyond)])

    def add_all(self, places: Sequence[tuple[Place, int]]) -> None:
        """See ports.Following."""
        with self._changed:
            if self._is_closed:
                raise HubClosed
            for place, beyond in places:
                self._places[place] = beyond
                self._over.discard(place)
            if any(self._asked.get(place, beyond + 1) > beyond for place, beyond in places):
                self._begin_anew()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="shoal-follow", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def expect(self, places: Sequence[tuple[Place, int]]) -> None:
        """See ports.Following. The server looks."""
        self.add_all(places)

    def move(self, place: Place, beyond: int) -> bool:
        """See ports.Following."""
        with self._changed:
            known = self._places.get(place)
            if known is None:
                return False
            if place in self._over:
                self._over.discard(place)
                self._begin_anew()
                self._changed.notify_all()
            self._places[place] = max(known, beyond)
            return True

    def drop(self, place: Place) -> None:
        """See ports.Following."""
        with self._changed:
            self._places.pop(place, None)
            self._over.discard(place)

    def close(self) -> None:
        """See ports.Following."""
        with self._changed:
            self._is_closed = True
            self._places.clear()
            self._begin_anew()
            self._changed.notify_all()

    def _begin_anew(self) -> None:
        """Under the lock: the call that is under way is of no use any more."""
        self._asked = {}
        if self._connection is not None:
            self._connection.abort()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._places.keys() - self._over)
                if not self._is_closed and self._places.keys() - self._asked.keys():
                    self._changed.wait(_GATHER_S)
                if self._is_closed:
                    return None
                self._asked = {place: n for place, n in self._places.items() if place not in self._over}
                asked = list(self._asked.items())
            try:
                told = self._ask(asked)
            except HubClosed:
                return self._tell_all()
            except ShoalError as error:
                # As an embedded hub does when its store is away: everyone looks, and meets the error there.
                self._complaints.warn(type(error).__name__, "following %s places: %s", len(asked), error)
                self._tell_all()
                told = []
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed, _BROKEN_S)
            for moved in told:
                self._tell(moved)

    def _ask(self, places: Sequence[tuple[Place, int]]) -> Sequence[Moved]:
        """One call. Ended from our side, it has found nothing."""
        call = CALLS["hub", "watch"]
        body = arguments_to(call, {"places": places, "wait_for_s": WAIT_S})
        try:
            connection = self._transport.take()
        except OSError as error:
            raise StoreUnavailable(f"{self._transport.description}: {error}") from error
        with self._changed:
            if self._is_closed or not self._asked:
                self._transport.give_back(connection, is_kept=True)
                return []
            self._connection = connection
        is_kept = False
        try:
            status, answer, is_kept = connection.exchange(
                call.path, "application/json", [body], WAIT_S + _ANSWER_S, is_repeatable=True, waits=True
            )
        except OSError as error:
            if self._transport.is_closed:
                raise HubClosed from error
            with self._changed:
                if not self._asked:  # By `_begin_anew`, and not since its server is silent.
                    return []
            raise StoreUnavailable(f"{self._transport.description}: {error}") from error
        finally:
            with self._changed:
                self._connection = None
            self._transport.give_back(connection, is_kept=is_kept)
        if status != HTTPStatus.OK:
            refusal = answered_error(status, answer)
            if not refusal.is_untouched:
                raise refusal.error
            time.sleep(_LEFT_S)  # The server is leaving, or has too much to do: another, or later.
            return []
        moved: Sequence[Moved] = from_json(call.answer, answer, is_strict=False)
        return moved

    def _tell(self, moved: Moved) -> None:
        with self._changed:
            beyond = self._places.get(moved.place)
            if beyond is None or (moved.number <= beyond and not moved.is_over):
                return
            self._places[moved.place] = max(beyond, moved.number)
            if moved.is_over:
                self._over.add(moved.place)
        self._moved(moved.place)

    def _tell_all(self) -> None:
        with self._changed:
            places = list(self._places)
        for place in places:
            with suppress(ShoalError):
                self._moved(place)
