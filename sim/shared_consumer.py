"""A simulated consumer of a shared group: receives, works for a while, settles; well or badly, by chance."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from shoal.core.errors import ShoalError
from shoal.core.model import ShardId
from shoal.core.share_acts import Granted, How, Receive, Settle
from shoal.core.spans import Range, ranges_of
from sim.history import History
from sim.loop import MS, Process, Steps
from sim.shared_hub import SharedHub

IDLE_MS: Final = 250
"""How long one that got nothing waits at most: nothing wakes it in these worlds but time."""

Reach = Callable[[Callable[[SharedHub], Steps[object]]], Steps[object]]
"""Has a hub do something, in this process or elsewhere."""


class SharedWorker:
    """One consumer in one process."""

    def __init__(
        self,
        process: Process,
        call: Reach,
        rng: Random,
        history: History,
        *,
        visibility_ms: int,
        sloppiness: float,
    ) -> None:
        self.process, self._call, self._rng, self._history = process, call, rng, history
        self._visibility_ms = visibility_ms
        self._sloppiness = sloppiness
        """How often it does what it should not: too late, twice, or for another."""
        self._is_extended = False
        """What it has in hand now is held for longer than it was at first."""

    def mend(self) -> None:
        """From now on it does what it should."""
        self._sloppiness = 0.0

    def run(self) -> Steps[None]:
        """Until the process ends."""
        while True:
            try:
                pause_ms = yield from self._round()
            except ShoalError:
                pause_ms = 50
            yield max(1, pause_ms) * MS

    def _round(self) -> Steps[int]:
        rng = self._rng
        asked = Receive(
            consumer=self.process.name, max_records=rng.randrange(1, 7), visibility_ms=self._visibility_ms
        )
        found = yield from self._call(lambda hub: hub.receive(asked))
        assert isinstance(found, tuple)
        shard, granted, due = found
        assert isinstance(granted, Granted)
        if not granted.given:
            return min(IDLE_MS, due + 1 if due is not None else IDLE_MS)
        received_us, self._is_extended = self.process.watch_us(), False
        offsets = [offset for one in granted.given for offset in range(one.low, one.high)]
        is_slow = rng.random() < self._sloppiness
        yield rng.randrange(1, self._visibility_ms * (3 if is_slow else 1) // 2 + 2) * MS
        for how, some in self._decided(offsets):
            yield from self._settle(shard, granted.hold, some, how, received_us)
        return rng.randrange(0, 20)

    def _decided(self, offsets: list[int]) -> list[tuple[How, list[int]]]:
        """What becomes of them, in some order; now and then, twice, or not at all."""
        rng = self._rng
        fates: dict[How, list[int]] = {}
        for offset in offsets:
            dice = rng.random()
            how = How.ACK if dice < 0.8 else How.RELEASE if dice < 0.93 else How.DEAD
            if dice > 0.98:
                continue
            fates.setdefault(how, []).append(offset)
        acts = list(fates.items())
        if rng.random() < self._sloppiness:
            acts.append((How.ACK, offsets))
        if rng.random() < 0.15:
            acts.insert(0, (How.EXTEND, offsets))
        return acts

    def _settle(
        self, shard: ShardId, hold: int, offsets: list[int], how: How, received_us: int
    ) -> Steps[None]:
        rng = self._rng
        if rng.random() < self._sloppiness / 4:
            hold = max(0, hold + rng.choice((-1, 1)))
        for_ms = self._visibility_ms if how is How.EXTEND else rng.choice((0, 0, 40, 200))
        ranges: tuple[Range, ...] = ranges_of(offsets)
        act = Settle(consumer=self.process.name, hold=hold, ranges=ranges, how=how, for_ms=for_ms)
        if how is How.DEAD:
            yield from self._call(lambda hub: hub.reject(shard, act))
            return
        asked_us = self.process.watch_us()

        is_late = asked_us - received_us >= (self._visibility_ms + 2) * MS and not self._is_extended
        self._is_extended |= how is How.EXTEND
        # Only this process's own hub has measured all of this time.
        yield from self._call(
            lambda hub: hub.settle(shard, act, is_over=is_late and hub.process is self.process)
        )
