"""What one place of a fleet has done in all, through every process that was in it, and how fast.

Counters of a process begin at 0; those of its place only rise. Time comes in as an argument.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from shoal.fleet.messages import REPORTED, Report

_WINDOW_MS: Final = 5000
"""Rates are of the last few seconds: steady enough to be read, and young enough to be believed."""


class Tally:
    """Figures of one place."""

    def __init__(self) -> None:
        self.last: Report | None = None
        self.last_ms = 0
        self._before: Counter[str] = Counter()
        self._recent: deque[tuple[int, int]] = deque()

    def began(self, now_ms: int) -> None:
        """A process begins; what the one before did stays."""
        if self.last is not None:
            self._before.update({name: getattr(self.last, name) for name in REPORTED})
        self.last, self.last_ms = None, now_ms
        self._recent.clear()

    def heard(self, report: Report, now_ms: int) -> None:
        """The process told of itself."""
        self.last, self.last_ms = report, now_ms
        self._recent.append((now_ms, report.records))
        while len(self._recent) > 2 and self._recent[1][0] <= now_ms - _WINDOW_MS:
            self._recent.popleft()

    def total(self, name: str) -> int:
        """Of all processes that were here; `name` is a figure of a report."""
        last = self.last
        now = 0 if last is None else int(getattr(last, name))
        return self._before[name] + now

    @property
    def rate(self) -> float:
        """Records a second, lately."""
        recent = self._recent.copy()  # It may be looked at from another thread.
        if len(recent) < 2:
            return 0.0
        (first_ms, first), (last_ms, last) = recent[0], recent[-1]
        return (last - first) * 1000 / max(1, last_ms - first_ms)
