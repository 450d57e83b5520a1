"""Rules of the outbox: which rows go together, and when a silent relay is taken for dead.

Rows of one key go out in the order in which they were seen. A row with a lower id may be committed after one
with a higher id was relayed, so the id says nothing about what was sent: the relay notes the ids of a batch
before it sends them, and numbers them by their place in that note.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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
