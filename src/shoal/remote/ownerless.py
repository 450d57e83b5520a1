"""The calls of ShareService and PositionService over HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.core.model import ShardId, StreamName
from shoal.core.share_acts import Receive, Settled
from shoal.core.spans import Range
from shoal.native.forms import ReceivedLabel
from shoal.native.parts import batch_of
from shoal.remote.calling import WAIT_S, Part
from shoal.remote.transport import Transport
from shoal.share_port import Received, Settling


class RemoteShares(Part):
    """See ShareService."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport, "shares")

    def receive(
        self, name: StreamName, group_id: int, asked: Receive, *, wait_s: float, max_bytes: int
    ) -> Received:
        """See ShareService. The server waits, a while at a time."""
        began = time.monotonic()
        while True:
            waited_s = time.monotonic() - began
            left_s = max(0.0, wait_s - waited_s)
            received = self._receive(name, group_id, asked, min(left_s, WAIT_S), max_bytes)
            if received.batch is not None or left_s <= WAIT_S:
                return replace(received, waited_s=waited_s + received.waited_s)

    def _receive(
        self, name: StreamName, group_id: int, asked: Receive, wait_s: float, max_bytes: int
    ) -> Received:
        label: ReceivedLabel
        label, payload = self.ask_for_batches(
            "receive",
            wait_s=wait_s,
            name=name,
            group_id=group_id,
            asked=asked,
            wait_for_s=wait_s,
            max_bytes=max_bytes,
        )
        return Received(
            batch=None if label.part is None else batch_of(label.part, payload),
            hold=label.hold,
            given=label.given,
            waited_s=label.waited_s,
            waiting_for=label.waiting_for,
        )

    def settle(self, name: StreamName, group_id: int, settlings: Sequence[Settling]) -> list[Settled]:
        settled: list[Settled] = self.ask("settle", name=name, group_id=group_id, settlings=settlings)
        return settled

    def reject(
        self, name: StreamName, group_id: int, settlings: Sequence[Settling], reason: str
    ) -> list[Settled]:
        settled: list[Settled] = self.ask(
            "reject", name=name, group_id=group_id, settlings=settlings, reason=reason
        )
        return settled

    def reopen(self, name: StreamName, group_id: int, shard: ShardId, ranges: Sequence[Range]) -> int:
        reopened: int = self.ask("reopen", name=name, group_id=group_id, shard=shard, ranges=ranges)
        return reopened


class RemotePositions(Part):
    """See PositionService."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport, "positions")

    def join(self, name: StreamName, group_id: int, consumer: str, incarnation: str) -> Mapping[ShardId, int]:
        found: Mapping[ShardId, int] = self.ask(
            "join", name=name, group_id=group_id, consumer=consumer, incarnation=incarnation
        )
        return found

    def save(
        self,
        name: StreamName,
        group_id: int,
        consumer: str,
        incarnation: str,
        offsets: Mapping[ShardId, int],
    ) -> None:
        self.ask(
            "save", name=name, group_id=group_id, consumer=consumer, incarnation=incarnation, offsets=offsets
        )

    def drop(self, name: StreamName, group_id: int, consumer: str) -> None:
        self.ask("drop", name=name, group_id=group_id, consumer=consumer)
