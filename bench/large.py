"""The same cost at ten million records as at a hundred thousand, and memory that does not grow.

Runs as a program of its own (`python -m bench.large write|read URL RECORDS`), so that its peak memory is
that of a producer or a reader and nothing else. Prints one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

import shoal
from bench.data import CHUNK, make_chunk
from bench.measure import SHARDS, as_arrow, read_all


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run cost."""

    ns_per_record: float
    peak_mb: float


def run(role: str, url: str, records: int) -> Figures:
    """Run one role in a process of its own."""
    command = [sys.executable, "-m", "bench.large", role, url, str(records)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Figures(**json.loads(done.stdout))


def _write(url: str, records: int) -> float:
    table = _from_another()
    with shoal.connect(url) as hub:
        hub.create_stream("orders", shards=SHARDS)
        with hub.producer("orders") as producer:
            began = time.perf_counter()
            for _ in range(0, records, CHUNK):
                producer.send_batch(table, key_column="customer")
            producer.flush()
            return (time.perf_counter() - began) / records * 1e9


def _from_another() -> pa.Table:
    """A chunk that another process has made: it is the producer's memory that is measured, and to make
    records takes five times what they are."""
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/chunk.arrow"
        subprocess.run([sys.executable, "-m", "bench.large", "chunk", file, str(CHUNK)], check=True)
        with pa.ipc.open_stream(file) as reader:
            return reader.read_all()


def _chunk(file: str) -> None:
    table = make_chunk().to_table()
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=CHUNK // 10)


def _read(url: str) -> float:
    with shoal.connect(url) as hub:
        return 1e9 / read_all(hub, "orders", as_arrow)


def _peak_kb() -> int:
    """The highest resident size of this program. (`ru_maxrss` would include that of whoever started it.)"""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise RuntimeError("/proc/self/status has no VmHWM")


def main() -> None:
    """See the head of this file."""
    role, url, records = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if role == "chunk":
        _chunk(url)
        return
    cost = _write(url, records) if role == "write" else _read(url)
    peak_mb = _peak_kb() / 1000
    sys.stdout.write(json.dumps({"ns_per_record": cost, "peak_mb": peak_mb}) + "\n")


if __name__ == "__main__":
    main()
