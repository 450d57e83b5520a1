"""No signed request is taken twice: a window of time, and the nonces within it. Dry.

A request is signed for one server, by a name that a server makes up when it starts, so that what one server
remembers is enough. One that is signed for any server of the store has its nonce kept in the store.
"""

from __future__ import annotations

from shoal.core.errors import ClockSkewed, ReplayedRequest, StoreBusy
from shoal.core.limits import NONCES_MAX, SIGNED_MS

_SLICE_MS = 5_000


def check_date(date_ms: int, now_ms: int, limit_ms: int = SIGNED_MS) -> None:
    """Refuse what was signed too long ago, or by a clock that is too far ahead."""
    if abs(date_ms - now_ms) > limit_ms:
        raise ClockSkewed(sent_ms=date_ms, now_ms=now_ms, limit_ms=limit_ms)


class Nonces:
    """Those that were seen, in slices by the time at which their requests are too old anyway."""

    def __init__(self, limit: int = NONCES_MAX) -> None:
        self._limit = limit
        self._slices: dict[int, set[str]] = {}
        self._count = 0
        self._oldest = 0
        """What is before this slice is forgotten, and refused also if the clock is set back."""

    def __len__(self) -> int:
        return self._count

    def is_behind(self, now_ms: int) -> bool:
        """Whether the clock was set back to what is forgotten already: nothing could be taken any more. A
        server then begins anew, under another name."""
        return now_ms // _SLICE_MS <= self._oldest

    def take(self, nonce: str, date_ms: int, now_ms: int) -> None:
        """Remember it, or refuse the request."""
        check_date(date_ms, now_ms)
        self._forget(now_ms)
        # The same request has the same date, and so comes to the same slice.
        if date_ms // _SLICE_MS < self._oldest:
            raise ClockSkewed(sent_ms=date_ms, now_ms=now_ms, limit_ms=SIGNED_MS)
        found = self._slices.setdefault(date_ms // _SLICE_MS, set())
        if nonce in found:
            raise ReplayedRequest
        if self._count >= self._limit:
            raise StoreBusy(f"{self._count} requests of the last minute are remembered", 0.0)
        found.add(nonce)
        self._count += 1

    def _forget(self, now_ms: int) -> None:
        oldest = (now_ms - SIGNED_MS) // _SLICE_MS
        if oldest <= self._oldest:
            return
        self._oldest = oldest
        for number in [number for number in self._slices if number < oldest]:
            self._count -= len(self._slices.pop(number))
