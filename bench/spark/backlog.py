"""A backlog through a streaming query, against the batch read; and what the start of a query is, which is
most of the difference. Also in a session whose home of Spark is one of `shoal spark-home`: it is a process of
its own, `python -m bench.spark.backlog`, since a session keeps the home that it was started with."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pyspark

from bench.spark.session import SECTION, Bench, Sizes, Turns, drop, seconds
from bench.table import Line
from shoal.spark.home import quick_home


def backlog(bench: Bench) -> None:
    """A backlog through a streaming query with default settings, against the batch read.

    Once as a query that is started for it, and once by its triggers alone, from the look at the log to
    the entry in Spark's log of commits, as a query meets it that runs already. Between the two lies a
    process that Spark starts for each query, which imports Spark from an archive: there no source has a
    say. So it is measured once more, in a session whose home of Spark is one of `shoal spark-home`.
    """
    found, against = _in_turns(bench), "of the batch read"
    bench.add("streaming backlog, from a query's start to its end", found.rows, found.whole, against, 0.6)
    bench.add("the same, of a query that runs", found.rows, found.running, against, 0.6)
    read_s, import_s = statistics.median(found.whole.others), _spark_imports_itself(bench.pairs)
    line = Line(
        "Spark's import of itself, for each query that starts",
        f"{import_s:.2f} s",
        f"leaves at most {read_s / (read_s + import_s):.2f} {against}",
    )
    bench.report.add(SECTION, line)
    quick = _with_quick_home(bench)
    bench.add("from start to end, with `shoal spark-home`", found.rows, quick, against, 0.6)
    _started(bench)


class _Backlog(NamedTuple):
    """A streaming query against the batch read."""

    rows: int
    whole: Turns
    running: Turns
    """By its triggers alone."""


def _in_turns(bench: Bench) -> _Backlog:
    """Both in turns."""
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
    whole = bench.in_turns(streamed, lambda: drop(batch))
    running = Turns(triggers[-bench.pairs :], whole.others)  # Those before were warm-ups.
    return _Backlog(times * bench.rows, whole, running)


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


def _spark_imports_itself(times: int) -> float:
    """How long a process that Spark starts for a query imports Spark, before it asks for its source."""
    archives = (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(archive) for archive in archives)}
    command = [sys.executable, "-c", "import pyspark.sql.streaming.python_streaming_source_runner"]
    return statistics.median(
        seconds(lambda: subprocess.run(command, env=environment, check=True)) for _ in range(times)
    )


def _with_quick_home(bench: Bench) -> Turns:
    """From start to end, as it is in a session with such a home."""
    home = quick_home(bench.folder / "spark-home")
    sizes = Sizes(bench.rows, bench.backlog_rows, bench.pairs, bench.triggers)
    done = subprocess.run(
        [sys.executable, "-m", "bench.spark.backlog", *map(str, sizes)],
        env={**os.environ, "SPARK_HOME": str(home)},
        stdout=subprocess.PIPE,
        check=True,
    )
    return Turns(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure it in the home that SPARK_HOME names, and print it for whoever started this."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-spark-") as folder:
        bench = Bench(Path(folder), Sizes(*map(int, sys.argv[1:])), [])
        whole = _in_turns(bench).whole
        bench.spark.stop()
        bench.hub.close()
    print(json.dumps(whole._asdict()))


if __name__ == "__main__":
    main()
