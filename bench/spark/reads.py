"""Batch reads: against Spark's own reader of parquet, and typed columns against JSON."""

from __future__ import annotations

from typing import Final

from bench.spark.data import TYPED, log_rows, write_arrow
from bench.spark.session import Bench, drop

JSON: Final = "customer string, amount bigint, price double, count int, is_paid boolean"


def read(bench: Bench) -> None:
    """Batch reads into nothing, against Spark's own reader of parquet."""
    bench.fill("log", bench.log.drop("offset"))
    bench.fill("typed", bench.typed, keyColumn="customer")
    columns = "offset,timestamp,key,value"
    ours = bench.source("log", columns=columns)
    bench.pair("batch read, log rows", lambda: drop(ours), lambda: drop(bench.log), "of parquet", 0.8)
    folder = write_arrow(log_rows(bench.rows), bench.folder / "ready")
    ready = bench.spark.read.format("ready").option("folder", folder).load()
    bench.pair("the same", lambda: drop(ours), lambda: drop(ready), "of a source with rows in memory")
    what = "a source with rows in memory"
    bench.pair(what, lambda: drop(ready), lambda: drop(bench.log), "of parquet")
    typed = bench.source("typed", columns="timestamp," + ",".join(TYPED))
    bench.pair("batch read, typed columns", lambda: drop(typed), lambda: drop(bench.typed), "of parquet", 0.5)


def json(bench: Bench) -> None:
    """Typed columns against the same events as JSON text."""
    bench.fill("typed", bench.typed, keyColumn="customer")
    bench.fill("json", bench.typed.selectExpr("timestamp", f"to_json(struct({','.join(TYPED)})) AS value"))
    parsed = bench.source("json", columns="timestamp,value").selectExpr(
        "timestamp", f"from_json(cast(value AS string), '{JSON}') AS event"
    )
    typed = bench.source("typed", columns="timestamp," + ",".join(TYPED))
    what = "typed columns, against JSON in `value`"
    bench.pair(what, lambda: drop(typed), lambda: drop(parsed), "of from_json", 3.0)
