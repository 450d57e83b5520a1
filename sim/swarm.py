"""What a seed switches on: which faults there are in this world, how strong, and how large it is.

Every seed takes a random subset, since a fault that is always there hides what only happens without it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final

from shoal.core.group import Coordination

ACTS: Final[dict[str, int]] = {
    "crash": 4,
    "pause": 4,
    "suspend": 4,
    "stall": 1,
    "cut": 6,
    "unanswered commits": 3,
    "outage": 2,
    "stop": 3,
    "newcomer": 3,
    "twin": 2,
    "fork": 1,
    "split": 3,
    "merge": 2,
    "empty chain": 1,
    "rewind": 2,
    "reset": 1,
    "timeout": 3,
    "in order": 1,
    "handover": 2,
    "recreate group": 1,
    "recreate stream": 1,
    "forget": 1,
    "retention": 2,
    "other rules": 1,
    "server crash": 2,
    "server pause": 2,
}
"""What may happen to a world, and how often in comparison with the rest."""

HABITS: Final = (
    "drop",
    "duplicate",
    "late",
    "fail",
    "lose answer",
    "lock",
    "slow code",
    "slow store",
    "old server",
    "deaf",
    "lazy save",
)
"""What is always a little so in a world: the network, the store, the users."""

LONE_WATCHER: Final = "lone watcher"
"""As a focus: nobody watches but one, so that what it does wrong is not made good by another."""

NOT_LEASED: Final = frozenset({"server crash", "server pause", "old server"})
"""What cannot be in a world of leased groups: their consumers reach the table by themselves, so that there is
no server between, and no strategy that one could not know. Rules that nobody knows are there: "other rules".
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """One world's options."""

    kind: Coordination
    consumers: int
    shards: int
    servers: int
    """0: every consumer has the hub in its own process."""
    embedded: float
    """Of the consumers, how many have the hub in their own process although there are servers."""
    timeout_ms: int
    intervals: int
    """Heartbeats in a timeout."""
    in_order: bool
    strategy: str
    handover_timeout_ms: int | None
    start_at_end: bool
    ahead: int
    """Batches that one read fetches."""
    backlog: int
    """Batches in each shard at the beginning: who is cut off has something to go on with."""
    code_ms: int
    """What user code takes for a batch, at most, unless it is slow."""
    latency_us: int
    """One way to the store, at most, unless it is slow."""
    skew: bool
    """All clocks for deadlines run slow and all for watches fast: the worst that the margin allows."""
    acts: dict[str, int]
    pace_ms: int
    """Between two acts, on average."""
    habits: dict[str, float] = field(default_factory=dict)
    safety_ms: int = 9_000

    def habit(self, name: str) -> float:
        """How often it is so; 0 if this world does not have it."""
        return self.habits.get(name, 0.0)


def chosen(rng: Random, focus: tuple[str, ...] = (), kind: Coordination | None = None) -> Swarm:
    """The options of a seed. `focus` names acts and habits that are there in any case, and often."""
    own = rng.choice((Coordination.COORDINATED, Coordination.LEASED))
    kind = kind or own
    is_leased = kind is Coordination.LEASED
    share = rng.choice((0.15, 0.3, 0.5)) if not focus else 0.1
    acts = {act: weight for act, weight in ACTS.items() if rng.random() < share}
    acts.update({act: 2 + ACTS[act] for act in focus if act in ACTS})
    habits = {habit: rng.choice((0.02, 0.08, 0.25)) for habit in HABITS if rng.random() < share}
    habits.update({habit: rng.choice((0.05, 0.2)) for habit in focus if habit in HABITS})
    if is_leased:
        acts = {act: weight for act, weight in acts.items() if act not in NOT_LEASED}
        habits = {habit: often for habit, often in habits.items() if habit not in NOT_LEASED}
    is_remote = any(habit in focus for habit in ("late", "drop", "duplicate", "old server"))
    if LONE_WATCHER in focus:
        is_remote = True
    strategy = rng.choice(("balanced", "balanced", "spread", "range", "round_robin"))
    servers = rng.choice((0, 0, 1, 2, 3)) if not is_remote else rng.choice((2, 3))
    consumers = rng.choice((1, 2, 2, 3, 3, 4)) if not focus else rng.choice((2, 3))
    if LONE_WATCHER in focus:
        servers, consumers = 1, 2
    timeout_ms = rng.choice((400, 800, 800, 1600)) if not focus else rng.choice((400, 800))
    intervals = rng.choice((3, 4, 6))
    if LONE_WATCHER in focus:
        timeout_ms, intervals = 1600, 2
        habits = dict.fromkeys(habits, 0.06)
    return Swarm(
        kind=kind,
        consumers=consumers,
        shards=rng.choice((1, 2, 2, 3, 4, 5)),
        servers=servers,
        embedded=(rng.choice((0.0, 0.5)) if not is_remote else 0.0) if servers else 1.0,
        timeout_ms=timeout_ms,
        intervals=intervals,
        in_order=rng.random() < 0.75,
        strategy="balanced" if is_leased and strategy != "spread" else strategy,
        handover_timeout_ms=rng.choice((None, 50, 150, 400)) if rng.random() < share else None,
        start_at_end=rng.random() < 0.3,
        ahead=rng.choice((2, 6, 30)) if not focus else 30,
        backlog=rng.choice((0, 5, 25, 120)) if not focus else 120,
        code_ms=rng.choice((12, 40, 120)) if not focus else rng.choice((40, 80)),
        latency_us=rng.choice((400, 3000)),
        skew=rng.random() < (0.3 if not focus else 0.7),
        acts=acts or {"crash": 1, "split": 1},
        pace_ms=rng.choice((150, 300, 600)) if not focus else timeout_ms // 2,
        habits=habits,
    )
