"""A small stream, and workers on it whose bad days pass quickly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from shoal import Hub, Worker
from shoal.core.retry import Backoff, FailureRules
from shoal.testing.processing import append_numbers

STREAM, GROUP = "orders", "billing"
QUICK = FailureRules(backoff=Backoff(first_s=0.01, max_s=0.05))

Make = Callable[..., Worker]


@contextmanager
def workers(hub: Hub) -> Iterator[Make]:
    """Makes workers on a stream of two shards with five records each."""
    hub.create_stream(STREAM, shards=2)
    for shard in (0, 1):
        append_numbers(hub, STREAM, shard, range(5))
    with ExitStack() as made:

        def make(processor: object, name: str = "anna", **options: Any) -> Worker:
            options = {"timeout": 5.0, "failure": QUICK, **options}
            worker = Worker(hub, STREAM, GROUP, processor, name=name, **options)
            made.callback(_end, worker)
            return worker

        yield make


def _end(worker: Worker) -> None:
    if worker.is_running:
        worker.stop(timeout=0.5)
