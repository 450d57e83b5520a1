"""Streaming reads: `spark.readStream.format("shoal")`, without and with a group that looks on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import shoal
from shoal.core.errors import InvalidInput
from shoal.spark import drain, reason

Rows = list[tuple[int, int, int, bytes | None, bytes]]


@pytest.fixture
def hub(sqlite_url: str) -> Iterator[shoal.Hub]:
    with shoal.connect(sqlite_url) as hub:
        yield hub


class Sink:
    """Gathers what batches bring: (batch, shard, offset, key, value), in the order that it came."""

    def __init__(self) -> None:
        self.rows: Rows = []

    def __call__(self, frame: DataFrame, batch: int) -> None:
        for row in frame.select("shard", "offset", "key", "value").collect():
            key = None if row.key is None else bytes(row.key)
            self.rows.append((batch, row.shard, row.offset, key, bytes(row.value)))

    @property
    def places(self) -> list[tuple[int, int]]:
        return sorted((shard, offset) for _, shard, offset, _, _ in self.rows)

    @property
    def batches(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for batch, *_ in self.rows:
            found[batch] = found.get(batch, 0) + 1
        return found


@pytest.fixture
def start(spark: SparkSession, sqlite_url: str, checkpoint: str) -> Iterator[Callable[..., StreamingQuery]]:
    begun: list[StreamingQuery] = []

    def begin(
        sink: Callable[[DataFrame, int], None],
        *,
        now: bool = True,
        folder: str = checkpoint,
        every: str | None = None,
        **options: Any,
    ) -> StreamingQuery:
        reader = spark.readStream.format("shoal").option("hub", sqlite_url).option("stream", "orders")
        for name, value in options.items():
            reader = reader.option(name, value)
        writer = reader.load().writeStream.foreachBatch(sink).option("checkpointLocation", folder)
        if now:
            writer = writer.trigger(availableNow=True)
        elif every is not None:
            writer = writer.trigger(processingTime=every)
        begun.append(writer.start())
        return begun[-1]

    yield begin
    for query in begun:
        with suppress(PySparkException):
            query.stop()


def finish(query: StreamingQuery) -> None:
    assert query.awaitTermination(90), "the query did not end"


def failure(query: StreamingQuery) -> str:
    with pytest.raises(PySparkException) as caught:
        query.awaitTermination(90)
    return reason(caught.value)


def until(condition: Callable[[], bool], what: str, within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def source_processes() -> list[psutil.Process]:
    """The processes in which sources of running queries live."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "python_streaming_source_runner" in " ".join(process.cmdline()):
                found.append(process)
    return found


def send(hub: shoal.Hub, numbers: range, keys: int = 20) -> None:
    with hub.producer("orders") as producer:
        for number in numbers:
            producer.send(b"%d" % number, key=f"k{number % keys}")


def all_places(hub: shoal.Hub) -> list[tuple[int, int]]:
    return [
        (int(shard.id), offset)
        for shard in hub.describe_stream("orders").shards
        for offset in range(shard.next_offset)
    ]


def keys_in_order(sink: Sink) -> bool:
    last: dict[bytes | None, int] = {}
    for _, _, _, key, value in sink.rows:
        if int(value) <= last.get(key, -1):
            return False
        last[key] = int(value)
    return True


def test_keys_stay_in_order_across_splits_merges_and_restarts(
    hub: shoal.Hub, start: Callable[..., StreamingQuery]
) -> None:
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing")
    sink = Sink()
    send(hub, range(200))
    hub.split_shard("orders", 0)
    send(hub, range(200, 400))
    hub.merge_shards("orders", 3, 1)
    send(hub, range(400, 600))
    finish(start(sink, group="billing", maxOffsetsPerTrigger=250))
    assert max(sink.batches.values()) <= 250
    hub.split_shard("orders", 4)
    send(hub, range(600, 800))

    finish(start(sink, group="billing", maxOffsetsPerTrigger=250))

    assert sink.places == all_places(hub), "every record once"
    assert keys_in_order(sink)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for batch, number, *_ in sink.rows:
        first.setdefault(number, batch)
        last[number] = batch
    for shard in hub.describe_stream("orders").shards:
        for parent in shard.parents:
            assert last[parent] < first[int(shard.id)], "a child's records come in a later batch"
    seen = hub.describe_group("orders", "billing")
    assert seen.lag == 0, "the group sees the query's progress"
    until(lambda: not hub.describe_group("orders", "billing").members, "the query has left")


