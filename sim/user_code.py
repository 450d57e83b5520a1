"""User code in a world of whole workers: it takes time, saves as it likes, and fails in every way it can.

What it does is drawn from the seed. It keeps to what processors are promised, and relies on it: what must not
happen to it is a fact for the checkers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shoal.core.model import ShardId
from shoal.core.retry import Policy
from shoal.core.tasks import Piece, Reason
from sim.loop import MS, Steps
from sim.stage import Stage
from sim.worker_swarm import WorkerSwarm


class Raised(Exception):
    """User code failed."""

    def __init__(self, kind: str, reached: int | None, *, is_outage: bool = False) -> None:
        super().__init__(kind)
        self.kind, self.reached, self.is_outage = kind, reached, is_outage


class Checkpointer(Protocol):
    """What user code is given of its lane."""

    def give(self, offsets: list[int]) -> None:
        """Take these records now; raises LeaseLost if that may not be."""

    @property
    def recent(self) -> Sequence[int]:
        """What it was given lately, in the same tenure."""

    def save(self, offset: int | None, *, persist: bool) -> Steps[None]:
        """Declare done all below; None: all that it came back from."""


class UserCode:
    """The one program that all workers of a world run."""

    def __init__(self, stage: Stage, swarm: WorkerSwarm) -> None:
        self._stage, self._swarm, self._rng = stage, swarm, stage.rng
        self._out_until = 0
        self._salt = stage.rng.randrange(1000)

    def is_poison(self, shard: int, offset: int) -> bool:
        """Whether a record makes it raise."""
        if self._stage.is_healed and self._swarm.policy is not Policy.BEST_TRIED:
            return False
        return (shard * 7919 + offset * 104_729 + self._salt) % 1000 < self._swarm.poison * 1000

    def initialize(self) -> Steps[None]:
        yield self._rng.randrange(1, 3 * MS)
        if self._is_so(self._swarm.bad_endings):
            raise Raised("RuntimeError", None)

    def process(self, shard: ShardId, piece: Piece, checkpointer: Checkpointer) -> Steps[int | None]:
        """One batch; the offset that it wants to go back to, if it does."""
        if self._swarm.is_one_by_one:
            yield from self._iterate(shard, piece, checkpointer)
        else:
            yield from self._take_whole(shard, piece, checkpointer)
        is_saving = self._stage.is_healed or self._rng.random() < self._swarm.saves
        if is_saving:
            yield from checkpointer.save(piece.next, persist=self._rng.random() < self._swarm.persists)
        if self._is_so(self._swarm.goes_back):
            return self._rng.choice(checkpointer.recent)
        return None

    def told_nothing(self, checkpointer: Checkpointer) -> int | None:
        """There is nothing new: a good time to go back."""
        if checkpointer.recent and self._is_so(self._swarm.goes_back):
            return self._rng.choice(checkpointer.recent)
        return None

    def _take_whole(self, shard: ShardId, piece: Piece, checkpointer: Checkpointer) -> Steps[None]:
        checkpointer.give(list(piece.offsets))
        yield self._duration()
        self._fail_if_bad(shard, list(piece.offsets), None)

    def _iterate(self, shard: ShardId, piece: Piece, checkpointer: Checkpointer) -> Steps[None]:
        steps = max(1, len(piece.offsets) // 4)
        total = self._duration()
        for place, offset in enumerate(piece.offsets):
            checkpointer.give([offset])
            if place % steps == 0:
                yield max(1, total // 4)
            self._fail_if_bad(shard, [offset], offset)
            if self._is_so(self._swarm.saves_midway):
                yield from checkpointer.save(offset + 1, persist=self._rng.random() < self._swarm.persists)

    def shut_down(self, reason: Reason, checkpointer: Checkpointer) -> Steps[None]:
        """It tries to save in any case: where it must not, it is refused."""
        yield self._duration() if self._is_so(self._swarm.slow_endings) else self._rng.randrange(1, MS)
        if reason is Reason.LOST or self._stage.is_healed or self._rng.random() < self._swarm.saves:
            yield from checkpointer.save(None, persist=self._rng.random() < self._swarm.persists)
        if self._is_so(self._swarm.bad_endings):
            raise Raised("RuntimeError", None)

    def _fail_if_bad(self, shard: ShardId, offsets: list[int], reached: int | None) -> None:
        now = self._stage.loop.now
        if self._is_so(self._swarm.outage):
            self._out_until = now + self._rng.randrange(50, 500) * MS
        if now < self._out_until and not self._stage.is_healed:
            raise Raised("OutError", reached, is_outage=self._swarm.is_outage_said)
        if self._is_so(self._swarm.raises):
            raise Raised("FlakyError", reached)
        if any(self.is_poison(shard, offset) for offset in offsets):
            raise Raised("PoisonError", reached)

    def _is_so(self, chance: float) -> bool:
        return bool(chance) and not self._stage.is_healed and self._rng.random() < chance

    def _duration(self) -> int:
        if self._stage.is_so("slow code"):
            return self._rng.randrange(100, 1200) * MS
        return self._rng.randrange(MS, (4 if self._stage.is_healed else self._stage.swarm.code_ms) * MS)
