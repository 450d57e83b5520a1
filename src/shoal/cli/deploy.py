"""The demo's chapter on workers: a rolling deploy under load, and a record that cannot be processed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shoal import Batch, Checkpointer, FailureRules, Hub, Policy, Worker
from shoal.cli.hushing import hushed

_RECORDS: Final = 6_000
_BAD: Final = b"2718"
_PATIENCE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Deployed:
    """What a deploy did."""

    records: int
    repeated: int
    missing: int
    longest_ms: float
    """Of the stops: from the call to everything handed over."""
    dead: int
    replayed: int


def deploy(hub: Hub, stream: str, group: str) -> Deployed:
    """Three workers are replaced one by one while records come; one record fails until it is mended."""
    seen: Counter[bytes] = Counter()
    lock = threading.Lock()
    is_mended = threading.Event()

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        for record in batch:
            if record.value == _BAD and not is_mended.is_set():
                raise ValueError("no card number")
            with lock:
                seen[record.value] += 1
            checkpointer.save(persist=False)

    rules = FailureRules(policy=Policy.BEST_TRIED, delays_s=(0.05, 0.1), max_attempts=3)

    def start(name: str) -> Worker:
        return Worker(hub, stream, group, process, name=name, failure=rules, in_order=False).start()

    with hushed("shoal.worker"):  # Every failure is logged; here they are part of the story.
        workers = [start(f"v1-{i}") for i in range(3)]
        sender = threading.Thread(target=_send, args=(hub, stream))
        sender.start()
        longest_s = 0.0
        for i in range(3):
            workers.append(start(f"v2-{i}"))
            began = time.perf_counter()
            workers.pop(0).stop()
            longest_s = max(longest_s, time.perf_counter() - began)
        sender.join(_PATIENCE_S)
        _until(lambda: len(seen) >= _RECORDS - 1 and bool(hub.dead_letters(stream, group)))
        dead = len(hub.dead_letters(stream, group))
        is_mended.set()
        replayed = len(hub.replay_dead_letters(stream, group))
        _until(lambda: len(seen) >= _RECORDS)
        for worker in workers:
            worker.stop()
    return Deployed(
        records=_RECORDS,
        repeated=sum(seen.values()) - len(seen),
        missing=_RECORDS - len(seen),
        longest_ms=longest_s * 1000,
        dead=dead,
        replayed=replayed,
    )


def _send(hub: Hub, stream: str) -> None:
    with hub.producer(stream) as producer:
        for n in range(_RECORDS):
            producer.send(b"%d" % n, key=f"customer-{n % 50}")
            if n % 100 == 0:
                time.sleep(0.01)


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)
