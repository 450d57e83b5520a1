"""Producers that crash, retry and pause, with late packets and lost answers, hubs that restart, stores that
are busy, under expansions 2→4→3→7→1.

Everything that decides is the real thing: `core/sending` in every producer, `core/appending`, `numbering` and
`resharding` in the log. Some producers have names and number their records, and are opened anew after a
crash, while the former life may go on; some are strict without a name; some are best-tried, with an outbox.

Checked at every append (`producing_log`): nothing is stored twice; of a key, nothing that kept its place
comes before what was sent earlier, or lies in a shard that does not own it. Of every failure, that it was
due. In the end, with the faults over, all is settled, what was acknowledged is there, and is read in order.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from shoal.core.errors import (
    DeliveryTimeout,
    OutOfSequence,
    ProducerFenced,
    ShoalError,
    StoreBusy,
    StoreUnavailable,
)
from shoal.core.limits import PRODUCER_WINDOW
from shoal.core.model import Appended, ProducerStamp, ShardId
from shoal.core.numbering import Stored
from shoal.core.parcels import Parcel, SendingRules, Settled, merged
from shoal.core.ring import LOGICAL_PARTITIONS, PARTITION_SIZE
from shoal.core.routing import ShardMap
from shoal.core.sending import Sending
from sim.producing_bugs import BUGS, OF_THE_SENDER
from sim.producing_log import Batch, Broken, Log, Record

__all__ = ["BUGS", "Broken", "World"]

KEYS: Final = 5
RECORDS: Final = 60
STEPS: Final = 700
RESHARDS: Final = (4, 3, 7, 1, 2)
RULES: Final = SendingRules(
    retry_first_s=0.02, retry_most_s=1.0, delivery_timeout_s=12.0, max_attempts=4, calls_max=3
)


class Kind(Enum):
    """What a producer is like."""

    NUMBERED = auto()
    STRICT = auto()
    BEST_TRIED = auto()


class Box(Parcel):
    """A batch of a simulated producer."""

    __slots__ = ("is_of_numbers", "records")

    def __init__(self, shard: ShardId, kind: Kind, began_s: float) -> None:
        super().__init__(shard, is_strict=kind is not Kind.BEST_TRIED, began_s=began_s)
        self.records: list[Record] = []
        self.is_of_numbers = kind is Kind.NUMBERED
        self.size = 1

    def __len__(self) -> int:
        return len(self.records)

    @property
    def is_numbered(self) -> bool:
        return self.is_of_numbers


@dataclass(slots=True, eq=False)
class Flight:
    """A call on its way."""

    boxes: list[Box]
    batches: tuple[Batch, ...]


@dataclass(slots=True, eq=False)
class Client:
    """One life of a producer, as its process knows it."""

    name: str
    kind: Kind
    epoch: int
    stored: Stored
    sending: Sending[Box]
    next_number: int = 0
    given_s: dict[int, float] = field(default_factory=dict)
    failures: Counter[int] = field(default_factory=Counter)
    """By record, when it was sent, and its failed attempts: what the checkers count for themselves."""
    has_doubts: bool = False
    """Something was given up, and may come yet."""
    flights: list[Flight] = field(default_factory=list)
    is_over: bool = False


class World:
    """One history from a seed."""

    def __init__(self, seed: int, bug: str | None = None) -> None:
        self._chance = random.Random(seed)
        self._bug = bug
        self._machine: type[Sending[Box]] = OF_THE_SENDER.get(bug or "", Sending)
        self.log = Log(bug)
        self._now_s = 1.0
        self._born = 0
        self._clients = [
            *(self._client(Kind.NUMBERED, f"till-{i}") for i in range(2)),
            *(self._client(Kind.STRICT) for _ in range(2)),
            *(self._client(Kind.BEST_TRIED) for _ in range(2)),
        ]
        self._zombies: list[Client] = []
        self._late: list[tuple[Batch, ...]] = []
        """Packets that are still on their way, whatever became of who sent them."""
        self._reshards = 0
        self.figures = dict.fromkeys(
            ("retried", "moved", "held", "reordered", "lives", "given_up", "reshards"), 0
        )

    def _client(self, kind: Kind, name: str | None = None) -> Client:
        self._born += 1
        called = name or f"~{kind.name.lower()}-{self._born}"
        epoch, stored = (0, Stored()) if name is None else self.log.open(name)
        self.log.story(called)
        return Client(called, kind, epoch, stored, self._machine(ShardMap.of(self.log.stream), RULES))

    def run(self) -> None:
        """Faults for a while, then none; then everything must be settled, and be there."""
        for _ in range(STEPS):
            self._step()
        self._zombies.clear()
        self._late.clear()
        for _ in range(40 * RECORDS):
            if all(client.next_number == RECORDS and not client.sending for client in self._clients):
                break
            self._now_s += 0.3
            for client in list(self._clients):
                self._feed(client)
                self._act(client)
                for flight in list(client.flights):
                    self._land(client, flight, self.log.append(flight.batches))
        for client in self._clients:
            if client.sending or client.next_number < RECORDS:
                raise Broken(f"{client.name} does not come to an end")
            story = self.log.story(client.name)
            unsettled = set(range(RECORDS)) - story.acknowledged - story.given_up - story.aside
            if client.kind is not Kind.NUMBERED and unsettled:
                raise Broken(f"{client.name}: nobody knows what became of {sorted(unsettled)}")
            if client.kind is Kind.NUMBERED and len(story.stored) < RECORDS:
                raise Broken(f"{client.name}: {sorted(set(range(RECORDS)) - set(story.stored))} are missing")
        self.log.check_reading()

    def _step(self) -> None:
        chance = self._chance
        self._now_s += chance.choice((0.001, 0.02, 0.1, 0.4))
        client = chance.choice([*self._clients, *self._zombies])
        match chance.choices(range(9), (30, 40, 40, 8, 3, 4, 4, 2, 1))[0]:
            case 0:
                self._feed(client)
            case 1:
                self._act(client)
            case 2:
                self._arrive(client)
            case 3 if self._late:
                self.log.append(self._late.pop(chance.randrange(len(self._late))))
            case 4:
                self._crash(client)
            case 5:
                self.log.reshard(RESHARDS[self._reshards % len(RESHARDS)])
                self._reshards += 1
                self.figures["reshards"] += 1
            case 6 if chance.random() < 0.5:
                client.sending.hear(self.log.stream)
            case 6:
                # A map is announced. It comes, perhaps, and is heard of, or not.
                self.figures["held"] += client.sending.hold(self._now_s, chance.choice((0.3, 3.0)))
            case 7:
                self._restart_hub()
            case 8:
                self._now_s += chance.choice((2.0, 7.0))  # Everyone stands still, or the store is away.
                if client.sending.is_quiet and client.kind is Kind.STRICT and not self._late:
                    self.log.forget(client.name)

    def _feed(self, client: Client) -> None:
        """Some more records. What an earlier life has stored is left out."""
        if client.is_over:
            return
        story = self.log.story(client.name)
        open_boxes: dict[ShardId, Box] = {}
        for _ in range(self._chance.randint(0, 5)):
            if client.next_number >= RECORDS:
                return
            number, client.next_number = client.next_number, client.next_number + 1
            place = _place_of(client.name, number % KEYS)
            sent = story.sent.setdefault(place, [])
            if number not in sent:
                sent.append(number)
            if not client.stored.has(place, number):
                client.given_s[number] = self._now_s
                self._put(client, (number, place), open_boxes)

    def _put(
        self, client: Client, record: Record, open_boxes: dict[ShardId, Box], parent: Box | None = None
    ) -> None:
        shard = client.sending.shards.shard_at(record[1])
        box = open_boxes.get(shard)
        if box is None or len(box) >= 2 or (parent is not None and not box.is_peer(parent)):
            began_s = self._now_s if parent is None or self._bug == "more_time" else 0.0
            box = open_boxes[shard] = Box(shard, client.kind, began_s)
            client.sending.put(box)
        if parent is not None and self._bug != "more_time":
            box.descends(parent)
        box.records.append(record)

    def _act(self, client: Client) -> None:
        """What the shell does between two answers."""
        sending = client.sending
        if sending.can_follow:
            open_boxes: dict[ShardId, Box] = {}
            lanes = [[(record, box) for box in lane for record in box.records] for lane in sending.follow()]
            self.figures["moved"] += sum(map(len, lanes))
            is_merged = self._bug != "as_they_lie" and client.kind is Kind.NUMBERED
            for record, box in merged(lanes, lambda one: one[0][0] if is_merged else None):
                self._put(client, record, open_boxes, box)
        if sending.wants_life(self._now_s):
            self._live_again(client)
        if client.is_over:
            return
        boxes = sending.take(self._now_s, hurry=True)
        if boxes:
            client.flights.append(Flight(boxes, tuple(_batch(client, box) for box in boxes)))
        for shard in {box.shard for box in boxes}:
            numbers = [
                box.sequence
                for box in sending.everything()
                if box.shard == shard and box.sequence is not None
            ]
            if max(numbers) - min(numbers) >= PRODUCER_WINDOW:
                raise Broken(f"{client.name}: {numbers} of shard {shard} are more than it remembers")

    def _live_again(self, client: Client) -> None:
        self.figures["lives"] += 1
        if client.kind is not Kind.NUMBERED:
            client.epoch += 1
        elif self.log.opened[client.name] != client.epoch:
            error = ProducerFenced(producer=client.name, held=client.epoch, current=client.epoch + 1)
            self._settle(client, client.sending.lifeless(error, self._now_s))
            return
        else:
            client.epoch, _ = self.log.open(client.name)
        client.sending.live()

    def _arrive(self, client: Client) -> None:
        """One of its calls reaches the hub, or not; its answer comes back, or not; or the store is busy."""
        if not client.flights:
            return
        flight = self._chance.choice(client.flights)
        match self._chance.choices(range(4), (70, 12, 8, 10))[0]:
            case 0:
                self._land(client, flight, self.log.append(flight.batches))
            case 1:
                busy = StoreBusy("others have the lock", 0.0)
                self._land(client, flight, [busy] * len(flight.batches))
            case 2:
                self._late.append(flight.batches)  # It arrives some time; it is sent again before.
                self._land(client, flight, [StoreUnavailable("no answer")] * len(flight.batches))
            case _:
                self.log.append(flight.batches)
                self._land(client, flight, [StoreUnavailable("no answer")] * len(flight.batches))

    def _restart_hub(self) -> None:
        """Whatever is on its way there: each call was carried out, or was not."""
        for client in [*self._clients, *self._zombies]:
            for flight in list(client.flights):
                if self._chance.random() < 0.5:
                    self.log.append(flight.batches)
                self._land(client, flight, [StoreUnavailable("restarted")] * len(flight.batches))

    def _land(self, client: Client, flight: Flight, answers: Sequence[Appended | ShoalError]) -> None:
        client.flights.remove(flight)
        for box, answer in zip(flight.boxes, answers, strict=True):
            if isinstance(answer, StoreBusy | StoreUnavailable):
                client.failures.update(_numbers(box))
        settled = client.sending.answered(flight.boxes, answers, self._now_s, self._chance.random())
        self._settle(client, settled)
        left = set(client.sending.everything())
        for box, answer in zip(flight.boxes, answers, strict=True):
            if box in left and isinstance(answer, StoreBusy | StoreUnavailable):
                self._check_going_on(client, box)

    def _check_going_on(self, client: Client, box: Box) -> None:
        """An attempt has failed, and there is to be another."""
        age_s, failures = self._age_s(client, box), _failures(client, box)
        if age_s > RULES.delivery_timeout_s:
            raise Broken(f"{client.name}: still tried after {age_s:.1f} s")
        if not box.is_strict and failures >= RULES.max_attempts:
            raise Broken(f"{client.name}: still tried after {failures} attempts")

    def _settle(self, client: Client, settled: Settled[Box]) -> None:
        story = self.log.story(client.name)
        self.figures["retried"] += settled.retried is not None
        for box, _ in settled.stored:
            story.acknowledged |= _numbers(box)
        for box in settled.rerouted:
            story.displaced |= _numbers(box)
            self.figures["reordered"] += len(box)
        for box, error in settled.failed:
            self._check_failure(client, box, error)
            story.given_up |= _numbers(box)
            self.figures["given_up"] += len(box)
        for box, _ in settled.aside:
            failures = _failures(client, box)
            if failures < RULES.max_attempts and not self._is_late(client, box) and not client.has_doubts:
                raise Broken(f"{client.name}: set aside after {failures} attempts")
            client.has_doubts = True
            story.displaced |= _numbers(box)
            story.aside |= _numbers(box)
            self.figures["reordered"] += len(box)
        if settled.fatal is not None:
            client.is_over = True
            if client in self._clients:
                self._succeed(client)

    def _check_failure(self, client: Client, box: Box, error: ShoalError) -> None:
        match error:
            case DeliveryTimeout() if client.kind is not Kind.NUMBERED and not self._is_late(client, box):
                raise Broken(f"{client.name}: given up after {self._age_s(client, box):.2f} s")
            case DeliveryTimeout():
                client.has_doubts = True
            case OutOfSequence() if client.name in self.log.forgotten or client.has_doubts:
                pass  # An attempt had no answer, and now the log cannot say.
            case ProducerFenced() if client.kind is Kind.NUMBERED:
                pass
            case _:
                raise Broken(f"{client.name}: failed for {error}") from error

    def _is_late(self, client: Client, box: Box) -> bool:
        return self._age_s(client, box) + RULES.retry_most_s > RULES.delivery_timeout_s

    def _age_s(self, client: Client, box: Box) -> float:
        """Of the record in it that was sent first."""
        return self._now_s - min(client.given_s[number] for number in _numbers(box))

    def _crash(self, client: Client) -> None:
        """Or a pause, and someone starts another in its place; without a name, it is another one then."""
        if client not in self._clients or (client.kind is not Kind.NUMBERED and self._chance.random() < 0.7):
            return
        for flight in client.flights:
            if self._chance.random() < 0.5:
                self._late.append(flight.batches)
        if client.kind is Kind.NUMBERED and self._chance.random() < 0.5:
            self._zombies.append(client)
        self._succeed(client)

    def _succeed(self, client: Client) -> None:
        name = client.name if client.kind is Kind.NUMBERED else None
        self._clients[self._clients.index(client)] = self._client(client.kind, name)


def _numbers(box: Box) -> set[int]:
    return {number for number, _ in box.records}


def _failures(client: Client, box: Box) -> int:
    return max(client.failures[number] for number in _numbers(box))


def _batch(client: Client, box: Box) -> Batch:
    assert box.sequence is not None
    stamp = ProducerStamp(
        producer=client.name,
        epoch=client.epoch,
        sequence=box.sequence,
        number=max(_numbers(box)) if box.is_of_numbers else None,
    )
    return Batch(box.shard, stamp, tuple(box.records))


def _place_of(name: str, key: int) -> int:
    """Somewhere on the ring, the same for every life."""
    return random.Random(f"{name}/{key}").randrange(LOGICAL_PARTITIONS) * PARTITION_SIZE
