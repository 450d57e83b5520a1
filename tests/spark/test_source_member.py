"""Spark applications and plain workers as members of one group."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import psutil
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import shoal
from shoal.core.errors import DrainFailed
from shoal.spark import drain, keep_running, reason


@pytest.fixture
def hub(sqlite_url: str) -> Iterator[shoal.Hub]:
    with shoal.connect(sqlite_url) as hub:
        yield hub


class Seen:
    """Which records reached user code, and how often. Writer: several threads."""

    def __init__(self) -> None:
        self.places: Counter[tuple[int, int]] = Counter()
        self._lock = Lock()

    def batch(self, frame: DataFrame, _: int) -> None:
        rows = frame.select("shard", "offset").collect()
        with self._lock:
            self.places.update((row.shard, row.offset) for row in rows)

    def process(self, batch: shoal.Batch, checkpointer: Any) -> None:
        with self._lock:
            self.places.update((batch.shard, record.offset) for record in batch)
        checkpointer.save()


class Losing(Seen):
    """Loses the shard of its first record within a batch, so often: after it was planned, before it is read.
    When the batch is run again, there is more to do."""

    def __init__(self, hub: shoal.Hub, times: int) -> None:
        super().__init__()
        self._hub, self._times = hub, times
        self._batch: int | None = None
        self.skipped: set[tuple[int, int]] = set()

    def batch(self, frame: DataFrame, number: int) -> None:
        is_repeated = number == self._batch
        first = frame.select("shard", "offset").first() if self._times and not is_repeated else None
        if first is not None:
            self._hub.checkpoint("orders", "billing", first.shard, first.offset + 1, force=True)
            self.skipped.add((first.shard, first.offset))
            self._times, self._batch = self._times - 1, number
        super().batch(frame, number)
        if is_repeated:
            for shard in (0, 1):
                self._hub.append("orders", shard, [b"x"] * 5)


@pytest.fixture
def start(spark: SparkSession, sqlite_url: str, tmp_path: Path) -> Iterator[Callable[..., StreamingQuery]]:
    begun: list[StreamingQuery] = []

    def begin(seen: Seen, name: str, *, now: bool = False) -> StreamingQuery:
        reader = spark.readStream.format("shoal").option("hub", sqlite_url).option("stream", "orders")
        reader = reader.option("group", "billing").option("member", "true").option("memberName", name)
        writer = reader.load().writeStream.foreachBatch(seen.batch)
        if now:
            writer = writer.trigger(availableNow=True)
        begun.append(writer.option("checkpointLocation", str(tmp_path / name)).start())
        return begun[-1]

    yield begin
    for query in begun:
        with suppress(PySparkException):
            query.stop()


def until(condition: Callable[[], bool], what: str, within: float = 90.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_applications_and_a_worker_divide_the_shards_through_joins_stops_and_kills(
    hub: shoal.Hub, start: Callable[..., StreamingQuery]
) -> None:
    hub.create_stream("orders", shards=6)
    hub.create_group("orders", "billing", timeout=6.0)
    seen = Seen()
    sent = 0

    def send() -> None:
        nonlocal sent
        for shard in range(6):
            hub.append("orders", shard, [b"x"] * 10)
        sent += 60

    def held() -> dict[str | None, int]:
        return dict(Counter(shard.owner for shard in hub.describe_group("orders", "billing").shards))

    def done() -> bool:
        return hub.describe_group("orders", "billing").lag == 0

    send()
    one = start(seen, "one")
    until(lambda: held() == {"one": 6}, "one holds all")
    send()
    two = start(seen, "two")
    until(lambda: held() == {"one": 3, "two": 3}, "two has its half")
    send()
    worker = shoal.Worker(hub, "orders", "billing", seen.process, name="worker").start()
    until(lambda: held() == {"one": 2, "two": 2, "worker": 2}, "the worker has its third")
    send()
    until(done, "all is done")

    drain(one, hub)

    assert not one.isActive
    until(lambda: held() == {"two": 3, "worker": 3}, "the others have its shards")
    send()
    until(done, "all is done")
    assert set(seen.places.values()) == {1}, "planned moves repeat nothing"
    assert seen.places.total() == sent, "and lose nothing"

    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "python_streaming_source_runner" in " ".join(process.cmdline()):
                process.kill()  # The one of `two`: that of `one` is gone.
    with pytest.raises(PySparkException):
        two.awaitTermination(60)
    with pytest.raises(DrainFailed) as failed:
        drain(two, hub)
    assert failed.value.member == "two"
    send()
    until(lambda: held() == {"worker": 6}, "the dead one's shards come free")
    until(done, "all is done")
    assert len(seen.places) == sent, "nothing is lost"
    worker.stop()


@pytest.mark.parametrize("coordination", ["coordinated", "leased"])
def test_the_only_member_of_a_group_is_drained(
    hub: shoal.Hub, start: Callable[..., StreamingQuery], coordination: str
) -> None:
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=30.0, coordination=coordination)
    seen = Seen()
    for shard in (0, 1):
        hub.append("orders", shard, [b"x"] * 5)
    query = start(seen, "one")
    until(lambda: seen.places.total() == 10, "all of it")

    drain(query, hub, timeout=20)

    assert not query.isActive
    described = hub.describe_group("orders", "billing")
    assert [(shard.owner, int(shard.checkpoint)) for shard in described.shards] == [(None, 5), (None, 5)]


def test_a_leased_query_that_is_never_idle_is_drained(
    hub: shoal.Hub, start: Callable[..., StreamingQuery]
) -> None:
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=60.0, coordination="leased")
    seen = Seen()
    enough = Event()

    def feed() -> None:
        while not enough.wait(0.01):
            for shard in (0, 1):
                hub.append("orders", shard, [b"x"])

    feeder = Thread(target=feed)
    feeder.start()
    try:
        query = start(seen, "one")
        until(lambda: len(query.recentProgress) > 2, "it is at work")
        drain(query, hub, timeout=60)
    finally:
        enough.set()
        feeder.join()

    assert not query.isActive
    described = hub.describe_group("orders", "billing")
    assert {shard.owner for shard in described.shards} == {None}, "handed over, long before the timeout"
    assert set(seen.places.values()) == {1}
    assert {(int(shard.id), int(shard.checkpoint)) for shard in described.shards} == {
        (number, max(offset for shard, offset in seen.places if shard == number) + 1) for number in (0, 1)
    }, "all that was read is done, and no more"


def test_a_query_that_loses_shards_within_batches_is_begun_again_and_repeats_nothing_else(
    hub: shoal.Hub, start: Callable[..., StreamingQuery]
) -> None:
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=5.0)
    for shard in (0, 1):
        hub.append("orders", shard, [b"x"] * 5)
    seen = Losing(hub, times=2)
    begun: list[StreamingQuery] = []

    def begin() -> StreamingQuery:
        begun.append(start(seen, "one", now=len(begun) == 2))
        return begun[-1]

    keep_running(begin, losses_max=1)  # In a row: it has worked between them.

    assert len(begun) == 3, "a fenced task fails, and ends the query"
    assert len(seen.skipped) == 2
    there = {(shard, offset) for shard in (0, 1) for offset in range(10)}
    assert {place for place in there if seen.places[place] != 1} == seen.skipped
    assert not any(seen.places[place] for place in seen.skipped), "the group was set behind them"


def test_a_query_that_loses_its_shard_again_and_again_ends(
    hub: shoal.Hub, start: Callable[..., StreamingQuery]
) -> None:
    hub.create_stream("orders", shards=1)
    hub.create_group("orders", "billing", timeout=5.0)
    hub.append("orders", 0, [b"x"] * 5)
    seen = Losing(hub, times=1)
    with pytest.raises(PySparkException) as caught:
        keep_running(lambda: start(seen, "one"), losses_max=0)
    assert reason(caught.value).startswith(("Fenced:", "NotOwner:"))


def test_a_member_that_lost_a_shard_goes_on_with_the_others(
    hub: shoal.Hub, start: Callable[..., StreamingQuery]
) -> None:
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=10.0)
    seen = Seen()
    for shard in (0, 1):
        hub.append("orders", shard, [b"x"] * 5)
    query = start(seen, "one")
    until(lambda: hub.describe_group("orders", "billing").lag == 0, "all is done")
    hub.reset_group("orders", "billing", to={0: 2})  # Ends its lease, and begins anew at another place.
    until(lambda: seen.places[0, 4] == 2, "it came back, from the group's checkpoint on")
    until(lambda: hub.describe_group("orders", "billing").lag == 0, "all is done")
    assert query.isActive
    assert [seen.places[0, offset] for offset in range(5)] == [1, 1, 2, 2, 2]
    hub.delete_group("orders", "billing", force=True)
    with pytest.raises(PySparkException) as caught:
        query.awaitTermination(60)
    assert "has no such group" in reason(caught.value)
