"""What the processes of the scenarios do. They report what was acknowledged, and end by themselves."""

import random
import time
from collections import deque
from typing import Final

import shoal
from shoal.testing.history import Ack, Mark, Stored
from shoal.testing.workers import Report
from tests.crash.victims import change_shards

STREAM: Final = "orders"
OWN_KEYS: Final = 6
SHARED_KEYS: Final = 3
TIME_MAX_S: Final = 60.0


def write_by_key(report: Report, url: str, writer: str, seed: int, upto_version: int) -> None:
    """Send keys of its own and keys of everybody, until the shards have changed often enough."""
    chance = random.Random(seed)
    keys = [f"{writer}.{i}".encode() for i in range(OWN_KEYS)]
    keys += [f"everybody.{i}".encode() for i in range(SHARED_KEYS)]
    numbers = dict.fromkeys(keys, 0)
    under_way: deque[tuple[bytes, int, int, shoal.SendFuture]] = deque()
    deadline = time.monotonic() + TIME_MAX_S

    def settle() -> Ack:
        key, number, began_ns, future = under_way.popleft()
        at = future.result(timeout=TIME_MAX_S)
        return Ack(writer, key, number, at.shard, at.offset, began_ns, time.monotonic_ns())

    with shoal.connect(url) as hub, hub.producer(STREAM, linger_s=chance.choice([0.0, 0.002])) as producer:
        while hub.describe_stream(STREAM).version < upto_version:
            assert time.monotonic() < deadline, "the shards did not change as often as they should"
            for _ in range(50):
                key = chance.choice(keys)
                began_ns = time.monotonic_ns()
                future = producer.send(Mark.single(writer, numbers[key]).value(), key=key)
                under_way.append((key, numbers[key], began_ns, future))
                numbers[key] += 1
            report([settle() for _ in range(len(under_way) - chance.choice([0, 10, 40]))])
        report([settle() for _ in range(len(under_way))])


def change_until(report: Report, url: str, seed: int, upto_version: int) -> None:
    """Split, merge and reshard at random, so often."""
    chance = random.Random(seed)
    with shoal.connect(url) as hub:
        while hub.describe_stream(STREAM).version < upto_version:
            report(change_shards(hub, STREAM, chance))
            time.sleep(chance.uniform(0.01, 0.05))  # A pace, so that each map sees some appends.


class Follower:
    """Reads a stream while it is written, as an in-order group would: a shard after all its parents."""

    def __init__(self, hub: shoal.Hub, stream: str) -> None:
        self.stored: list[Stored] = []
        self._hub = hub
        self._stream = stream
        self._offsets: dict[int, int] = {}
        self._ended: set[int] = set()

    def advance(self) -> bool:
        """Read on in every shard that may be read; False if there was nothing new, not even a shard."""
        before = len(self.stored), len(self._ended)
        for shard in self._hub.describe_stream(self._stream).shards:
            if shard.id in self._ended or not self._ended.issuperset(shard.parents):
                continue
            batch = self._hub.read(self._stream, shard.id, self._offsets.get(shard.id, 0))
            for record in batch:
                assert record.key is not None
                self.stored.append(Stored(record.key, Mark.of(record.value), shard.id, record.offset))
            self._offsets[shard.id] = batch.next_offset
            if batch.end_of_shard:
                self._ended.add(shard.id)
        return before != (len(self.stored), len(self._ended))
