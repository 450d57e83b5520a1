"""A worker in figures, as of one moment: for people, for logs, for Prometheus. Decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.core.describing import GroupShard


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLag:
    """What is still to come of one shard."""

    records: int
    seconds: float
    """How long ago the first of them was appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """What is still to come of the shards that a worker holds, as it was seen lately."""

    shards: Mapping[int, ShardLag]

    @property
    def records(self) -> int:
        """Of all of them."""
        return sum(shard.records for shard in self.shards.values())

    @property
    def seconds(self) -> float:
        """Of the one that is furthest behind."""
        return max((shard.seconds for shard in self.shards.values()), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """All that is shown of one worker."""

    stream: str
    group: str
    consumer: str
    counters: Mapping[str, int]
    """See WorkerStats."""
    rate: float
    shards: Mapping[int, str] = field(default_factory=dict)
    """What it holds, each with its phase."""
    lag: Lag | None = None
    """None: not known yet, or the store is away."""
    restarts: int | None = None
    """Of its process, if it is one of a fleet."""


def shard_lag(shard: GroupShard, declared: int | None = None) -> ShardLag:
    """Of a shard as the group sees it. `declared`: what its owner has declared done since, and not yet saved.

    When the records behind that were appended is not known; it is taken in proportion.
    """
    records = shard.lag
    if declared is not None:
        records = max(0, min(shard.lag, shard.checkpoint + shard.lag - declared))
    part = records / shard.lag if shard.lag else 0.0
    return ShardLag(records=records, seconds=shard.lag_s * part)


def line(now: WorkerFigures, before: WorkerFigures | None = None) -> str:
    """A worker in a line; times of processing are of what was done since `before`."""

    def since(name: str) -> int:
        return now.counters[name] - (0 if before is None else before.counters[name])

    batches, moves = since("batches"), now.counters["hand_overs"]
    lag = "lag not known"
    if now.lag is not None:
        lag = f"lag {now.lag.records:,} records ({now.lag.seconds:.1f} s)"
    parts = [
        f"{len(now.shards)} shards",
        f"{now.rate:,.0f} records/s",
        lag,
        f"{since('processing_ns') / batches / 1e6:.1f} ms a batch" if batches else "no batch",
        f"{moves:,} hand-overs"
        + (f" ({now.counters['hand_over_total_ns'] / moves / 1e6:.0f} ms each)" if moves else ""),
        f"{now.counters['retries']:,} retries",
        *(f"{now.counters[name]:,} {name.replace('_', ' ')}" for name in _NAMED if now.counters[name]),
    ]
    return ", ".join(parts)


_NAMED = ("dead", "failures", "fenced", "lost", "lane_deaths")
