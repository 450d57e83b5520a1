"""The watch over members: who serves a member of a group looks after the others.

It measures, and adds what it measured to the rows of those who stand still. Who is dead, and what follows
from it, the rules say.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from shoal.complaints import Complaints
from shoal.core.errors import HubClosed, ShoalError
from shoal.core.events import Event, Expire, Sync, Watched
from shoal.core.group import Member, Timers
from shoal.core.membership import is_dead, is_due, may_judge, watched
from shoal.core.ownership import Stepped
from shoal.forks import renew_in_child
from shoal.ports import Store

_log: Final = logging.getLogger("shoal.hub.groups")


@dataclass(slots=True)
class _Served:
    """A group that someone in this process is a member of, as the watch saw it last."""

    began_s: float
    """Since when it is watched without a break."""
    used_s: float
    timeout_s: float
    seen: Mapping[str, tuple[Member, float]] = field(default_factory=dict)
    """Members by their incarnation, and since when their rows are as they are."""
    timers: Timers | None = None
    """What waits for time to pass."""
    version: int = -1
    """Of the group, when it was last looked at whether there is something to decide."""
    read_s: float = 0.0
    pause_s: float = field(default=0.5)

    def begin_anew(self) -> None:
        """What was not watched counts for nothing."""
        self.seen, self.timers, self.began_s = {}, None, time.monotonic()


class GroupWatch:
    """Looks after the members of the groups that this process serves, while it serves any.

    Times are of the clock that stands still in suspend: what this process slept through, it did not watch.
    Writer of the fields: any thread, under `_lock`; what is in a `_Served`, only the thread.
    """

    def __init__(
        self, store: Store, step_group: Callable[[int, Event], Stepped], *, looks_first: bool = False
    ) -> None:
        """`looks_first`: others speak through this process, and it judges nobody before it has looked at the
        group for a whole timeout."""
        self._store = store
        self._looks_first = looks_first
        self._step = step_group
        self._complaints = Complaints(_log)
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._lock = threading.Lock()
        self._served: dict[int, _Served] = {}
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self._wake = threading.Event()

    def serve(self, group_id: int, timeout_ms: int) -> None:
        """A member of this group has spoken through us. Of several, the one that counts longest says how long
        the group is watched without a word."""
        with self._lock:
            served = self._served.get(group_id)
            if served is None:
                now_s = time.monotonic()
                self._served[group_id] = _Served(now_s, now_s, timeout_ms / 1000)
                self._wake.set()
            else:
                served.used_s, served.timeout_s = time.monotonic(), max(served.timeout_s, timeout_ms / 1000)
            if self._thread is None and not self._is_stopped:
                self._thread = threading.Thread(target=self._run, name="shoal-group-watch", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Let the thread end."""
        self._is_stopped = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)

    def _run(self) -> None:
        while True:
            with self._lock:
                now = time.monotonic()
                for group_id in [
                    key for key, one in self._served.items() if now - one.used_s > one.timeout_s * 2
                ]:
                    del self._served[group_id]
                if not self._served or self._is_stopped:
                    self._thread = None
                    return
                served = list(self._served.items())
            for group_id, one in served:
                try:
                    self._look(group_id, one)
                except HubClosed:
                    return
                except ShoalError as error:
                    # The store may be away.
                    one.begin_anew()
                    self._complaints.warn(group_id, "watching group %s: %s", group_id, error)
                except Exception:  # noqa: BLE001 - a thread's top: watching must not end with one fault
                    one.begin_anew()
                    _log.exception("watching group %s failed", group_id)
            self._wake.wait(min(one.pause_s for _, one in served))
            self._wake.clear()

    def _look(self, group_id: int, one: _Served) -> None:
        """Add the time that was watched to whoever has not moved; then look again, and bury the dead."""
        now_s = time.monotonic()
        watches = []
        for member, since_s in one.seen.values():
            stood_ms = int((now_s - since_s) * 1000)
            if stood_ms > 0 and is_due(member, stood_ms, int(one.pause_s * 1000)):
                watches.append((member, watched(member, stood_ms)))
        if watches:
            self._store.add_watches(group_id, watches)
        one.timers = self._pass_time(group_id, one.timers, int((now_s - one.read_s) * 1000))
        members = self._store.load_members(group_id)
        one.read_s = time.monotonic()
        one.seen = {member.incarnation: (member, _since_s(one, member)) for member in members}
        one.pause_s = max(0.02, min([2000, *(member.interval_ms for member in members)]) / 2000)
        observed_ms = int((one.read_s - one.began_s) * 1000)
        for member in members:
            if is_dead(member) and (not self._looks_first or may_judge(member, observed_ms)):
                self._step(group_id, Expire(incarnation=member.incarnation, beat=member.beat))
        if self._store.is_unsettled(group_id, one.version):
            # Whoever made the last step may not know the group's rules or its strategy, and have left open
            # what we can decide; and a strategy that failed may have been mended.
            one.version = self._step(group_id, Sync()).group.version

    def _pass_time(self, group_id: int, seen: Timers | None, elapsed_ms: int) -> Timers | None:
        """Where time itself moves something (a bounded hand-over, a store's forgetting), let it pass.

        `seen` is what the last look found; the answer is what this one did.
        """
        if not self._store.has_timers(group_id):
            return None
        if seen is not None and elapsed_ms > 0:
            return self._step(group_id, Watched(elapsed_ms=elapsed_ms, seen=seen)).group.timers
        loaded = self._store.load_group(group_id)
        return None if loaded is None else loaded[0].timers


def _since_s(one: _Served, member: Member) -> float:
    """Since when a member's row is as it was just read."""
    before = one.seen.get(member.incarnation)
    if before is None or (before[0].beat, before[0].stood_ms) != (member.beat, member.stood_ms):
        return one.read_s
    return before[1]
