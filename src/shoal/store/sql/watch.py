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
from shoal.ports import Place, ShardEnd, StreamRoutes
from shoal.store.sql.database import Database
from shoal.store.sql.dialects.dialect import Hints
from shoal.store.sql.marks import Marks

Look = Callable[[Sequence[Place]], Mapping[Place, tuple[int, bool]]]
"""How far places have come, and whether they can rise further; those that are gone are left out."""

_log: Final = logging.getLogger("shoal.store.watch")

_LISTEN_S: Final = 2.0
"""How long a waiter waits for the thread to listen before it looks anyway."""
_LINGER_S: Final = 5.0
"""The thread stays this long after the last waiter: readers come back in a moment."""
_BROKEN_S: Final = 0.2
_RUNG_MAX: Final = 10_000
_RUNG_S: Final = 1.0
_MANY: Final = 32
_REST: Final = 20
_REST_S_MAX: Final = 0.25
"""After a look at many places that found nothing: so many times as long as it took, and at most this."""
_MAPS_S: Final = 0.02
"""If only maps are waited for, they are looked at no more often: what a producer commits is a hint, too."""


class Watch:
    """See ChangeSignal.

    Writer and reader of the fields: any thread, under `_lock`. A forked child begins anew.
    """

    def __init__(
        self, database: Database, look: Look, marks: Callable[[Sequence[Place]], Marks | None]
    ) -> None:
        self._database = database
        self._places_now = look
        self._marks_now = marks
        self._complaints = Complaints(_log)
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._lock = threading.Lock()
        self._waiters: dict[Place, dict[Waiter, None]] = {}
        """By place, in the order in which they came. Thousands may wait at one place, and each goes by
        itself: a list would be searched for every one of them."""
        self._thread: threading.Thread | None = None
        self._rung: dict[Place, tuple[int, float]] = {}
        """How far this process has brought shards, and when: who comes to wait for less is told at once, and
        needs no look. Not believed for long: a store may be put back to what it was."""
        self._marks: Marks = {}
        """As of the last look at many places. Writer and reader: the thread."""
        self._is_listening = threading.Event()
        self._is_closed = False

    def wait(self, place: Place, beyond: int, timeout_s: float) -> None:
        """See ChangeSignal."""
        woken = threading.Event()
        waiter = Waiter(beyond, woken.set)
        deadline = time.monotonic() + timeout_s
        try:
            self.enter([(place, waiter)], timeout_s)
            woken.wait(max(0.0, deadline - time.monotonic()))
        finally:
            self.exit(place, waiter)

    def look(self, places: Sequence[Place]) -> Mapping[Place, tuple[int, bool]]:
        """See ChangeSignal."""
        if self._thread is not None:  # What was appended before it listens gives no hint.
            self._is_listening.wait(_LISTEN_S)
        return self._places_now(places)

    def follow(self, moved: Callable[[Place], None]) -> Following:
        """See ChangeSignal."""
        return Following(self, moved)

    def enter(self, waiters: Sequence[tuple[Place, Waiter]], patience_s: float = _LISTEN_S) -> None:
        """Have each waiter woken when its place moves; for those who come back by themselves."""
        self.register(waiters)
        # What was appended before we listened gave no hint, so look once after.
        self._is_listening.wait(min(patience_s, _LISTEN_S))
        now = self._places_now([place for place, _ in waiters])
        for place, waiter in waiters:
            if has_moved(now.get(place), waiter.beyond):
                waiter.wake()

    def register(self, waiters: Sequence[tuple[Place, Waiter]]) -> None:
        """The same without a look."""
        with self._lock:
            if self._is_closed:
                raise HubClosed
            for place, waiter in waiters:
                self._waiters.setdefault(place, {})[waiter] = None
                rung = self._rung.get(place)
                if rung is not None and rung[0] > waiter.beyond and time.monotonic() - rung[1] < _RUNG_S:
                    waiter.tell(rung[0])
            if self._thread is None:
                self._is_listening.clear()
                self._thread = threading.Thread(target=self._run, name="shoal-watch", daemon=True)
                self._thread.start()

    def exit(self, place: Place, waiter: Waiter) -> None:
        """The end of it. A waiter that is not there any more is no error: a fork forgets them all."""
        with self._lock, suppress(KeyError):
            del self._waiters[place][waiter]
            if not self._waiters[place]:
                del self._waiters[place]

    def is_forgotten(self, place: Place, waiter: Waiter) -> bool:
        """Whether nobody would wake the waiter: a fork forgets them all."""
        return waiter not in self._waiters.get(place, ())

    def ring(self, places: Sequence[tuple[Place, int]]) -> None:
        """See ChangeSignal."""
        with self._lock:
            if len(self._rung) > _RUNG_MAX:
                self._rung.clear()
            now_s = time.monotonic()
            for place, number in places:
                if isinstance(place, ShardEnd):
                    self._rung[place] = number, now_s
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
        waited = time.monotonic()
        try:
            with self._database.listening(hints):
                heard = hints.wait()
            self._is_listening.set()
            with self._lock:
                # After the hint, not before: who came while we listened has looked already and will not
                # look again, and the hint that we have just heard may be the only one for them.
                places = list(self._waiters)
            if heard and places:
                began = time.monotonic()
                if self._wake_moved(places):
                    hints.found()
                elif all(isinstance(place, StreamRoutes) for place in places):
                    time.sleep(max(0.0, _MAPS_S - (time.monotonic() - waited)))
                elif len(places) > _MANY:
                    # Most hints are of our own commits, whose waiters were rung: who follows hundreds of
                    # places must not look at all of them for each.
                    time.sleep(min(_REST_S_MAX, _REST * (time.monotonic() - began)))
        except HubClosed:
            self._wake_all()
            time.sleep(_BROKEN_S)
        except Exception as error:  # noqa: BLE001 - a thread's top; drivers raise what they like here
            self._complaints.warn(
                type(error).__name__, "watching %s: %s", self._database.dialect.description, error
            )
            hints.close()
            self._marks = {}
            self._wake_all()
            time.sleep(_BROKEN_S)

    def _wake_moved(self, places: list[Place]) -> bool:
        try:
            if len(places) > _MANY and self._is_as_it_was(places):
                return False
            ends = self._places_now(places)
        except StoreError:
            self._marks = {}
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

    def _is_as_it_was(self, places: list[Place]) -> bool:
        """Whether nothing moved since the last look. Places that have come since were looked at by those who
        wait there. The marks are read before the look that they stand for: what moves between the two is
        looked at once more."""
        now = self._marks_now(places) or {}
        before, self._marks = self._marks, now
        return bool(now) and all(before.get(key) == mark for key, mark in now.items())

    def _wake_all(self) -> None:
        with self._lock:
            for waiters in self._waiters.values():
                for waiter in waiters:
                    waiter.wake()


