"""A consumer of a shared group in a process of its own: acknowledges most, releases some, rejects a few.

It writes down what it has acknowledged once the hub has said so; SIGKILL may come at any time.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from unittest.mock import patch

import shoal
from shoal.core.errors import HoldExpired
from shoal.hub import shared
from shoal.store.sql import shares
from shoal.store.sql.store import SQLStore
from shoal.testing.workers import Report

STREAM, GROUP = "jobs", "queue"
VISIBILITY_S = 2.0


def consume(report: Report, url: str, log: Path, seed: int) -> None:
    """Work until it is ended: what a dead one was burying comes back after all else is done."""
    rng = random.Random(seed)
    with (
        shoal.connect(url) as hub,
        shoal.SharedConsumer(hub, STREAM, GROUP) as consumer,
        log.open("a") as out,
    ):
        report("ready")
        while True:
            received = consumer.receive(500, wait=VISIBILITY_S)
            if not received:
                continue
            try:
                done = _settle(consumer, received, rng)
            except HoldExpired:
                continue  # The machine was slow; another has them.
            out.write("".join(f"{received.shard}:{low}-{high}\n" for low, high in done))
            out.flush()


def bury_and_die(report: Report, url: str, moment: str) -> None:
    """Reject a record, and be killed in the transaction that buries it, or as soon as that is committed."""
    where: tuple[object, str] = (shares, "appended") if moment == "before the commit" else (SQLStore, "bury")
    real = getattr(*where)

    def dying(*given: object) -> None:
        real(*given)
        os.kill(os.getpid(), signal.SIGKILL)

    with (
        patch.object(shared, "BURY_MS", 2000),
        patch.object(where[0], where[1], dying),
        shoal.connect(url) as hub,
    ):
        consumer = shoal.SharedConsumer(hub, STREAM, GROUP)
        consumer.reject(consumer.receive(1, visibility=60.0), reason="poison")
    report("it lives")


def _settle(
    consumer: shoal.SharedConsumer, received: shoal.ReceivedBatch, rng: random.Random
) -> list[tuple[int, int]]:
    offsets = list(received.offsets)
    if rng.random() < 0.1:
        some = rng.sample(offsets, max(1, len(offsets) // 20))
        consumer.release(received, some, delay=rng.choice((0.0, 0.3)))
        offsets = sorted(set(offsets) - set(some))
    if rng.random() < 0.05 and offsets:
        consumer.reject(received, offsets[0], reason="it happens")
        offsets = offsets[1:]
    if not offsets:
        return []
    consumer.ack(received, offsets)
    return _runs(offsets)


def _runs(offsets: list[int]) -> list[tuple[int, int]]:
    """Runs of offsets, which rise, as first and last."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset - 1:
            runs[-1] = (runs[-1][0], offset)
        else:
            runs.append((offset, offset))
    return runs
