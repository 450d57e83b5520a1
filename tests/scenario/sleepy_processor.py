"""A processor that is slow: the machine falls asleep in the midst of its batch. See `test_worker_clocks`.

Lines of `SLEEPY_LOG`, each written before the next record is asked for: `R time pid shard epoch offset`, and
in the end of a shard `E time pid shard epoch reason`.
"""

from __future__ import annotations

import os
import time

import shoal

PACE_S = 0.01


class Sleepy(shoal.Processor):
    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        for record in batch:
            _write(f"R {batch.shard} {checkpointer.epoch} {record.offset}")
            time.sleep(PACE_S)
        checkpointer.save()

    def shutdown(self, checkpointer: shoal.Checkpointer, reason: shoal.Reason) -> None:
        _write(f"E {checkpointer.shard} {checkpointer.epoch} {reason.value}")


def _write(line: str) -> None:
    what, rest = line.split(" ", 1)
    at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    with open(os.environ["SLEEPY_LOG"], "a", buffering=1) as log:
        log.write(f"{what} {at} {os.getpid()} {rest}\n")
