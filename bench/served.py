"""The lines of the table that concern a server: client and server in processes of their own, on loopback."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Final

import psutil

import shoal
from bench import clients, measure
from bench.data import Chunk
from bench.groups import heartbeats
from shoal.core.holding import Answered
from shoal.testing.serving import ServerProcess

PAIRS: Final = 5
"""Of reads, one after another: the machine is not as quick in one second as in the next."""


def append_and_read(folder: Path, chunk: Chunk, commits: int, rounds: int) -> tuple[float, float]:
    """Of the embedded rates, in turns: appending by Arrow, and reading as Arrow. Medians of the ratios."""
    appends, reads = [], []
    for place in range(rounds):
        with (
            shoal.connect(f"sqlite:///{folder}/embedded-{place}.db") as embedded,
            ServerProcess(f"sqlite:///{folder}/served-{place}.db") as server,
            shoal.connect(server.url) as remote,
        ):
            appended = measure.append_batches(embedded, chunk, commits)
            appends.append(measure.append_batches(remote, chunk, commits) / appended)
            for _ in range(PAIRS):
                read = measure.read_all(embedded, "orders", measure.as_arrow)
                reads.append(measure.read_all(remote, "orders", measure.as_arrow) / read)
    return statistics.median(appends), statistics.median(reads)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallAppends:
    """Appends a second of one record each, by eight clients at once, each acknowledged before the next."""

    served: float
    """With `hub.append`, each client with a connection of its own."""
    numbered: float
    """The same with producers, which number them."""
    embedded: float
    """With one hub, which all of them share, and with it its commits."""
    syncs: float
    """What the disk does at most, one after another: a page written over, and fdatasync."""
    cost_us: float
    """Of the server's core, for each of `served`."""


def small_appends(folder: Path, seconds: float, rounds: int) -> SmallAppends:
    """In the same minutes: the disk, the embedded hub, the server, in turns. Medians of the rounds."""
    found = [_small_appends(folder / f"small-{place}", seconds) for place in range(rounds)]
    return SmallAppends(
        **{
            field.name: statistics.median(getattr(one, field.name) for one in found)
            for field in fields(SmallAppends)
        }
    )


def _small_appends(folder: Path, seconds: float) -> SmallAppends:
    folder.mkdir()
    with shoal.connect(f"sqlite:///{folder}/embedded.db") as hub:
        measure.new_stream(hub)
        embedded = clients.shared_rate(hub, clients.by_hub, clients.CLIENTS, seconds / 2)
    with ServerProcess(f"sqlite:///{folder}/served.db") as server:
        with shoal.connect(server.url) as hub:
            measure.new_stream(hub)
        began = _cpu_s(server)
        rate = clients.append_rate(server.url, clients.by_hub, seconds)
        cost_us = 1e6 * (_cpu_s(server) - began) / (rate * seconds * 1.25)
        numbered = clients.append_rate(server.url, clients.by_producer, seconds / 2)
    syncs = bare_syncs(folder, seconds / 8)
    return SmallAppends(served=rate, numbered=numbered, embedded=embedded, syncs=syncs, cost_us=cost_us)


def bare_syncs(folder: Path, seconds: float) -> float:
    """Pages written and synced a second, on the disk that the hubs are on."""
    page, count = b"x" * 8192, 0
    with (folder / "syncs").open("w+b", buffering=0) as file:
        file.write(page)
        os.fsync(file.fileno())
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            os.pwrite(file.fileno(), page, 0)
            os.fdatasync(file.fileno())
            count += 1
        return count / (time.perf_counter() - began)


def beats(folder: Path, seconds: float) -> float:
    """Heartbeats a second, of members spread over a few clients."""
    with ServerProcess(f"sqlite:///{folder}/beats.db") as server, ExitStack() as stack:
        hubs = [stack.enter_context(shoal.connect(server.url)) for _ in range(4)]
        return heartbeats(hubs, 16, 16, seconds)


