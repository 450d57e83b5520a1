"""Streaming queries: a backlog, what a query's start is, what a trigger and an idle query cost."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark
from pyspark.sql.streaming.query import StreamingQuery

from bench.spark.session import SECTION, Bench, Turns, drop, seconds
from bench.table import Line


def backlog(bench: Bench) -> None:
    """A backlog through a streaming query with default settings, against the batch read.

    Once as a query that is started for it, and once by its triggers alone, from the look at the log to
    the entry in Spark's log of commits, as a query meets it that runs already. Between the two lies a
    process that Spark starts for each query, which imports Spark from an archive: there no source has a
    say.
    """
    times = -(-bench.backlog_rows // bench.rows)
    bench.hub.create_stream("backlog", shards=4)
    for _ in range(times):
        bench.write(bench.log.drop("offset"), "backlog")
    triggers: list[float] = []

    def streamed() -> None:
        query = bench.stream_all("shoal", hub=bench.url, stream="backlog", startingOffsets="earliest")
        spent = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress]
        triggers.append(sum(spent) / 1000)

    batch = bench.source("backlog")
    rows, against = times * bench.rows, "of the batch read"
    whole = bench.in_turns(streamed, lambda: drop(batch))
    bench.add("streaming backlog, from a query's start to its end", rows, whole, against, 0.6)
    running = Turns(triggers[-bench.pairs :], whole.others)  # Those before were warm-ups.
    bench.add("the same, of a query that runs", rows, running, against, 0.6)
    read_s, import_s = statistics.median(whole.others), _spark_imports_itself(bench.pairs)
    line = Line(
        "Spark's import of itself, for each query that starts",
        f"{import_s:.2f} s",
        f"leaves at most {read_s / (read_s + import_s):.2f} {against}",
    )
    bench.report.add(SECTION, line)
    _started(bench)


def _started(bench: Bench) -> None:
    """What a query's start and end are, when next to nothing lies between."""
    bench.hub.create_stream("one", shards=4)
    bench.hub.append("one", 0, [b"x"])
    tiny = bench.folder / "start"
    tiny.mkdir()
    (tiny / "tiny").write_bytes(b"x")
    turns = bench.in_turns(
        lambda: bench.stream_all("shoal", hub=bench.url, stream="one", startingOffsets="earliest"),
        lambda: bench.stream_all("tiny", folder=str(tiny)),
    )
    line = Line(
        "a streaming query of one record, from start to end",
        f"{statistics.median(turns.seconds):.2f} s",
        f"{turns.ratio:.2f} of a Python source with one row ({turns.spread})",
    )
    bench.report.add(SECTION, line)


def idle(bench: Bench) -> None:
    """What a query costs when nothing comes, and what a trigger costs when next to nothing does."""
    bench.hub.create_stream("tiny", shards=4)
    ours = bench.to_nothing("shoal", hub=bench.url, stream="tiny", startingOffsets="earliest")
    producer = bench.hub.producer("tiny")
    mine, ratio = against_tiny(bench, ours, lambda: producer.send(b"x", key="one").result())
    own, whole = idle_share(10.0)
    ours.stop()
    bench.report.add(
        SECTION,
        Line(
            f"a trigger with one record, median addBatch of {bench.triggers}",
            f"{mine:.0f} ms",
            f"{ratio:.2f} of a source that holds nothing",
            "at most 1.2",
            ratio <= 1.2,
        ),
    )
    figure, rest = f"{own:.1f} % of a core", f"{whole:.1f} % with all of Spark"
    bench.report.add(SECTION, Line("an idle query", figure, rest, "under 3 %", own < 3.0))


def against_tiny(bench: Bench, query: StreamingQuery, feed: Callable[[], object]) -> tuple[float, float]:
    """The median addBatch in ms of triggers with one record, and the ratio to a source of nothing."""
    file = bench.folder / "tiny"
    file.write_bytes(b"")
    tiny = bench.to_nothing("tiny", folder=str(bench.folder))
    for _ in range(bench.triggers + 2):
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


def idle_share(seconds: float) -> tuple[float, float]:
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


def _spark_imports_itself(times: int) -> float:
    """How long a process that Spark starts for a query imports Spark, before it asks for its source."""
    archives = (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(archive) for archive in archives)}
    command = [sys.executable, "-c", "import pyspark.sql.streaming.python_streaming_source_runner"]
    return statistics.median(
        seconds(lambda: subprocess.run(command, env=environment, check=True)) for _ in range(times)
    )
