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
