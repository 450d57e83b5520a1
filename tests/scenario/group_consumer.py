"""A consumer in a process of its own: `python group_consumer.py URL STREAM GROUP NAME LOG`.

It consumes what it holds, hands over what it is asked for, and writes down, on a clock that all processes of
the machine share, every moment at which it was entitled to act, with the epochs it would have acted under.
SIGTERM makes it leave.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import shoal
from shoal.consumer import Membership
from shoal.core.errors import ShoalError
from shoal.core.holding import Lease
from shoal.core.model import ShardId
from shoal.core.reading import ReadLimits

PACE_S = 0.05


def main() -> None:
    url, stream, group, name, log = sys.argv[1:]
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
    with shoal.connect(url) as hub, Path(log).open("a", buffering=1) as out:
        consumer = Consumer(hub, hub.join_group(stream, group, name))
        sys.stdout.write("joined\n")
        sys.stdout.flush()
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

    def work(self) -> list[str]:
        """One round over all that is held; what this consumer was entitled to act on."""
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
        for lease in leases:
            # The moment before the question: whoever may act after it, could have then. A stop may fall
            # anywhere after, and what was begun before it is not what this is about.
            at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            if lease.is_wanted and self.member.may_act(lease.shard, lease.epoch):
                acted.append(f"{at}:{lease.shard}:{lease.epoch}")
                self._consume(lease)
        return acted

    def _consume(self, lease: Lease) -> None:
        """Read on as the owner, and save how far it came."""
        at = (lease.shard, lease.epoch)
        offset = self._positions.get(at, lease.checkpoint)
        try:
            fence = self.member.fence(lease.shard)
            batch = self._hub.service.read(self.member.stream, lease.shard, offset, ReadLimits(), fence)
            if len(batch) or batch.end_of_shard:
                self.member.checkpoint({lease.shard: batch.next_offset})
            self._positions[at] = batch.next_offset
        except ShoalError:
            self._positions.pop(at, None)


if __name__ == "__main__":
    main()