def test_a_running_query_sees_what_comes_and_idles_cheaply(
    hub: shoal.Hub, start: Callable[..., StreamingQuery]
) -> None:
    hub.create_stream("orders", shards=2)
    send(hub, range(10))
    sink = Sink()
    query = start(sink, now=False, startingOffsets="earliest")
    until(lambda: len(sink.rows) == 10, "the first records")
    (runner,) = source_processes()
    hub.split_shard("orders", 1)
    send(hub, range(10, 20))
    until(lambda: len(sink.rows) == 20, "records after a split")
    query.processAllAvailable()
    time_idle, before = time.monotonic(), runner.cpu_times()
    while time.monotonic() - time_idle < 4.0:
        time.sleep(0.2)
    after = runner.cpu_times()
    busy = (after.user + after.system) - (before.user + before.system)
    assert busy / (time.monotonic() - time_idle) < 0.03, "an idle query costs less than 3 % of a core"
    progress = query.lastProgress
    assert progress is not None
    source = progress["sources"][0]
    assert json.loads(source["latestOffset"])["streams"]["orders"]["shards"].keys() == {"0", "1", "2", "3"}


def test_a_batch_waits_until_there_is_enough_or_for_long_enough(
    hub: shoal.Hub, start: Callable[..., StreamingQuery]
) -> None:
    hub.create_stream("orders", shards=1)
    sink = Sink()
    send(hub, range(5))
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 20, "maxTriggerDelay": "4s"}
    began = time.monotonic()
    query = start(sink, now=False, **options)
    until(lambda: len(sink.rows) == 5, "what waited long enough")
    assert time.monotonic() - began >= 4.0
    send(hub, range(5, 40))
    until(lambda: len(sink.rows) == 40, "what was enough", within=3.5)
    query.stop()