class Waiter:
    """Someone who waits at a place. Writer of `told` and `is_over`: whoever rings, under the watch's lock."""

    __slots__ = ("beyond", "is_over", "told", "wake")

    def __init__(self, beyond: int, wake: Callable[[], None]) -> None:
        self.beyond = beyond
        self.told = beyond
        self.is_over = False
        self.wake = wake

    def tell(self, number: int | None) -> bool:
        """The place has come to `number`; None: it is over. The same is told once; whether it was news."""
        if number is not None and number <= self.told:
            return False
        self.is_over = number is None
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
        self.add_all([(place, beyond)])

    def add_all(self, places: Sequence[tuple[Place, int]]) -> None:
        """See ports.Following."""
        self._watch.enter(self._added(places))

    def expect(self, places: Sequence[tuple[Place, int]]) -> None:
        """See ports.Following."""
        self._watch.register(self._added(places))

    def _added(self, places: Sequence[tuple[Place, int]]) -> list[tuple[Place, Waiter]]:
        # A place that is named twice is waited for once. With a waiter for each time all would be registered,
        # but only the last would be known here, and ever be dropped.
        lowest: dict[Place, int] = {}
        for place, beyond in places:
            lowest[place] = min(beyond, lowest.get(place, beyond))
        waiters = []
        for place, beyond in lowest.items():
            self.drop(place)
            waiter = self._waiters[place] = Waiter(beyond, partial(self._moved, place))
            waiters.append((place, waiter))
        return waiters

    def heard(self) -> dict[Place, int]:
        """See ports.HeardFollowing."""
        return {
            place: one.told
            for place, one in self._waiters.items()
            if one.told > one.beyond and not one.is_over
        }

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
