"""Clients of a server, in processes of their own: in one, they would wait for each other and not for it."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.synchronize import Barrier
from typing import Final

import shoal

CLIENTS: Final = 8
PROCESSES: Final = 2
STREAM: Final = "orders"
_VALUE: Final = b"x" * 150
_START_S: Final = 60.0

Append = Callable[[shoal.Hub, int, threading.Event, list[int]], None]


def by_hub(hub: shoal.Hub, client: int, stop: threading.Event, counts: list[int]) -> None:
    """Append one record after another, each acknowledged before the next."""
    shard = client % len(hub.describe_stream(STREAM).shards)
    while not stop.is_set():
        hub.append(STREAM, shard, [_VALUE])
        counts[client] += 1


def by_producer(hub: shoal.Hub, client: int, stop: threading.Event, counts: list[int]) -> None:
    """The same with a producer, which numbers them."""
    with hub.producer(STREAM, linger_s=0.0) as producer:
        while not stop.is_set():
            producer.send(_VALUE, key=b"%d" % client).result()
            counts[client] += 1


def append_rate(url: str, append: Append, seconds: float) -> float:
    """Appends a second of all clients, spread over the processes."""
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(PROCESSES)
    with context.Pool(PROCESSES, _meet, (together,)) as pool:
        return sum(pool.starmap(_rate_of, [(url, append, CLIENTS // PROCESSES, seconds)] * PROCESSES, 1))


def shared_rate(hub: shoal.Hub, append: Append, clients: int, seconds: float) -> float:
    """The same in threads of this process, which share a hub."""
    return _rate([hub] * clients, append, seconds)


def send_at(url: str, rate: int, seconds: float) -> None:
    """A process that sends records at this rate; each says when that was, by the clock of the machine."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_send_at, args=(url, rate, seconds))
    process.start()
    process.join(seconds + _START_S)
    if process.exitcode != 0:
        raise RuntimeError(f"the producer's process ended with {process.exitcode}")


def send_all(hub: shoal.Hub, rate: int, seconds: float) -> None:
    """The same in this process."""
    with hub.producer(STREAM, linger_s=0.0) as producer:
        began = time.perf_counter()
        for number in range(int(rate * seconds)):
            time.sleep(max(0.0, began + number / rate - time.perf_counter()))
            producer.send(b"%d" % time.perf_counter_ns(), key=b"%d" % (number % 64))


def _send_at(url: str, rate: int, seconds: float) -> None:
    with shoal.connect(url) as hub:
        send_all(hub, rate, seconds)


_together: Barrier | None = None


def _meet(together: Barrier) -> None:
    global _together  # noqa: PLW0603 - what a pool gives its processes when they start
    _together = together


def _rate_of(url: str, append: Append, clients: int, seconds: float) -> float:
    assert _together is not None
    with ExitStack() as stack:
        hubs = [stack.enter_context(shoal.connect(url)) for _ in range(clients)]
        _together.wait(_START_S)
        return _rate(hubs, append, seconds)


def _rate(hubs: list[shoal.Hub], append: Append, seconds: float) -> float:
    counts = [0] * len(hubs)
    stop = threading.Event()
    threads = [
        threading.Thread(target=append, args=(hub, client, stop, counts)) for client, hub in enumerate(hubs)
    ]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 4)  # Connections, caches, the first commits.
    before, began = sum(counts), time.perf_counter()
    time.sleep(seconds)
    rate = (sum(counts) - before) / (time.perf_counter() - began)
    stop.set()
    for thread in threads:
        thread.join()
    return rate
