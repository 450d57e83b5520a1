"""What a worker has done, in figures. Counters only rise."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Final, Self

from shoal.core.errors import Fenced, NotOwner, ShoalError

_KEPT: Final = 1024
_WINDOW_S: Final = 10
"""Rates are of the last seconds: steady enough to be read, and young enough to be believed."""


@dataclass(slots=True)
class WorkerStats:
    """Writer: one deciding thread; of `fenced`, savers too, under its lock."""

    records: int = 0
    """That user code came back from, or declared done before it raised or its deadline passed."""
    batches: int = 0
    processing_ns: int = 0
    failures: int = 0
    """Times that user code raised."""
    retries: int = 0
    """Records that were set aside for another attempt."""
    dead: int = 0
    """Records that went to the dead stream."""
    postponed: int = 0
    """Batches that found no valid deadline, and waited for one."""
    lost: int = 0
    """Shards that were lost, not handed over."""
    stuck: int = 0
    """Calls that took longer than they may."""
    skipped: int = 0
    """Records that retention removed before they were read, and that the user said to skip."""
    fetch_errors: int = 0
    """Reads that failed and were tried again."""
    fenced: int = 0
    """Reads, saves and releases that were refused: the shard was another's by then."""
    lane_deaths: int = 0
    """Processes of lanes that died."""
    hand_overs: int = 0
    """Shards that were handed over as planned."""
    hand_over_total_ns: int = 0
    hand_over_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT))
    """How long the last ones took, from the request to the release."""
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_WINDOW_S + 1))
    """Records in each of the last seconds in which there were some: (second, records)."""

    @classmethod
    def sum(cls, parts: Iterable[WorkerStats]) -> Self:
        """All of them together."""
        whole = cls()
        seconds: dict[int, int] = {}
        for part in parts:
            whole.hand_over_ns.extend(part.hand_over_ns)
            for second, records in part.recent.copy():
                seconds[second] = seconds.get(second, 0) + records
            for name in COUNTERS:
                setattr(whole, name, getattr(whole, name) + getattr(part, name))
        whole.recent.extend(sorted(seconds.items()))
        return whole

    @property
    def rate(self) -> float:
        """Records a second, lately."""
        now_s, recent = time.monotonic(), self.recent.copy()
        if not recent:
            return 0.0
        lately = sum(records for second, records in recent if second > now_s - _WINDOW_S)
        # Of one that has only begun, in the time since then.
        return lately / min(_WINDOW_S, max(1.0, now_s - recent[0][0]))

    def processed(self, records: int, took_ns: int) -> None:
        """A batch was processed."""
        self._count(records)
        self.batches += 1
        self.processing_ns += took_ns

    def raised(self, done: int, took_ns: int) -> None:
        """User code raised, after it had declared so many records of its batch done."""
        self.failures += 1
        self._count(done)
        self.processing_ns += took_ns

    def put_off(self, done: int) -> None:
        """There was no valid deadline any more, after so many records of the batch were declared done."""
        self.postponed += 1
        self._count(done)

    def fetch_failed(self, error: ShoalError) -> None:
        """A read brought nothing."""
        self.fetch_errors += 1
        self.refused(error)

    def refused(self, error: ShoalError) -> None:
        """The hub said no; if it was because the shard is another's, that is counted."""
        if isinstance(error, NotOwner | Fenced):
            self.fenced += 1

    def set_aside(self, *, is_dead: bool) -> None:
        """A record went to the retry stream, or to the dead one."""
        if is_dead:
            self.dead += 1
        else:
            self.retries += 1

    def handed_over(self, took_ns: int) -> None:
        """A shard was handed over as planned."""
        self.hand_overs += 1
        self.hand_over_total_ns += took_ns
        self.hand_over_ns.append(took_ns)

    def _count(self, records: int) -> None:
        self.records += records
        second = int(time.monotonic())
        if self.recent and self.recent[-1][0] == second:
            self.recent[-1] = (second, self.recent[-1][1] + records)
        elif records:
            self.recent.append((second, records))


COUNTERS: Final = tuple(one.name for one in fields(WorkerStats) if one.name not in ("hand_over_ns", "recent"))
"""The names of what only rises."""
