"""Processes that wait for records which another process appends."""

import resource
import time

import shoal
from shoal.testing.workers import Report

STREAM = "orders"
WAIT_S = 5.0


def wait_idle(report: Report, url: str, for_s: float) -> None:
    """Wait for a record that does not come; report the share of a core that this took."""
    with shoal.connect(url) as hub:
        hub.read(STREAM, 0, 0, wait=0.1)  # The first wait opens connections and starts a thread.
        before, began_s = _cpu_s(), time.monotonic()
        batch = hub.read(STREAM, 0, 0, wait=for_s)
        report((len(batch), (_cpu_s() - before) / (time.monotonic() - began_s)))


def wait_for_each(report: Report, url: str, records: int) -> None:
    """Wait for one record after the other; report, for each, when it was here, by the machine's own clock."""
    with shoal.connect(url) as hub:
        report("ready")
        offset = 0
        while offset < records:
            batch = hub.read(STREAM, 0, offset, wait=WAIT_S)
            now_ns = time.monotonic_ns()
            assert len(batch) > 0, f"no record after {WAIT_S} s"
            for _ in batch:
                report(now_ns)
            offset = batch.next_offset


def wait_for_end(report: Report, url: str) -> None:
    """Wait for a record in a shard that is closed meanwhile; report when that was known, and how."""
    with shoal.connect(url) as hub:
        report("ready")
        batch = hub.read(STREAM, 0, hub.next_offset(STREAM, 0), wait=WAIT_S)
        report((time.monotonic_ns(), len(batch), batch.end_of_shard))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
