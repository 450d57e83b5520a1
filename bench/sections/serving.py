"""The section of a server."""

from __future__ import annotations

from pathlib import Path

from bench import clients, served, sls
from bench.data import Chunk
from bench.table import Line, Report


def server(report: Report, folder: Path, chunk: Chunk, less: int) -> None:
    """A server on SQLite, in a process of its own."""
    appended, read = served.append_and_read(folder, chunk, 48 // min(less, 3), 5 if less == 1 else 3)
    for what, ratio in (("append by Arrow", appended), ("read as Arrow", read)):
        report.add(
            "server", Line(f"{what} over HTTP", "", f"{ratio:.2f} of the embedded rate", "0.6", ratio >= 0.6)
        )
    seconds, rounds = 6 / min(less, 3), 5 if less == 1 else 1
    small = served.small_appends(folder, seconds, rounds)
    report.add(
        "server",
        Line(
            f"small appends, each durable, from {clients.CLIENTS} clients",
            f"{small.served:,.0f} appends/s",
            f"{small.served / small.embedded:.2f} of the embedded rate; the disk syncs {small.syncs:,.0f} a "
            f"second; {small.cost_us:.0f} µs of the server's core each",
            "2,000 appends/s",
            small.served >= 2000,
        ),
    )
    report.add(
        "server", Line("the same with producers, which number them", f"{small.numbered:,.0f} appends/s")
    )
    for shards in (1, 4):
        (p50, p99), (near50, near99) = served.end_to_end(folder, 1000, seconds, shards=shards, rounds=rounds)
        has_floor = shards == 1  # As the worker's own line.
        report.add(
            "server",
            Line(
                f"end to end at 1,000 records a second, {shards} shard{'' if shards == 1 else 's'}",
                f"p50 {p50:.1f} ms, p99 {p99:.1f} ms",
                f"embedded: {near50:.1f} ms, {near99:.1f} ms",
                "8 ms, 40 ms" if has_floor else "",
                p50 < 8 and p99 < 40 if has_floor else None,
            ),
        )
    beats = served.beats(folder, seconds)
    report.add("server", Line("heartbeats", f"{beats:,.0f} a second", "", "1,500 a second", beats >= 1500))
    consumers = 500 // min(less, 5)
    share, megabytes = served.waiting(folder, consumers, max(4, 20 / less))
    report.add(
        "server",
        Line(
            f"{consumers} consumers that wait, heartbeats included",
            f"{share:.1f} % of a core, {megabytes:.0f} MB",
            "",
            "10 %, 400 MB",
            share < 10 and megabytes < 400,
        ),
    )
    for line in sls.lines(folder, 100_000 // min(less, 5)):
        report.add("server", line)
