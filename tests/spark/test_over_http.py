"""Spark through a server: sink, batch read, and a query and a worker as members of one group."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import shoal
from shoal.testing.members import eventually
from shoal.testing.serving import ServerProcess

ROWS = 1200


@pytest.fixture
def server(sqlite_url: str) -> Iterator[ServerProcess]:
    with ServerProcess(sqlite_url) as server:
        yield server


def test_what_spark_writes_is_read_by_spark_and_divided_with_a_worker_through_a_restart(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    with shoal.connect(server.url) as hub:
        hub.create_stream("orders", shards=4)
        rows = spark.range(ROWS).selectExpr(
            "CAST(id % 50 AS STRING) AS key", "CAST(CAST(id AS STRING) AS BINARY) AS value"
        )
        rows.write.format("shoal").option("hub", server.url).option("stream", "orders").mode("append").save()
        reader = spark.read.format("shoal").option("hub", server.url).option("stream", "orders")
        found = sorted(int(row.value) for row in reader.load().select("value").collect())
        assert found == list(range(ROWS))

        hub.create_group("orders", "billing", timeout=6.0)
        seen: Counter[tuple[int, int]] = Counter()
        lock = Lock()

        def in_spark(frame: DataFrame, _: int) -> None:
            places = [(row.shard, row.offset) for row in frame.select("shard", "offset").collect()]
            with lock:
                seen.update(places)

        def in_python(batch: shoal.Batch, checkpointer: Any) -> None:
            with lock:
                seen.update((batch.shard, record.offset) for record in batch)
            checkpointer.save()

        stream = spark.readStream.format("shoal").option("hub", server.url).option("stream", "orders")
        member = stream.option("group", "billing").option("member", "true").option("memberName", "query")
        query = (
            member.load()
            .writeStream.foreachBatch(in_spark)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        worker = shoal.Worker(hub, "orders", "billing", in_python, name="worker").start()
        try:
            eventually(lambda: _held(hub) == {"query": 2, "worker": 2}, "they share the shards", 60)
            eventually(lambda: _is_done(hub), "all is done", 60)
            assert (set(seen.values()), seen.total()) == ({1}, ROWS)
            server.end(kill=True)
            time.sleep(0.5)
            server.start()
            for shard in range(4):
                hub.append("orders", shard, [b"more"] * 25)
            eventually(lambda: len(seen) == ROWS + 100 and _is_done(hub), "all goes on", 60)
            assert query.isActive
            assert set(_held(hub)) == {"query", "worker"}
        finally:
            worker.stop()
            query.stop()


def _held(hub: shoal.Hub) -> dict[str | None, int]:
    return dict(Counter(shard.owner for shard in hub.describe_group("orders", "billing").shards))


def _is_done(hub: shoal.Hub) -> bool:
    return hub.describe_group("orders", "billing").lag == 0


def test_a_query_of_its_own_goes_on_through_the_server(
    spark: SparkSession, server: ServerProcess, checkpoint: str
) -> None:
    values: list[int] = []

    def take(frame: DataFrame, _: int) -> None:
        values.extend(int(row.value) for row in frame.select("value").collect())

    def run() -> None:
        reader = spark.readStream.format("shoal").option("hub", server.url).option("stream", "orders")
        writer = reader.option("group", "billing").load().writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(90)

    runs: list[Callable[[], None]] = [run, run]
    with shoal.connect(server.url) as hub:
        hub.create_stream("orders", shards=2)
        hub.create_group("orders", "billing")
        for place, one in enumerate(runs):
            for number in range(10):
                hub.append("orders", number % 2, [b"%d" % (10 * place + number)])
            one()
            assert sorted(values) == list(range(10 * (place + 1)))
            assert hub.describe_group("orders", "billing").lag == 0
