"""A worker in a process of its own, which writes down what reached its processor and what it saved."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import shoal
from shoal.testing.workers import Report

STREAM, GROUP = "orders", "billing"
BATCH = 500


def work_until_told(report: Report, url: str, name: str, log: Path, settings: dict[str, Any]) -> None:
    """Work until SIGTERM. Lines: `P time shard epoch first next` before the save, the same with S after."""
    with shoal.connect(url) as hub, log.open("a", buffering=1) as out:

        def process(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
            for _ in batch:
                pass
            where = f"{batch.shard} {checkpointer.epoch} {batch.first_offset} {batch.next_offset}"
            out.write(f"P {time.clock_gettime_ns(time.CLOCK_BOOTTIME)} {where}\n")
            checkpointer.save()
            out.write(f"S {time.clock_gettime_ns(time.CLOCK_BOOTTIME)} {where}\n")

        worker = shoal.Worker(
            hub,
            STREAM,
            GROUP,
            process,
            name=name,
            batch_records=BATCH,
            **settings,
        )
        report("ready")
        worker.run()


def refuse_until_killed(report: Report, url: str, delay_s: float) -> None:
    """Set every record aside, and report when one is; until it is killed."""
    rules = shoal.FailureRules(
        policy=shoal.Policy.BEST_TRIED, delays_s=(delay_s,), max_attempts=100, outage_after=1000
    )
    with shoal.connect(url) as hub:

        def refuse(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
            raise ValueError("not here")

        with shoal.Worker(hub, STREAM, GROUP, refuse, name="victim", timeout=1.0, failure=rules) as worker:
            told = 0
            while worker.wait(0.01) is False:
                if worker.stats.retries > told:
                    told = worker.stats.retries
                    report(told)
