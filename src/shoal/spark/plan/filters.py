"""What filters leave of a read: of which streams and shards, which offsets, and from which time on.

A time narrows where a read begins, and never where it ends: records of a shard need not be in the order of
their times. So a filter on times is checked again for each record, by whoever pushed it here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds that hold all at once. None: no bound."""

    streams: frozenset[str] | None = None
    shards: frozenset[int] | None = None
    shard_low: int | None = None
    shard_high: int | None = None
    """Of shards' numbers: below."""
    low: int = 0
    """Of offsets: from."""
    high: int | None = None
    """Of offsets: below."""
    after_ms: int | None = None

    def cut(self, stream: str, shard: int, start: int, end: int) -> tuple[int, int] | None:
        """What is left of these offsets of a shard; None if nothing."""
        if (self.streams is not None and stream not in self.streams) or (
            self.shards is not None and shard not in self.shards
        ):
            return None
        if (self.shard_low is not None and shard < self.shard_low) or (
            self.shard_high is not None and shard >= self.shard_high
        ):
            return None
        low, high = max(start, self.low), end if self.high is None else min(end, self.high)
        return (low, high) if low < high else None

    def both(self, other: Bounds) -> Bounds:
        """What lies within both."""
        return Bounds(
            streams=_common(self.streams, other.streams),
            shards=_common(self.shards, other.shards),
            shard_low=_highest(self.shard_low, other.shard_low),
            shard_high=_lowest(self.shard_high, other.shard_high),
            low=max(self.low, other.low),
            high=_lowest(self.high, other.high),
            after_ms=_highest(self.after_ms, other.after_ms),
        )


def _common(one: frozenset[T] | None, other: frozenset[T] | None) -> frozenset[T] | None:
    if one is None or other is None:
        return one if other is None else other
    return one & other


def _lowest(one: int | None, other: int | None) -> int | None:
    return min((bound for bound in (one, other) if bound is not None), default=None)


def _highest(one: int | None, other: int | None) -> int | None:
    return max((bound for bound in (one, other) if bound is not None), default=None)
