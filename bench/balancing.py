"""What it costs to balance a large group when one consumer joins, and whether only what must move does.

`python -m bench.balancing` prints the lines alone. The floor is under half a second for 10,000 shards.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Final

from rich.console import Console

from bench.table import Line, Report
from shoal.core.balance import balanced
from shoal.core.model import ShardId

CONSUMERS: Final = 500
SIZES: Final = (1_000, 10_000, 100_000)
FLOOR_S: Final = 0.5
FLOOR_SHARDS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Figures:
    """One consumer joining a level group."""

    shards: int
    seconds: float
    moved: int
    fewest: int
    """What the newcomer lacks: the smaller of the two counts of a level group. No assignment moves fewer."""


def one_joins(shards: int, consumers: int = CONSUMERS, rounds: int = 5) -> Figures:
    """The median of some rounds. The group before was balanced by the same rule."""
    everything = [ShardId(number) for number in range(shards)]
    members = [f"consumer-{number:04}" for number in range(consumers)]
    held = balanced(everything, members, {})
    after = held
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        after = balanced(everything, [*members, "newcomer"], held)
        seconds.append(time.perf_counter() - began)
    moved = sum(after[shard] != owner for shard, owner in held.items())
    return Figures(shards, statistics.median(seconds), moved, shards // (consumers + 1))


def lines() -> list[Line]:
    """The lines of the table; one of them has a floor."""
    measured = [one_joins(shards) for shards in SIZES]
    return [
        Line(
            f"balance {one.shards:,} shards over {CONSUMERS} consumers, one joining",
            f"{one.seconds * 1000:.1f} ms",
            f"{one.moved} moved, {one.fewest} must",
            f"under {FLOOR_S:g} s" if one.shards == FLOOR_SHARDS else "",
            (one.seconds < FLOOR_S and one.moved == one.fewest) if one.shards == FLOOR_SHARDS else None,
        )
        for one in measured
    ]


if __name__ == "__main__":
    report = Report(Console(width=150))
    for line in lines():
        report.add("balance", line)
