"""The driver of streaming queries, as a process of its own: `python driver_program.py ORDERS`, as JSON.

It says `begun` when its queries run, obeys a line (`stop`, `drain`), and ends when its input closes, or with
`failed: …` when a query does. Started again with the same folder it goes on where it was, however it ended.

Queries: `copies` (rows from stream to stream, in order, seen by a group), `totals` (counted by key, written
back), `member` (one of several that share a group; what it was given goes to a file, a line for a row).
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import shoal
from shoal.spark import drain, reason


def main(orders: dict[str, Any]) -> int:
    warnings.simplefilter("ignore")  # Of Spark's own, about versions of pandas.
    spark = _session(orders)
    queries = [_QUERIES[name](spark, orders) for name in orders["queries"]]
    _say("begun")
    while all(query.isActive for query in queries) or _begun_again(spark, orders, queries):
        if not select.select([sys.stdin], [], [], 0.2)[0]:
            continue
        match sys.stdin.readline().strip():
            case "drain":
                with shoal.connect(orders["hub"]) as hub:
                    for query in queries:
                        drain(query, hub)
            case _:
                for query in queries:
                    query.stop()
        _say("ended")
        os._exit(0)  # The JVM ends with its input; there is nothing left to be orderly about.
    for query in queries:
        if (error := query.exception()) is not None:
            _say(f"failed: {reason(error)}")
    return 1


def _begun_again(spark: SparkSession, orders: dict[str, Any], queries: list[StreamingQuery]) -> bool:
    """Spark gives a Python process ten seconds to start, which a very busy machine does not keep to."""
    for place, query in enumerate(queries):
        error = None if query.isActive else query.exception()
        if error is not None and "failed to connect back" in str(error):
            _say("slow")
            queries[place] = _QUERIES[orders["queries"][place]](spark, orders)
    return all(query.isActive for query in queries)


def _session(orders: dict[str, Any]) -> SparkSession:
    folder = Path(orders["folder"])
    builder = SparkSession.builder.master(orders["master"]).appName("story")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",  # It would stand before what is said, on one line.
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _copies(spark: SparkSession, orders: dict[str, Any]) -> StreamingQuery:
    folder = Path(orders["folder"])
    rows = _source(spark, orders, group="copying").select("key", "value", "timestamp")
    rows = rows.mapInArrow(_pausing(folder), rows.schema)
    return _started(rows, orders, "copies")


def totals(spark: SparkSession, orders: dict[str, Any]) -> StreamingQuery:
    """Running totals. Spark lets no sink in Python have the update mode; state of one's own needs none."""

    def count(key: tuple[bytes], parts: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        total = (state.get[0] if state.exists else 0) + sum(len(part) for part in parts)
        state.update((total,))
        yield pd.DataFrame({"key": [key[0]], "value": [b"%d" % total]})

    rows = _source(spark, orders, group="counting", columns="key").groupBy("key")
    counted = rows.applyInPandasWithState(
        count, "key binary, value binary", "total long", "append", GroupStateTimeout.NoTimeout
    )
    return _started(counted, orders, "totals")


def _member(spark: SparkSession, orders: dict[str, Any]) -> StreamingQuery:
    folder, name = Path(orders["folder"]), orders["name"]
    file = folder / f"{name}.txt"

    def note(frame: DataFrame, _: int) -> None:
        found = frame.select("shard", "offset").collect()
        with file.open("a") as lines:
            lines.write("".join(f"{row.shard} {row.offset}\n" for row in found))

    rows = _source(spark, orders, group="billing", member="true", memberName=name, columns="shard,offset")
    writer = rows.writeStream.foreachBatch(note).queryName(name)
    return writer.option("checkpointLocation", str(folder / name)).start()


def _source(spark: SparkSession, orders: dict[str, Any], **options: str) -> DataFrame:
    reader = spark.readStream.format("shoal").option("hub", orders["hub"]).option("stream", "orders")
    if limit := orders.get("batch"):
        reader = reader.option("maxOffsetsPerTrigger", limit)
    return reader.option("minPartitions", 2).options(**options).load()


def _started(rows: DataFrame, orders: dict[str, Any], stream: str) -> StreamingQuery:
    writer = rows.writeStream.format("shoal").option("hub", orders["hub"]).option("stream", stream)
    return writer.option("checkpointLocation", str(Path(orders["folder"]) / stream)).start()


def _pausing(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Passes rows on; as long as there is a file `pause`, a task says that it is here and waits."""
    pause, here = folder / "pause", folder / "paused"

    def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            while pause.exists():
                here.touch()
                time.sleep(0.02)

    return passed


def _say(what: str) -> None:
    os.write(1, f"{what}\n".encode())


_QUERIES = {"copies": _copies, "totals": totals, "member": _member}

if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
