"""The lines of the table that concern one hub: appends, reads, latency, waiting."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from functools import partial

import shoal
from bench.data import Chunk

SHARDS = 4


def new_stream(hub: shoal.Hub, name: str = "orders") -> str:
    """A new stream of four shards."""
    hub.create_stream(name, shards=SHARDS)
    return name


def append_batches(hub: shoal.Hub, chunk: Chunk, commits: int) -> float:
    """Records a second through `send_batch`, keyed, from Python lists to durable. Leaves `orders` to read."""
    stream = new_stream(hub)
    with hub.producer(stream) as producer:
        began = time.perf_counter()
        for _ in range(commits):
            producer.send_batch(chunk.to_table(), key_column="customer")
        producer.flush()
        return commits * len(chunk.values) / (time.perf_counter() - began)


def send_singly(hub: shoal.Hub, chunk: Chunk, records: int) -> float:
    """Records a second through `send`, one at a time, keyed, until all are durable."""
    stream = new_stream(hub)
    with hub.producer(stream) as producer:
        began = time.perf_counter()
        left = records
        while left > 0:
            for key, value in zip(chunk.keys[:left], chunk.values[:left], strict=True):
                producer.send(value, key)
            left -= len(chunk.values)
        producer.flush()
        return records / (time.perf_counter() - began)


def read_all(hub: shoal.Hub, stream: str, count: Callable[[shoal.Batch], int]) -> float:
    """Records a second of reading every shard from its first offset to its end."""
    records = 0
    began = time.perf_counter()
    for shard in hub.describe_stream(stream).shards:
        offset = shard.first_offset
        while offset < shard.next_offset:
            batch = hub.read(stream, shard.id, offset)
            records += count(batch)
            offset = batch.next_offset
    return records / (time.perf_counter() - began)


def as_arrow(batch: shoal.Batch) -> int:
    """Look at a batch as columns."""
    rows: int = batch.to_arrow().num_rows
    return rows


def as_records(batch: shoal.Batch) -> int:
    """Look at every record as an object."""
    count = 0
    for _ in batch:
        count += 1
    return count


def several_producers(hub: shoal.Hub, chunk: Chunk, producers: int, commits: int) -> float:
    """Records a second in total, of several producers that send batches at once, each from a thread."""
    stream = new_stream(hub)
    share = max(1, commits // producers)
    table = chunk.to_table()

    def produce() -> None:
        with hub.producer(stream) as producer:
            for _ in range(share):
                producer.send_batch(table, key_column="customer")
            producer.flush()

    threads = [threading.Thread(target=produce) for _ in range(producers)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return share * producers * len(chunk.values) / (time.perf_counter() - began)


def append_latency(hub: shoal.Hub, chunk: Chunk, rate: int, seconds: float) -> tuple[float, float]:
    """p50 and p99 in ms from `send` to durable, at a steady rate of small appends, each a record."""
    stream = new_stream(hub)
    took_ms: list[float] = []
    with hub.producer(stream, linger_s=0.0) as producer:
        began = time.perf_counter()
        for i in range(int(rate * seconds)):
            due = began + i / rate
            while (left := due - time.perf_counter()) > 0:
                time.sleep(left)
            at = i % len(chunk.values)
            note = partial(_note, took_ms, time.perf_counter())
            producer.send(chunk.values[at], chunk.keys[at]).add_done_callback(note)
        producer.flush()
    cuts = statistics.quantiles(took_ms, n=100)
    return cuts[49], cuts[98]


def _note(took_ms: list[float], asked: float, _: shoal.SendFuture) -> None:
    took_ms.append((time.perf_counter() - asked) * 1000)


def waiting_cost(hub: shoal.Hub, seconds: float) -> float:
    """The share of one core that a waiting reader uses, in percent."""
    stream = new_stream(hub)
    hub.read(stream, 0, 0, wait=0.5)
    cpu, began = time.process_time(), time.perf_counter()
    hub.read(stream, 0, 0, wait=seconds)
    return 100 * (time.process_time() - cpu) / (time.perf_counter() - began)
