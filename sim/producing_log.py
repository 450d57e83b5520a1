"""The log of a simulated world of producers: the real rules (`core/appending`, `numbering`, `resharding`).

And what must hold of every record that is stored, checked with no code of the rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from shoal.core.appending import Closed, Offer, ProducerState, Refuse, Repeat, ShardTail, Store, decide
from shoal.core.errors import ShardClosed, ShoalError
from shoal.core.model import (
    Appended,
    ProducerStamp,
    Shard,
    ShardId,
    ShardStatus,
    StreamInfo,
    StreamName,
    StreamSettings,
)
from shoal.core.numbering import Stored
from shoal.core.resharding import first_shards, reshard
from shoal.core.ring import RING_SIZE

Record = tuple[int, int]
"""The sender's number, and the place of its key on the ring."""


class Broken(AssertionError):
    """What must always hold does not."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some records for one shard, on the wire."""

    shard: ShardId
    stamp: ProducerStamp
    records: tuple[Record, ...]


@dataclass(slots=True)
class Story:
    """What one producer has sent and what became of it, as its user knows."""

    name: str
    sent: dict[int, list[int]] = field(default_factory=dict)
    """By the key's place, in the order of sending."""
    given_up: set[int] = field(default_factory=set)
    """Their futures failed."""
    displaced: set[int] = field(default_factory=set)
    """Counted as reordered."""
    aside: set[int] = field(default_factory=set)
    """Of those, the ones that the outbox has."""
    acknowledged: set[int] = field(default_factory=set)
    stored: dict[int, int] = field(default_factory=dict)
    """Where each is."""


class Log:
    """Shards, what they know of producers, and every record in the order in which it was stored."""

    def __init__(self, bug: str | None) -> None:
        self.bug = bug
        self.shards: tuple[Shard, ...] = first_shards(2, 0)
        self.contents: dict[ShardId, list[tuple[str, Record]]] = {}
        self.version = 1
        self.known: dict[tuple[ShardId, str], ProducerState] = {}
        self.opened: dict[str, int] = {}
        self.epochs = 0
        self.stories: dict[str, Story] = {}
        self.forgotten: set[str] = set()
        self._appends = 0

    @property
    def stream(self) -> StreamInfo:
        return StreamInfo(
            full_name=StreamName("default", "orders"),
            id=1,
            version=self.version,
            settings=StreamSettings(),
            shards=self.shards,
        )

    def story(self, name: str) -> Story:
        return self.stories.setdefault(name, Story(name))

    def open(self, name: str) -> tuple[int, Stored]:
        """A new life of a name, and what is stored of it."""
        self.epochs += 1
        self.opened[name] = self.epochs
        numbers = {
            shard: state.number
            for (shard, producer), state in self.known.items()
            if producer == name and state.number is not None
        }
        return self.epochs, self._stored(numbers)

    def forget(self, name: str) -> None:
        """It was silent for too long."""
        self.forgotten.add(name)
        for shard, producer in list(self.known):
            if producer == name:
                del self.known[shard, producer]

    def reshard(self, count: int) -> None:
        self.shards = reshard(self.shards, count, 0)
        if self.bug == "gap":
            last = self.shards[-1]
            self.shards = (*self.shards[:-1], replace(last, begin=last.begin + 1))
        self.version += 1
        covered = 0
        for shard in sorted((one for one in self.shards if one.is_open), key=lambda one: one.begin):
            if shard.begin != covered:
                raise Broken(f"the ring is not covered once at {covered}")
            covered = shard.end
        if covered != RING_SIZE:
            raise Broken("the ring is not covered to its end")

    def append(self, batches: Iterable[Batch]) -> list[Appended | ShoalError]:
        return [self._append(batch) for batch in batches]

    def _append(self, batch: Batch) -> Appended | ShoalError:
        shard = self.shards[batch.shard]
        who = (batch.shard, batch.stamp.producer)
        tail = ShardTail(
            shard=shard.id,
            status=shard.status,
            next_offset=shard.next_offset,
            bytes=0,
            appended_ms=0,
            top_timestamp_us=0,
        )
        if self.bug == "closed_before_repeat" and shard.status is not ShardStatus.OPEN:
            return ShardClosed(stream=self.stream, shard=shard.id)
        if self.bug == "closed_takes_more":
            tail = replace(tail, status=ShardStatus.OPEN)
        offer = Offer(records=len(batch.records), stored_bytes=1, top_timestamp_us=0, stamp=batch.stamp)
        opened = -1 if self.bug == "no_fence" else self.opened.get(batch.stamp.producer, -1)
        match decide(tail, self.known.get(who), offer, 0, opened=opened):
            case Store(at=at, tail=grown, producer=state):
                assert state is not None
                self._appends += 1
                if self.bug == "answers_first" and self._appends % 50 == 0:
                    return at
                self.known[who] = state
                self.shards = tuple(
                    replace(one, next_offset=grown.next_offset) if one.id == shard.id else one
                    for one in self.shards
                )
                for record in batch.records:
                    self._note(shard, batch.stamp.producer, record)
                return at
            case Repeat(at=at):
                return at
            case Closed(last_sequence=last):
                return ShardClosed(stream=self.stream, shard=shard.id, last_sequence=last)
            case Refuse(error=error):
                return error

    def _note(self, shard: Shard, name: str, record: Record) -> None:
        number, place = record
        if not shard.is_open:
            raise Broken(f"{name}: {number} landed in the closed shard {shard.id}")
        story = self.story(name)
        if number in story.stored:
            raise Broken(f"{name}: {number} is stored again, in shard {shard.id}")
        story.stored[number] = shard.id
        if number in story.displaced:
            self.contents.setdefault(shard.id, []).append((name, record))
            return
        if not shard.begin <= place < shard.end:
            raise Broken(f"{name}: {number} is in shard {shard.id}, which does not own its key")
        mine = story.sent[place]
        at = mine.index(number)
        for before in mine[:at]:
            if before not in story.stored and before not in story.given_up | story.displaced:
                raise Broken(f"{name}: {number} comes before {before}")
        for after in mine[at + 1 :]:
            if after in story.stored and after not in story.displaced:
                raise Broken(f"{name}: {number} comes after {after}")
        self.contents.setdefault(shard.id, []).append((name, record))

    def _stored(self, numbers: dict[ShardId, int]) -> Stored:
        if self.bug == "own_number_only":
            numbers = {
                shard.id: numbers[shard.id] for shard in self.shards if shard.is_open and shard.id in numbers
            }
        if self.bug == "parents_highest":
            highest: dict[ShardId, int] = {}
            for shard in self.shards:  # Parents come before their children.
                of_it = [numbers.get(shard.id, -1), *(highest[parent] for parent in shard.parents)]
                highest[shard.id] = max(of_it)
            numbers = highest
        return Stored.of(self.shards, numbers)

    def check_reading(self) -> None:
        """Read parents before children: what kept its place is read in the order in which it was sent."""
        read: dict[tuple[str, int], list[int]] = {}
        for shard in sorted(self.contents):
            for name, (number, place) in self.contents[shard]:
                if number not in self.stories[name].displaced:
                    read.setdefault((name, place), []).append(number)
        for (name, place), numbers in read.items():
            order = [number for number in self.stories[name].sent[place] if number in set(numbers)]
            if order != numbers:
                raise Broken(f"{name}: read as {numbers}, sent as {order}")
        for story in self.stories.values():
            if lost := story.acknowledged - set(story.stored):
                raise Broken(f"{story.name}: {sorted(lost)} were acknowledged and are not stored")
