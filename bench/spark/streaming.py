"""Streaming queries: what a trigger and an idle query cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import suppress

import psutil
from pyspark.sql.streaming.query import StreamingQuery

from bench.spark.session import SECTION, Bench
from bench.table import Line


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
