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
    """Those that were seen, in slices by the time at which their requests are too old anyway.

    One user may have a half of the room. When there is none left, users who have less than an even share of
    it are taken all the same, so that nobody is refused for what others do: at worst, twice the limit.
    """

    def __init__(self, limit: int = NONCES_MAX) -> None:
        self._limit = limit
        self._slices: dict[int, dict[str, set[str]]] = {}
        """By user in each."""
        self._of: dict[str, int] = {}
        """How many of each user are remembered."""
        self._count = 0
        self._oldest = 0
        """What is before this slice is forgotten, and refused also if the clock is set back."""

    def __len__(self) -> int:
        return self._count

    def is_behind(self, now_ms: int) -> bool:
        """Whether the clock was set back to what is forgotten already: nothing could be taken any more. A
        server then begins anew, under another name."""
        return now_ms // _SLICE_MS <= self._oldest

    def take(self, nonce: str, date_ms: int, now_ms: int, user: str = "") -> None:
        """Remember it, or refuse the request. The same nonce is always the same user's."""
        check_date(date_ms, now_ms)
        self._forget(now_ms)
        # The same request has the same date, and so comes to the same slice.
        if date_ms // _SLICE_MS < self._oldest:
            raise ClockSkewed(sent_ms=date_ms, now_ms=now_ms, limit_ms=SIGNED_MS)
        found = self._slices.setdefault(date_ms // _SLICE_MS, {})
        if nonce in found.get(user, ()):
            raise ReplayedRequest
        theirs = self._of.get(user, 0)
        share = max(1, self._limit // max(2, len(self._of)))
        if theirs >= share and (self._count >= self._limit or theirs >= self._limit // 2):
            raise StoreBusy(f"{theirs} requests of {user} of the last minute are remembered", 0.0)
        found.setdefault(user, set()).add(nonce)
        self._of[user] = theirs + 1
        self._count += 1

    def _forget(self, now_ms: int) -> None:
        oldest = (now_ms - SIGNED_MS) // _SLICE_MS
        if oldest <= self._oldest:
            return
        self._oldest = oldest
        for number in [number for number in self._slices if number < oldest]:
            for user, nonces in self._slices.pop(number).items():
                self._count -= len(nonces)
                self._of[user] -= len(nonces)
                if not self._of[user]:
                    del self._of[user]
