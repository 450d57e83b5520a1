"""A consumer heartbeat by heartbeat, as its test sends them."""

from __future__ import annotations

from collections.abc import Mapping

from shoal import Hub
from shoal.core.membership import Beat
from shoal.core.model import ShardId
from shoal.core.names import stream_name
from shoal.ports import Newcomer

ORDERS = stream_name("orders")


class Member:
    """A consumer of `orders` that holds what it is given."""

    def __init__(self, hub: Hub, name: str) -> None:
        self._groups = hub.service.groups
        self.incarnation = f"{name}-1"
        newcomer = Newcomer(name=name, incarnation=self.incarnation)
        self.joined = self._groups.join(ORDERS, "billing", newcomer)
        self._number = self._seen = 0
        self._held: Mapping[ShardId, int] = {}

    def next(self) -> Beat:
        """The next heartbeat."""
        self._number += 1
        return Beat(
            incarnation=self.incarnation,
            number=self._number,
            timeout_ms=self.joined.timeout_ms,
            interval_ms=self.joined.interval_ms,
            held=self._held,
            seen=self._seen,
        )

    def beat(self) -> int:
        """Take what there is; the version of what it was told."""
        for _ in range(2):
            answer = self._groups.beat(ORDERS, self.joined.group_id, self.next())
            self._seen = answer.version
            if answer.granted is not None:
                self._held = {grant.shard: grant.epoch for grant in answer.granted}
        return self._seen
