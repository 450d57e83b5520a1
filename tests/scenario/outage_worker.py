"""A worker in a process of its own, with more to do than it has time for: if it may act, it does."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import shoal
from shoal.testing.workers import Report

STREAM = "orders"
BATCH = 10
TIMEOUT_S = 1.0
PACE_S = 0.1


def work_through_an_outage(report: Report, url: str, group: str, name: str, folder: Path) -> None:
    """Work until SIGTERM, slowly as long as `folder/slow` is there.

    Even shards are saved at once, odd ones for later. Lines: `P time shard epoch first next` when a batch is
    handed over, the same with S when it is saved. Beside them, in `.log`, what a user's log would have.
    """
    log = logging.FileHandler(folder / f"{name}.log")
    log.setFormatter(logging.Formatter("said %(asctime)s %(name)s %(message)s"))
    logging.getLogger().addHandler(log)
    slow = folder / "slow"
    with shoal.connect(url) as hub, (folder / f"{name}.acts").open("a", buffering=1) as out:

        def process(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
            where = f"{batch.shard} {checkpointer.epoch} {batch.first_offset} {batch.next_offset}"
            for record in batch:
                if record.offset == batch.first_offset:
                    out.write(f"P {time.clock_gettime_ns(time.CLOCK_BOOTTIME)} {where}\n")
            checkpointer.save(persist=batch.shard % 2 == 0)
            out.write(f"S {time.clock_gettime_ns(time.CLOCK_BOOTTIME)} {where}\n")
            if slow.exists():
                time.sleep(PACE_S)

        worker = shoal.Worker(hub, STREAM, group, process, name=name, batch_records=BATCH)
        report("ready")
        worker.run()
