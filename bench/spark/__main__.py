"""`make bench-spark`: ratios against Spark's own readers, and against the least that Python costs in Spark.

Each line is the median of interleaved pairs, since the machine's speed changes from one second to the next.
`--rows` is how many rows a pair moves, `--pairs` how many pairs; `--only sink,read` chooses lines. A whole
run is kept in docs/performance.md. The exit code is 1 if a floor is missed. `kafka` are the same lines for
Spark's connector to a Kafka broker, which is fetched from Maven Central.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import psutil
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from rich.console import Console

import shoal
from bench.installed import compile_sources
from bench.spark import kafka
from bench.spark.data import TYPED, log_rows, typed_rows, write_arrow, write_parquet
from bench.spark.peers import Bare, Discard, Ready, Tiny, make_bare
from bench.table import Line, Report
from shoal.testing.maven import Unreachable

SECTION: Final = "spark"
WARM_UPS: Final = 6
JSON: Final = "customer string, amount bigint, price double, count int, is_paid boolean"


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

    def __init__(self, folder: Path, given: argparse.Namespace, jars: Sequence[str]) -> None:
        self.report = Report(Console(width=150))
        self.folder = folder
        self.rows, self.backlog_rows = int(given.rows), int(given.backlog)
        self.pairs, self.triggers = int(given.pairs), int(given.triggers)
        self.url = f"sqlite:///{folder}/shoal.db"
        self.hub = shoal.connect(self.url)
        self.spark = _session(folder, jars)
        for peer in (Bare, Discard, Ready, Tiny):
            self.spark.dataSource.register(peer)
        self.log = self.spark.read.parquet(write_parquet(log_rows(self.rows), folder / "log"))
        self.typed = self.spark.read.parquet(write_parquet(typed_rows(self.rows), folder / "typed"))
        self._made: set[str] = set()
        self._queries = count()

    def sink(self) -> None:
        """Rows of parquet into the log, against a sink that drops them, and one that only writes to SQLite.

        The log is at the limit of its retention: what is written takes the room of what is forgotten. A file
        that grows also asks the machine for memory to keep it in, which on some costs more than the write.
        """
        number = iter(range(1_000_000))
        bare = self.folder / "bare.db"
        written: list[str] = []
        for what, frame, options in (
            ("log rows", self.log.drop("offset"), {}),
            ("typed columns", self.typed, {"keyColumn": "customer"}),
        ):

            def ours(frame: DataFrame = frame, options: dict[str, str] = options) -> None:
                name = f"sink-{next(number)}"
                self.hub.create_stream(name, shards=4, schema=TYPED if options else None)
                self.write(frame, name, **options)
                written.append(name)

            def theirs(frame: DataFrame = frame) -> None:
                frame.write.format("discard").mode("append").save()

            def barely(frame: DataFrame = frame) -> None:
                frame.write.format("bare").option("file", str(bare)).mode("append").save()

            def forget() -> None:
                for name in written:
                    self.hub.set_retention(name, retention_bytes=1)
                    self.hub.enforce_retention(name)
                written.clear()
                make_bare(bare)

            forget()
            against = "of a sink that discards"
            self.pair(f"sink, {what}", ours, theirs, against, 0.7, after=forget)
            self.pair("the same", ours, barely, "of a sink that only writes to SQLite", after=forget)
            self.pair("a sink that only writes to SQLite", barely, theirs, against, after=forget)

    def read(self) -> None:
        """Batch reads into nothing, against Spark's own reader of parquet."""
        self.fill("log", self.log.drop("offset"))
        self.fill("typed", self.typed, keyColumn="customer")
        columns = "offset,timestamp,key,value"
        ours = self.source("log", columns=columns)
        self.pair("batch read, log rows", lambda: _drop(ours), lambda: _drop(self.log), "of parquet", 0.8)
        folder = write_arrow(log_rows(self.rows), self.folder / "ready")
        ready = self.spark.read.format("ready").option("folder", folder).load()
        self.pair("the same", lambda: _drop(ours), lambda: _drop(ready), "of a source with rows in memory")
        what = "a source with rows in memory"
        self.pair(what, lambda: _drop(ready), lambda: _drop(self.log), "of parquet")
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
        """A backlog through a streaming query with default settings, against the batch read.

        Once as a query that is started for it, and once by its triggers alone, from the look at the log to
        the entry in Spark's log of commits, as a query meets it that runs already. Between the two lies a
        process that Spark starts for each query, which imports Spark from an archive: there no source has a
        say.
        """
        times = -(-self.backlog_rows // self.rows)
        self.hub.create_stream("backlog", shards=4)
        for _ in range(times):
            self.write(self.log.drop("offset"), "backlog")
        triggers: list[float] = []

        def streamed() -> None:
            query = self._stream_all("shoal", hub=self.url, stream="backlog", startingOffsets="earliest")
            spent = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress]
            triggers.append(sum(spent) / 1000)

        batch = self.source("backlog")
        rows, against = times * self.rows, "of the batch read"
        whole = self._in_turns(streamed, lambda: _drop(batch))
        self._add("streaming backlog, from a query's start to its end", rows, whole, against, 0.6)
        running = Turns(triggers[-self.pairs :], whole.others)  # Those before were warm-ups.
        self._add("the same, of a query that runs", rows, running, against, 0.6)
        read_s, import_s = statistics.median(whole.others), _spark_imports_itself(self.pairs)
        line = Line(
            "Spark's import of itself, for each query that starts",
            f"{import_s:.2f} s",
            f"leaves at most {read_s / (read_s + import_s):.2f} {against}",
        )
        self.report.add(SECTION, line)
        self._started()

    def _started(self) -> None:
        """What a query's start and end are, when next to nothing lies between."""
        self.hub.create_stream("one", shards=4)
        self.hub.append("one", 0, [b"x"])
        tiny = self.folder / "start"
        tiny.mkdir()
        (tiny / "tiny").write_bytes(b"x")
        turns = self._in_turns(
            lambda: self._stream_all("shoal", hub=self.url, stream="one", startingOffsets="earliest"),
            lambda: self._stream_all("tiny", folder=str(tiny)),
        )
        line = Line(
            "a streaming query of one record, from start to end",
            f"{statistics.median(turns.seconds):.2f} s",
            f"{turns.ratio:.2f} of a Python source with one row ({turns.spread})",
        )
        self.report.add(SECTION, line)

    def idle(self) -> None:
        """What a query costs when nothing comes, and what a trigger costs when next to nothing does."""
        self.hub.create_stream("tiny", shards=4)
        ours = self._to_nothing("shoal", hub=self.url, stream="tiny", startingOffsets="earliest")
        producer = self.hub.producer("tiny")
        mine, ratio = self._against_tiny(ours, lambda: producer.send(b"x", key="one").result())
        own, whole = _idle_share(10.0)
        ours.stop()
        self.report.add(
            SECTION,
            Line(
                f"a trigger with one record, median addBatch of {self.triggers}",
                f"{mine:.0f} ms",
                f"{ratio:.2f} of a source that holds nothing",
                "at most 1.2",
                ratio <= 1.2,
            ),
        )
        figure, rest = f"{own:.1f} % of a core", f"{whole:.1f} % with all of Spark"
        self.report.add(SECTION, Line("an idle query", figure, rest, "under 3 %", own < 3.0))

    def kafka(self) -> None:
        """The same for Spark's connector to Kafka, and a broker with its own defaults."""
        with kafka.Broker(parent=self.folder) as broker:
            log = self.log.drop("offset", "timestamp")
            number = iter(range(1_000_000))

            def source(topic: str) -> dict[str, str]:
                return {"kafka.bootstrap.servers": broker.servers, "subscribe": topic}

            def read(topic: str) -> DataFrame:
                found = self.spark.read.format("kafka").options(**source(topic)).load()
                return found.select("offset", "timestamp", "key", "value")

            def write(frame: DataFrame, topic: str) -> None:
                options = {"kafka.bootstrap.servers": broker.servers, "kafka.compression.type": "lz4"}
                frame.write.format("kafka").options(**options, topic=topic).save()

            def discard() -> None:
                log.write.format("discard").mode("append").save()

            what = "Kafka's connector: "
            self.pair(
                what + "sink, log rows",
                lambda: write(log, f"sink-{next(number)}"),
                discard,
                "of a sink that discards",
            )
            write(log, "log")
            ours = read("log")
            self.pair(
                what + "batch read, log rows", lambda: _drop(ours), lambda: _drop(self.log), "of parquet"
            )
            times = -(-self.backlog_rows // self.rows)
            for _ in range(times):
                write(log, "backlog")
            batch = self.spark.read.format("kafka").options(**source("backlog")).load()
            self.pair(
                what + "streaming backlog",
                lambda: self._stream_all("kafka", **source("backlog"), startingOffsets="earliest"),
                lambda: _drop(batch),
                "of its batch read",
                rows=times * self.rows,
            )
            one = self.spark.createDataFrame([("one", "x")], "key string, value string")
            write(one, "tiny")
            query = self._to_nothing("kafka", **source("tiny"), startingOffsets="earliest")
            mine, ratio = self._against_tiny(query, lambda: write(one, "tiny"))
            _, whole = _idle_share(10.0)
            query.stop()
            self.report.add(
                SECTION,
                Line(
                    what + f"a trigger with one record, median addBatch of {self.triggers}",
                    f"{mine:.0f} ms",
                    f"{ratio:.2f} of a source that holds nothing",
                ),
            )
            self.report.add(
                SECTION, Line(what + "an idle query", "", f"{whole:.1f} % of a core with all of Spark")
            )

    def _against_tiny(self, query: StreamingQuery, feed: Callable[[], object]) -> tuple[float, float]:
        """The median addBatch in ms of triggers with one record, and the ratio to a source of nothing."""
        file = self.folder / "tiny"
        file.write_bytes(b"")
        tiny = self._to_nothing("tiny", folder=str(self.folder))
        for _ in range(self.triggers + 2):
            feed()
            query.processAllAvailable()
            with file.open("ab") as more:
                more.write(b"x")
            tiny.processAllAvailable()
        mine, least = (
            statistics.median(
                [
                    progress["durationMs"]["addBatch"]
                    for progress in one.recentProgress
                    if progress["numInputRows"] > 0
                ][2:]
            )
            for one in (query, tiny)
        )
        tiny.stop()
        return mine, mine / least

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
        turns = self._in_turns(ours, theirs, after)
        self._add(what, self.rows if rows is None else rows, turns, against, floor)

    def _add(self, what: str, rows: int, turns: Turns, against: str, floor: float | None = None) -> None:
        line = Line(
            f"{what}, {rows:,} rows",
            f"{rows / statistics.median(turns.seconds) / 1e6:.2f} M rows/s",
            f"{turns.ratio:.2f} {against} ({turns.spread})",
            "" if floor is None else f"{floor:g}",
            None if floor is None else turns.ratio >= floor,
        )
        self.report.add(SECTION, line)

    def _in_turns(
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
        seconds, others = [], []
        for number in range(self.pairs):
            first, second = (ours, theirs) if number % 2 else (theirs, ours)
            taken = {}
            for run in (first, second):
                taken[run] = _seconds(run)
                after()
            seconds.append(taken[ours])
            others.append(taken[theirs])
        return Turns(seconds, others)

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
        return self._nowhere(source, options).start()

    def _stream_all(self, source: str, **options: str) -> StreamingQuery:
        query = self._nowhere(source, options).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def _nowhere(self, source: str, options: dict[str, str]) -> DataStreamWriter:
        rows = self.spark.readStream.format(source).options(**options).load()
        checkpoint = str(self.folder / f"query-{next(self._queries)}")
        return rows.writeStream.format("noop").option("checkpointLocation", checkpoint)


def main() -> int:
    """Run the chosen lines."""
    parser = argparse.ArgumentParser(prog="bench.spark", description=__doc__)
    # Reads first: the sinks read parquet a hundred times, and Java would have made that path quick alone.
    lines = ("read", "json", "backlog", "idle", "sink", "kafka")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--backlog", type=int, default=5_000_000, help="rows of the streaming backlog")
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--triggers", type=int, default=50)
    parser.add_argument("--only", default=",".join(lines), help=f"lines: {','.join(lines)}")
    given = parser.parse_args()
    compile_sources()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-spark-") as name:
        chosen = given.only.split(",")
        try:
            jars = kafka.connector() if "kafka" in chosen else []
        except Unreachable as error:
            print(f"without the lines of Kafka: {error}", file=sys.stderr)
            jars, chosen = [], [line for line in chosen if line != "kafka"]
        bench = Bench(Path(name), given, jars)
        for line in chosen:
            getattr(bench, line)()
        bench.spark.stop()
        bench.hub.close()
    bench.report.show()
    if given.only == ",".join(lines):
        bench.report.write()
    return 1 if bench.report.missed else 0


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


def _drop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _spark_imports_itself(times: int) -> float:
    """How long a process that Spark starts for a query imports Spark, before it asks for its source."""
    archives = (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(archive) for archive in archives)}
    command = [sys.executable, "-c", "import pyspark.sql.streaming.python_streaming_source_runner"]
    return statistics.median(
        _seconds(lambda: subprocess.run(command, env=environment, check=True)) for _ in range(times)
    )


def _idle_share(seconds: float) -> tuple[float, float]:
    """Per cent of a core that the source's own process takes, and Spark with all that it has started."""
    commands = {process: _command(process) for process in psutil.Process().children(recursive=True)}
    everything = [process for process, command in commands.items() if "kafka.Kafka" not in command]
    runners = [process for process in everything if "python_streaming_source_runner" in commands[process]]
    before = {process: _used(process) for process in everything}
    time.sleep(seconds)
    spent = {process: max(0.0, _used(process) - before[process]) for process in everything}
    own, whole = (100 * sum(spent[process] for process in some) / seconds for some in (runners, everything))
    return own, whole


def _used(process: psutil.Process) -> float:
    """Seconds of processor time; none of one that has ended meanwhile: Spark's own come and go."""
    with suppress(psutil.Error):
        return float(sum(process.cpu_times()[:2]))
    return 0.0


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


if __name__ == "__main__":
    sys.exit(main())
