"""A tenure: one shard in the hands of one worker, from its lease to its release.

The machine is shown what happened (a lease, records fetched, user code that returned or raised, a request to
hand over, a loss) and says what to do next. It holds no records, only their offsets; it runs nothing.

A shard has one lane, or several by key. Each lane has a processor of its own, which runs one call at a time:
`initialize`, then `process` piece by piece in order, then `shutdown`. What user code declared done is a mark
per lane; the checkpoint is the lowest that any lane still owes.

Invariants: a lane's pieces are handed over in the order of their offsets, and a failed one is handed again
before anything after it, unless it was set aside by name; the checkpoint never passes what a lane was given
and has not declared done; after a loss nothing is saved; after a release nothing is done.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice

from shoal.core.checkpoint import Checkpoint, beyond
from shoal.core.errors import CheckpointMisuse, LeaseLost
from shoal.core.model import ShardId
from shoal.core.retry import NO_STREAK, FailureRules, Policy, Streak, is_outage


class Phase(StrEnum):
    """Where a shard is, in its worker."""

    WAITING = "waiting"
    """A parent is still being finished here."""
    INITIALIZING = "initializing"
    PROCESSING = "processing"
    STOPPING = "stopping"
    """Nothing more is handed out; `shutdown` is due, or runs."""
    STOP_COMPLETED = "stop_completed"


class Reason(StrEnum):
    """Why a shard leaves its processor, which decides what that may still save."""

    ENDED = "ended"
    """Consumed to its end: the end is saved, by the user or for the user."""
    MOVED = "moved"
    """Another consumer gets it: what is done may be saved."""
    STOPPED = "stopped"
    """The worker stops: what is done may be saved."""
    LOST = "lost"
    """It is not ours any more: nothing can be saved."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Records that are handed to user code together, by their offsets."""

    offsets: Sequence[int]
    bytes: int = 0
    source: object = None
    """Where the shell finds the records; not looked at here."""
    due_ms: int = 0
    """Not to be handed out before: it was set aside, and waits for its next attempt."""

    @property
    def first(self) -> int:
        return self.offsets[0]

    @property
    def next(self) -> int:
        """The offset after the last."""
        return self.offsets[-1] + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How user code failed."""

    kind: str
    """The name of the error's class."""
    text: str
    reached: int | None = None
    """The offset of the record that it was given last, if it took them one by one."""
    is_outage: bool = False
    """The error itself says that it is not the record's fault."""


