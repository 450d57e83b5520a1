"""One lane of a shard in a worker's hands: what waits for its processor, and how far it has come.

It keeps its books and decides nothing: what happens to a lane is `delivery`'s to say.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from shoal.core.limits import OFFSET_MAX
from shoal.core.retry import NO_STREAK, Streak
from shoal.core.tasks import Failure, Piece, Process, SetAside, Task


@dataclass(slots=True)
class Lane:
    """One processor and what waits for it. Writer: the machine."""

    number: int
    done: int
    """Declared done: all of the lane's records below."""
    handed: int
    """Given to user code: all of the lane's records below."""
    finished: int = 0
    """`process` came back from all of the lane's records below, or they were set aside."""
    queue: deque[Piece] = field(default_factory=deque)
    """Changed by the methods below alone."""
    queued_bytes: int = 0
    """Of the queue; counted along, as it may hold very many small pieces."""
    missing: tuple[int, int] | None = None
    """From where, and until where, its records are to be fetched once more, before all that is queued."""
    task: Task | None = None
    is_taken: bool = False
    """User code has the task in its hands. Until then it waits, and may be withdrawn."""
    sought: int | None = None
    """Where user code wants to go on, once its task has ended."""
    began_ms: int = 0
    aside: SetAside | None = None
    """What is to be set aside before anything else."""
    is_ready: bool = False
    is_shut: bool = False
    attempts: int = 0
    """Failed, of what is at the head."""
    due_ms: int | None = None
    failure: Failure | None = None
    streak: Streak = NO_STREAK

    said: int = 0
    """Declared done since the task began. Who went back may have declared more before, and wants it again."""
    is_told_stuck: bool = False
    """That its task takes too long has been said."""
    set_aside: set[int] = field(default_factory=set)
    """Offsets not declared done that are durable elsewhere: they come again only to who asks to go back."""

    def put(self, pieces: Iterable[Piece]) -> None:
        """Behind all that is queued."""
        for piece in pieces:
            self.queue.append(piece)
            self.queued_bytes += piece.bytes

    def take(self) -> Piece:
        """What is at the head goes."""
        piece = self.queue.popleft()
        self.queued_bytes -= piece.bytes
        return piece

    def put_first(self, pieces: Sequence[Piece]) -> None:
        """Before all that is queued."""
        self.queue.extendleft(reversed(pieces))
        self.queued_bytes += sum(piece.bytes for piece in pieces)

    def hand(self, piece: Piece) -> None:
        """It is given to user code."""
        if self.done >= self.handed:
            # Nothing of the lane lies before it: the checkpoint must not fall back to where it was.
            self.done = max(self.done, piece.first)
        self.handed = max(self.handed, piece.next)

    def go_to(self, offset: int) -> None:
        """Go on at another place: nothing that was fetched is wanted.

        What is leapt over is owed until it is declared done: who leaps and says no more has saved nothing.
        """
        while self.queue:
            self.take()
        self.missing = (offset, self.handed) if offset < self.handed else None
        self.set_aside = {each for each in self.set_aside if each < offset}
        self.handed, self.finished = max(self.handed, offset), offset
        self.attempts, self.due_ms, self.failure, self.aside = 0, None, None, None

    @property
    def is_waiting(self) -> bool:
        """Its task waits for user code to come for it."""
        return isinstance(self.task, Process) and not self.is_taken

    @property
    def position(self) -> int:
        """What user code is given next, of what is known here."""
        if self.sought is not None:
            return self.sought
        if isinstance(self.task, Process) and self.is_taken:
            return self.task.piece.next
        first = [self.queue[0].first] if self.queue else []
        missing = [self.missing[0]] if self.missing is not None else []
        return min([*first, *missing], default=OFFSET_MAX)

    @property
    def has_unsaved(self) -> bool:
        """`process` came back from records that it has not declared done, and may still hold on to."""
        return self.done < self.finished

    def without_set_aside(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """What of them is still to be handed out."""
        if not self.set_aside:
            return pieces
        return [left for piece in pieces if (left := _without(piece, self.set_aside)) is not None]

    def pass_set_aside(self) -> None:
        """What was set aside right behind all that is declared done is done too."""
        if not self.set_aside or self.has_unsaved or self.missing is not None:
            return
        before = self.queue[0].first if self.queue else self.handed
        self.done = max([self.done, *(offset + 1 for offset in self.set_aside if offset < before)])
        self.finished = max(self.finished, self.done)
        self.set_aside = {offset for offset in self.set_aside if offset >= self.done}

    @property
    def owes_from(self) -> int | None:
        """Below this all of its records are done; None: all that came for it is."""
        if self.done < self.handed:
            return self.done
        # At the head may be what is done and wanted again; what comes behind it was never handed out.
        left = (piece for piece in self.queue if piece.next > self.done)
        return next((max(self.done, piece.first) for piece in left), None)

    @property
    def again_from(self) -> int | None:
        """From where on records that were declared done are wanted again; None if none are."""
        if self.missing is not None:
            first = self.missing[0]
        elif self.queue:
            first = max(self.queue[0].first, self.said if self.task is not None else 0)
        else:
            return None
        return first if first < self.done else None


def left_of(piece: Piece, done: int) -> Piece | None:
    """What is not yet declared done of a piece."""
    offsets = piece.offsets[bisect_left(piece.offsets, done) :]
    return replace(piece, offsets=offsets, bytes=_share(piece, offsets)) if offsets else None


def _without(piece: Piece, gone: Collection[int]) -> Piece | None:
    """What is left of a piece without these."""
    offsets = [offset for offset in piece.offsets if offset not in gone]
    return replace(piece, offsets=offsets, bytes=_share(piece, offsets)) if offsets else None


def narrowed(piece: Piece, reached: int | None) -> list[Piece]:
    """The same records in smaller pieces: what came before the one that failed, it alone, and the rest."""
    offsets = piece.offsets
    at = len(offsets) if reached is None else bisect_left(offsets, reached)
    if at == len(offsets):
        middle = len(offsets) // 2
        parts = [offsets[:middle], offsets[middle:]]
    else:
        parts = [offsets[:at], offsets[at : at + 1], offsets[at + 1 :]]
    return [replace(piece, offsets=part, bytes=_share(piece, part)) for part in parts if part]


def _share(piece: Piece, part: Sequence[int]) -> int:
    return piece.bytes * len(part) // len(piece.offsets)
