"""How many requests one client may make: so many a second, and those of one second at once. Dry.

For each client there is one number: when all that it has asked for would be done, if it were done evenly.
"""

from __future__ import annotations

from typing import Final

from shoal.core.errors import RateExceeded

CLIENTS_MAX: Final = 10_000
_BURST_S: Final = 1.0
_ROUNDING_S: Final = 1e-9


class Rates:
    """For all clients the same rate, in requests a second."""

    def __init__(self, rate: int, clients_max: int = CLIENTS_MAX) -> None:
        self._rate, self._clients_max = rate, clients_max
        self._even_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._even_s)

    def take(self, client: str, now_s: float) -> None:
        """One more request of a client, or RateExceeded, which says when it may come again."""
        even_s = max(now_s, self._even_s.get(client, now_s))
        late_s = even_s + 1 / self._rate - now_s - _BURST_S
        if late_s > _ROUNDING_S:
            raise RateExceeded(client=client, limit=self._rate, retry_s=late_s)
        if len(self._even_s) >= self._clients_max and client not in self._even_s:
            self._forget(now_s)
        self._even_s[client] = even_s + 1 / self._rate

    def give_back(self, client: str) -> None:
        """A request that was taken, and is not to count."""
        if client in self._even_s:
            self._even_s[client] -= 1 / self._rate

    def _forget(self, now_s: float) -> None:
        """Those who have asked for nothing of late; if all have, all: nobody is refused for the others."""
        kept = {client: even_s for client, even_s in self._even_s.items() if even_s > now_s}
        self._even_s = kept if len(kept) < self._clients_max else {}
