"""A consumer in a process of its own.

It consumes what it holds, hands over what it is asked for, and writes down, on a clock that all processes of
the machine share, every moment at which it was entitled to act, with the epochs it would have acted under.
SIGTERM makes it leave.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import shoal
from shoal.consumer import Membership
from shoal.core.errors import ShoalError
from shoal.core.holding import Lease
from shoal.core.model import ShardId
from shoal.core.reading import ReadLimits
from shoal.testing.workers import Report

PACE_S = 0.1
READS = 5
"""A shard that is read to its end is looked at again in every so many rounds: ten processes share a machine
with the database, and it is who may act that this is about."""


STREAM, GROUP = "orders", "billing"


def consume_until_told(report: Report, url: str, name: str, log: Path) -> None:
    """Join, say so, and work until SIGTERM; then leave."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
    with shoal.connect(url) as hub, log.open("a", buffering=1) as out:
        consumer = Consumer(hub, hub.join_group(STREAM, GROUP, name))
        report("joined")
        while not stopping:
            acted = consumer.work()
            if acted:
                out.write(" ".join(acted) + "\n")
            time.sleep(PACE_S)
        consumer.member.leave()


class Consumer:
    """Consumes, saves and hands over."""

    def __init__(self, hub: shoal.Hub, member: Membership) -> None:
        self.member = member
        self._hub = hub
        self._positions: dict[tuple[ShardId, int], int] = {}
        self._round = 0

    def work(self) -> list[str]:
        """One round over all that is held; what this consumer was entitled to act on."""
        self._round += 1
        leases = list(self.member.leases.values())
        asked = {
            lease.shard: self._positions.get((lease.shard, lease.epoch))
            for lease in leases
            if not lease.is_wanted
        }
        acted = []
        try:
            if asked:
                self.member.release({shard: at for shard, at in asked.items() if shard in self.member.leases})
        except ShoalError:
            pass  # It was taken away meanwhile, which is what this is about.
        read: dict[Lease, int] = {}
        for lease in leases:
            # The moment before the question: whoever may act after it, could have then. A stop may fall
            # anywhere after, and what was begun before it is not what this is about.
            at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            if lease.is_wanted and self.member.may_act(lease.shard, lease.epoch):
                acted.append(f"{at}:{lease.shard}:{lease.epoch}")
                if (lease.shard, lease.epoch) not in self._positions or self._is_due(lease):
                    self._read(lease, read)
        self._save(read)
        return acted

    def _is_due(self, lease: Lease) -> bool:
        return (lease.shard + self._round) % READS == 0

    def _read(self, lease: Lease, read: dict[Lease, int]) -> None:
        """Read on as the owner, and note what is to be saved."""
        offset = self._positions.get((lease.shard, lease.epoch), lease.checkpoint)
        try:
            fence = self.member.fence(lease.shard)
            batch = self._hub.service.read(self.member.stream, lease.shard, offset, ReadLimits(), fence)
        except ShoalError:
            return
        if len(batch) or batch.end_of_shard:
            read[lease] = batch.next_offset
        else:
            self._positions[lease.shard, lease.epoch] = batch.next_offset

    def _save(self, read: dict[Lease, int]) -> None:
        """All that was read, in one commit; what is not saved is read again."""
        try:
            if read:
                self.member.checkpoint({lease.shard: offset for lease, offset in read.items()})
        except ShoalError:
            return
        self._positions.update({(lease.shard, lease.epoch): offset for lease, offset in read.items()})
