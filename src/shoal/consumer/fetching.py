"""Reads ahead for all shards of a worker, within one budget of bytes, and waits for what is not there yet.

A read runs in the thread that asks for it. A shard that has nothing new waits without one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from shoal.consumer.membership import Membership
from shoal.core.delivery import Tenure
from shoal.core.errors import ShoalError
from shoal.core.model import ShardId
from shoal.core.reading import ReadLimits
from shoal.core.tasks import Fetch, Piece
from shoal.ports import HubService, Place, ShardEnd
from shoal.wire.batch import Batch
from shoal.wire.lanes import done_before, lanes_of

_CLOSE_S: Final = 10.0
"""The store bounds a read; this is only in case that it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a read brought."""

    pieces: Sequence[Sequence[Piece]]
    next_offset: int
    is_end: bool
    is_tail: bool
    """There was nothing more at that time; what comes is told."""
    batch: Batch


class Fetcher:
    """Reads for one worker."""

    def __init__(
        self,
        service: HubService,
        member: Membership,
        stream_id: int,
        *,
        records: int,
        piece_records: int,
        moved: Callable[[ShardId], None],
    ) -> None:
        self._service, self._member, self._stream_id = service, member, stream_id
        self._records, self._piece_records = records, piece_records
        self._changed = threading.Condition()
        self._reading = 0

        def told(place: Place) -> None:
            if isinstance(place, ShardEnd):
                moved(place.shard)

        self._following = service.follow(told)

    def read(self, tenure: Tenure, wanted: Fetch, allowed: int) -> Found | ShoalError:
        """What there is, or why nothing came."""
        with self._changed:
            self._reading += 1
        try:
            return self._found(tenure, wanted, allowed)
        except ShoalError as error:
            return error
        finally:
            with self._changed:
                self._reading -= 1
                self._changed.notify_all()

    def end_of(self, shard: ShardId) -> int | None:
        """Where the shard's next record will be; None if nobody can say."""
        try:
            return self._service.describe_stream(self._member.stream).shards[shard].next_offset
        except ShoalError:
            return None

    def forget(self, shard: ShardId) -> None:
        """Nobody waits for this shard any more."""
        self._following.drop(ShardEnd(self._stream_id, shard))

    def close(self) -> None:
        """Wait for reads that run; then nobody waits for anything any more."""
        with self._changed:
            self._changed.wait_for(lambda: not self._reading, _CLOSE_S)
        self._following.close()

    def _found(self, tenure: Tenure, wanted: Fetch, allowed: int) -> Found:
        records = self._records if wanted.until is None else min(self._records, wanted.until - wanted.offset)
        limits = ReadLimits(max_records=records, max_bytes=allowed)
        fence = self._member.fence(tenure.shard)
        if fence is not None:
            fence = fence._replace(epoch=tenure.epoch)
        batch = self._service.read(self._member.stream, tenure.shard, wanted.offset, limits, fence)
        is_tail = wanted.lane is None and batch.next_offset >= batch.tail and not batch.end_of_shard
        if is_tail:
            place = ShardEnd(self._stream_id, tenure.shard)
            if not self._following.move(place, batch.next_offset):
                self._following.add(place, batch.next_offset)
        marks = [lane.handed if wanted.lane is None else 0 for lane in tenure.lanes]
        return Found(
            pieces=self._pieces(batch, marks, done_before(batch, tenure.done_before)),
            next_offset=batch.next_offset,
            is_end=batch.end_of_shard,
            is_tail=is_tail,
            batch=batch,
        )

    def _pieces(self, batch: Batch, marks: Sequence[int], done: Collection[int]) -> list[list[Piece]]:
        """For each lane its records, in pieces. What was done before is left out."""
        size = batch.nbytes
        cut: list[list[Piece]] = []
        for offsets, mark in zip(lanes_of(batch, len(marks)), marks, strict=True):
            left = offsets
            if mark > batch.first_offset or done:
                left = [offset for offset in offsets if offset >= mark and offset not in done]
            parts = [left[at : at + self._piece_records] for at in range(0, len(left), self._piece_records)]
            cut.append([Piece(part, size * len(part) // len(batch), batch) for part in parts])
        return cut
