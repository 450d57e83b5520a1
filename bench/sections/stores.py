"""The sections of what a hub does with records: on each database, in large numbers, beside Redis."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import shoal
from bench import large, measure, peers, producers, routes
from bench.data import CHUNK, Chunk
from bench.hubs import NewHub, used
from bench.table import Line, Report, rate_text
from shoal.testing.servers import MariaDBServer, PostgresServer, RedisServer


def sqlite(report: Report, folder: Path, chunk: Chunk, less: int) -> None:
    """An embedded hub, beside bare loops over SQLite and a file."""
    number = iter(range(1_000_000))

    def new_hub() -> shoal.Hub:
        return shoal.connect(f"sqlite:///{folder}/hub-{next(number)}.db")

    commits = 20 // min(less, 4)
    ratios, rates, file_ratios = [], [], []
    # Interleaved, since the machine's speed changes from one second to the next.
    for _ in range(5):
        bare = peers.bare_loop(folder, chunk, commits)
        with used(new_hub) as hub:
            ours = measure.append_batches(hub, chunk, commits)
        plain = peers.plain_file(folder, chunk, commits)
        ratios.append(ours / bare)
        file_ratios.append(ours / plain)
        rates.append(ours)
    ratio = statistics.median(ratios)
    report.add(
        "sqlite",
        Line(
            "durable append by send_batch, keyed, one process",
            rate_text(statistics.median(rates)),
            f"{ratio:.2f} of a bare loop",
            "0.6",
            ratio >= 0.6,
        ),
    )
    plain = statistics.median(file_ratios)
    report.add("sqlite", Line("the same against a plain file", "", f"{plain:.2f} of write + fdatasync"))
    _common(report, "sqlite", new_hub, chunk, less, floors=True)


def database(
    kind: type[PostgresServer | MariaDBServer], section: str
) -> Callable[[Report, Path, Chunk, int], None]:
    """The section of a database that is a server."""

    def run(report: Report, _: Path, chunk: Chunk, less: int) -> None:
        with kind() as server:

            def new_hub() -> shoal.Hub:
                return shoal.connect(server.fresh_database())

            commits = 10 // min(less, 5)
            with used(new_hub) as hub:
                rate = measure.append_batches(hub, chunk, commits)
            report.add(section, Line("durable append by send_batch, keyed, one process", rate_text(rate)))
            _common(report, section, new_hub, chunk, less, floors=False)

    return run


def _common(report: Report, section: str, new_hub: NewHub, chunk: Chunk, less: int, *, floors: bool) -> None:
    """The lines that every database has."""

    def add(what: str, rate: float, floor: float | None, unit: str = "records/s") -> None:
        wanted = floor if floors else None
        met = None if wanted is None else rate >= wanted
        report.add(
            section, Line(what, rate_text(rate, unit), "", rate_text(wanted, unit) if wanted else "", met)
        )

    records = 1_000_000 // less if floors else 300_000 // less
    rates = []
    for _ in range(3):
        with used(new_hub) as hub:
            rates.append(measure.send_singly(hub, chunk, records))
    add("send, one record at a time", statistics.median(rates), 200_000)
    with used(new_hub) as hub:
        measure.append_batches(hub, chunk, max(2, 20 // less) if floors else max(2, 10 // less))
        reads = [measure.read_all(hub, "orders", measure.as_arrow) for _ in range(5)]
        objects = [measure.read_all(hub, "orders", measure.as_records) for _ in range(3)]
    add("read as Arrow", statistics.median(reads), 8_000_000)
    add("read as Record objects", statistics.median(objects), 1_500_000)
    _eight(report, section, new_hub, chunk, less, floors=floors)
    with used(new_hub) as hub:
        p50, p99 = measure.append_latency(hub, chunk, rate=1000, seconds=max(1, 10 // less))
    report.add(
        section, Line("append latency at 1,000 small appends a second", f"p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    )
    with used(new_hub) as hub:
        share = measure.waiting_cost(hub, max(2, 10 // less))
    met = share < 1.0 if floors else None
    report.add(section, Line("a reader that waits", f"{share:.2f} % of a core", "", "under 1 %", met))


def _eight(report: Report, section: str, new_hub: NewHub, chunk: Chunk, less: int, *, floors: bool) -> None:
    """Eight producers against one, interleaved."""
    commits = max(8, 64 // less)
    ratios, totals = [], []
    for _ in range(3):
        with used(new_hub) as hub:
            one = measure.several_producers(hub, chunk, 1, commits)
        with used(new_hub) as hub:
            totals.append(measure.several_producers(hub, chunk, 8, commits))
        ratios.append(totals[-1] / one)
    ratio = statistics.median(ratios)
    report.add(
        section,
        Line(
            "eight producers at once, in total",
            rate_text(statistics.median(totals)),
            f"{ratio:.2f} of one producer",
            "1.0" if floors else "",
            (ratio >= 1.0) if floors else None,
        ),
    )


def producing(report: Report, folder: Path, chunk: Chunk, less: int) -> None:
    """Strategies, transactions, the outbox, and shards that split and merge under load."""
    with shoal.connect(f"sqlite:///{folder}/producers.db") as hub:
        for line in producers.lines(hub, folder, chunk, less):
            report.add("producers", line)
    for line in routes.lines(folder, less):
        report.add("producers", line)


def many_records(report: Report, folder: Path, _: Chunk, less: int) -> None:
    """Cost and memory of ten million records."""
    many, few = 10_000_000 // less, CHUNK
    small_write, small_read = [], []
    for i in range(5):
        url = f"sqlite:///{folder}/small-{i}.db"
        small_write.append(large.run("write", url, few).ns_per_record)
        small_read.append(large.run("read", url, few).ns_per_record)
    url = f"sqlite:///{folder}/large.db"
    for role, small in (("write", small_write), ("read", small_read)):
        figures = large.run(role, url, many)
        base = statistics.median(small)
        ratio = figures.ns_per_record / base
        name = "append" if role == "write" else "read as Arrow"
        report.add(
            "large",
            Line(
                f"{name}: cost per record at {many:,} and at {few:,}",
                f"{figures.ns_per_record:.0f} and {base:.0f} ns",
                f"{ratio:.2f} of the cost",
                "at most 1.2",
                ratio <= 1.2,
            ),
        )
        who = "producer" if role == "write" else "reader"
        report.add(
            "large",
            Line(
                f"memory of the {who}, {many:,} records",
                f"{figures.peak_mb:.0f} MB",
                "",
                "under 300 MB",
                figures.peak_mb < 300,
            ),
        )


def redis(report: Report, folder: Path, chunk: Chunk, less: int) -> None:
    """Redis Streams, as durable as we are."""
    with RedisServer() as server:
        appended, consumed = peers.redis_streams(server.url, chunk, 200_000 // less)
    with used(lambda: shoal.connect(f"sqlite:///{folder}/against-redis.db")) as hub:
        ours = measure.send_singly(hub, chunk, 300_000 // less)
        reading = measure.read_all(hub, "orders", measure.as_records)
    report.add(
        "redis",
        Line(
            "Redis Streams, fsync always: appended", rate_text(appended), f"send is {ours / appended:.1f} x"
        ),
    )
    report.add(
        "redis",
        Line(
            "Redis Streams: consumed", rate_text(consumed), f"reading objects is {reading / consumed:.1f} x"
        ),
    )
