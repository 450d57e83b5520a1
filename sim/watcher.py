"""The watch over members, and the keeper that repairs: what every process with a hub does in the background.

A round reads the members' rows, rests, and adds its own time between the end of the read and the start of
the write, to rows that are still as they were read. Nobody's clock is compared with another's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shoal.core import membership
from shoal.core.errors import ShoalError
from shoal.core.events import Expire, Sync, Watched
from shoal.core.group import Member, ShardState, Timers
from sim.hub import Hub
from sim.loop import MS, Steps
from sim.rows import GroupRows
from sim.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What a read saw."""

    group: int
    timers: Timers
    members: dict[str, Member]
    is_timed: bool
    """The group itself waits for time to pass."""
    is_unsettled: bool
    """There may be something to decide."""
    rest_ms: int
    due_ms: int
    """When the first of them would be dead, if nobody hears of it: a keen watcher is there in time."""


class Watcher:
    """One process's rounds."""

    def __init__(self, stage: Stage, hub: Hub) -> None:
        self._stage, self._store, self._hub, self._process = stage, stage.store, hub, hub.process
        self._settled: tuple[int, int] | None = None
        """The group, and its version, when this process last saw to it that nothing was left to decide."""

    def run(self) -> Steps[None]:
        """Until the process ends."""
        while True:
            try:
                yield from self._round()
            except ShoalError:
                yield self._stage.rng.randrange(30, 120) * MS

    def _round(self) -> Steps[None]:
        before_us = self._process.watch_us()
        seen = yield from self._store.read(self._process, self._look)
        if seen is None:
            yield 100 * MS
            return
        # First seen is stamped after the answer: what was before it, this process has not watched.
        since_us = self._process.watch_us()
        if "first seen before the answer" in self._stage.switches:
            since_us = before_us
        rest_us = seen.rest_ms * MS * self._stage.rng.randrange(40, 100) // 100
        if 0 < seen.due_ms * MS < rest_us:
            rest_us = seen.due_ms * MS
        yield self._process.sleep_us(rest_us)
        elapsed_ms = (self._process.watch_us() - since_us) // MS
        dead = yield from self._store.write(self._process, lambda: self._add(seen, elapsed_ms))
        for member in dead:
            event = Expire(incarnation=member.incarnation, beat=member.beat)
            yield from self._hub.step(seen.group, event)
        if seen.is_timed:
            yield from self._hub.step(seen.group, Watched(elapsed_ms=elapsed_ms, seen=seen.timers))
        elif seen.is_unsettled:
            settled = yield from self._hub.step(seen.group, Sync())
            self._settled = (seen.group, settled.group.version)

    def _look(self) -> _Seen | None:
        rows = self._store.group
        if not isinstance(rows, GroupRows):
            return None
        members = {key: member for key, member in rows.members.items() if member.is_watched}
        is_timed = rows.distrust_ms > 0 or any(
            claim.state is ShardState.TRANSFER
            and (rows.settings.handover_timeout_ms is not None or claim.lapse_ms)
            for claim in rows.claims
        )
        return _Seen(
            group=rows.id,
            timers=rows.loaded().timers,
            members=members,
            is_timed=is_timed,
            is_unsettled=self._is_unsettled(rows),
            rest_ms=min([rows.settings.timeout_ms // 4, *(m.interval_ms for m in members.values())]),
            due_ms=min((m.timeout_ms - m.stood_ms for m in members.values()), default=0),
        )

    def _is_unsettled(self, rows: GroupRows) -> bool:
        """Whether the stream has moved on, someone else has made a step, or a shard is with nobody."""
        stream = self._store.stream
        if stream is None:
            return False
        has_moved_on = len(stream.shards) > len(rows.claims) or any(
            claim.state is not ShardState.OVER
            and claim.restart is None
            and not stream.shards[claim.shard].is_open
            and claim.checkpoint >= stream.shards[claim.shard].next_offset
            for claim in rows.claims
        )
        if "what others left open stays open" in self._stage.switches:
            return has_moved_on
        is_idle = rows.distrust_ms == 0 and any(claim.state is ShardState.NOT_ALLOC for claim in rows.claims)
        return has_moved_on or is_idle or self._settled != (rows.id, rows.version)

    def _add(self, seen: _Seen, elapsed_ms: int) -> list[Member]:
        """Add the time to every row that still is as it was read; who has been silent for its timeout?"""
        rows = self._store.group
        if not isinstance(rows, GroupRows) or rows.id != seen.group:
            return []
        dead = []
        for key, before in seen.members.items():
            now = rows.members.get(key)
            if now is None or not now.is_watched:
                continue
            stands = (now.beat, now.stood_ms) == (before.beat, before.stood_ms)
            if "watch without compare-and-set" in self._stage.switches:
                stands = now.beat == before.beat
            if stands:
                added = membership.watched(now, elapsed_ms)
                if "watch is not capped" in self._stage.switches:
                    added = replace(now, stood_ms=now.stood_ms + elapsed_ms)
                rows.members[key] = now = added
            if membership.is_dead(now):
                dead.append(now)
        return dead
