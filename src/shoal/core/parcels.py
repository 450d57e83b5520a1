"""Batches on their way as values: what keeps its place, how long and how often it was tried, and its fate.

What is sent when decides `core/sending`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from typing import Final, Generic, TypeVar

from shoal.core.errors import InvalidInput, ShoalError
from shoal.core.model import Appended, SendStrategy, ShardId


def checked_strategy(strategy: object) -> SendStrategy | None:
    """A strategy by its name, or None."""
    if strategy is None:
        return None
    try:
        return SendStrategy(str(strategy))
    except ValueError as error:
        remedy = f"one of {', '.join(SendStrategy)}; without one, the key decides"
        raise InvalidInput("strategy", strategy, remedy) from error


def is_strict(strategy: SendStrategy | None, *, is_placed: bool, is_numbered: bool) -> bool:
    """Whether a record keeps its place. Unless a strategy is named, its key decides, or a place given
    by hand; what the sender numbers itself always does."""
    if is_numbered:
        return True
    return is_placed if strategy is None else strategy is SendStrategy.STRICT


class Parcel:
    """A batch as far as sending goes. Writer: `Sending`."""

    __slots__ = (
        "attempts",
        "began_s",
        "due_s",
        "is_flying",
        "is_strict",
        "is_uncertain",
        "sequence",
        "shard",
        "size",
    )

    def __init__(
        self, shard: ShardId, *, is_strict: bool = True, due_s: float = 0.0, began_s: float = 0.0
    ) -> None:
        self.shard = shard
        self.size = 0
        self.is_strict = is_strict
        self.due_s = due_s
        """Until then it may wait for company, if nothing is behind it."""
        self.sequence: int | None = None
        """Its number in its lane, from its first attempt until its fate is known."""
        self.attempts = 0
        """That failed, or are on their way; those of its forebears, before they moved, included."""
        self.began_s = began_s
        """Since when it is to be stored: since its first record was given. 0.0: since its first attempt."""
        self.is_flying = False
        self.is_uncertain = False
        """An attempt may have stored it, or may yet, and nobody knows."""

    def __len__(self) -> int:
        """Records in it."""
        raise NotImplementedError

    @property
    def is_numbered(self) -> bool:
        """Whether the sender has numbers of its own in it."""
        return False

    def descends(self, other: Parcel) -> None:
        """It takes contents of another, which moved: the time and the attempts that those had are spent."""
        self.began_s = min(self.began_s or other.began_s, other.began_s)
        self.attempts = max(self.attempts, other.attempts)

    def is_peer(self, other: Parcel) -> bool:
        """Whether contents of the other may share its time and attempts. What the sender numbers itself fails
        together anyway."""
        return self.is_numbered or (self.began_s, self.attempts) == (other.began_s, other.attempts)


P = TypeVar("P", bound=Parcel)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingRules:
    """The figures of a producer."""

    retry_first_s: float = 0.02
    retry_most_s: float = 1.0
    delivery_timeout_s: float = 120.0
    max_attempts: int = 100
    calls_max: int = 2
    """Calls on their way at once."""

    def wait_s(self, failures: int) -> float:
        """After so many failures in a row."""
        return min(self.retry_first_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), self.retry_most_s)


@dataclass(slots=True)
class Lane(Generic[P]):
    """What waits for one shard."""

    queue: deque[P] = field(default_factory=deque)
    failures: int = 0
    not_before_s: float = 0.0


@dataclass(slots=True)
class Settled(Generic[P]):
    """What became of the parcels of a call. Whatever is not in it waits in its lane."""

    stored: list[tuple[P, Appended]] = field(default_factory=list)
    failed: list[tuple[P, ShoalError]] = field(default_factory=list)
    aside: list[tuple[P, ShoalError]] = field(default_factory=list)
    """Tried often enough: for the outbox, or failed with this error."""
    rerouted: list[P] = field(default_factory=list)
    """They are in another lane now."""
    refused: int = 0
    """By closed shards."""
    retried: ShoalError | None = None
    """Why some are sent again."""
    fatal: ShoalError | None = None
    """Nothing more may be sent."""


def merged(lanes: Iterable[Iterable[T]], number: Callable[[T], int | None]) -> Iterator[T]:
    """The contents of several lanes in one order: each lane's own, and the sender's numbers rise.

    Two shards that become one may not get a higher number before a lower one: whoever came after a crash
    would take the lower one for stored.
    """

    def ranked(lane: Iterable[T]) -> Iterator[tuple[int, T]]:
        highest = -1
        for one in lane:
            given = number(one)
            highest = highest if given is None else given
            yield highest, one

    for _, one in merge(*map(ranked, lanes), key=lambda pair: pair[0]):
        yield one


_DOUBLINGS_MAX: Final = 60