# --- What is to be done. -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialize:
    lane: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    lane: int
    piece: Piece
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessNothing:
    """There is nothing new, and the processor wants to know."""

    lane: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutDown:
    lane: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """Put a record into the group's retry or dead stream, and say so when it is durable there."""

    lane: int
    offset: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Let go of the shard, with this checkpoint; None: it is not ours, and there is nothing to let go of."""

    checkpoint: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWorker:
    """The policy says so."""

    failure: Failure


Task = Initialize | Process | ProcessNothing | ShutDown | SetAside
"""What runs apart, one for a lane at a time; each is answered by `returned` or `raised`."""
Action = Task | Release | StopWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Records to be fetched: all that come, or what one lane wants once more."""

    offset: int
    until: int | None = None
    lane: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Why a lane stands still."""

    failure: Failure
    attempts: int


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

    @property
    def has_unsaved(self) -> bool:
        """`process` came back from records that it has not declared done, and may still hold on to."""
        return self.done < self.finished

    def without_set_aside(self, pieces: Iterable[Piece]) -> list[Piece]:
        """What of them is still to be handed out."""
        if not self.set_aside:
            return list(pieces)
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
        if self.done < self.handed or self.missing is not None:
            return self.done
        # At the head is what runs now; it may be declared done already.
        left = (piece for piece in islice(self.queue, 2) if piece.next > self.done)
        return next((max(self.done, piece.first) for piece in left), None)


class Tenure:
    """The machine of one shard under one epoch. Writer: the worker's one thread that decides."""

    def __init__(
        self,
        shard: ShardId,
        epoch: int,
        checkpoint: int,
        rules: FailureRules,
        *,
        lanes: int = 1,
        limit: int | None = None,
    ) -> None:
        """`checkpoint` may say what earlier owners' lanes have done beyond it. `limit`: where to stop."""
        self.shard, self.epoch = shard, epoch
        self.phase = Phase.WAITING
        self.reason: Reason | None = None
        self.fetched = int(checkpoint)
        """The next offset to fetch."""
        self.done_before = beyond(checkpoint)
        """Marks of earlier owners' lanes: what is below them is not fetched."""
        self.end: int | None = None
        """Where the shard ends, once that was seen."""
        self.persisted = checkpoint
        """The checkpoint that the store has."""
        self.is_fetching = False
        self.fetch_due_ms: int | None = None
        self._rules = rules
        self._limit = limit
        self._is_end_refused = False
        self._asked: Reason | None = None
        """Someone wants it, even if its end came first."""
        self.lanes = [Lane(number, done=self.fetched, handed=self.fetched) for number in range(lanes)]

    # --- What it shows. ------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> int:
        """The end of the finished prefix: below it every lane has declared everything done.

        What lanes have done beyond it goes with it, and need not be repeated.
        """
        marks = tuple(
            self.fetched if lane.owes_from is None else min(self.fetched, lane.owes_from)
            for lane in self.lanes
        )
        ahead = (marks,) if len(marks) > 1 else ()
        return Checkpoint(min(marks), (*self.done_before, *ahead))

    @property
    def queued_bytes(self) -> int:
        """Of what was fetched and not yet finished."""
        return sum(lane.queued_bytes for lane in self.lanes)

    @property
    def blocked(self) -> Blocked | None:
        """The failure that holds it up, if one does."""
        for lane in self.lanes:
            if lane.failure is not None:
                return Blocked(failure=lane.failure, attempts=lane.attempts)
        return None

    @property
    def wanted(self) -> Fetch | None:
        """What may be fetched next, as far as the shard itself is concerned."""
        if self.phase is not Phase.PROCESSING or self.is_fetching or self.fetch_due_ms is not None:
            return None
        for lane in self.lanes:
            if lane.missing is not None:
                return Fetch(offset=lane.missing[0], until=lane.missing[1], lane=lane.number)
        if self.end is not None or (self._limit is not None and self.fetched >= self._limit):
            return None
        return Fetch(offset=self.fetched, until=self._limit)

    @property
    def is_drained(self) -> bool:
        """It has come to its limit, and user code has come back from all of it."""
        return self._limit is not None and self.fetched >= self._limit and not self._is_at_work()

    @property
    def is_running(self) -> bool:
        """Whether a task of its own has not come back yet."""
        return any(lane.task is not None for lane in self.lanes)

    def due_ms(self) -> int | None:
        """When something is to be tried again."""
        times = [self.fetch_due_ms, *(lane.due_ms for lane in self.lanes)]
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    # --- What happens. -------------------------------------------------------------------------------

    def begin(self) -> None:
        """No parent is being finished here any more."""
        if self.phase is Phase.WAITING:
            self.phase = Phase.INITIALIZING

    def got(self, pieces: Sequence[Sequence[Piece]], next_offset: int, *, is_end: bool) -> None:
        """Records came, for each lane its pieces. What comes after a stop is of no use any more."""
        assert len(pieces) == len(self.lanes), f"{len(pieces)} lanes of {len(self.lanes)}"
        self.is_fetching = False
        if self.phase is not Phase.PROCESSING:
            return
        for lane, mine in zip(self.lanes, pieces, strict=True):
            lane.put(mine)
        self.fetched = next_offset
        if is_end:
            self.end = next_offset

    def fetch_failed(self, due_ms: int) -> None:
        """Nothing came. It is tried again then."""
        self.is_fetching = False
        self.fetch_due_ms = due_ms

    def jump(self, to: int, lane_number: int | None = None) -> int:
        """Retention was faster, and the user said to go on behind it: how many records were never seen.

        `lane_number`: the lane that wanted them once more; it has seen them.
        """
        self.is_fetching = False
        if self.phase is not Phase.PROCESSING:
            return 0
        if lane_number is None:
            skipped = max(0, to - self.fetched)
            self.fetched = max(self.fetched, to)
            return skipped
        lane = self.lanes[lane_number]
        if lane.missing is not None:
            low, until = lane.missing
            lane.missing = (max(low, to), until) if to < until else None
        return 0

    def got_again(self, lane_number: int, pieces: Sequence[Piece], next_offset: int) -> None:
        """A part of what a lane wanted once more came; the next part goes behind it."""
        self.is_fetching = False
        lane = self.lanes[lane_number]
        if self.phase is not Phase.PROCESSING or lane.missing is None:
            return
        until = lane.missing[1]
        before = []
        while lane.queue and lane.queue[0].first < until:
            before.append(lane.take())
        lane.put_first([*before, *lane.without_set_aside(pieces)])
        lane.missing = (next_offset, until) if next_offset < until else None

    def returned(self, lane_number: int, back_to: int | None = None) -> None:
        """A task came back. `back_to`: `process` wants to go on from there, which it was given before."""
        lane, task = self._finish(lane_number)
        lane.attempts, lane.due_ms, lane.failure = 0, None, None
        match task:
            case Initialize():
                lane.is_ready = True
            case Process(piece=piece):
                lane.take()
                lane.streak = NO_STREAK
                lane.finished = piece.next if back_to is None else min(piece.next, back_to)
                if back_to is not None:
                    lane.missing = (back_to, piece.next) if back_to < piece.next else None
                    lane.set_aside = {offset for offset in lane.set_aside if offset < back_to}
                lane.pass_set_aside()
            case ProcessNothing():
                if back_to is not None and back_to < lane.handed:
                    lane.missing = (back_to, lane.handed)
                    lane.set_aside = {offset for offset in lane.set_aside if offset < back_to}
            case SetAside(offset=offset):
                lane.take()
                lane.aside = None
                lane.set_aside.add(offset)
                # If all before it is declared done, it is too: it is durable elsewhere.
                if lane.done >= lane.finished:
                    lane.done = max(lane.done, offset + 1)
                lane.finished = offset + 1
            case ShutDown():
                lane.is_shut = True

    def raised(self, lane_number: int, failure: Failure, now_ms: int, dice: float) -> list[Action]:
        """A task failed. What follows is the policy's to say; nothing is passed over."""
        lane, task = self._finish(lane_number)
        if isinstance(task, ShutDown) and task.reason is not Reason.ENDED:
            lane.is_shut = True  # It had its chance; what it saved is saved.
            return []
        if self.reason not in (None, Reason.ENDED):
            return []  # On the way out: what was not done is done by the next owner.
        match task:
            case ShutDown():
                lane.is_shut = True
                if self._is_over():
                    return []  # The store knows that it is over.
                self._is_end_refused = True
            case Process():
                left = _left(lane.queue[0], lane.said)
                if left is None:
                    # It failed after it had declared everything done: nothing is to be tried again.
                    lane.finished = lane.take().next
                    lane.attempts, lane.failure = 0, None
                    return self._stopped_by(failure)
                lane.take()
                lane.put_first([left])
                if self._rules.policy is Policy.BEST_TRIED and self._is_narrowed(lane, failure):
                    return []
        self._hold(lane, failure, now_ms, dice)
        return self._stopped_by(failure)

    def postponed(self, lane_number: int, due_ms: int) -> None:
        """The task was not begun, or not finished, for want of a valid deadline: it begins anew then."""
        lane, _ = self._finish(lane_number)
        lane.due_ms = due_ms

    def bereft(self, lane_number: int) -> None:
        """The lane's processor is gone, and a task, if there is one, was not begun; another will follow.

        What the lost one came back from and did not declare done, nobody holds on to any more: that comes
        again, before anything else. Attempts and failures go on counting.
        """
        lane = self.lanes[lane_number]
        task, lane.task = lane.task, None
        if not lane.has_unsaved or self.phase is not Phase.PROCESSING:
            return
        if isinstance(task, Process):
            until = lane.take().next
        elif lane.queue or lane.missing is not None:
            return  # The next task will say so again.
        else:
            until = lane.finished
        lane.missing, lane.finished = (lane.done, until), lane.done

    def save(self, lane_number: int, offset: int | None) -> int:
        """The user declares the lane's records below `offset` done (None: all that it came back from)."""
        if self.reason is Reason.LOST or self.phase is Phase.STOP_COMPLETED:
            raise LeaseLost(shard=self.shard, epoch=self.epoch)
        lane = self.lanes[lane_number]
        wanted = lane.finished if offset is None else offset
        if wanted > lane.handed:
            raise CheckpointMisuse(
                "offset", wanted, f"shard {self.shard}: records were given only up to {lane.handed}"
            )
        if wanted > lane.done:
            lane.streak = NO_STREAK  # Something went well: what fails next does not fail in a row.
        lane.done = max(lane.done, wanted)
        lane.said = max(lane.said, wanted)
        lane.pass_set_aside()
        return lane.done

    def ask(self, reason: Reason) -> None:
        """Hand over, or stop: what runs may finish, and nothing new begins."""
        self._asked = self._asked or reason
        if self.reason is None:
            self.reason = reason
            self.phase = Phase.STOPPING

    def lose(self, end: int | None) -> None:
        """It is not ours any more. `end`: where the shard ends, if it is closed.

        One that was saved to its end is not lost: it has ended.
        """
        if self.phase is Phase.STOP_COMPLETED or self.reason is Reason.LOST:
            return
        self.end = self.end if end is None else end
        self.reason = Reason.ENDED if self._is_over() else Reason.LOST
        self.phase = Phase.STOPPING

    def give_up(self) -> Release:
        """Let go while user code still runs: it has been waited for long enough. It can save nothing more."""
        assert self.phase is not Phase.STOP_COMPLETED, "there is nothing left to give up"
        released = Release(checkpoint=self.checkpoint)
        self.reason, self.phase = Reason.LOST, Phase.STOPPING
        return released

    def stuck(self, now_ms: int, timeout_ms: int) -> list[Lane]:
        """Lanes whose `process` has been running for longer than that; each call is told of once."""
        found = [
            lane
            for lane in self.lanes
            if isinstance(lane.task, Process)
            and now_ms - lane.began_ms > timeout_ms
            and not lane.is_told_stuck
        ]
        for lane in found:
            lane.is_told_stuck = True
        return found

    # --- What to do next. ----------------------------------------------------------------------------

    def advance(self, now_ms: int) -> list[Action]:
        """All that can begin now."""
        if self.fetch_due_ms is not None and self.fetch_due_ms <= now_ms:
            self.fetch_due_ms = None
        if self.phase is Phase.INITIALIZING and all(lane.is_ready for lane in self.lanes):
            self.phase = Phase.PROCESSING
        if self.phase is Phase.PROCESSING and self.end is not None and not self._is_at_work():
            self.phase, self.reason = Phase.STOPPING, Reason.ENDED
        actions: list[Action] = []
        for lane in self.lanes:
            if lane.due_ms is not None and (lane.due_ms <= now_ms or self.reason is not None):
                lane.due_ms = None  # Whether or not there is anything to do: nobody waits for a time gone by.
            if lane.task is None and lane.due_ms is None:
                task = self._next_task(lane, now_ms)
                if task is not None:
                    self._start(lane, task, now_ms)
                    actions.append(task)
        if self.phase is Phase.STOPPING and all(
            lane.is_shut or not lane.is_ready for lane in self.lanes if lane.task is None
        ):
            actions += self._complete()
        return actions

    def call_idle(self, now_ms: int) -> list[Task]:
        """Tell every lane that there is nothing new."""
        if self.phase is not Phase.PROCESSING or self._is_at_work() or self.due_ms() is not None:
            return []
        for lane in self.lanes:
            self._start(lane, ProcessNothing(lane=lane.number), now_ms)
        return [lane.task for lane in self.lanes if lane.task is not None]

    @staticmethod
    def _start(lane: Lane, task: Task, now_ms: int) -> None:
        lane.task, lane.began_ms, lane.is_told_stuck, lane.said = task, now_ms, False, 0

    def _finish(self, lane_number: int) -> tuple[Lane, Task]:
        """The lane runs nothing from here on; what it ran."""
        lane = self.lanes[lane_number]
        task = lane.task
        assert task is not None, f"lane {lane_number} runs nothing that could end"
        lane.task = None
        return lane, task

    def _next_task(self, lane: Lane, now_ms: int) -> Task | None:
        match self.phase:
            case Phase.INITIALIZING if not lane.is_ready:
                return Initialize(lane=lane.number)
            case Phase.PROCESSING if lane.aside is not None:
                return lane.aside
            case Phase.PROCESSING if lane.queue and lane.missing is None:
                piece = lane.queue[0]
                if piece.due_ms > now_ms:
                    lane.due_ms = piece.due_ms
                    return None
                lane.handed = max(lane.handed, piece.next)
                return Process(lane=lane.number, piece=piece, attempt=lane.attempts + 1)
            case Phase.STOPPING if lane.is_ready and not lane.is_shut:
                assert self.reason is not None
                return ShutDown(lane=lane.number, reason=self.reason)
            case _:
                return None

    def _complete(self) -> list[Action]:
        if any(lane.task is not None for lane in self.lanes):
            return []
        if self._is_end_refused and self.reason is Reason.ENDED and not self._is_over():
            if self._asked is None:
                self._reopen()
                return []
            self.reason = self._asked  # Its end is not saved, and another wants it: there it comes again.
        self.phase = Phase.STOP_COMPLETED
        if self.reason is Reason.LOST:
            return [Release(checkpoint=None)]
        if self.reason is Reason.ENDED:
            assert self.end is not None
            return [Release(checkpoint=self.end)]
        return [Release(checkpoint=self.checkpoint)]

    def _is_over(self) -> bool:
        """The store knows that it was consumed to its end."""
        return self.end is not None and self.persisted >= self.end

    def _is_at_work(self) -> bool:
        return any(lane.queue or lane.missing or lane.task is not None for lane in self.lanes)

    # --- Failures. -----------------------------------------------------------------------------------

    def _stopped_by(self, failure: Failure) -> list[Action]:
        return [StopWorker(failure=failure)] if self._rules.policy is Policy.STOP else []

    def _hold(self, lane: Lane, failure: Failure, now_ms: int, dice: float) -> None:
        """Try again later, in place."""
        lane.attempts += 1
        lane.failure = failure
        lane.due_ms = now_ms + self._rules.backoff.delay_ms(lane.attempts, dice)

    def _is_narrowed(self, lane: Lane, failure: Failure) -> bool:
        """Find the record that fails, by handing out less at a time; alone at last, it is set aside.

        False: it is not the record's fault.
        """
        piece = lane.queue[0]
        if failure.is_outage:
            return False
        if len(piece.offsets) > 1:
            lane.take()
            lane.put_first(_narrowed(piece, failure.reached))
            return True
        lane.streak = lane.streak.failed(failure.kind)
        if is_outage(self._rules, lane.streak, is_said=False):
            return False
        lane.aside = SetAside(lane=lane.number, offset=piece.first, failure=failure)
        return True

    def _reopen(self) -> None:
        """`shutdown` of an ended shard failed: its end is not saved, so what was not saved comes again."""
        self.phase, self.reason, self.end, self._is_end_refused = Phase.INITIALIZING, None, None, False
        self.fetched = int(self.checkpoint)
        for lane in self.lanes:
            while lane.queue:
                lane.take()
            lane.is_ready = lane.is_shut = False
            lane.set_aside.clear()
            lane.handed = lane.done = lane.finished = max(lane.done, self.fetched)


def _left(piece: Piece, done: int) -> Piece | None:
    """What is not yet declared done of a piece."""
    offsets = piece.offsets[bisect_left(piece.offsets, done) :]
    return replace(piece, offsets=offsets, bytes=_share(piece, offsets)) if offsets else None


def _without(piece: Piece, gone: Collection[int]) -> Piece | None:
    """What is left of a piece without these."""
    offsets = [offset for offset in piece.offsets if offset not in gone]
    return replace(piece, offsets=offsets, bytes=_share(piece, offsets)) if offsets else None


def _narrowed(piece: Piece, reached: int | None) -> list[Piece]:
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
