"""How much a batch may hold, and how long it may wait to be worth it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one batch. None: no limit."""

    records_max: int | None = None
    bytes_max: int | None = None
    """Stored bytes, by the average of each shard."""
    records_min: int | None = None
    delay_max_s: float = 0.0

    def is_worth_it(self, available: int | None, waited_s: float) -> bool:
        """Whether a batch begins now: there is enough, or no more can come, or it was waited for long
        enough."""
        if self.records_min is None or available is None:
            return True
        return available >= self.records_min or waited_s >= self.delay_max_s