def end_to_end(
    folder: Path, rate: int, seconds: float, *, shards: int, rounds: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """From `send` to `process`, p50 and p99 in ms: a producer and a worker, each a process with a hub of its
    own; and the same embedded, in one process. Medians of rounds, in turns."""
    remote, near = [], []
    for place in range(rounds):
        url = f"sqlite:///{folder}/latency-embedded-{shards}-{place}.db"
        with shoal.connect(url) as sending:
            send = partial(clients.send_all, sending, rate, seconds)
            near.append(_end_to_end(url, rate, seconds, shards, send))
        with ServerProcess(f"sqlite:///{folder}/latency-{shards}-{place}.db") as server:
            send = partial(clients.send_at, server.url, rate, seconds)
            remote.append(_end_to_end(server.url, rate, seconds, shards, send))
    return _medians(remote), _medians(near)


def _medians(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    first, second = (statistics.median(column) for column in zip(*pairs, strict=True))
    return first, second


def _end_to_end(
    url: str, rate: int, seconds: float, shards: int, send: Callable[[], None]
) -> tuple[float, float]:
    took: list[float] = []

    def process(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        now = time.perf_counter_ns()
        took.extend((now - int(record.value)) / 1e6 for record in batch)
        checkpointer.save(persist=False)

    with shoal.connect(url) as working:
        working.create_stream("orders", shards=shards)
        working.create_group("orders", "billing")
        worker = shoal.Worker(working, "orders", "billing", process, name="one").start()
        send()
        deadline = time.perf_counter() + 10
        while len(took) < int(rate * seconds) and time.perf_counter() < deadline:
            time.sleep(0.05)
        worker.stop()
    settled = took[len(took) // 10 :]
    return statistics.median(settled), statistics.quantiles(settled, n=100)[98]


def waiting(folder: Path, consumers: int, seconds: float) -> tuple[float, float]:
    """The share of a core, in percent, and the MB of a server on which so many consumers wait for records and
    for changes of their group, heartbeats included."""
    with ServerProcess(f"sqlite:///{folder}/waiting.db") as server, ExitStack() as stack:
        hubs = [stack.enter_context(shoal.connect(server.url)) for _ in range(10)]
        hubs[0].create_stream("idle", shards=1)
        hubs[0].create_group("idle", "billing")
        idlers = [Idler(hubs[place % len(hubs)], place) for place in range(consumers)]
        hubs[0].reshard("idle", consumers)  # Only now: each that joins would move shards of all the others.
        deadline = time.monotonic() + 120
        while hubs[0].describe_group("idle", "billing").state != "stable":
            if time.monotonic() > deadline:
                raise TimeoutError("the group did not settle")
            time.sleep(1)
        open_shards = {shard.id for shard in hubs[0].describe_stream("idle").shards if shard.is_open}
        for idler in idlers:
            idler.read(set(open_shards))
        time.sleep(seconds)
        began_s, began = _cpu_s(server), time.perf_counter()
        time.sleep(seconds)
        share = 100 * (_cpu_s(server) - began_s) / (time.perf_counter() - began)
        megabytes = psutil.Process(server.pid).memory_info().rss / 1e6
        for idler in idlers:
            idler.is_over = True
    return share, megabytes


class Idler:
    """A consumer that holds what it is given, hands over what it is asked for, and waits for records of a
    shard."""

    def __init__(self, hub: shoal.Hub, place: int) -> None:
        self.is_over = False
        self._hub = hub
        self._is_in = threading.Event()
        self._member = hub.join_group("idle", "billing", f"c{place}", listener=self._hear)
        self._is_in.set()

    def read(self, open_shards: set[int]) -> None:
        """Wait for records of one of these, in a thread, until it is over: a shard that is closed has an end,
        at which nobody waits."""
        deadline = time.monotonic() + 60
        while not (held := [shard for shard in self._member.leases if shard in open_shards]):
            if time.monotonic() > deadline:
                raise TimeoutError("a consumer was given no open shard")
            time.sleep(0.01)
        threading.Thread(target=self._read, args=(held[0],), daemon=True).start()

    def _hear(self, outcome: Answered) -> None:
        self._is_in.wait(30)
        asked = [lease.shard for lease in outcome.closing if lease.shard in self._member.leases]
        if asked:
            self._member.release(dict.fromkeys(asked))

    def _read(self, shard: int) -> None:
        while not self.is_over:
            with suppress(shoal.ShoalError):
                self._hub.read("idle", shard, 0, wait=20)


def _cpu_s(server: ServerProcess) -> float:
    times = psutil.Process(server.pid).cpu_times()
    used: float = times.user + times.system
    return used
