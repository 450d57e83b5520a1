"""Positions of broadcast groups: taken by name, saved, and dropped when nobody has used them for long.

How long is watched, not read from a wall clock: whoever keeps house adds its own time between two looks at a
position that was not used meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

from shoal.core.errors import UnknownGroup, UnknownPosition
from shoal.core.group import Delivery, Group, check_delivery
from shoal.core.limits import BROADCAST_CONSUMERS_MAX, POSITION_UNUSED_S
from shoal.core.listening import Listener, check_current, completed, dropped, starting, unused
from shoal.core.model import ShardId, StreamName
from shoal.forks import renew_in_child
from shoal.ports import Store
from shoal.share_port import ShareView

_log: Final = logging.getLogger("shoal.hub.broadcast")


class LocalPositions:
    """See PositionService."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._watched: dict[tuple[int, str], tuple[int, int, float]] = {}
        """Of each position: its uses and how long it was idle when we saw it first so, and when that was.
        Writer and reader: the thread that keeps house."""

    def join(self, name: StreamName, group_id: int, consumer: str, incarnation: str) -> Mapping[ShardId, int]:
        """See PositionService."""
        view = self._view(name, group_id)
        begun = Listener(
            consumer=consumer, incarnation=incarnation, offsets=starting(view.stream.shards, view.starts)
        )
        found = self._store.join_listener(group_id, begun, limit=BROADCAST_CONSUMERS_MAX, now_ms=_now_ms())
        if found is None:
            raise UnknownGroup(stream=str(name), group=view.group.name)
        return completed(view.stream.shards, view.starts, found.offsets)

    def save(
        self,
        name: StreamName,
        group_id: int,
        consumer: str,
        incarnation: str,
        offsets: Mapping[ShardId, int],
    ) -> None:
        """See PositionService."""
        found = self._store.save_listener(group_id, consumer, incarnation, offsets, _now_ms())
        if found is None:
            self._view(name, group_id)  # It may be the group that is not there.
        check_current(found, str(group_id), consumer, incarnation)

    def drop(self, name: StreamName, group_id: int, consumer: str) -> None:
        """See PositionService."""
        view = self._view(name, group_id)
        gone = [one for one in self._store.load_listeners(group_id) if one.consumer == consumer]
        if not gone:
            raise UnknownPosition(group=view.group.name, consumer=consumer)
        self._store.drop_listeners(group_id, gone, [dropped(gone[0], "dropped by hand")], _now_ms())

    def keep(self) -> None:
        """Add the time since the last look to what was not used; drop what was not used for too long."""
        for group in self._store.broadcast_groups():
            self._keep(group)

    def _keep(self, group: Group) -> None:
        listeners = self._store.load_listeners(group.id)
        now = time.monotonic()
        idle = []
        names = {one.consumer for one in listeners}
        for key in [key for key in self._watched if key[0] == group.id and key[1] not in names]:
            del self._watched[key]
        for one in listeners:
            known = self._watched.get((group.id, one.consumer))
            if known is None or known[0] != one.uses:
                self._watched[group.id, one.consumer] = (one.uses, one.idle_ms, now)
            elif (idle_ms := known[1] + int((now - known[2]) * 1000)) > one.idle_ms:
                idle.append((one, idle_ms))
        if not idle:
            return
        self._store.add_idle(group.id, idle)
        limit_ms = group.settings.unused_ms or round(POSITION_UNUSED_S * 1000)
        gone = unused(self._store.load_listeners(group.id), limit_ms)
        if gone:
            notes = [dropped(one, f"not used for {one.idle_ms / 1000:g} s") for one in gone]
            count = self._store.drop_listeners(group.id, gone, notes, _now_ms())
            told = ", ".join(one.consumer for one in gone[:5])
            _log.warning("group %s: %s unused positions were dropped (%s)", group.name, count, told)

    def _view(self, name: StreamName, group_id: int) -> ShareView:
        view = self._store.load_shares(group_id)
        if view is None:
            raise UnknownGroup(stream=str(name), group=str(group_id))
        check_delivery(view.group, str(name), Delivery.BROADCAST)
        return view


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
