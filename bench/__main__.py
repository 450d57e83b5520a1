"""`make bench`: every line that the issues ask for, with its ratio; docs/performance.md is written anew.

`--quick` measures less of everything, to see that it works, and writes nothing; `--only sqlite,large` chooses
sections, and leaves the others of the table as they are. The exit code is 1 if a floor is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console

import shoal
from bench import (
    balancing,
    clients,
    consumers,
    groups,
    large,
    measure,
    peers,
    producers,
    routes,
    served,
    shared,
    sls,
    workers,
)
from bench.data import CHUNK, Chunk, make_chunk
from bench.installed import compile_sources
from bench.table import Line, Report
from shoal.consumer.options import Lanes
from shoal.testing.servers import MariaDBServer, PostgresServer, RedisServer

NewHub = Callable[[], shoal.Hub]


def main() -> int:
    """Run the chosen sections."""
    arguments = _arguments()
    compile_sources()
    report = Report(Console(width=150))
    chunk = make_chunk()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as name:
        folder = Path(name)
        for section in arguments.only.split(","):
            _SECTIONS[section](report, folder, chunk, 10 if arguments.quick else 1)
    report.show()
    if not arguments.quick:
        report.write()
    for line in report.missed:
        report.console.print(
            f"[red]missed its floor:[/red] {line.what}: {line.figure} {line.ratio}, {line.floor}"
        )
    return 1 if report.missed else 0


def _sqlite(report: Report, folder: Path, chunk: Chunk, less: int) -> None:
    number = iter(range(1_000_000))

    def new_hub() -> shoal.Hub:
        return shoal.connect(f"sqlite:///{folder}/hub-{next(number)}.db")

    commits = 20 // min(less, 4)
    ratios, rates, file_ratios = [], [], []
    # Interleaved, since the machine's speed changes from one second to the next.
    for _ in range(5):
        bare = peers.bare_loop(folder, chunk, commits)
        with _used(new_hub) as hub:
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
            _rate(statistics.median(rates)),
            f"{ratio:.2f} of a bare loop",
            "0.6",
            ratio >= 0.6,
        ),
    )
    plain = statistics.median(file_ratios)
    report.add("sqlite", Line("the same against a plain file", "", f"{plain:.2f} of write + fdatasync"))
    _common(report, "sqlite", new_hub, chunk, less, floors=True)


def _server(
    kind: type[PostgresServer | MariaDBServer], section: str
) -> Callable[[Report, Path, Chunk, int], None]:
    def run(report: Report, _: Path, chunk: Chunk, less: int) -> None:
        with kind() as server:

            def new_hub() -> shoal.Hub:
                return shoal.connect(server.fresh_database())

            commits = 10 // min(less, 5)
            with _used(new_hub) as hub:
                rate = measure.append_batches(hub, chunk, commits)
            report.add(section, Line("durable append by send_batch, keyed, one process", _rate(rate)))
            _common(report, section, new_hub, chunk, less, floors=False)

    return run


def _common(report: Report, section: str, new_hub: NewHub, chunk: Chunk, less: int, *, floors: bool) -> None:
    """The lines that every database has."""

    def add(what: str, rate: float, floor: float | None, unit: str = "records/s") -> None:
        wanted = floor if floors else None
        met = None if wanted is None else rate >= wanted
        report.add(section, Line(what, _rate(rate, unit), "", _rate(wanted, unit) if wanted else "", met))

    records = 1_000_000 // less if floors else 300_000 // less
    rates = []
    for _ in range(3):
        with _used(new_hub) as hub:
            rates.append(measure.send_singly(hub, chunk, records))
    add("send, one record at a time", statistics.median(rates), 200_000)
    with _used(new_hub) as hub:
        measure.append_batches(hub, chunk, max(2, 20 // less) if floors else max(2, 10 // less))
        reads = [measure.read_all(hub, "orders", measure.as_arrow) for _ in range(5)]
        objects = [measure.read_all(hub, "orders", measure.as_records) for _ in range(3)]
    add("read as Arrow", statistics.median(reads), 8_000_000)
    add("read as Record objects", statistics.median(objects), 1_500_000)
    _eight(report, section, new_hub, chunk, less, floors=floors)
    with _used(new_hub) as hub:
        p50, p99 = measure.append_latency(hub, chunk, rate=1000, seconds=max(1, 10 // less))
    report.add(
        section, Line("append latency at 1,000 small appends a second", f"p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    )
    with _used(new_hub) as hub:
        share = measure.waiting_cost(hub, max(2, 10 // less))
    met = share < 1.0 if floors else None
    report.add(section, Line("a reader that waits", f"{share:.2f} % of a core", "", "under 1 %", met))


def _eight(report: Report, section: str, new_hub: NewHub, chunk: Chunk, less: int, *, floors: bool) -> None:
    """Eight producers against one, interleaved."""
    commits = max(8, 64 // less)
    ratios, totals = [], []
    for _ in range(3):
        with _used(new_hub) as hub:
            one = measure.several_producers(hub, chunk, 1, commits)
        with _used(new_hub) as hub:
            totals.append(measure.several_producers(hub, chunk, 8, commits))
        ratios.append(totals[-1] / one)
    ratio = statistics.median(ratios)
    report.add(
        section,
        Line(
            "eight producers at once, in total",
            _rate(statistics.median(totals)),
            f"{ratio:.2f} of one producer",
            "1.0" if floors else "",
            (ratio >= 1.0) if floors else None,
        ),
    )


def _producers(report: Report, folder: Path, chunk: Chunk, less: int) -> None:
    """Strategies, transactions, the outbox, and shards that split and merge under load."""
    with shoal.connect(f"sqlite:///{folder}/producers.db") as hub:
        for line in producers.lines(hub, folder, chunk, less):
            report.add("producers", line)
    for line in routes.lines(folder, less):
        report.add("producers", line)


def _large(report: Report, folder: Path, _: Chunk, less: int) -> None:
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


def _redis(report: Report, folder: Path, chunk: Chunk, less: int) -> None:
    with RedisServer() as server:
        appended, consumed = peers.redis_streams(server.url, chunk, 200_000 // less)
    with _used(lambda: shoal.connect(f"sqlite:///{folder}/against-redis.db")) as hub:
        ours = measure.send_singly(hub, chunk, 300_000 // less)
        reading = measure.read_all(hub, "orders", measure.as_records)
    report.add(
        "redis",
        Line("Redis Streams, fsync always: appended", _rate(appended), f"send is {ours / appended:.1f} x"),
    )
    report.add(
        "redis",
        Line("Redis Streams: consumed", _rate(consumed), f"reading objects is {reading / consumed:.1f} x"),
    )


def _groups(report: Report, folder: Path, _: Chunk, less: int) -> None:
    """Balance, hand-over and heartbeats of groups."""
    for line in balancing.lines():
        report.add("groups", line)
    took = groups.changes(f"sqlite:///{folder}/groups.db", rounds=max(3, 20 // less))
    for what, (p50, p99) in took.items():
        report.add(
            "groups",
            Line(
                f"{what}: until the last one knows ({groups.SHARDS} shards, {groups.CONSUMERS} consumers)",
                f"p50 {p50:.0f} ms, p99 {p99:.0f} ms",
                f"KCL's default: {20_000 / p50:.0f} x",
                "p50 100 ms, p99 250 ms",
                p50 < 100 and p99 < 250,
            ),
        )
    seconds = max(1.0, 5 / less)
    with shoal.connect(f"sqlite:///{folder}/beats.db") as hub:
        few = groups.heartbeats([hub], 10, 64, seconds)
        many = groups.heartbeats([hub], 1000, 64, seconds)
    for shards, rate, ratio in ((10, few, ""), (1000, many, f"{many / few:.2f} of those at 10 shards")):
        what = f"heartbeats that change nothing, SQLite, {shards:,} shards"
        report.add("groups", Line(what, _rate(rate, "/s"), ratio, "3 k /s", rate >= 3000))
    with PostgresServer() as server, ExitStack() as opened:
        url = server.fresh_database()
        hubs = [opened.enter_context(shoal.connect(url)) for _ in range(8)]
        rate = groups.heartbeats(hubs, 100, 64, seconds)
    report.add(
        "groups",
        Line("heartbeats, PostgreSQL, 8 connections", _rate(rate, "/s"), "", "2 k /s", rate >= 2000),
    )


def _computing_line(hub: shoal.Hub, records: int) -> Line:
    """Lanes as processes against one lane; more than the machine has cores for is not to be had."""
    one = workers.computing_lanes(hub, 1, Lanes.THREADS, records // 2)
    four = workers.computing_lanes(hub, 4, Lanes.PROCESSES, records)
    bare = workers.bare_processes(4, records // 2)
    cores = len(os.sched_getaffinity(0))
    return Line(
        "four process lanes, CPU-bound",
        _rate(four),
        f"{four / one:.2f} of one lane; four bare processes on {cores} cores: {bare:.2f}",
        "0.8 of bare",
        four / one >= 0.8 * bare,
    )


def _workers(report: Report, folder: Path, chunk: Chunk, less: int) -> None:
    """Processors, lanes, latency, hand-over and memory of workers."""
    with shoal.connect(f"sqlite:///{folder}/workers.db") as hub:
        measure.append_batches(hub, chunk, max(4, 20 // less))
        for what, count, floor in (
            ("a processor of Arrow columns", measure.as_arrow, 5_000_000),
            ("a processor of Record objects", measure.as_records, 1_000_000),
        ):
            rates, ratios = [], []
            for i in range(5):
                plain = measure.read_all(hub, "orders", count)
                rates.append(workers.throughput(hub, "orders", count, f"{count.__name__}-{i}"))
                ratios.append(rates[-1] / plain)
            rate = statistics.median(rates)
            ratio = f"{statistics.median(ratios):.2f} of a bare loop over read"
            report.add("workers", Line(what, _rate(rate), ratio, _rate(floor), rate >= floor))
        one = workers.lanes(hub, 1, 1000 // less)
        four = workers.lanes(hub, 4, 4000 // less)
        report.add(
            "workers",
            Line(
                "four lanes, 1 ms a record",
                _rate(four),
                f"{four / one:.2f} of one lane",
                "3.5",
                four / one >= 3.5,
            ),
        )
        report.add("workers", _computing_line(hub, 2000 // less))
        for shards, has_floor in ((1, True), (4, False)):
            ours, bare = workers.latencies(hub, chunk, folder, shards, max(1.0, 6 / less))
            report.add(
                "workers",
                Line(
                    f"from send to process, 1,000 records a second, {shards} shard{'s' * (shards > 1)}",
                    str(ours),
                    f"three bare threads and a file: {bare}",
                    "p50 5 ms, p99 25 ms" if has_floor else "",
                    (ours.p50 < 5 and ours.p99 < 25) if has_floor else None,
                ),
            )
    p50, p99 = workers.hand_overs(f"sqlite:///{folder}/handed.db", max(2, 10 // less))
    report.add(
        "workers",
        Line(
            f"hand-over to the new owner's first record ({workers.SHARDS} shards, {workers.WORKERS} workers)",
            f"p50 {p50:.0f} ms, p99 {p99:.0f} ms",
            "",
            "p50 250 ms, p99 750 ms",
            p50 < 250 and p99 < 750,
        ),
    )
    budget = 64_000_000
    used_mb = workers.memory(f"sqlite:///{folder}/wide.db", chunk, 10_000_000 // less, budget)
    report.add(
        "workers",
        Line(
            f"memory of 64 shards, one blocked, {10_000_000 // less:,} records waiting",
            f"{used_mb:.0f} MB above the start",
            f"budget {budget / 1e6:.0f} MB",
            "budget + 100 MB",
            used_mb < budget / 1e6 + 100,
        ),
    )


def _consumers(report: Report, folder: Path, chunk: Chunk, less: int) -> None:
    """Poll loops against a worker, and on an event loop against one in a thread."""
    with shoal.connect(f"sqlite:///{folder}/consumers.db") as hub:
        measure.append_batches(hub, chunk, max(4, 20 // less))
        for what, look in (("Arrow columns", measure.as_arrow), ("Record objects", measure.as_records)):
            found = consumers.rates(hub, "orders", look, 5)
            polled = statistics.median(polled for _, polled, _ in found)
            awaited = statistics.median(awaited for *_, awaited in found)
            of_worker = statistics.median(polled / worker for worker, polled, _ in found)
            of_polled = statistics.median(awaited / polled for _, polled, awaited in found)
            line = Line(
                f"a poll loop over {what}",
                _rate(polled),
                f"{of_worker:.2f} of a worker",
                "0.8",
                of_worker >= 0.8,
            )
            report.add("consumers", line)
            line = Line(
                f"the same on an event loop, {what}",
                _rate(awaited),
                f"{of_polled:.2f} of the poll loop",
                "0.8",
                of_polled >= 0.8,
            )
            report.add("consumers", line)


def _shared(report: Report, folder: Path, _: Chunk, less: int) -> None:
    """Shared groups: acknowledged records a second, with a small backlog and with a large one."""
    few, many, taken = 400_000 // less, 10_000_000 // less, 200_000 // less
    hubs: dict[str, NewHub] = {"SQLite": lambda: shoal.connect(f"sqlite:///{folder}/shared.db")}
    with PostgresServer() as server:
        hubs["PostgreSQL"] = lambda: shoal.connect(server.fresh_database())
        for name, floor in (("SQLite", 50_000), ("PostgreSQL", 10_000)):
            with _used(hubs[name]) as hub:
                _shared_lines(report, name, hub, floor, (few, many, taken, max(1, 5 // less)))


def _shared_lines(
    report: Report, name: str, hub: shoal.Hub, floor: int, sizes: tuple[int, int, int, int]
) -> None:
    few, many, taken, seconds = sizes
    shared.filled(hub, "few", few)
    shared.filled(hub, "many", many)
    small, large_ones = [], []
    for turn in range(3):
        small.append(shared.acknowledged(hub, "few", f"small-{turn}", taken))
        large_ones.append(shared.acknowledged(hub, "many", f"large-{turn}", taken))
    rate, at_large = statistics.median(small), statistics.median(large_ones)
    what = f"{name}: acknowledged by {shared.CONSUMERS} consumers, {shared.AT_ONCE} at once"
    report.add("shared", Line(what, _rate(rate), "", _rate(floor), rate >= floor))
    ratio = at_large / rate
    report.add(
        "shared",
        Line(
            f"{name}: the same with {many:,} records waiting",
            _rate(at_large),
            f"{ratio:.2f} of those with {few:,}",
            f"{_rate(floor)}, 0.8",
            at_large >= floor and ratio >= 0.8,
        ),
    )
    alone = shared.singly(hub, "few", "singly", seconds)
    report.add("shared", Line(f"{name}: acknowledged one by one, each durable", f"{alone:,.0f} records/s"))


def _served(report: Report, folder: Path, chunk: Chunk, less: int) -> None:
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


_SECTIONS: Final[dict[str, Callable[[Report, Path, Chunk, int], None]]] = {
    "sqlite": _sqlite,
    "producers": _producers,
    "large": _large,
    "redis": _redis,
    "postgresql": _server(PostgresServer, "postgresql"),
    "mariadb": _server(MariaDBServer, "mariadb"),
    "groups": _groups,
    "workers": _workers,
    "consumers": _consumers,
    "shared": _shared,
    "server": _served,
}


@contextmanager
def _used(new_hub: NewHub) -> Iterator[shoal.Hub]:
    hub = new_hub()
    try:
        yield hub
    finally:
        hub.close()


def _rate(rate: float, unit: str = "records/s") -> str:
    return f"{rate / 1e6:.2f} M {unit}" if rate >= 1e6 else f"{rate / 1e3:.0f} k {unit}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure a tenth of everything")
    names = ",".join(_SECTIONS)
    parser.add_argument("--only", default=names, help=f"sections: {names}")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
