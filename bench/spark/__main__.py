"""`make bench-spark`: ratios against Spark's own readers, and against the least that Python costs in Spark.

Each line is the median of interleaved pairs, since the machine's speed changes from one second to the next.
`--rows` is how many rows a pair moves, `--pairs` how many pairs; `--only sink,read` chooses lines. The exit
code is 1 if a floor is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

import shoal
from bench.spark.data import TYPED, log_rows, typed_rows, write_parquet
from bench.spark.peers import Discard, Tiny
from bench.table import Line, Report

SECTION: Final = "spark"
JSON: Final = "customer string, amount bigint, price double, count int, is_paid boolean"


class Bench:
    """A session, a hub with the rows in it, and the same rows as parquet."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        self.report = Report(Console(width=150))
        self.folder = folder
        self.rows, self.backlog_rows = int(given.rows), int(given.backlog)
        self.pairs, self.triggers = int(given.pairs), int(given.triggers)
        self.url = f"sqlite:///{folder}/shoal.db"
        self.hub = shoal.connect(self.url)
        self.spark = _session(folder)
        for peer in (Discard, Tiny):
            self.spark.dataSource.register(peer)
        self.log = self.spark.read.parquet(write_parquet(log_rows(self.rows), folder / "log"))
        self.typed = self.spark.read.parquet(write_parquet(typed_rows(self.rows), folder / "typed"))
        self._made: set[str] = set()

    def sink(self) -> None:
        """Rows of parquet into the log, against a sink that drops them."""
        number = iter(range(1_000_000))
        for what, frame, options in (
            ("log rows", self.log.drop("offset"), {}),
            ("typed columns", self.typed, {"keyColumn": "customer"}),
        ):

            def ours(frame: DataFrame = frame, options: dict[str, str] = options) -> None:
                name = f"sink-{next(number)}"
                self.hub.create_stream(name, shards=4, schema=TYPED if options else None)
                self.write(frame, name, **options)
                self.hub.delete_stream(name)

            def theirs(frame: DataFrame = frame) -> None:
                frame.write.format("discard").mode("append").save()

            self.pair(f"sink, {what}", ours, theirs, "of a sink that discards", 0.7)

    def read(self) -> None:
        """Batch reads into nothing, against Spark's own reader of parquet."""
        self.fill("log", self.log.drop("offset"))
        self.fill("typed", self.typed, keyColumn="customer")
        columns = "offset,timestamp,key,value"
        ours = self.source("log", columns=columns)
        self.pair("batch read, log rows", lambda: _drop(ours), lambda: _drop(self.log), "of parquet", 0.8)
        typed = self.source("typed", columns="timestamp," + ",".join(TYPED))
        self.pair(
            "batch read, typed columns", lambda: _drop(typed), lambda: _drop(self.typed), "of parquet", 0.5
        )

    def json(self) -> None:
        """Typed columns against the same events as JSON text."""
        self.fill("typed", self.typed, keyColumn="customer")
        self.fill("json", self.typed.selectExpr("timestamp", f"to_json(struct({','.join(TYPED)})) AS value"))
        parsed = self.source("json", columns="timestamp,value").selectExpr(
            "timestamp", f"from_json(cast(value AS string), '{JSON}') AS event"
        )
        typed = self.source("typed", columns="timestamp," + ",".join(TYPED))
        what = "typed columns, against JSON in `value`"
        self.pair(what, lambda: _drop(typed), lambda: _drop(parsed), "of from_json", 3.0)

    def backlog(self) -> None:
        """A backlog through a streaming query with default settings, against the batch read."""
        times = -(-self.backlog_rows // self.rows)
        self.hub.create_stream("backlog", shards=4)
        for _ in range(times):
            self.write(self.log.drop("offset"), "backlog")
        number = iter(range(1_000_000))

        def streamed() -> None:
            rows = (
                self.spark.readStream.format("shoal")
                .options(hub=self.url, stream="backlog", startingOffsets="earliest")
                .load()
            )
            checkpoint = str(self.folder / f"backlog-{next(number)}")
            writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
            writer.trigger(availableNow=True).start().awaitTermination()

        batch = self.source("backlog")
        against = "of the batch read"
        self.pair("streaming backlog", streamed, lambda: _drop(batch), against, 0.6, rows=times * self.rows)

    def idle(self) -> None:
        """What a query costs when nothing comes, and what a trigger costs when next to nothing does."""
        self.hub.create_stream("tiny", shards=4)
        (self.folder / "tiny").touch()
        ours = self._to_nothing("shoal", hub=self.url, stream="tiny", startingOffsets="earliest")
        theirs = self._to_nothing("tiny", folder=str(self.folder))
        producer = self.hub.producer("tiny")
        for _ in range(self.triggers + 2):
            producer.send(b"x", key="one").result()
            ours.processAllAvailable()
            with (self.folder / "tiny").open("ab") as file:
                file.write(b"x")
            theirs.processAllAvailable()
        costs = [
            [
                progress["durationMs"]["addBatch"]
                for progress in query.recentProgress
                if progress["numInputRows"] > 0
            ][2:]
            for query in (ours, theirs)
        ]
        mine, least = (statistics.median(cost) for cost in costs)
        theirs.stop()
        share = _idle_share(10.0)
        ours.stop()
        self.report.add(
            SECTION,
            Line(
                f"a trigger with one record, median addBatch of {len(costs[0])}",
                f"{mine:.0f} ms",
                f"{mine / least:.2f} of a source that holds nothing",
                "at most 1.2",
                mine <= 1.2 * least,
            ),
        )
        line = Line("an idle query", f"{share:.1f} % of a core", "", "under 3 %", share < 3.0)
        self.report.add(SECTION, line)

    def pair(
        self,
        what: str,
        ours: Callable[[], None],
        theirs: Callable[[], None],
        against: str,
        floor: float,
        *,
        rows: int | None = None,
    ) -> None:
        """Both once to warm up, then in turns."""
        for run in (ours, theirs):
            run()
        moved = self.rows if rows is None else rows
        ratios, rates = [], []
        for number in range(self.pairs):
            first, second = (ours, theirs) if number % 2 else (theirs, ours)
            taken = {first: _seconds(first), second: _seconds(second)}
            ratios.append(taken[theirs] / taken[ours])
            rates.append(moved / taken[ours])
        ratio = statistics.median(ratios)
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        line = Line(
            f"{what}, {moved:,} rows",
            f"{statistics.median(rates) / 1e6:.2f} M rows/s",
            f"{ratio:.2f} {against} ({spread})",
            f"{floor:g}",
            ratio >= floor,
        )
        self.report.add(SECTION, line)

    def fill(self, name: str, frame: DataFrame, **options: str) -> None:
        """A stream that holds these rows, once a run."""
        if name not in self._made:
            self._made.add(name)
            self.hub.create_stream(name, shards=4, schema=TYPED if options else None)
            self.write(frame, name, **options)

    def write(self, frame: DataFrame, name: str, **options: str) -> None:
        writer = frame.write.format("shoal").options(hub=self.url, stream=name, **options)
        writer.mode("append").save()

    def source(self, name: str, **options: str) -> DataFrame:
        return self.spark.read.format("shoal").options(hub=self.url, stream=name, **options).load()

    def _to_nothing(self, source: str, **options: str) -> StreamingQuery:
        rows = self.spark.readStream.format(source).options(**options).load()
        checkpoint = str(self.folder / f"idle-{source}")
        return rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start()


def main() -> int:
    """Run the chosen lines."""
    parser = argparse.ArgumentParser(prog="bench.spark", description=__doc__)
    lines = ("sink", "read", "json", "backlog", "idle")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--backlog", type=int, default=5_000_000, help="rows of the streaming backlog")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--triggers", type=int, default=50)
    parser.add_argument("--only", default=",".join(lines), help=f"lines: {','.join(lines)}")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-spark-") as name:
        bench = Bench(Path(name), given)
        for line in given.only.split(","):
            getattr(bench, line)()
        bench.spark.stop()
        bench.hub.close()
    bench.report.show()
    return 1 if bench.report.missed else 0


def _session(folder: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of Spark's own, about versions of pandas.
        return (
            SparkSession.builder.master("local[2]")
            .appName("bench")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "2g")
            .config("spark.log.level", "ERROR")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.local.dir", str(folder / "local"))
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .getOrCreate()
        )


def _drop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _seconds(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _idle_share(seconds: float) -> float:
    """Per cent of a core that the source's own process takes; the JVM's polling is Spark's."""
    runners = [
        process
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE
        and "python_streaming_source_runner" in " ".join(process.cmdline())
    ]
    before = sum(sum(process.cpu_times()[:2]) for process in runners)
    time.sleep(seconds)
    return 100 * (sum(sum(process.cpu_times()[:2]) for process in runners) - before) / seconds


if __name__ == "__main__":
    sys.exit(main())
