"""The lines for Spark's connector to Kafka, and a broker with its own defaults, to compare with ours."""

from __future__ import annotations

from pyspark.sql import DataFrame

from bench.spark.kafka import Broker
from bench.spark.session import SECTION, Bench, drop
from bench.spark.streaming import against_tiny, idle_share
from bench.table import Line


def kafka(bench: Bench) -> None:
    """The same for Spark's connector to Kafka, and a broker with its own defaults."""
    with Broker(parent=bench.folder) as broker:
        log = bench.log.drop("offset", "timestamp")
        number = iter(range(1_000_000))

        def source(topic: str) -> dict[str, str]:
            return {"kafka.bootstrap.servers": broker.servers, "subscribe": topic}

        def read(topic: str) -> DataFrame:
            found = bench.spark.read.format("kafka").options(**source(topic)).load()
            return found.select("offset", "timestamp", "key", "value")

        def write(frame: DataFrame, topic: str) -> None:
            options = {"kafka.bootstrap.servers": broker.servers, "kafka.compression.type": "lz4"}
            frame.write.format("kafka").options(**options, topic=topic).save()

        def discard() -> None:
            log.write.format("discard").mode("append").save()

        what = "Kafka's connector: "
        bench.pair(
            what + "sink, log rows",
            lambda: write(log, f"sink-{next(number)}"),
            discard,
            "of a sink that discards",
        )
        write(log, "log")
        ours = read("log")
        bench.pair(what + "batch read, log rows", lambda: drop(ours), lambda: drop(bench.log), "of parquet")
        times = -(-bench.backlog_rows // bench.rows)
        for _ in range(times):
            write(log, "backlog")
        batch = bench.spark.read.format("kafka").options(**source("backlog")).load()
        bench.pair(
            what + "streaming backlog",
            lambda: bench.stream_all("kafka", **source("backlog"), startingOffsets="earliest"),
            lambda: drop(batch),
            "of its batch read",
            rows=times * bench.rows,
        )
        one = bench.spark.createDataFrame([("one", "x")], "key string, value string")
        write(one, "tiny")
        query = bench.to_nothing("kafka", **source("tiny"), startingOffsets="earliest")
        mine, ratio = against_tiny(bench, query, lambda: write(one, "tiny"))
        _, whole = idle_share(10.0)
        query.stop()
        bench.report.add(
            SECTION,
            Line(
                what + f"a trigger with one record, median addBatch of {bench.triggers}",
                f"{mine:.0f} ms",
                f"{ratio:.2f} of a source that holds nothing",
            ),
        )
        bench.report.add(
            SECTION, Line(what + "an idle query", "", f"{whole:.1f} % of a core with all of Spark")
        )