def test_bytes_bound_a_batch(hub: shoal.Hub, start: Callable[..., StreamingQuery]) -> None:
    hub.create_stream("orders", shards=2, compression="none")
    send(hub, range(100))
    size = hub.stats("orders").bytes
    sink = Sink()
    finish(start(sink, startingOffsets="earliest", maxBytesPerTrigger=size // 4))
    assert sink.places == all_places(hub)
    assert len(sink.batches) >= 4


def test_a_query_goes_on_where_the_group_stands_and_takes_all_of_it(
    hub: shoal.Hub, start: Callable[..., StreamingQuery], checkpoint: str
) -> None:
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=5.0)
    send(hub, range(50))
    with hub.join_group("orders", "billing", "worker-a") as worker:
        until(lambda: len(worker.leases) == 2, "the worker's shards")
        worker.checkpoint({0: 3, 1: 5})
        refused = start(Sink(), group="billing", folder=f"{checkpoint}-refused")
        line = failure(refused)
        assert "1 consumers use it (worker-a, silent for " in line
        assert "One that has died is gone after" in line
        assert "member=true" in line
    sink = Sink()
    query = start(sink, now=False, group="billing", startingOffsets="group")
    until(lambda: len(sink.rows) == 42, "the rest")
    until(lambda: hub.describe_group("orders", "billing").lag == 0, "the mirror")
    second = start(Sink(), group="billing", folder=f"{checkpoint}-second")
    assert "consumers use it (spark-" in failure(second)
    assert query.isActive
    query.stop()
    until(lambda: not hub.describe_group("orders", "billing").members, "stop() leaves the group")


def test_a_restarted_query_takes_the_place_of_its_dead_self(
    hub: shoal.Hub, start: Callable[..., StreamingQuery]
) -> None:
    hub.create_stream("orders", shards=2)
    sink = Sink()
    send(hub, range(20))
    query = start(sink, now=False, group="billing", groupTimeout="3s", startingOffsets="earliest")
    until(lambda: len(sink.rows) == 20, "the first records")
    (runner,) = source_processes()
    runner.kill()
    assert failure(query)
    send(hub, range(20, 40))
    query = start(sink, now=False, group="billing")
    until(lambda: len(sink.rows) == 40, "the rest, at once")
    assert sink.places == all_places(hub)
    until(lambda: hub.describe_group("orders", "billing").lag == 0, "the mirror, after the timeout")
    assert len(hub.describe_group("orders", "billing").members) == 1


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_stream_that_is_made_anew_ends_the_query_unless_loss_is_allowed(
    hub: shoal.Hub, start: Callable[..., StreamingQuery], strict: str
) -> None:
    hub.create_stream("orders", shards=1)
    send(hub, range(5))
    sink = Sink()
    query = start(sink, now=False, startingOffsets="earliest", failOnDataLoss=strict)
    until(lambda: len(sink.rows) == 5, "the first records")
    hub.delete_stream("orders")
    hub.create_stream("orders", shards=1)
    send(hub, range(100, 103))
    if strict == "true":
        assert "there is no such stream" in (line := failure(query)) or "made anew" in line
        return
    until(lambda: len(sink.rows) == 8, "the new stream's records, from its first on")
    assert [int(value) for *_, value in sink.rows[5:]] == [100, 101, 102]


@pytest.mark.parametrize("strict", ["true", "false"])
def test_retention_that_overtakes_a_query_ends_it_unless_loss_is_allowed(
    hub: shoal.Hub, start: Callable[..., StreamingQuery], strict: str
) -> None:
    hub.create_stream("orders", shards=1)
    hub.append("orders", 0, [b"1"] * 5)
    sink = Sink()
    finish(start(sink, startingOffsets="earliest", failOnDataLoss=strict))
    for _ in range(3):
        hub.append("orders", 0, [b"1"] * 10)
    hub.set_retention("orders", retention_bytes=1)
    hub.enforce_retention("orders")
    first = hub.first_offset("orders", 0)
    assert first > 5
    query = start(sink, failOnDataLoss=strict)
    if strict == "true":
        assert f"keeps records from offset {first} on" in failure(query)
        return
    finish(query)
    assert sink.places == [(0, offset) for offset in [*range(5), *range(first, 35)]]


def test_of_two_queries_with_one_checkpoint_the_newer_goes_on(
    hub: shoal.Hub, start: Callable[..., StreamingQuery]
) -> None:
    hub.create_stream("orders", shards=1)
    send(hub, range(5))
    sink = Sink()
    query = start(sink, now=False, startingOffsets="earliest")
    until(lambda: len(sink.rows) == 5, "the first records")
    newer = start(sink, now=False)  # Spark ends the older one by itself, unless told otherwise.
    send(hub, range(5, 10))
    until(lambda: len(sink.rows) == 10, "the rest")
    assert newer.isActive
    assert not query.isActive
    assert sink.places == all_places(hub)


def test_a_query_that_shares_no_group_is_not_drained_and_says_so_as_soon_as_it_has_spoken(
    hub: shoal.Hub, start: Callable[..., StreamingQuery]
) -> None:
    hub.create_stream("orders", shards=1)
    send(hub, range(5))
    sink = Sink()
    query = start(sink, now=False, group="billing")
    until(lambda: bool(query.recentProgress), "the first batch")
    began = time.monotonic()
    with pytest.raises(InvalidInput, match="no source of Shoal's that runs with member=true"):
        drain(query, hub, timeout=40)
    assert time.monotonic() - began < 20
    assert query.isActive


def test_offsets_of_a_batch_read_are_refused_in_a_stream(
    hub: shoal.Hub, start: Callable[..., StreamingQuery]
) -> None:
    hub.create_stream("orders", shards=1)
    with pytest.raises(PySparkException) as caught:
        finish(start(Sink(), endingOffsets="latest"))
    assert "endingOffsets=" in reason(caught.value)
