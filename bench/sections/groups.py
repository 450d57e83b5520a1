"""The sections of those who consume together: groups, workers, poll loops, groups without owners."""

from __future__ import annotations

import os
import statistics
from contextlib import ExitStack
from pathlib import Path

import shoal
from bench import balancing, consumers, groups, measure, shared, workers
from bench.data import Chunk
from bench.hubs import NewHub, used
from bench.table import Line, Report, rate_text
from shoal.consumer.options import Lanes
from shoal.testing.servers import PostgresServer


def owners(report: Report, folder: Path, _: Chunk, less: int) -> None:
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
        report.add("groups", Line(what, rate_text(rate, "/s"), ratio, "3 k /s", rate >= 3000))
    with PostgresServer() as server, ExitStack() as opened:
        url = server.fresh_database()
        hubs = [opened.enter_context(shoal.connect(url)) for _ in range(8)]
        rate = groups.heartbeats(hubs, 100, 64, seconds)
    report.add(
        "groups",
        Line("heartbeats, PostgreSQL, 8 connections", rate_text(rate, "/s"), "", "2 k /s", rate >= 2000),
    )


def _computing_line(hub: shoal.Hub, records: int) -> Line:
    """Lanes as processes against one lane; more than the machine has cores for is not to be had."""
    one = workers.computing_lanes(hub, 1, Lanes.THREADS, records // 2)
    four = workers.computing_lanes(hub, 4, Lanes.PROCESSES, records)
    bare = workers.bare_processes(4, records // 2)
    cores = len(os.sched_getaffinity(0))
    return Line(
        "four process lanes, CPU-bound",
        rate_text(four),
        f"{four / one:.2f} of one lane; four bare processes on {cores} cores: {bare:.2f}",
        "0.8 of bare",
        four / one >= 0.8 * bare,
    )


def working(report: Report, folder: Path, chunk: Chunk, less: int) -> None:
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
            report.add("workers", Line(what, rate_text(rate), ratio, rate_text(floor), rate >= floor))
        one = workers.lanes(hub, 1, 1000 // less)
        four = workers.lanes(hub, 4, 4000 // less)
        report.add(
            "workers",
            Line(
                "four lanes, 1 ms a record",
                rate_text(four),
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


def polling(report: Report, folder: Path, chunk: Chunk, less: int) -> None:
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
                rate_text(polled),
                f"{of_worker:.2f} of a worker",
                "0.8",
                of_worker >= 0.8,
            )
            report.add("consumers", line)
            line = Line(
                f"the same on an event loop, {what}",
                rate_text(awaited),
                f"{of_polled:.2f} of the poll loop",
                "0.8",
                of_polled >= 0.8,
            )
            report.add("consumers", line)


def sharing(report: Report, folder: Path, _: Chunk, less: int) -> None:
    """Shared groups: acknowledged records a second, with a small backlog and with a large one."""
    few, many, taken = 400_000 // less, 10_000_000 // less, 200_000 // less
    hubs: dict[str, NewHub] = {"SQLite": lambda: shoal.connect(f"sqlite:///{folder}/shared.db")}
    with PostgresServer() as server:
        hubs["PostgreSQL"] = lambda: shoal.connect(server.fresh_database())
        for name, floor in (("SQLite", 50_000), ("PostgreSQL", 10_000)):
            with used(hubs[name]) as hub:
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
    report.add("shared", Line(what, rate_text(rate), "", rate_text(floor), rate >= floor))
    ratio = at_large / rate
    report.add(
        "shared",
        Line(
            f"{name}: the same with {many:,} records waiting",
            rate_text(at_large),
            f"{ratio:.2f} of those with {few:,}",
            f"{rate_text(floor)}, 0.8",
            at_large >= floor and ratio >= 0.8,
        ),
    )
    alone = shared.singly(hub, "few", "singly", seconds)
    report.add("shared", Line(f"{name}: acknowledged one by one, each durable", f"{alone:,.0f} records/s"))
