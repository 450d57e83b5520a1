"""Steps of groups: load, think, save, ring; and again, if another process was faster.

Invariant: a group changes only by `core.ownership.step`, saved by compare-and-set on its version; nothing is
locked while it is thought out.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from shoal.core.balance import Strategy
from shoal.core.errors import StoreBusy, UnknownGroup
from shoal.core.events import Event, Forgotten
from shoal.core.group import Group, Member, Note
from shoal.core.handover import HandedOver
from shoal.core.limits import STEP_TRIES_MAX
from shoal.core.model import StreamInfo
from shoal.core.ownership import Stepped, step
from shoal.forks import renew_in_child
from shoal.ports import MemberView, Store

_SEEN: Final = 4096
"""Groups whose versions are remembered. More at once would make a store's forgetting harder to notice."""
_LOCKS: Final = 64
"""Steps of one group take turns in this process; two groups that share a lock do so, too, now and then."""


class GroupSteps:
    """Of one hub."""

    def __init__(
        self, store: Store, strategies: Mapping[str, Strategy], noted: Callable[[Sequence[Note]], None]
    ) -> None:
        self._store = store
        self._strategies = strategies
        self._noted = noted
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._seen: dict[int, int] = {}
        """The highest version of each group that this process has seen: below it, the store forgot."""

    def seen(self, group_id: int) -> int:
        """The highest version of the group that was seen here; 0 if none is remembered."""
        return self._seen.get(group_id, 0)

    def step(self, group_id: int, happened: Event | Callable[[Group], Event]) -> Stepped:
        """Load, think, save; again if another process was faster. Steps of this process take turns."""
        with self._locks[group_id % _LOCKS]:
            for attempt in range(STEP_TRIES_MAX):
                seen = self.seen(group_id)  # Before the load: others hand over meanwhile.
                loaded = self._store.load_group(group_id)
                if loaded is None:
                    raise UnknownGroup(stream="?", group=str(group_id))
                group, stream = loaded
                if group.version < seen:
                    self._distrust(group, stream, seen)
                    continue
                self._see(group)
                event = happened(group) if callable(happened) else happened
                stepped = step(group, event, stream.shards, self._strategies, stream=str(stream.full_name))
                if stepped.group is group:
                    return stepped
                # Who has seen a later version meanwhile was overtaken, even if the store has forgotten it.
                is_latest = group.version >= self.seen(group_id)
                if is_latest and self._store.save_group(group, stepped.group, stepped.notes, now_ms()):
                    self._noted(stepped.notes)
                    self._see(stepped.group)
                    self._ring(group_id, stepped.group.version, stepped.group.members.values())
                    return stepped
                time.sleep(random.uniform(0, 0.002 * min(attempt + 1, 10)))
        raise StoreBusy(f"group {group_id} changes faster than we can follow", 0.0)

    def handed_over(self, answer: HandedOver) -> None:
        """The store made a step of its own, on a few rows: it counts like one of ours."""
        self._noted(answer.notes)
        self._see(answer.group)
        self._ring(answer.group.id, answer.group.version, answer.members)

    def _distrust(self, group: Group, stream: StreamInfo, seen: int) -> None:
        """The store has forgotten commits: nothing is decided on what it has left until it was told so."""
        stepped = step(group, Forgotten(seen=seen), stream.shards, self._strategies)
        if self._store.save_group(group, stepped.group, stepped.notes, now_ms()):
            self._ring(group.id, stepped.group.version, stepped.group.members.values())

    def _see(self, group: Group) -> None:
        """Two threads at once may leave the lower one, which is true as well."""
        if group.version > self.seen(group.id):
            if len(self._seen) >= _SEEN:
                self._seen.clear()
            self._seen[group.id] = group.version

    def _ring(self, group_id: int, version: int, members: Iterable[Member]) -> None:
        self._store.signal.ring(
            [
                (MemberView(group_id, member.incarnation), version)
                for member in members
                if member.assigned == version
            ]
        )


def now_ms() -> int:
    """The wall clock, for what people read."""
    return time.time_ns() // 1_000_000
