"""What every part of a world stands on: the loop, the seed's chance, the store, and who writes facts down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from sim.facts import Facts
from sim.history import History
from sim.loop import MS, Future, Loop, Process
from sim.store import Store
from sim.swarm import Swarm

CLOCK_WANDER = 24_000
"""In millionths: how far a clock's rate is from true, at most; just within half the margin of the rules."""


@dataclass(slots=True, kw_only=True)
class Stage:
    """One world's ground. `switches` are planted bugs of the shell; see `bugs`."""

    loop: Loop
    rng: Random
    swarm: Swarm
    history: History
    store: Store
    facts: Facts
    switches: frozenset[str] = frozenset()
    is_healed: bool = False
    stalled_until: int = 0
    """The machine stands still until then; what starts on it stands still too."""
    afresh: int = 0
    """How often all hubs were started afresh: what they had seen before, they do not remember."""
    waiting: dict[str, list[Future]] = field(default_factory=dict)
    """Hubs' calls that wait for a change of what an incarnation holds."""
    wake: Callable[[str], None] = field(default=lambda _: None)
    """Tell an incarnation that its assignment has changed; it may be told late, or never."""

    def is_so(self, habit: str) -> bool:
        """Whether a habit of this world strikes now."""
        often = 0.0 if self.is_healed else self.swarm.habit(habit)
        return bool(often) and self.rng.random() < often

    def deadline_clock_ms(self, process: Process) -> int:
        """What a consumer counts its deadlines by."""
        if "deadline by the clock that stops" in self.switches:
            return process.watch_us() // MS
        return process.boot_ms()

    def process(self, name: str) -> Process:
        """A new process, with clocks of its own; both begin somewhere and run as fast as they do."""
        rng = self.rng
        rates = [1_000_000 + rng.choice((-CLOCK_WANDER, 0, CLOCK_WANDER)) for _ in range(2)]
        if self.swarm.skew:
            rates = [1_000_000 - CLOCK_WANDER, 1_000_000 + CLOCK_WANDER]
        process = Process(
            self.loop, name, boot_rate=rates[0], watch_rate=rates[1], started_at=rng.randrange(10**9)
        )
        if self.loop.now < self.stalled_until:
            process.freeze(self.stalled_until - self.loop.now, is_suspended=False)
        return process
