"""What all lines have at hand: a session of Spark, a hub with the rows in it, the same rows as parquet; and
pairs that are run in turns, since the machine's speed changes from one second to the next."""

from __future__ import annotations

import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from rich.console import Console

import shoal
from bench.spark.data import TYPED, log_rows, typed_rows, write_parquet
from bench.spark.peers import Bare, Discard, Ready, Tiny
from bench.table import Line, Report

SECTION: Final = "spark"
WARM_UPS: Final = 6


class Sizes(NamedTuple):
    """How much is measured: rows a pair, rows of the streaming backlog, pairs a line, triggers."""

    rows: int
    backlog: int
    pairs: int
    triggers: int


class Turns(NamedTuple):
    """How long ours took, and how long theirs, turn by turn."""

    seconds: Sequence[float]
    others: Sequence[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self._ratios())

    @property
    def spread(self) -> str:
        return f"{min(self._ratios()):.2f} to {max(self._ratios()):.2f}"

    def _ratios(self) -> list[float]:
        return [theirs / ours for ours, theirs in zip(self.seconds, self.others, strict=True)]


class Bench:
    """A session, a hub with the rows in it, and the same rows as parquet."""

    def __init__(self, folder: Path, sizes: Sizes, jars: Sequence[str]) -> None:
        self.report = Report(Console(width=150))
        self.folder = folder
        self.rows, self.backlog_rows = sizes.rows, sizes.backlog
        self.pairs, self.triggers = sizes.pairs, sizes.triggers
        self.url = f"sqlite:///{folder}/shoal.db"
        self.hub = shoal.connect(self.url)
        self.spark = _session(folder, jars)
        for peer in (Bare, Discard, Ready, Tiny):
            self.spark.dataSource.register(peer)
        self.log = self.spark.read.parquet(write_parquet(log_rows(self.rows), folder / "log"))
        self.typed = self.spark.read.parquet(write_parquet(typed_rows(self.rows), folder / "typed"))
        self._made: set[str] = set()
        self._queries = count()

    def pair(
        self,
        what: str,
        ours: Callable[[], object],
        theirs: Callable[[], object],
        against: str,
        floor: float | None = None,
        *,
        rows: int | None = None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Both in turns: how many rows a second, and how that is to theirs."""
        turns = self.in_turns(ours, theirs, after)
        self.add(what, self.rows if rows is None else rows, turns, against, floor)

    def add(self, what: str, rows: int, turns: Turns, against: str, floor: float | None = None) -> None:
        line = Line(
            f"{what}, {rows:,} rows",
            f"{rows / statistics.median(turns.seconds) / 1e6:.2f} M rows/s",
            f"{turns.ratio:.2f} {against} ({turns.spread})",
            "" if floor is None else f"{floor:g}",
            None if floor is None else turns.ratio >= floor,
        )
        self.report.add(SECTION, line)

    def in_turns(
        self,
        ours: Callable[[], object],
        theirs: Callable[[], object],
        after: Callable[[], None] = lambda: None,
    ) -> Turns:
        """Both a few times first, for Java to compile what they use, then in turns. `after` tidies up, and is
        not counted."""
        for run in (ours, theirs) * WARM_UPS:
            run()
            after()
        mine, others = [], []
        for number in range(self.pairs):
            first, second = (ours, theirs) if number % 2 else (theirs, ours)
            taken = {}
            for run in (first, second):
                taken[run] = seconds(run)
                after()
            mine.append(taken[ours])
            others.append(taken[theirs])
        return Turns(mine, others)

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

    def to_nothing(self, source: str, **options: str) -> StreamingQuery:
        return self._nowhere(source, options).start()

    def stream_all(self, source: str, **options: str) -> StreamingQuery:
        query = self._nowhere(source, options).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def _nowhere(self, source: str, options: dict[str, str]) -> DataStreamWriter:
        rows = self.spark.readStream.format(source).options(**options).load()
        checkpoint = str(self.folder / f"query-{next(self._queries)}")
        return rows.writeStream.format("noop").option("checkpointLocation", checkpoint)


def drop(frame: DataFrame) -> None:
    """Read all of it, into nothing."""
    frame.write.format("noop").mode("overwrite").save()


def seconds(run: Callable[[], object]) -> float:
    """How long this takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _session(folder: Path, jars: Sequence[str]) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of Spark's own, about versions of pandas.
        return (
            SparkSession.builder.master("local[2]")
            .appName("bench")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "2g")
            # Memory that Java touches first in the midst of a run costs that run, and no other.
            .config("spark.driver.extraJavaOptions", "-Xms2g -XX:+AlwaysPreTouch")
            .config("spark.log.level", "ERROR")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.local.dir", str(folder / "local"))
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.jars", ",".join(jars))
            .getOrCreate()
        )
