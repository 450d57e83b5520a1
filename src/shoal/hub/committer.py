"""Concurrent appends share one commit.

There is no thread for this: of those who append at once, one leads and commits for all that wait, the others
sleep until their answer is there. While a commit is being synced, the next group gathers by itself.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from shoal.core.limits import COMMIT_BYTES_MAX, COMMIT_REQUESTS_MAX
from shoal.forks import renew_in_child
from shoal.ports import AppendAnswer, AppendRequest

Commit = Callable[[Sequence[AppendRequest], int], list[AppendAnswer]]


class Committer:
    """Gathers appends into commits.

    Writer and reader of the fields: any thread, under `_lock`. A forked child begins anew.
    """

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._lock = threading.Lock()
        self._waiting: deque[_Ticket] = deque()
        self._has_leader = False

    def append(self, requests: Sequence[AppendRequest]) -> list[AppendAnswer]:
        """Store the requests durably, together with whatever else waits, and return their answers."""
        ticket = _Ticket(requests)
        with self._lock:
            self._waiting.append(ticket)
            must_lead = not self._has_leader
            self._has_leader = True
        if not must_lead:
            ticket.turn.wait()
            if not ticket.is_settled:
                must_lead = True  # The leader before us handed the lead on.
        if must_lead:
            self._lead()
        if ticket.error is not None:
            raise ticket.error
        return ticket.answers

    def _lead(self) -> None:
        """Commit one group, our own ticket in it, then hand the lead to the first who still waits."""
        with self._lock:
            group = self._gather()
        try:
            flat = [request for ticket in group for request in ticket.requests]
            answers = self._commit(flat, time.time_ns() // 1_000_000)
            place = 0
            for ticket in group:
                ticket.answers = answers[place : place + len(ticket.requests)]
                place += len(ticket.requests)
        except BaseException as error:  # noqa: BLE001 - each of the group raises it again
            # If the answer was lost the batches may be
            # stored all the same: a retry with the same numbers finds out.
            for ticket in group:
                ticket.error = error
        finally:
            for ticket in group:
                ticket.is_settled = True
            with self._lock:
                self._has_leader = bool(self._waiting)
                heir = self._waiting[0] if self._waiting else None
            for ticket in group:
                ticket.turn.set()
            if heir is not None:
                heir.turn.set()

    def _gather(self) -> list[_Ticket]:
        group = [self._waiting.popleft()]
        requests, size = len(group[0].requests), group[0].size
        while self._waiting:
            requests += len(self._waiting[0].requests)
            size += self._waiting[0].size
            if requests > COMMIT_REQUESTS_MAX or size > COMMIT_BYTES_MAX:
                break
            group.append(self._waiting.popleft())
        return group


class _Ticket:
    """One caller's requests. Written by the leader before `turn` is set, read by the caller after."""

    __slots__ = ("answers", "error", "is_settled", "requests", "size", "turn")

    def __init__(self, requests: Sequence[AppendRequest]) -> None:
        self.requests = requests
        self.size = sum(len(request.payload) for request in requests)
        self.turn = threading.Event()
        self.is_settled = False
        self.answers: list[AppendAnswer] = []
        self.error: BaseException | None = None
