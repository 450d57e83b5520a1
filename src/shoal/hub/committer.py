"""Concurrent appends share one commit.

One thread commits, and only while there is something to commit. While a commit is being synced, the next
group gathers by itself. Callers only wait, so that one who is interrupted leaves nothing half done: what it
had handed in is committed all the same.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from shoal.core.errors import StoreUnavailable
from shoal.core.limits import COMMIT_BYTES_MAX, COMMIT_REQUESTS_MAX
from shoal.forks import renew_in_child
from shoal.ports import AppendAnswer, AppendRequest

Commit = Callable[[Sequence[AppendRequest], int], list[AppendAnswer]]


class Committer:
    """Gathers appends into commits.

    Writer and reader of the fields: any thread, under `_changed`. A forked child begins anew.
    """

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._changed = threading.Condition()
        self._waiting: deque[_Ticket] = deque()
        self._thread: threading.Thread | None = None

    def append(self, requests: Sequence[AppendRequest]) -> list[AppendAnswer]:
        """Store the requests durably, together with whatever else waits, and return their answers."""
        ticket = _Ticket(requests)
        with self._changed:
            self._waiting.append(ticket)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="shoal-committer", daemon=True)
                self._thread.start()
            thread = self._thread
        # The store bounds how long a commit takes; this only sees that there is someone left to make it.
        while not ticket.settled.wait(_ALIVE_S):
            if not thread.is_alive() and not ticket.settled.is_set():
                raise StoreUnavailable("the committing thread ended")
        if ticket.error is not None:
            raise ticket.error
        return ticket.answers

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting and not self._changed.wait(_IDLE_S) and not self._waiting:
                    self._thread = None
                    return
                group = self._gather()
            if group:
                self._settle(group)

    def _settle(self, group: list[_Ticket]) -> None:
        """One commit for the group, and an answer or an error for each."""
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
            for ticket in group:
                ticket.settled.set()

    def _gather(self) -> list[_Ticket]:
        """As many as fit one commit, and at least one if there is any."""
        group: list[_Ticket] = []
        requests = size = 0
        while self._waiting:
            requests += len(self._waiting[0].requests)
            size += self._waiting[0].size
            if group and (requests > COMMIT_REQUESTS_MAX or size > COMMIT_BYTES_MAX):
                break
            group.append(self._waiting.popleft())
        return group


class _Ticket:
    """One caller's requests. Written by the committing thread before `settled`, read by the caller after."""

    __slots__ = ("answers", "error", "requests", "settled", "size")

    def __init__(self, requests: Sequence[AppendRequest]) -> None:
        self.requests = requests
        self.size = sum(len(request.payload) for request in requests)
        self.settled = threading.Event()
        self.answers: list[AppendAnswer] = []
        self.error: BaseException | None = None


_IDLE_S: Final = 5.0
"""The thread stays this long after the last append: the next one comes in a moment, or not at all."""
_ALIVE_S: Final = 1.0
