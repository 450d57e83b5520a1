"""What must hold in every history of a shared group, checked on facts alone: what was appended, and what was
committed of it. Shares no code with the rules.

1. A record is acknowledged once, or dead and in the dead stream once; never both.
2. It is acknowledged by whoever it was handed to last, and not after the time it was given for.
3. It is handed to another only after that time, or when it was given back.
4. With keys one at a time: only the first record of a key that is not settled, and parents before children.
5. It is handed out at most as often as the group allows, and never again once it was rejected.
6. In the end, everything that retention kept is settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sim.history import History, Violation
from sim.loop import Loop

EARLY: int = 970
"""In thousandths of its time, how soon a hold may end at the earliest: clocks run fast by so much."""

Place = tuple[int, int]
"""A shard and an offset."""


@dataclass(slots=True)
class Record:
    """Everything that happened to one record."""

    key: int
    fate: str = ""
    hold: int = 0
    """Under which it is with someone; 0: with nobody."""
    since_us: int = 0
    for_ms: int = 0
    handed: int = 0
    is_rejected: bool = False
    is_buried: bool = False
    is_lost: bool = False


@dataclass(slots=True)
class SharedFacts:
    """The book of one world. Written at the instants of commits."""

    loop: Loop
    history: History
    max_attempts: int
    key_ordered: bool
    records: dict[Place, Record] = field(default_factory=dict)
    parents: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def appended(self, shard: int, offset: int, key: int) -> None:
        self.records[shard, offset] = Record(key)

    def trimmed(self, shard: int, first: int) -> None:
        for (of_shard, offset), record in self.records.items():
            if of_shard == shard and offset < first and not record.fate:
                record.is_lost = True

    def handed(self, place: Place, hold: int, for_ms: int, *, is_doomed: bool) -> None:
        record = self._open(place, "handed out")
        if record.hold:
            held_ms = (self.loop.now - record.since_us) / 1000
            if held_ms < record.for_ms * EARLY / 1000 - 2:
                raise Violation(
                    "3", f"{place} was handed out again after {held_ms:.0f} of {record.for_ms} ms"
                )
        if not is_doomed:
            record.handed += 1
            if record.is_rejected:
                raise Violation("5", f"{place} was handed out after it was rejected")
            if record.handed > self.max_attempts:
                raise Violation("5", f"{place} was handed out {record.handed} times")
            self._check_keys(place, record)
        record.hold, record.since_us, record.for_ms = hold, self.loop.now, for_ms
        self._say(place, f"handed out under hold {hold} for {for_ms} ms", record)

    def extended(self, place: Place, hold: int, for_ms: int) -> None:
        record = self._held(place, hold, "extended")
        record.since_us, record.for_ms = self.loop.now, for_ms
        self._say(place, f"hold {hold} goes on for {for_ms} ms", record)

    def given_back(self, place: Place, hold: int, *, is_counted: bool = True) -> None:
        record = self._held(place, hold, "given back")
        record.hold = 0
        record.handed -= not is_counted
        self._say(place, f"given back under hold {hold}", record)

    def acknowledged(self, place: Place, hold: int, *, is_over: bool) -> None:
        record = self._held(place, hold, "acknowledged")
        if is_over:
            raise Violation("2", f"{place} was acknowledged by one whose time was over")
        if record.is_buried:
            raise Violation("1", f"{place} was acknowledged, and is in the dead stream")
        record.fate = "acknowledged"
        self._say(place, f"acknowledged under hold {hold}", record)

    def rejected(self, places: Sequence[Place]) -> None:
        for place in places:
            self.records[place].is_rejected = True

    def buried(self, places: Sequence[Place]) -> None:
        for place in places:
            record = self.records[place]
            if record.fate == "acknowledged":
                raise Violation("1", f"{place} went to the dead stream, and was acknowledged")
            if record.is_buried:
                raise Violation("1", f"{place} went to the dead stream twice")
            record.is_buried = True

    def died(self, place: Place, hold: int) -> None:
        record = self._held(place, hold, "dead")
        if not record.is_buried:
            raise Violation("1", f"{place} is dead, and is not in the dead stream")
        record.fate = "dead"
        self._say(place, f"dead under hold {hold}", record)

    def left(self, shards: set[int]) -> list[Place]:
        """Records that are neither settled nor taken by retention."""
        return [
            place
            for place, record in self.records.items()
            if place[0] in shards and not record.fate and not record.is_lost
        ]

    def _say(self, place: Place, what: str, record: Record) -> None:
        self.history.counts[what.split(" ", maxsplit=1)[0]] += 1
        if self.history.is_traced:
            self.history.say(f"{place[0]}:{place[1]}", f"{what}, key {record.key}")

    def _open(self, place: Place, what: str) -> Record:
        record = self.records.get(place)
        if record is None:
            raise Violation("1", f"{place} was {what}, and never appended")
        if record.fate:
            raise Violation("1", f"{place} was {what}, and is {record.fate}")
        return record

    def _held(self, place: Place, hold: int, what: str) -> Record:
        record = self._open(place, what)
        if record.hold != hold:
            raise Violation("2", f"{place} was {what} under hold {hold}, and is under {record.hold}")
        return record

    def _check_keys(self, place: Place, record: Record) -> None:
        if not self.key_ordered:
            return
        shard, offset = place
        if record.key:
            for other in range(offset):
                earlier = self.records[shard, other]
                if earlier.key == record.key and not earlier.fate and not earlier.is_lost:
                    raise Violation("4", f"{place} came before offset {other} of its key was settled")
        for parent in self.parents.get(shard, ()):
            if open_ones := self.left({parent}):
                raise Violation("4", f"{place} came before {open_ones[0]} of its parent was settled")
