"""How much a worker reads ahead: one budget of bytes, of which all its shards have the same share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much may be fetched and not yet finished."""

    total: int
    at_once: int
    """At most, in one read."""

    def allowance(self, queued: int, shards: int) -> int:
        """Bytes that a shard may fetch now; 0: it has enough. All shards have the same share."""
        share = max(1, self.total // max(1, shards))
        return min(self.at_once, share - queued) if queued <= share // 2 else 0

    def again(self, shards: int) -> int:
        """Bytes of what a lane wants once more: nothing behind it can go on, so it does not wait for room."""
        return max(1, min(self.at_once, self.total // max(1, shards) // 2))
