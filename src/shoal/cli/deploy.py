"""The demo's chapter on workers: a rolling deploy under load, and a record that cannot be processed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from shoal import Batch, Checkpointer, FailureRules, Hub, Policy, Worker
from shoal.cli.hushing import hushed
from shoal.cli.patience import PATIENCE_S, until

_RECORDS: Final = 6_000
_BAD: Final = b"2718"


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
        worker = Worker(hub, stream, group, process, name=name, failure=rules, in_order=False)
        stack.callback(worker.stop)
        return worker.start()

    # Every failure is logged; here they are part of the story. Whatever happens, nothing goes on afterwards.
    with hushed("shoal.worker"), ExitStack() as stack:
        old = [start(f"v1-{i}") for i in range(3)]
        sender = stack.enter_context(_Sender(hub, stream))
        longest_s = 0.0
        for i, worker in enumerate(old):
            start(f"v2-{i}")
            began = time.perf_counter()
            worker.stop()
            longest_s = max(longest_s, time.perf_counter() - began)
        sender.join(PATIENCE_S)
        until(lambda: len(seen) >= _RECORDS - 1 and bool(hub.dead_letters(stream, group)))
        dead = len(hub.dead_letters(stream, group))
        is_mended.set()
        replayed = len(hub.replay_dead_letters(stream, group))
        until(lambda: len(seen) >= _RECORDS)
    return Deployed(
        records=_RECORDS,
        repeated=sum(seen.values()) - len(seen),
        missing=_RECORDS - len(seen),
        longest_ms=longest_s * 1000,
        dead=dead,
        replayed=replayed,
    )


class _Sender(threading.Thread):
    """Sends all records, or as many as it comes to before it is left."""

    def __init__(self, hub: Hub, stream: str) -> None:
        super().__init__(name="shoal-demo-sender", daemon=True)
        self._hub, self._stream = hub, stream
        self._is_over = threading.Event()

    def run(self) -> None:
        with self._hub.producer(self._stream) as producer:
            for n in range(_RECORDS):
                producer.send(b"%d" % n, key=f"customer-{n % 50}")
                if n % 100 == 0 and self._is_over.wait(0.01):
                    return

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self.join(PATIENCE_S)
