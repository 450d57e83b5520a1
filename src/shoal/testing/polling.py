"""Poll loops for tests of consumers: they poll until enough has come, or until something holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from shoal import Consumer, Hub, RebalanceListener, StreamShard
from shoal.testing.members import PATIENCE_S


def numbers(consumer: Consumer, count: int, within_s: float = PATIENCE_S) -> list[int]:
    """Poll until so many records came; their values, which are numbers, in order."""
    found: list[int] = []
    until_s = time.monotonic() + within_s
    while len(found) < count:
        assert time.monotonic() < until_s, f"{len(found)} of {count} records within {within_s:g} s"
        for batch in consumer.poll(0.2):
            found += [int(record.value) for record in batch]
    return found


def polled_until(
    consumers: Iterable[Consumer], condition: Callable[[], bool], what: str, within_s: float = PATIENCE_S
) -> list[int]:
    """Poll all of them in turn until it holds; the values that came meanwhile."""
    found: list[int] = []
    until_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until_s, f"not within {within_s:g} s: {what}"
        for consumer in consumers:
            for batch in consumer.poll(0.01):
                found += [int(record.value) for record in batch]
    return found


def assigned(consumer: Consumer, shards: Iterable[int], among: Iterable[Consumer] = ()) -> list[int]:
    """Poll until a consumer has exactly these shards of its only stream."""
    wanted = sorted(shards)
    return polled_until(
        [consumer, *among],
        lambda: [place.shard for place in consumer.assignment] == wanted,
        f"{consumer.name} has {wanted}, but has {consumer.assignment}",
    )


def append_to_all(hub: Hub, stream: str, values: Iterable[int]) -> None:
    """Records whose values are these numbers, dealt out to all open shards."""
    shards = [shard.id for shard in hub.describe_stream(stream).open_shards]
    by_shard: dict[int, list[Any]] = {}
    for place, value in enumerate(values):
        by_shard.setdefault(shards[place % len(shards)], []).append(b"%d" % value)
    for shard, mine in by_shard.items():
        hub.append(stream, shard, mine)


class Listening(RebalanceListener):
    """Writes down what it is told, and does what it is given to do."""

    def __init__(
        self,
        on_assigned: Callable[[StreamShard], object] | None = None,
        on_revoked: Callable[[StreamShard], object] | None = None,
    ) -> None:
        self.told: list[tuple[str, int]] = []
        self._on_assigned, self._on_revoked = on_assigned, on_revoked

    def on_assigned(self, shards: Iterable[StreamShard]) -> None:
        for place in shards:
            self.told.append(("assigned", place.shard))
            if self._on_assigned is not None:
                self._on_assigned(place)

    def on_revoked(self, shards: Iterable[StreamShard]) -> None:
        for place in shards:
            self.told.append(("revoked", place.shard))
            if self._on_revoked is not None:
                self._on_revoked(place)

    def on_lost(self, shards: Iterable[StreamShard]) -> None:
        self.told += [("lost", place.shard) for place in shards]
