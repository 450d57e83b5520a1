"""The lines of the table that concern shared groups: how many records are acknowledged a second."""

from __future__ import annotations

import threading
import time

import pyarrow as pa

import shoal

SHARDS = 2
CONSUMERS = 8
AT_ONCE = 500


def filled(hub: shoal.Hub, stream: str, records: int) -> None:
    """A stream with so many records of 100 bytes, evenly over its shards."""
    hub.create_stream(stream, shards=SHARDS)
    chunk = pa.table({"value": pa.array([b"x" * 100] * 50_000, pa.binary())})
    left = records // SHARDS
    while left > 0:
        for shard in range(SHARDS):
            hub.append(stream, shard, chunk.slice(0, min(left, 50_000)))
        left -= 50_000


def acknowledged(hub: shoal.Hub, stream: str, group: str, records: int, consumers: int = CONSUMERS) -> float:
    """Records a second that consumers in threads receive, look at one by one, and acknowledge."""
    hub.create_group(stream, group, delivery="shared", visibility=60.0)
    counts = [0] * consumers
    share = records // consumers

    def consume(place: int) -> None:
        with shoal.SharedConsumer(hub, stream, group, f"c{place}") as consumer:
            while counts[place] < share:
                received = consumer.receive(AT_ONCE, wait=1.0)
                if not received:
                    return
                seen = sum(1 for _ in received)
                consumer.ack(received)
                counts[place] += seen

    threads = [threading.Thread(target=consume, args=(place,)) for place in range(consumers)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = sum(counts) / (time.perf_counter() - began)
    hub.delete_group(stream, group, force=True)
    return rate


def singly(hub: shoal.Hub, stream: str, group: str, seconds: float) -> float:
    """Records a second that are acknowledged one by one, each durable before the next; eight consumers."""
    hub.create_group(stream, group, delivery="shared", visibility=60.0)
    counts = [0] * CONSUMERS
    until = time.perf_counter() + seconds

    def consume(place: int) -> None:
        with shoal.SharedConsumer(hub, stream, group, f"c{place}") as consumer:
            while time.perf_counter() < until:
                received = consumer.receive(50)
                for record in received:
                    consumer.ack(received, record)
                    counts[place] += 1

    threads = [threading.Thread(target=consume, args=(place,)) for place in range(CONSUMERS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = sum(counts) / (time.perf_counter() - began)
    hub.delete_group(stream, group, force=True)
    return rate
