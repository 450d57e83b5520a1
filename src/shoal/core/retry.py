"""What follows from a failure: when to try again, in place or aside, and when it is not the record's fault.

A policy is named by the user. `strict` tries in place, and nothing overtakes; `best_tried` sets the record
aside and goes on; `stop` ends the worker. Nothing is ever passed over in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from shoal.core.checking import is_number, is_whole
from shoal.core.errors import InvalidInput
from shoal.core.limits import ATTEMPTS_MAX, DURATION_S_MAX


class Policy(StrEnum):
    """What happens when user code raises."""

    STRICT = "strict"
    BEST_TRIED = "best_tried"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait before the next attempt: longer each time, up to a bound, never quite the same."""

    first_s: float = 0.1
    factor: float = 2.0
    max_s: float = 30.0
    jitter: float = 0.2
    """Of the delay, up or down: so that those who failed together do not come back together."""

    def __post_init__(self) -> None:
        for field, value, least, most in (
            ("first_s", self.first_s, 0.0, DURATION_S_MAX),
            ("factor", self.factor, 1.0, 100.0),
            ("max_s", self.max_s, 0.0, DURATION_S_MAX),
            ("jitter", self.jitter, 0.0, 1.0),
        ):
            if not is_number(value) or not least <= value <= most:
                raise InvalidInput(field, value, f"a number from {least:g} to {most:g}")

    def delay_ms(self, attempt: int, dice: float) -> int:
        """After the `attempt`-th failure (from 1). `dice` is random, from 0 to 1."""
        # The power of a large attempt is no number any more, and the bound is reached long before.
        grown = self.first_s * self.factor ** min(attempt - 1, _POWER_MAX)
        return round(min(grown, self.max_s) * (1 + self.jitter * (2 * dice - 1)) * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRules:
    """A policy with its figures."""

    policy: Policy | None = None
    """None: as the group says."""
    backoff: Backoff = Backoff()
    delays_s: Sequence[float] = (10.0, 60.0, 600.0)
    """`best_tried`: how long a record waits before each further attempt, by the hub's clock."""
    max_attempts: int = 4
    """`best_tried`: after so many, the first one included, a record goes to the dead stream."""
    outage_after: int = 5
    """So many records in a row that fail alike are no poison: the sink is out, and is waited for."""

    def __post_init__(self) -> None:
        if self.policy is not None:
            try:
                object.__setattr__(self, "policy", Policy(self.policy))
            except ValueError as error:
                raise InvalidInput("policy", self.policy, f"one of {', '.join(Policy)}") from error
        delays: object = self.delays_s
        if not isinstance(delays, Sequence):
            raise InvalidInput("delays_s", self.delays_s, "a list of seconds, one for each further attempt")
        if not isinstance(self.backoff, Backoff):
            raise InvalidInput("backoff", self.backoff, "a Backoff")
        if not is_whole(self.max_attempts) or not 1 <= self.max_attempts <= ATTEMPTS_MAX:
            raise InvalidInput("max_attempts", self.max_attempts, f"from 1 to {ATTEMPTS_MAX}")
        if not is_whole(self.outage_after) or self.outage_after < 1:
            raise InvalidInput("outage_after", self.outage_after, "a number of records, from 1 on")
        if self.max_attempts > 1 and not self.delays_s:
            raise InvalidInput("delays_s", self.delays_s, "at least one delay, or max_attempts=1")
        for delay in self.delays_s:
            if not is_number(delay) or not 0 <= delay <= DURATION_S_MAX:
                raise InvalidInput("delays_s", delay, f"seconds from 0 to {DURATION_S_MAX:g}")

    def of_group(self, policy: Policy) -> FailureRules:
        """The same with the group's policy, if none is named."""
        return self if self.policy is not None else replace(self, policy=policy)

    def delay_ms(self, attempts: int) -> int | None:
        """How long a record waits after so many failed attempts; None: there is no further one."""
        if attempts >= self.max_attempts:
            return None
        return round(self.delays_s[min(attempts, len(self.delays_s)) - 1] * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streak:
    """Records in a row that failed, all in the same way."""

    kind: str = ""
    length: int = 0

    def failed(self, kind: str) -> Streak:
        """One more."""
        return Streak(kind=kind, length=self.length + 1 if kind == self.kind else 1)


NO_STREAK: Final = Streak()


def is_outage(rules: FailureRules, streak: Streak, *, is_said: bool) -> bool:
    """Whether the sink is out rather than the record bad. `is_said`: the error itself says so."""
    return is_said or streak.length > rules.outage_after


_POWER_MAX: Final = 64
