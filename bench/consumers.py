"""The lines of the table that concern consumers that poll: against a worker, and on an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import shoal
from bench import workers

Look = Callable[[shoal.Batch], int]


def polled(hub: shoal.Hub, stream: str, look: Look, group: str) -> float:
    """Records a second that a poll loop gets, from its start to the last record."""
    records = _records(hub, stream)
    seen = 0
    began = time.perf_counter()
    consumer = shoal.Consumer(hub, group, name="one")
    consumer.subscribe([stream])
    while seen < records:
        for batch in consumer.poll(5.0):
            seen += look(batch)
    took = time.perf_counter() - began
    consumer.close()
    hub.delete_group(stream, group)
    return records / took


def polled_on_a_loop(hub: shoal.Hub, stream: str, look: Look, group: str) -> float:
    """The same on an event loop."""

    async def consume() -> float:
        seen = 0
        began = time.perf_counter()
        async with shoal.AsyncConsumer(hub, group, name="one") as consumer:
            await consumer.subscribe([stream])
            while seen < records:
                for batch in await consumer.poll(5.0):
                    seen += look(batch)
            return time.perf_counter() - began

    records = _records(hub, stream)
    took = asyncio.run(consume())
    hub.delete_group(stream, group)
    return records / took


def rates(hub: shoal.Hub, stream: str, look: Look, rounds: int) -> list[tuple[float, float, float]]:
    """Of a worker, a poll loop and one on an event loop, in turn: the machine's speed changes."""
    return [
        (
            workers.throughput(hub, stream, look, f"called-{look.__name__}-{number}"),
            polled(hub, stream, look, f"polled-{look.__name__}-{number}"),
            polled_on_a_loop(hub, stream, look, f"awaited-{look.__name__}-{number}"),
        )
        for number in range(rounds)
    ]


def _records(hub: shoal.Hub, stream: str) -> int:
    return sum(shard.next_offset for shard in hub.describe_stream(stream).shards)
