"""Concurrent requests share one commit: appends, or heartbeats and checkpoints.

One commit runs at a time. While it is being synced, the next group gathers by itself. A caller whom nothing
can interrupt, such as a producer's sending thread, commits by itself if nobody does: to wake another thread
and to be woken takes about as long as the commit. The main thread only waits, so that Ctrl-C leaves nothing
half done: what it had handed in is committed all the same, by a thread that is there while there is something
to commit.

Those who were answered together ask together again, but not at the same instant. The first of them is not
given a commit of its own, for which all the others would wait: see `gather_share`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from shoal.core.errors import StoreUnavailable
from shoal.core.limits import COMMIT_BYTES_MAX, COMMIT_REQUESTS_MAX
from shoal.forks import renew_in_child

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Committer(Generic[Request, Answer]):
    """Gathers requests into commits. `size` is what a request brings of a commit's bytes.

    Writer and reader of the fields: any thread, under `_changed`. A forked child begins anew.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Request], int], list[Answer]],
        size: Callable[[Request], int],
        *,
        gather_s: float = 0.0,
        gather_share: float = 0.0,
    ) -> None:
        """`gather_s`: how long those who were answered together are waited for, to ask together again, in any
        case: nobody commits by itself then.

        `gather_share`: the same as a part of what the last commit took, if that is longer: where the disk is
        slow, a commit that comes too soon costs all the others another one.
        """
        self._commit = commit
        self._size = size
        self._gather_s = gather_s
        self._gather_share = gather_share
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._changed = threading.Condition()
        self._waiting: deque[_Ticket[Request, Answer]] = deque()
        self._callers = 0
        """Who wait."""
        self._is_busy = False
        """Someone commits."""
        self._is_gathering = False
        """The thread is about to, and waits for more callers."""
        self._last = 1
        """Callers whom the last commit answered."""
        self._took_s = 0.0
        self._thread: threading.Thread | None = None

    def commit(self, requests: Sequence[Request]) -> list[Answer]:
        """Carry out the requests durably, together with whatever else waits, and return their answers."""
        settled = threading.Event()
        size = sum(map(self._size, requests))
        ticket: _Ticket[Request, Answer] = _Ticket(requests, size, lambda _: settled.set())
        with self._changed:
            self._add(ticket)
            leads = not self._is_busy and self._may_lead()
            if leads:
                self._is_busy = True
            thread = None if leads else self._wake()
        if leads:
            self._lead(settled)
        # The store bounds how long a commit takes; this only sees that there is someone left to make it.
        while not settled.wait(_ALIVE_S):
            if thread is not None and not thread.is_alive() and not settled.is_set():
                raise StoreUnavailable("the committing thread ended")
        if ticket.error is not None:
            raise ticket.error
        return ticket.answers

    def submit(
        self,
        requests: Sequence[Request],
        done: Callable[[list[Answer] | BaseException], None],
        callers: int = 1,
    ) -> None:
        """The same for one who does not wait, and asks for so many: `done` is called by the committing
        thread, and may not wait either.

        For an event loop: a thread for each request would spend more on being woken than on the commit.
        """
        size = sum(map(self._size, requests))
        ticket: _Ticket[Request, Answer] = _Ticket(requests, size, done, callers)
        with self._changed:
            self._add(ticket)
            self._wake()

    def _add(self, ticket: _Ticket[Request, Answer]) -> None:
        self._waiting.append(ticket)
        self._callers += ticket.callers

    def _may_lead(self) -> bool:
        is_alone = self._last <= 1 and not self._is_gathering
        return is_alone and not self._gather_s and threading.current_thread() is not threading.main_thread()

    def _wake(self) -> threading.Thread:
        """Under the lock: see that the committing thread takes what waits, once it is enough."""
        if not self._is_gathering or self._callers >= self._last:
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="shoal-committer", daemon=True)
            self._thread.start()
        return self._thread

    def _lead(self, settled: threading.Event) -> None:
        """Commit until the caller's own ticket is settled; what has come meanwhile is for the thread."""
        try:
            while not settled.is_set():
                with self._changed:
                    group = self._gather()
                self._settle(group)
        finally:
            with self._changed:
                self._is_busy = False
                if self._waiting:
                    self._wake()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._waiting and not self._is_busy, _IDLE_S):
                    if self._is_busy:
                        continue
                    self._thread = None
                    return
                self._wait_for_others()
                group = self._gather()
                self._is_busy = True
            try:
                self._settle(group)
            finally:
                with self._changed:
                    self._is_busy = False

    def _wait_for_others(self) -> None:
        """Under the lock: or the first to come back gets a commit of its own, and the others wait for it."""
        bound_s = max(self._gather_s, min(self._took_s * self._gather_share, _GATHER_S_MAX))
        if self._callers < self._last and bound_s:
            self._is_gathering = True
            self._changed.wait_for(lambda: self._callers >= self._last, bound_s)
            self._is_gathering = False

    def _settle(self, group: list[_Ticket[Request, Answer]]) -> None:
        """One commit for the group, and an answer or an error for each."""
        began_s = time.monotonic()
        try:
            flat = [request for ticket in group for request in ticket.requests]
            answers = self._commit(flat, time.time_ns() // 1_000_000)
            place = 0
            for ticket in group:
                ticket.answers = answers[place : place + len(ticket.requests)]
                place += len(ticket.requests)
        except BaseException as error:  # noqa: BLE001 - a thread's top: each of the group raises it again
            # If only the answer was lost, the batches are stored all the same: a retry with the same
            # numbers finds out.
            for ticket in group:
                ticket.error = error
        finally:
            with self._changed:
                self._took_s = time.monotonic() - began_s
                self._last = sum(ticket.callers for ticket in group)
            for ticket in group:
                ticket.settle()

    def _gather(self) -> list[_Ticket[Request, Answer]]:
        """As many as fit one commit, and at least one if there is any."""
        group: list[_Ticket[Request, Answer]] = []
        requests = size = 0
        while self._waiting:
            requests += len(self._waiting[0].requests)
            size += self._waiting[0].size
            if group and (requests > COMMIT_REQUESTS_MAX or size > COMMIT_BYTES_MAX):
                break
            ticket = self._waiting.popleft()
            self._callers -= ticket.callers
            group.append(ticket)
        return group


class _Ticket(Generic[Request, Answer]):
    """One caller's requests. Written by the committing thread before `done`, read by the caller after."""

    __slots__ = ("answers", "callers", "done", "error", "requests", "size")

    def __init__(
        self,
        requests: Sequence[Request],
        size: int,
        done: Callable[[list[Answer] | BaseException], None],
        callers: int = 1,
    ) -> None:
        self.requests = requests
        self.size = size
        self.callers = callers
        self.done = done
        self.answers: list[Answer] = []
        self.error: BaseException | None = None

    def settle(self) -> None:
        self.done(self.answers if self.error is None else self.error)


_IDLE_S: Final = 5.0
"""The thread stays this long after the last append: the next one comes in a moment, or not at all."""
_ALIVE_S: Final = 1.0
_GATHER_S_MAX: Final = 0.01
"""However slow the last commit was: who came alone after it waits no longer."""
