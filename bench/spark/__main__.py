"""`make bench-spark`: ratios against Spark's own readers, and against the least that Python costs in Spark.

Each line is the median of interleaved pairs, since the machine's speed changes from one second to the next.
`--rows` is how many rows a pair moves, `--pairs` how many pairs; `--only sink,read` chooses lines. A whole
run is kept in docs/performance.md. The exit code is 1 if a floor is missed. `kafka` are the same lines for
Spark's connector to a Kafka broker, which is fetched from Maven Central.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.installed import compile_sources
from bench.spark import backlog, connector, kafka, reads, sinks, streaming
from bench.spark.session import Bench, Sizes
from shoal.testing.maven import Unreachable


def main() -> int:
    """Run the chosen lines."""
    parser = argparse.ArgumentParser(prog="bench.spark", description=__doc__)
    # Reads first: the sinks read parquet a hundred times, and Java would have made that path quick alone.
    lines: dict[str, Callable[[Bench], None]] = {
        "read": reads.read,
        "json": reads.json,
        "backlog": backlog.backlog,
        "idle": streaming.idle,
        "sink": sinks.sink,
        "kafka": connector.kafka,
    }
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
        sizes = Sizes(given.rows, given.backlog, given.pairs, given.triggers)
        bench = Bench(Path(name), sizes, jars)
        for line in chosen:
            lines[line](bench)
        bench.spark.stop()
        bench.hub.close()
    bench.report.show()
    if given.only == ",".join(lines):
        bench.report.write()
    return 1 if bench.report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
