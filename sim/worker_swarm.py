"""What a seed switches on in a world of whole workers: how they work, and how user code behaves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from shoal.core.budget import Budget
from shoal.core.crew import CrewRules
from shoal.core.retry import Backoff, FailureRules, Policy
from sim.swarm import Swarm

NOT_WORKERS: Final = frozenset({"fork", "forget"})
"""What is not in these worlds. A fork leaves no threads behind; and what a store forgot cannot be told of
single records."""

RECORD_BYTES: Final = 10

PIECES: Final = {"single records": 1, "long batches": 100}
"""As a focus: what is handed out at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSwarm:
    """One world's workers and their user code. Chances are from 0 to 1."""

    policy: Policy
    lanes: tuple[int, ...]
    """Each worker has one of these numbers of lanes."""
    piece_records: int
    ahead_records: int
    persist_interval_ms: int
    stop_timeout_ms: int
    process_timeout_ms: int | None
    is_stuck_released: bool
    idle_ms: int | None
    max_attempts: int
    is_polled: bool
    """User code comes for its records when it likes, instead of being called with them."""
    is_one_by_one: bool
    """User code iterates; otherwise it takes a batch as a whole."""
    persists: float
    """How often a save waits until the hub has it."""
    saves: float
    """How often user code declares done what it was given."""
    saves_midway: float
    poison: float
    """Of the records: so many make user code raise until the world has healed, or for ever if they can be
    set aside."""
    raises: float
    """Of the calls, whatever they are given."""
    outage: float
    """Of the calls: with so many of them the sink goes out for a while."""
    is_outage_said: bool
    goes_back: float
    bad_endings: float
    """Of initialize and shutdown: how many raise."""
    slow_endings: float

    def crew_rules(self, lanes: int) -> CrewRules:
        """What a worker with so many lanes goes by."""
        failure = FailureRules(
            policy=self.policy,
            backoff=Backoff(first_s=0.02, max_s=0.3),
            delays_s=(0.05, 0.2),
            max_attempts=self.max_attempts,
            outage_after=3,
        )
        return CrewRules(
            failure=failure,
            budget=Budget(total=self.ahead_records * RECORD_BYTES, at_once=6 * RECORD_BYTES),
            lanes=lanes,
            persist_interval_ms=self.persist_interval_ms,
            stop_timeout_ms=self.stop_timeout_ms,
            process_timeout_ms=self.process_timeout_ms,
            is_stuck_released=self.is_stuck_released,
            is_on_demand=self.is_polled,
            is_expired_skipped=True,
            idle_ms=self.idle_ms,
        )


def workers_chosen(rng: Random, focus: tuple[str, ...] = ()) -> WorkerSwarm:
    """The options of a seed. `focus` names chances that are not to be 0, and more."""

    def chance(name: str, *choices: float) -> float:
        drawn = rng.choice(choices)
        return max(choices) if name in focus else drawn

    policy = rng.choice((Policy.STRICT, Policy.STRICT, Policy.BEST_TRIED, Policy.BEST_TRIED, Policy.STOP))
    policy = next((named for named in Policy if named in focus or f"{named} policy" in focus), policy)
    lanes = rng.choice(((1,), (1,), (2,), (3,), (1, 3), (2, 3)))
    is_polled = "polled" in focus
    is_hasty = "gives up" in focus or rng.random() < 0.2
    return WorkerSwarm(
        policy=policy,
        lanes=(1,) if is_polled else (3,) if "lanes" in focus else lanes,
        piece_records=next((size for name, size in PIECES.items() if name in focus), rng.choice((1, 3, 100))),
        ahead_records=rng.choice((8, 40)),
        persist_interval_ms=rng.choice((80, 400, 60_000)),
        stop_timeout_ms=rng.choice((40, 120)) if is_hasty else rng.choice((400, 3000)),
        process_timeout_ms=rng.choice((None, None, 150)) if not is_hasty else 100,
        is_stuck_released=rng.random() < 0.5 or is_hasty,
        idle_ms=rng.choice((None, None, 60)),
        max_attempts=rng.choice((1, 2, 3)),
        is_polled=is_polled,
        is_one_by_one=rng.random() < 0.5 or "one by one" in focus,
        persists=chance("persists", 0.0, 0.3, 1.0),
        saves=chance("saves", 0.5, 0.9, 1.0),
        saves_midway=chance("saves_midway", 0.0, 0.0, 0.3),
        poison=chance("poison", 0.0, 0.0, 0.03, 0.12),
        raises=chance("raises", 0.0, 0.0, 0.05, 0.2),
        outage=chance("outage", 0.0, 0.0, 0.02),
        is_outage_said=rng.random() < 0.5,
        goes_back=chance("goes_back", 0.0, 0.0, 0.0, 0.1),
        bad_endings=chance("bad_endings", 0.0, 0.0, 0.2),
        slow_endings=chance("slow_endings", 0.0, 0.0, 0.3),
    )


def narrowed(swarm: Swarm, rng: Random) -> Swarm:
    """The same world, but smaller and shorter: records are followed one by one in it."""
    acts = {act: weight for act, weight in swarm.acts.items() if act not in NOT_WORKERS}
    return replace(
        swarm,
        consumers=min(3, swarm.consumers),
        shards=min(3, swarm.shards),
        timeout_ms=min(rng.choice((300, 300, 600)), swarm.timeout_ms),
        backlog=min(8, swarm.backlog),
        code_ms=min(60, swarm.code_ms),
        acts=acts or {"crash": 1, "split": 1, "newcomer": 1},
        safety_ms=rng.choice((1_200, 2_500)),
    )
