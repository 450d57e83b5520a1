"""The processes that the crash tests kill. Each runs until it is killed, and reports what is acknowledged.

A report is a list of `Ack`, sent after the hub's answer and before the next request, so that what the test
has heard is what a user was told. Not for: deciding when they die, or whether all is well afterwards.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from multiprocessing.connection import Connection, Listener
from typing import Any, TypeVar

import pyarrow as pa

import shoal
from shoal.core.model import KeyHash
from shoal.core.ring import place
from shoal.core.routing import ShardMap
from shoal.testing.history import Ack, Mark
from shoal.testing.workers import Report

STREAM = "story"
KEYS = 4
Answer = TypeVar("Answer")
PRODUCER = shoal.ProducerOptions(linger_s=0.001, retry_most_s=0.1, delivery_timeout_s=60.0)


def connect(report: Report, url: str) -> None:
    """Make the schema, and then streams."""
    report("begun")
    hub = shoal.connect(url)
    while True:
        hub.create_stream(f"s{time.monotonic_ns()}", shards=2)
        report("made one")


def produce(report: Report, url: str, writer: str, seed: int) -> None:
    """A producer with many records under way: one by one, and as tables."""
    chance = random.Random(seed)
    hub = shoal.connect(url)
    producer = hub.producer(STREAM, PRODUCER)
    numbers = dict.fromkeys([f"{writer}.{i}".encode() for i in range(KEYS)], 0)
    under_way: deque[Callable[[], list[Ack]]] = deque()
    while True:
        if chance.random() < 0.8:
            under_way.append(_send(producer, writer, numbers, chance))
        else:
            under_way.append(_send_table(producer, writer, numbers, chance))
        while len(under_way) > chance.randrange(1, 20):
            report(under_way.popleft()())


def append(report: Report, url: str, writer: str, seed: int) -> None:
    """Whole batches of one key through the hub itself, numbered, and repeated until the answer is known."""
    chance = random.Random(seed)
    hub = shoal.connect(url)
    appender = Appender(writer, lambda shard, values, stamp: _append(hub, shard, values, stamp))
    appender.use(hub.describe_stream(STREAM))
    while True:
        report(appender.append(chance))


def hold(report: Report, url: str) -> None:
    """Hold the hub for others: whoever connects gets a producer of their own, all over one hub."""
    hub = shoal.connect(url)
    # Room for all who come at once: one whose last packet finds a full queue believes that it is connected,
    # and if the holder dies then, nothing ever tells it so.
    with Listener(("127.0.0.1", 0), backlog=16, authkey=b"shoal") as listener:
        report(listener.address)
        while True:
            threading.Thread(target=_serve, args=(report, hub, listener.accept()), daemon=True).start()


def reshard(report: Report, url: str, seed: int) -> None:
    """Split, merge and reshard at random."""
    chance = random.Random(seed)
    hub = shoal.connect(url)
    while True:
        report(change_shards(hub, STREAM, chance))
        time.sleep(chance.uniform(0.002, 0.02))  # A pace: faster than any real day, and room for appends.


def change_shards(hub: shoal.Hub, stream: str, chance: random.Random) -> str:
    """One split, merge or reshard that is possible now; says what was done."""
    choice = chance.random()
    try:
        open_shards = hub.describe_stream(stream).open_shards
        place_of = chance.randrange(len(open_shards))
        if choice < 0.2:
            hub.reshard(stream, chance.randrange(1, 7))
            return "reshard"
        if choice < 0.55 and place_of + 1 < len(open_shards):
            hub.merge_shards(stream, open_shards[place_of].id, open_shards[place_of + 1].id)
            return "merge"
        if len(open_shards) < 8:
            hub.split_shard(stream, open_shards[place_of].id)
            return "split"
    except shoal.ShoalError as error:
        if not error.retriable:
            raise
        return f"again later: {type(error).__name__}"
    return "nothing"


class Appender:
    """A client that numbers its batches per shard, so that it may repeat one whose answer was lost.

    `send` appends `values` to a shard and gives the answer, or the new map if the shard is closed; it
    raises if there was no answer.
    """

    def __init__(
        self,
        writer: str,
        send: Callable[[int, list[shoal.Record], shoal.ProducerStamp], Any],
    ) -> None:
        self._writer = writer
        self._send = send
        self._map: ShardMap | None = None
        self._numbers = dict.fromkeys([f"{writer}.{i}".encode() for i in range(KEYS)], 0)
        self._sequences: dict[int, int] = {}

    def use(self, stream: shoal.StreamInfo) -> None:
        """Take a new map."""
        self._map = ShardMap.of(stream)

    def append(self, chance: random.Random) -> list[Ack]:
        """One batch of one key, tried until it is stored."""
        assert self._map is not None
        key = chance.choice(list(self._numbers))
        first, records = self._numbers[key], chance.randrange(1, 6)
        marks = [Mark(self._writer, first + i, first, records) for i in range(records)]
        values = [shoal.Record(0, 1_700_000_000_000, key, mark.value()) for mark in marks]
        where = place(key, KeyHash.XXH64)
        while True:
            shard = self._map.shard_at(where)
            sequence = self._sequences.get(shard, 0)
            stamp = shoal.ProducerStamp(producer=self._writer, epoch=0, sequence=sequence)
            answer = self._send(shard, values, stamp)
            if isinstance(answer, shoal.StreamInfo):
                self.use(answer)
                continue
            self._sequences[shard] = sequence + 1
            self._numbers[key] = first + records
            return [
                Ack(self._writer, key, mark.number, answer.shard, answer.first_offset + i)
                for i, mark in enumerate(marks)
            ]


def _send(
    producer: shoal.Producer, writer: str, numbers: dict[bytes, int], chance: random.Random
) -> Callable[[], list[Ack]]:
    key = chance.choice(list(numbers))
    number = numbers[key]
    numbers[key] += 1
    future = producer.send(Mark.single(writer, number).value(), key=key)

    def wait() -> list[Ack]:
        at = future.result(timeout=90)
        return [Ack(writer, key, number, at.shard, at.offset)]

    return wait


def _send_table(
    producer: shoal.Producer, writer: str, numbers: dict[bytes, int], chance: random.Random
) -> Callable[[], list[Ack]]:
    acks, values = [], []
    for _ in range(chance.randrange(1, 30)):
        key = chance.choice(list(numbers))
        acks.append(Ack(writer, key, numbers[key]))
        values.append(Mark.single(writer, numbers[key]).value())
        numbers[key] += 1
    future = producer.send_batch(pa.table({"key": [ack.key for ack in acks], "value": values}))

    def wait() -> list[Ack]:
        future.result(timeout=90)
        return acks

    return wait


def _append(hub: shoal.Hub, shard: int, values: list[shoal.Record], stamp: shoal.ProducerStamp) -> Any:
    """The answer, or the new map."""
    try:
        return _patiently(lambda: hub.append(STREAM, shard, values, stamp=stamp))
    except shoal.ShardClosed as closed:
        return closed.stream


def _patiently(call: Callable[[], Answer]) -> Answer:
    """While the store is away, the same call is tried again, as its error allows."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return call()
        except shoal.ShoalError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
            time.sleep(0.01)  # The pause of a caller who tries again.


def _serve(report: Report, hub: shoal.Hub, client: Connection) -> None:
    producer = _patiently(lambda: hub.producer(STREAM, PRODUCER))
    with client:
        for served in count():
            try:
                request = client.recv()
            except EOFError:
                return
            answer: Any = None
            match request:
                case ("map",):
                    answer = _patiently(lambda: hub.describe_stream(STREAM))
                case ("send", key, values):
                    futures = [producer.send(value, key=key) for value in values]
                    answer = [future.result(timeout=90) for future in futures]
                case ("append", shard, rows, stamp):
                    records = [shoal.Record(0, 1_700_000_000_000, key, value) for key, value in rows]
                    answer = _append(hub, shard, records, stamp)
            client.send(answer)
            report(served)
