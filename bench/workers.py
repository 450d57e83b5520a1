"""The lines of the table that concern workers: throughput, lanes, latency, hand-over, memory."""

from __future__ import annotations

import multiprocessing
import os
import queue
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from pathlib import Path

import shoal
from bench.data import Chunk
from shoal.consumer.options import Lanes
from shoal.consumer.runtime import ShardListener
from shoal.core.model import KeyHash
from shoal.core.ring import place
from shoal.core.routing import ShardMap

Process = Callable[[shoal.Batch, shoal.Checkpointer], None]


class Counter:
    """Counts records that reached user code, and says when there are enough."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._lock = threading.Lock()
        self.seen = 0
        self.is_full = threading.Event()

    def add(self, records: int) -> None:
        with self._lock:
            self.seen += records
            if self.seen >= self._wanted:
                self.is_full.set()


def throughput(hub: shoal.Hub, stream: str, look: Callable[[shoal.Batch], int], group: str) -> float:
    """Records a second that reach one worker's processor, from its start to the last record."""
    records = sum(shard.next_offset for shard in hub.describe_stream(stream).shards)
    counter = Counter(records)

    def process(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        counter.add(look(batch))
        checkpointer.save(persist=False)

    worker = shoal.Worker(hub, stream, group, process, name="one")
    began = time.perf_counter()
    worker.start()
    assert counter.is_full.wait(120), "the worker did not finish"
    took = time.perf_counter() - began
    worker.stop()
    hub.delete_group(stream, group)
    return records / took


def lanes(hub: shoal.Hub, parallelism: int, records: int) -> float:
    """Records a second of a processor that waits 1 ms for each, on one shard."""
    stream = f"lanes-{parallelism}"
    hub.create_stream(stream, shards=1)
    with hub.producer(stream) as producer:
        for i in range(records):
            producer.send(b"x", key=f"key-{i}")
    counter = Counter(records)

    def process(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        for _ in batch:
            time.sleep(0.001)
            counter.add(1)
        checkpointer.save(persist=False)

    worker = shoal.Worker(hub, stream, "lanes", process, parallelism=parallelism)
    began = time.perf_counter()
    worker.start()
    assert counter.is_full.wait(120), "the worker did not finish"
    took = time.perf_counter() - began
    worker.stop()
    return records / took


class Computing(shoal.Processor):
    """About a millisecond of Python for each record."""

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        for _ in batch:
            compute()
        checkpointer.save(persist=False)


def compute(_: int = 0) -> None:
    """About a millisecond of Python."""
    sum(i * i for i in range(12_000))


def bare_processes(count: int, calls: int) -> float:
    """What so many processes without any Shoal do against one, at this moment: the limit for lanes."""
    began = time.perf_counter()
    for _ in range(calls):
        compute()
    one = time.perf_counter() - began
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        pool.map(compute, range(4 * count), 1)
        began = time.perf_counter()
        pool.map(compute, range(2 * calls), 25)
        return 2 * one / (time.perf_counter() - began)


def computing_lanes(hub: shoal.Hub, parallelism: int, lanes: Lanes, records: int) -> float:
    """Records a second of a processor that computes, on one shard; processes have started before."""
    stream = f"computing-{lanes}-{parallelism}"
    hub.create_stream(stream, shards=1)
    worker = shoal.Worker(
        hub, stream, "lanes", Computing, parallelism=parallelism, lanes=lanes, batch_records=25
    ).start()
    _until(lambda: worker.shards == {0: "processing"})
    with hub.producer(stream) as producer:
        for i in range(records):
            producer.send(b"x", key=f"key-{i}")
    began = time.perf_counter()
    _until(lambda: worker.stats.records == records)
    took = time.perf_counter() - began
    worker.stop()
    return records / took


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "the worker did not finish"
        time.sleep(0.005)


LINGER_S = 0.002


@dataclass(frozen=True)
class Latency:
    """In ms."""

    p50: float
    p99: float

    @classmethod
    def of(cls, took_ms: list[float]) -> Latency:
        cuts = statistics.quantiles(took_ms, n=100, method="inclusive")
        return cls(cuts[49], cuts[98])

    def __str__(self) -> str:
        return f"p50 {self.p50:.1f} ms, p99 {self.p99:.1f} ms"


def latencies(
    hub: shoal.Hub, chunk: Chunk, folder: Path, shards: int, seconds: float
) -> tuple[Latency, Latency]:
    """From `send` to `process` at 1,000 records a second, and of bare threads: the medians of five rounds.

    A neighbour of this machine may stop it for longer than a record takes; in most rounds none does.
    """
    pairs = [
        (
            latency(hub, chunk, f"latency-{shards}-{i}", shards=shards, rate=1000, seconds=seconds),
            bare_latency(folder, 1000, seconds),
        )
        for i in range(5)
    ]
    ours, bare = zip(*pairs, strict=True)

    def middle(rounds: Sequence[Latency]) -> Latency:
        return Latency(
            statistics.median(one.p50 for one in rounds), statistics.median(one.p99 for one in rounds)
        )

    return middle(ours), middle(bare)


def _paced(rate: int, total: int) -> Iterator[int]:
    began = time.perf_counter()
    for i in range(total):
        while (left := began + i / rate - time.perf_counter()) > 0:
            time.sleep(left)
        yield i


def bare_latency(folder: Path, rate: int, seconds: float) -> Latency:
    """The limit: three threads and a file. One says when, one writes what came meanwhile and makes it
    durable, one takes the time."""
    total = int(rate * seconds)
    came: queue.SimpleQueue[float] = queue.SimpleQueue()
    durable: queue.SimpleQueue[list[float]] = queue.SimpleQueue()
    took_ms: list[float] = []

    def write() -> None:
        with (folder / "bare").open("wb", buffering=0) as file:
            left = total
            while left:
                batch = [came.get()]
                time.sleep(LINGER_S)
                while not came.empty():
                    batch.append(came.get())
                file.write(b"x" * 100 * len(batch))
                os.fdatasync(file.fileno())
                left -= len(batch)
                durable.put(batch)

    def take() -> None:
        while len(took_ms) < total:
            batch = durable.get()
            now = time.perf_counter()
            took_ms.extend((now - sent) * 1000 for sent in batch)

    threads = [threading.Thread(target=each) for each in (write, take)]
    for thread in threads:
        thread.start()
    for _ in _paced(rate, total):
        came.put(time.perf_counter())
    for thread in threads:
        thread.join()
    return Latency.of(took_ms)


def latency(hub: shoal.Hub, chunk: Chunk, stream: str, *, shards: int, rate: int, seconds: float) -> Latency:
    """From `send` to `process`, at a steady rate of single records."""
    hub.create_stream(stream, shards=shards)
    total = int(rate * seconds)
    sent: list[float] = []
    took_ms: list[float] = []
    counter = Counter(total)

    def process(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        now = time.perf_counter()
        for record in batch:
            took_ms.append((now - sent[int(record.value)]) * 1000)
        counter.add(len(batch))
        checkpointer.save(persist=False)

    with shoal.Worker(hub, stream, "latency", process), hub.producer(stream, linger_s=LINGER_S) as producer:
        time.sleep(0.5)
        for i in _paced(rate, total):
            sent.append(time.perf_counter())
            producer.send(b"%d" % i, chunk.keys[i % len(chunk.keys)])
        assert counter.is_full.wait(30), "the worker did not finish"
    return Latency.of(took_ms)


# --- Hand-over, with workers in processes of their own. ----------------------------------------------

STREAM, GROUP, SHARDS, WORKERS = "handed", "workers", 100, 10


def hand_overs(url: str, rounds: int) -> tuple[float, float]:
    """p50 and p99 in ms: from a planned join or leave to the new owner's first record, of each shard."""
    took: list[float] = []
    context = multiprocessing.get_context("spawn")
    with shoal.connect(url) as hub:
        hub.create_stream(STREAM, shards=SHARDS)
        processes: dict[str, tuple[multiprocessing.process.BaseProcess, Pipe]] = {}

        def start(name: str) -> int:
            here, there = multiprocessing.Pipe()
            process = context.Process(target=_work, args=(url, name, there), daemon=True)
            process.start()
            there.close()
            processes[name] = (process, here)
            assert here.recv() == "ready"
            here.send("go")
            begun: int = here.recv()
            return begun

        def stop(name: str) -> int:
            process, pipe = processes.pop(name)
            pipe.send("stop")
            while isinstance(heard := pipe.recv(), tuple):
                pass
            process.join(20)
            begun: int = heard
            return begun

        def firsts(since_ns: int) -> list[float]:
            """Until all that moved have had a record, which come to every shard all the time."""
            found: dict[int, int] = {}
            while heard := wait([pipe for _, pipe in processes.values()], 1.0):
                for pipe in heard:
                    shard, at_ns = pipe.recv()  # type: ignore[union-attr, call-arg]
                    found[shard] = at_ns
            return [(at_ns - since_ns) / 1e6 for at_ns in found.values()]

        with _trickle(hub):
            for i in range(WORKERS - 1):
                start(f"w{i}")
            firsts(time.monotonic_ns())
            for i in range(rounds):
                took += firsts(start(f"extra-{i}"))
                took += firsts(stop(f"extra-{i}"))
            for name in list(processes):
                stop(name)
    cuts = statistics.quantiles(took, n=100, method="inclusive")
    return cuts[49], cuts[98]


@contextmanager
def _trickle(hub: shoal.Hub) -> Iterator[None]:
    """A record for every shard, every few milliseconds."""
    stop = threading.Event()
    shards = ShardMap.of(hub.describe_stream(STREAM))
    keys: dict[int, str] = {}
    for number in count():
        keys.setdefault(shards.shard_at(place(f"key-{number}".encode(), KeyHash.XXH64)), f"key-{number}")
        if len(keys) == SHARDS:
            break

    def send() -> None:
        with hub.producer(STREAM) as producer:
            while not stop.wait(0.02):
                for key in keys.values():
                    producer.send(b"x", key)
                producer.flush()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _work(url: str, name: str, pipe: Pipe) -> None:
    """A worker's process: it tells of the first record of every shard that it gets."""
    fresh: set[int] = set()

    def opened(what: str, shard: int, _: int) -> None:
        if what == "opened":
            fresh.add(shard)

    def process(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        if batch.shard in fresh:
            fresh.discard(batch.shard)
            pipe.send((batch.shard, time.monotonic_ns()))
        checkpointer.save(persist=False)

    listener: ShardListener = opened
    with shoal.connect(url) as hub, suppress(EOFError, OSError):
        pipe.send("ready")
        pipe.recv()
        begun_ns = time.monotonic_ns()
        worker = shoal.Worker(hub, STREAM, GROUP, process, name=name, listener=listener).start()
        pipe.send(begun_ns)
        pipe.recv()
        begun_ns = time.monotonic_ns()
        worker.stop()
        pipe.send(begun_ns)


# --- Memory. -----------------------------------------------------------------------------------------


def memory(url: str, chunk: Chunk, records: int, budget: int) -> float:
    """MB above the start, at most, of a worker with 64 shards of which one is blocked; in a process."""
    with shoal.connect(url) as hub:
        hub.create_stream("wide", shards=64)
        with hub.producer("wide") as producer:
            table = chunk.to_table()
            for _ in range(records // len(chunk.values)):
                producer.send_batch(table, key_column="customer")
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_hold, args=(url, records, budget, there), daemon=True
    )
    process.start()
    found: float = here.recv()
    process.join(30)
    return found


def _hold(url: str, records: int, budget: int, pipe: Pipe) -> None:
    blocked = threading.Event()
    with shoal.connect(url) as hub:
        mine = hub.describe_stream("wide").shards[0].next_offset
        counter = Counter(records - mine)

        def process(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
            if batch.shard == 0:
                blocked.wait(600)
                return
            counter.add(len(batch))
            checkpointer.save(persist=False)

        start_mb = _resident_mb()
        worker = shoal.Worker(hub, "wide", "memory", process, ahead_bytes=budget).start()
        most_mb = 0.0
        while not counter.is_full.wait(0.02):
            most_mb = max(most_mb, _resident_mb())
        blocked.set()
        worker.stop()
    pipe.send(most_mb - start_mb)


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6
