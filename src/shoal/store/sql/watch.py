"""Wakes those who wait for a shard to grow or close, or for an assignment. One thread, while anyone waits.

A change in this process rings its waiters directly. For changes by other processes the thread waits for a
hint from the database, looks at the places that are waited for, and rings those that moved.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from shoal.complaints import Complaints
from shoal.core.errors import HubClosed, StoreError
from shoal.core.reading import has_moved
from shoal.forks import renew_in_child
from shoal.ports import Place
from shoal.store.sql.database import Database
from shoal.store.sql.dialects.dialect import Hints

Look = Callable[[Sequence[Place]], Mapping[Place, tuple[int, bool]]]
"""How far places have come, and whether they can rise further; those that are gone are left out."""

_log: Final = logging.getLogger("shoal.store.watch")

_LISTEN_S: Final = 2.0
"""How long a waiter waits for the thread to listen before it looks anyway."""
_LINGER_S: Final = 5.0
"""The thread stays this long after the last waiter: readers come back in a moment."""
_BROKEN_S: Final = 0.2


class Watch:
    """See ChangeSignal.

    Writer and reader of the fields: any thread, under `_lock`. A forked child begins anew.
    """

    def __init__(self, database: Database, look: Look) -> None:
        self._database = database
        self._places_now = look
        self._complaints = Complaints(_log)
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._lock = threading.Lock()
        self._waiters: dict[Place, list[Waiter]] = {}
        self._thread: threading.Thread | None = None
        self._is_listening = threading.Event()
        self._is_closed = False

    def wait(self, place: Place, beyond: int, timeout_s: float) -> None:
        """See ChangeSignal."""
        woken = threading.Event()
        waiter = Waiter(beyond, woken.set)
        deadline = time.monotonic() + timeout_s
        try:
            self.enter(place, waiter, timeout_s)
            woken.wait(max(0.0, deadline - time.monotonic()))
        finally:
            self.exit(place, waiter)

    def follow(self, moved: Callable[[Place], None]) -> Following:
        """See ChangeSignal."""
        return Following(self, moved)

    def enter(self, place: Place, waiter: Waiter, patience_s: float = _LISTEN_S) -> None:
        """Have the waiter woken when the place moves; for those who come back by themselves."""
        with self._lock:
            if self._is_closed:
                raise HubClosed
            self._waiters.setdefault(place, []).append(waiter)
            if self._thread is None:
                self._is_listening.clear()
                self._thread = threading.Thread(target=self._run, name="shoal-watch", daemon=True)
                self._thread.start()
        # What was appended before we listened gave no hint, so look once after.
        self._is_listening.wait(min(patience_s, _LISTEN_S))
        if self._has_moved(place, waiter.beyond):
            waiter.wake()

    def exit(self, place: Place, waiter: Waiter) -> None:
        """The end of it. A waiter that is not there any more is no error: a fork forgets them all."""
        with self._lock, suppress(KeyError, ValueError):
            self._waiters[place].remove(waiter)
            if not self._waiters[place]:
                del self._waiters[place]

    def is_forgotten(self, place: Place, waiter: Waiter) -> bool:
        """Whether nobody would wake the waiter: a fork forgets them all."""
        return waiter not in self._waiters.get(place, ())

    def ring(self, places: Sequence[tuple[Place, int]]) -> None:
        """See ChangeSignal."""
        if not self._waiters:
            return
        with self._lock:
            for place, number in places:
                for waiter in self._waiters.get(place, ()):
                    if number > waiter.beyond:
                        waiter.tell(number)

    def close(self) -> None:
        """Wake everyone, and let the thread end."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        self._wake_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_LISTEN_S)

    def _has_moved(self, place: Place, beyond: int) -> bool:
        return has_moved(self._places_now([place]).get(place), beyond)

    def _run(self) -> None:
        hints = self._database.dialect.hints(self._database.engine)
        idle_since = time.monotonic()
        try:
            while True:
                with self._lock:
                    idle_since = time.monotonic() if self._waiters else idle_since
                    if self._is_closed or time.monotonic() - idle_since > _LINGER_S:
                        self._thread = None
                        return
                self._look(hints)
        finally:
            hints.close()

    def _look(self, hints: Hints) -> None:
        """One round. If the database is away, everyone is woken, and meets the error in their own call."""
        try:
            with self._database.listening(hints):
                heard = hints.wait()
            self._is_listening.set()
            with self._lock:
                # After the hint, not before: who came while we listened has looked already and will not
                # look again, and the hint that we have just heard may be the only one for them.
                places = list(self._waiters)
            if heard and places and self._wake_moved(places):
                hints.found()
        except HubClosed:
            self._wake_all()
            time.sleep(_BROKEN_S)
        except Exception as error:  # noqa: BLE001 - a thread's top; drivers raise what they like here
            self._complaints.warn(
                type(error).__name__, "watching %s: %s", self._database.dialect.description, error
            )
            hints.close()
            self._wake_all()
            time.sleep(_BROKEN_S)

    def _wake_moved(self, places: list[Place]) -> bool:
        try:
            ends = self._places_now(places)
        except StoreError:
            self._wake_all()
            raise
        any_news = False
        with self._lock:
            for place in places:
                end = ends.get(place)
                for waiter in self._waiters.get(place, ()):
                    if has_moved(end, waiter.beyond):
                        any_news |= waiter.tell(end[0] if end is not None and end[1] else None)
        return any_news

    def _wake_all(self) -> None:
        with self._lock:
            for waiters in self._waiters.values():
                for waiter in waiters:
                    waiter.wake()


class Waiter:
    """Someone who waits at a place. Writer of `told`: whoever rings, under the watch's lock."""

    __slots__ = ("beyond", "told", "wake")

    def __init__(self, beyond: int, wake: Callable[[], None]) -> None:
        self.beyond = beyond
        self.told = beyond
        self.wake = wake

    def tell(self, number: int | None) -> bool:
        """The place has come to `number`; None: it is over. The same is told once; whether it was news."""
        if number is not None and number <= self.told:
            return False
        self.told = self.told if number is None else number
        self.wake()
        return True


class Following:
    """See ports.Following. Writer of `_waiters`: its one user."""

    def __init__(self, watch: Watch, moved: Callable[[Place], None]) -> None:
        self._watch = watch
        self._moved = moved
        self._waiters: dict[Place, Waiter] = {}

    def add(self, place: Place, beyond: int) -> None:
        """See ports.Following."""
        self.drop(place)
        waiter = self._waiters[place] = Waiter(beyond, partial(self._moved, place))
        self._watch.enter(place, waiter)

    def move(self, place: Place, beyond: int) -> bool:
        """See ports.Following."""
        waiter = self._waiters.get(place)
        if waiter is None or self._watch.is_forgotten(place, waiter):
            return False
        waiter.beyond = beyond
        return True

    def drop(self, place: Place) -> None:
        """See ports.Following."""
        waiter = self._waiters.pop(place, None)
        if waiter is not None:
            self._watch.exit(place, waiter)

    def close(self) -> None:
        """See ports.Following."""
        for place in list(self._waiters):
            self.drop(place)
