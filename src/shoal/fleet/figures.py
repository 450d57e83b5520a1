"""The workers of a fleet in figures, each through every process that was in its place."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.consumer.figures import Lag, WorkerFigures, shard_lag
from shoal.core.describing import GroupInfo
from shoal.fleet.supervisor import Standing


def figures_of(
    standings: Sequence[Standing], stream: str, group: str, seen: GroupInfo | None
) -> list[WorkerFigures]:
    """`seen`: the group as it was lately; None: nobody can say."""
    return [
        WorkerFigures(
            stream=stream,
            group=group,
            consumer=one.name,
            counters=one.counters,
            rate=one.rate,
            shards=one.shards,
            lag=None if seen is None else _lag(one.name, seen),
            restarts=one.restarts,
        )
        for one in standings
    ]


def _lag(name: str, seen: GroupInfo) -> Lag:
    return Lag(shards={int(shard.id): shard_lag(shard) for shard in seen.shards if shard.owner == name})
