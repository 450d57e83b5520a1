"""A shard in the hands of a simulated worker, with what the rules do not hold: its records, its lanes."""

from __future__ import annotations

from collections import deque
from typing import Final

from shoal.core.delivery import Tenure
from shoal.core.tasks import Fetch, Piece
from sim.checks_records import Hand
from sim.loop import Future
from sim.stream import Stream
from sim.worker_swarm import RECORD_BYTES

RECENT: Final = 6
"""So far user code may go back."""


class Held:
    """A tenure with what the rules do not hold."""

    def __init__(self, tenure: Tenure, hand: Hand, stream: Stream) -> None:
        self.tenure, self.hand, self.stream = tenure, hand, stream
        self.recent = [deque[int](maxlen=RECENT) for _ in tenure.lanes]
        """What each lane was given lately."""
        self.persisting: Future | None = None
        """A save is on its way; others wait for it."""

    def pieces(self, wanted: Fetch, until: int, size: int) -> list[list[Piece]]:
        """For each lane its records, in pieces. What was done before is left out."""
        tenure, stream = self.tenure, self.stream
        cut: list[list[int]] = [[] for _ in tenure.lanes]
        for offset in range(wanted.offset, until):
            number = stream.lane(tenure.shard, offset, len(cut))
            mark = tenure.lanes[number].handed if wanted.lane is None else 0
            is_done = any(
                offset < marks[stream.lane(tenure.shard, offset, len(marks))] for marks in tenure.done_before
            )
            if offset >= mark and not is_done:
                cut[number].append(offset)
        return [
            [
                Piece(part, len(part) * RECORD_BYTES)
                for part in (mine[place : place + size] for place in range(0, len(mine), size))
            ]
            for mine in cut
        ]
