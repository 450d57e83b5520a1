"""Rules of the outbox: which rows go together, and when a silent relay is taken for dead.

Rows of one key go out in the order in which they were seen. A row with a lower id may be committed after one
with a higher id was relayed, so the id says nothing about what was sent: the relay notes the ids of a batch
before it sends them, and numbers them by their place in that note.

A stream that refuses what is meant for it stalls: its rows of that batch are noted by themselves, with their
numbers, and nothing more of it is noted until they are sent. Others go on. A number means the same row for as
long as it may have been sent, and the numbers of one stream rise: that is all that the log's own numbering
asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shoal.core.errors import (
    DeliveryTimeout,
    HubClosed,
    OutOfSequence,
    ProducerClosed,
    ProducerFenced,
    ShoalError,
    StoreError,
)

Run = tuple[int, int]
"""Consecutive ids, both ends included."""


def as_text(ids: Sequence[int]) -> str:
    """The ids of a batch, in order, to be noted: `3-7,9`."""
    runs: list[Run] = []
    for one in ids:
        if runs and runs[-1][1] + 1 == one:
            runs[-1] = (runs[-1][0], one)
        else:
            runs.append((one, one))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def ids_of(text: str) -> list[int]:
    """The same, read back."""
    ids: list[int] = []
    for part in text.split(",") if text else ():
        low, _, high = part.partition("-")
        ids += range(int(low), int(high or low) + 1)
    return ids


def fitting(sized: Iterable[tuple[int, int]], bytes_max: int) -> list[int]:
    """The ids that go together: the first, and those after it while all of them fit."""
    ids: list[int] = []
    left = bytes_max
    for one, size in sized:
        left -= size
        if ids and left < 0:
            break
        ids.append(one)
    return ids


# --- Streams that stall. ----------------------------------------------------------------------------

Numbered = tuple[int, int]
"""A row's id, and the number that it is sent under."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled:
    """Rows of one stream that were noted and are refused, and those after them in the note."""

    stream: str
    rows: tuple[Numbered, ...]
    """In order. One that is not in the table any more was taken away by its owner."""
    row: int
    """The id of the row that was refused, or of the first of those among which it is."""
    why: str

    @property
    def ids(self) -> list[int]:
        """Of its rows, in order."""
        return [one for one, _ in self.rows]


def is_streams_own(error: ShoalError) -> bool:
    """Whether it is one stream, or a record for it, that is refused; or the hub that is away for all."""
    return not error.retriable and not isinstance(error, _EVERYBODYS)


_EVERYBODYS = (StoreError, HubClosed, DeliveryTimeout, OutOfSequence, ProducerClosed, ProducerFenced)


def pairs_as_text(rows: Sequence[Numbered]) -> str:
    """Rows with their numbers, to be noted: `3-7@100,9@112`, of each run the number of its first."""
    runs: list[tuple[int, int, int]] = []
    for one, number in rows:
        if runs and (runs[-1][1] + 1, runs[-1][2] + 1 + runs[-1][1] - runs[-1][0]) == (one, number):
            runs[-1] = (runs[-1][0], one, runs[-1][2])
        else:
            runs.append((one, one, number))
    return ",".join(f"{as_text(range(low, high + 1))}@{number}" for low, high, number in runs)


def pairs_of(text: str) -> tuple[Numbered, ...]:
    """The same, read back."""
    pairs: list[Numbered] = []
    for part in text.split(",") if text else ():
        ids, _, number = part.partition("@")
        pairs += [(one, int(number) + place) for place, one in enumerate(ids_of(ids))]
    return tuple(pairs)


def retry_after_s(first_s: float, tries: int) -> float:
    """How long a stream that stalls is left alone: longer each time, up to a bound."""
    return float(min(first_s * 2 ** min(tries, 16), max(first_s, RETRY_MOST_S)))


RETRY_MOST_S = 30.0
"""A stream that was made, or a row that was mended, goes on within this time."""
STALLED_MAX = 256
"""Streams. With more of them something else is wrong, and all wait."""


# --- Who relays. ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who relays, as its row says."""

    name: str | None
    beat: int
    lease_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """How long one observer has seen the same beat, by its own clock. No clock is compared with another."""

    seen: Holder | None = None
    since_ms: int = 0

    def looked(self, holder: Holder, now_ms: int) -> Watch:
        """After a look at the row."""
        return self if holder == self.seen else replace(self, seen=holder, since_ms=now_ms)

    def may_take(self, now_ms: int) -> bool:
        """Whether nobody relays: nobody said so, or its beat has stood still for its own lease."""
        if self.seen is None:
            return False
        return self.seen.name is None or now_ms - self.since_ms >= self.seen.lease_ms
