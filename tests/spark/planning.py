"""Does with a source what Spark's driver does, in this process: for tests without a JVM."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import shoal
from shoal.core.checkpoint import Checkpoint
from shoal.spark.stream_reader import EVERYTHING, ShoalStreamReader
from shoal.wire.lanes import lanes_of

ALL = EVERYTHING


class Driver:
    """Does what Spark's driver does with a source, one batch at a time."""

    def __init__(self, reader: ShoalStreamReader, start: dict[str, Any] | None = None) -> None:
        self.reader = reader
        self.start = reader.initialOffset() if start is None else start
        self.end = self.start
        self.rows: list[tuple[int, int]] = []

    def plan(self, limit: Any = ALL) -> bool:
        """Ask for the next batch; whether there is one."""
        self.end = self.reader.latestOffset(self.start, limit)
        return self.end != self.start

    def plan_all(self, shards: int) -> None:
        """Ask until the next batch is of so many shards. None is run meanwhile."""
        deadline = time.monotonic() + 20
        while not self.plan() or len(self.end["batch"]) < shards:
            assert time.monotonic() < deadline, self.end

    def plan_until(self, condition: Callable[[], bool]) -> None:
        """Ask for the next batch until it is so. None is run meanwhile."""
        deadline = time.monotonic() + 20
        while not self.plan() or not condition():
            assert time.monotonic() < deadline, self.end

    def run(self) -> None:
        """Run the batch that was planned. If a task fails, nothing of it counts, and it is planned anew."""
        rows: list[tuple[int, int]] = []
        for partition in self.reader.partitions(self.start, self.end):
            for batch in self.reader.read(partition):
                places = (batch.column(name).to_pylist() for name in ("shard", "offset"))
                rows += list(zip(*places, strict=True))
        self.rows += rows
        self.start = self.end

    def drive(self, condition: Callable[[], bool], within: float = 20.0) -> None:
        """Batch after batch, until it is so."""
        deadline = time.monotonic() + within
        while not condition():
            assert time.monotonic() < deadline, f"{len(self.rows)} rows: {sorted(self.rows)[:50]}"
            if self.plan():
                self.run()


def held(hub: shoal.Hub) -> dict[str | None, int]:
    found: dict[str | None, int] = {}
    for shard in hub.describe_group("orders", "billing").shards:
        found[shard.owner] = found.get(shard.owner, 0) + 1
    return found


def fill(hub: shoal.Hub, shards: int, records: int) -> None:
    for shard in range(shards):
        hub.append("orders", shard, [b"x"] * records)


def done_in_lanes(hub: shoal.Hub, *, in_order: bool = True) -> set[int]:
    """A worker of two lanes hands over: one has done all, the other nothing. The 40 records that are left."""
    hub.create_stream("orders", shards=1)
    hub.create_group("orders", "billing", timeout=2.0, in_order=in_order)
    with hub.producer("orders") as producer:
        for number in range(40):
            producer.send(b"%d" % number, key=f"k{number % 8}")
    with hub.join_group("orders", "billing", "worker") as worker:
        deadline = time.monotonic() + 10
        while not worker.leases:
            worker.wait(0, 0.2)
            assert time.monotonic() < deadline
        slow, quick = lanes_of(hub.read("orders", 0, 0), 2)
        worker.release({0: Checkpoint(min(slow), [(0, 40)])})
    assert set(slow) | set(quick) == set(range(40))
    assert 10 < len(slow) < 30
    return set(slow)
