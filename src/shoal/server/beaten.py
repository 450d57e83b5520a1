"""Which heartbeats are in a hurry.

One that comes by the clock only says that its consumer lives, and may wait for others to share its commit,
which costs more than all else about it. One that comes sooner wants to know what it holds: its consumer has
joined, or was told that something is new.
"""

from __future__ import annotations

from typing import Final

from shoal.core.membership import Beat

_PATIENCE_S: Final = 0.25
_SHARE: Final = 0.05
"""Of the interval: a twentieth later does not bring a deadline near."""
_EARLY: Final = 0.5
_KEPT: Final = 20_000


class Beaten:
    """When members beat last. For one event loop."""

    def __init__(self) -> None:
        self._last_s: dict[str, float] = {}

    def patience_s(self, beat: Beat, now_s: float) -> float:
        """How long this one may wait for others."""
        last_s = self._last_s.get(beat.incarnation)
        interval_s = beat.interval_ms / 1000
        if last_s is None or now_s - last_s < interval_s * _EARLY:
            return 0.0
        return min(_PATIENCE_S, interval_s * _SHARE)

    def note(self, beat: Beat, now_s: float) -> None:
        """It came then, and was accepted: of strangers nothing is kept."""
        if beat.incarnation not in self._last_s and len(self._last_s) >= _KEPT:
            self._last_s.clear()
        self._last_s[beat.incarnation] = now_s
