"""Checkers of deadlines: the part of invariant 1 that is about time, by a clock that only the world has.

From the outside a holder may act for as long as nobody can have found it dead: from the instant at which it
asked for the last renewal that was counted, for the timeout that this one stated, less what a watcher's clock
may run fast. Who hands out a batch after that, or takes a shard before, breaks the promise. What the holder
itself believes is not asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shoal.core.group import Claim
from sim.history import Violation

FAST: Final = 1.024
"""How fast a watcher's clock may run, as the worlds make them."""
ROUNDING_US: Final = 1_000
"""The rules count in whole milliseconds."""

Key = tuple[str, int, int]


class DeadlineChecks:
    """One world's facts about how long holders may act, in real time."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._asked: dict[tuple[str, int], int] = {}
        """(Incarnation, number of its heartbeat) to when it was asked."""
        self._members: dict[str, int] = {}
        """Until when an incarnation may act on what it holds."""
        self._leases: dict[Key, int] = {}
        """The same of one lease, where that is renewed by itself, or is renewed no more."""

    def asked(self, incarnation: str, number: int) -> None:
        self._asked[incarnation, number] = self._now_us()

    def counted(self, incarnation: str, number: int, timeout_ms: int) -> None:
        """A heartbeat is in: it renews all that its sender holds."""
        asked_us = self._asked.get((incarnation, number))
        if asked_us is not None:
            self._members[incarnation] = _until(asked_us, timeout_ms)
            for key in [key for key in self._leases if key[0] == incarnation]:
                self.shortened(key, asked_us, timeout_ms)

    def renewed(self, key: Key, asked_us: int, timeout_ms: int) -> None:
        """One lease was renewed by itself."""
        self._leases[key] = _until(asked_us, timeout_ms)

    def shortened(self, key: Key, asked_us: int, timeout_ms: int) -> None:
        """What is renewed no more may not outlast the timeout that its holder states by now either.

        Who states a shorter one shortens all that it holds, and is watched by that from then on. Stating the
        same again, or a longer one, leaves such a deadline where it is.
        """
        self._leases[key] = min(self._valid_until(key), _until(asked_us, timeout_ms))

    def written(self, claim: Claim) -> None:
        """What is asked back for good, or was reset, is renewed no more: its deadline stays where it is."""
        if claim.owner is not None and (claim.lapse_ms or claim.owner_epoch != claim.epoch):
            key = (claim.owner, claim.shard, claim.owner_epoch)
            self._leases.setdefault(key, self._members.get(claim.owner, 0))

    def handed(self, incarnation: str, shard: int, epoch: int) -> None:
        """1: within its deadline."""
        late_us = self._now_us() - self._valid_until((incarnation, shard, epoch))
        if late_us > ROUNDING_US:
            text = f"{incarnation} hands out shard {shard} at {epoch}"
            raise Violation("1", f"{text}, {late_us / 1000:.0f} ms after it could be thought dead")

    def taken(self, before: Claim, by: str) -> None:
        """1: a shard is taken from a holder only after its deadline."""
        assert before.owner is not None
        left_us = self._valid_until((before.owner, before.shard, before.owner_epoch)) - self._now_us()
        if left_us > ROUNDING_US:
            text = f"shard {before.shard} at {before.owner_epoch} is taken from {before.owner} by {by}"
            raise Violation("1", f"{text}, {left_us / 1000:.0f} ms too early")

    def _valid_until(self, key: Key) -> int:
        return self._leases.get(key, self._members.get(key[0], 0))


def _until(asked_us: int, timeout_ms: int) -> int:
    return asked_us + int(timeout_ms * 1000 / FAST)
