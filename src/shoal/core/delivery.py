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

from collections.abc import Sequence
from dataclasses import replace

from shoal.core.checkpoint import Checkpoint, beyond, is_same, later
from shoal.core.errors import CheckpointMisuse, LeaseLost
from shoal.core.lane import Lane, left_of, narrowed
from shoal.core.model import ShardId
from shoal.core.retry import NO_STREAK, FailureRules, Policy, is_outage
from shoal.core.tasks import (
    Action,
    Blocked,
    Failure,
    Fetch,
    Initialize,
    Phase,
    Piece,
    Process,
    ProcessNothing,
    Reason,
    Release,
    SetAside,
    ShutDown,
    StopWorker,
    Task,
)


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
        is_on_demand: bool = False,
    ) -> None:
        """`checkpoint` may say what earlier owners' lanes have done beyond it. `limit`: where to stop.

        `is_on_demand`: what is to be processed waits until user code takes it, and the end of a closed shard
        is for user code to declare: it may still hold on to what it was given.
        """
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
        self._unread: Blocked | None = None
        """Why what comes next cannot be read, if that does not pass by itself."""
        self.is_idle = False
        """There was nothing new, and nothing has been heard of since."""
        self.idle_ms = 0
        """Since when, or since user code was last told so."""
        self.is_given_up = False
        """User code did not come back in time: nobody waits for it any more."""
        self.saving = 0
        """Saves that are on their way: whether the shard has ended is known after them."""
        self.committing = 0
        """Transactions on their way that save what is declared done only after them."""
        self.shown: str | None = None
        """What people were last told that holds it up, and when."""
        self.shown_ms = 0
        self.is_shown_before = False
        """They were told of it before this tenure was made."""
        self.is_paused = False
        """User code wants nothing of it for now."""
        self._has_moved = False
        """Something new was heard of since it was last looked for."""
        self._is_astray = False
        """User code has sought another place since the read that is under way began."""
        self._rules = rules
        self._limit = limit
        self._is_on_demand = is_on_demand
        self._is_end_refused = False
        self._asked: Reason | None = None
        """Someone wants it, even if its end came first."""
        self._is_in_doubt = False
        self.lanes = [Lane(number, done=self.fetched, handed=self.fetched) for number in range(lanes)]

    # --- What it shows. ------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> int:
        """The end of the finished prefix: below it every lane has declared everything done.

        What lanes have done beyond it goes with it, and need not be repeated.
        """
        return self._checkpoint([self._mark(lane) for lane in self.lanes])

    def _mark(self, lane: Lane) -> int:
        # One that has begun anew may have lanes that have done more than was fetched again.
        owed = lane.owes_from
        return max(self.fetched, lane.done) if owed is None else owed

    def _checkpoint(self, marks: Sequence[int]) -> Checkpoint:
        ahead = (tuple(marks),) if len(marks) > 1 else ()
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
        return self._unread

    @property
    def wanted(self) -> Fetch | None:
        """What may be fetched next, as far as the shard itself is concerned."""
        if self.phase is not Phase.PROCESSING or self.is_fetching or self.fetch_due_ms is not None:
            return None
        if self.is_paused:
            return None
        for lane in self.lanes:
            if lane.missing is not None:
                return Fetch(offset=lane.missing[0], until=lane.missing[1], lane=lane.number)
        if self.end is not None or (self._limit is not None and self.fetched >= self._limit) or self.is_idle:
            return None
        return Fetch(offset=self.fetched, until=self._limit)

    @property
    def is_drained(self) -> bool:
        """It has come to its limit, and user code has come back from all of it."""
        return self._limit is not None and self.fetched >= self._limit and not self._is_at_work()

    @property
    def is_owing(self) -> bool:
        """It has come to its limit, and user code has not declared all of it done: nobody else sees that."""
        return self._limit is not None and self.is_drained and self.checkpoint < self._limit

    @property
    def is_running(self) -> bool:
        """Whether a task of its own has not come back yet."""
        return any(lane.task is not None for lane in self.lanes)

    @property
    def has_returned(self) -> bool:
        """Whether user code has come back from anything."""
        return any(lane.finished for lane in self.lanes)

    @property
    def position(self) -> int:
        """The next offset that user code is given."""
        (lane,) = self.lanes
        return lane.position if lane.sought is not None else min(self.fetched, lane.position)

    def due_ms(self) -> int | None:
        """When something is to be tried again."""
        times = [self.fetch_due_ms, *(lane.due_ms for lane in self.lanes)]
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    # --- What happens. -------------------------------------------------------------------------------

    def begin(self) -> None:
        """No parent is being finished here any more."""
        if self.phase is Phase.WAITING:
            self.phase = Phase.INITIALIZING

    def fetching(self) -> None:
        """What is wanted is being fetched."""
        self.is_fetching, self._has_moved = True, False

    def came_to_tail(self, now_ms: int, interval_ms: int | None = None) -> None:
        """There is nothing more. What came between the read and the waiting has been told of already.

        `interval_ms`: it is not read again before.
        """
        self.is_idle, self.idle_ms = not self._has_moved, now_ms
        if interval_ms is not None:
            self.fetch_due_ms = now_ms + interval_ms

    def moved(self) -> None:
        """There is something new."""
        self.is_idle, self._has_moved = False, True

    def got(self, pieces: Sequence[Sequence[Piece]], next_offset: int, *, is_end: bool) -> None:
        """Records came, for each lane its pieces. What comes after a stop is of no use any more."""
        assert len(pieces) == len(self.lanes), f"{len(pieces)} lanes of {len(self.lanes)}"
        self.is_fetching, self._unread = False, None
        if self.phase is not Phase.PROCESSING:
            return
        for lane, mine in zip(self.lanes, pieces, strict=True):
            lane.put(mine)
        self.fetched = next_offset
        if is_end:
            self.end = next_offset

    def is_of_no_use(self) -> bool:
        """A read has ended: whether it began before user code sought another place, so that it is dropped."""
        is_astray, self._is_astray = self._is_astray, False
        if is_astray:
            self.is_fetching = False
        return is_astray

    def fetch_failed(self, due_ms: int, failure: Failure | None = None) -> None:
        """Nothing came. It is tried again then. `failure`: what holds the shard up until someone acts."""
        self.is_fetching = self._is_astray = False
        self.fetch_due_ms = due_ms
        if failure is not None:
            attempts = 0 if self._unread is None else self._unread.attempts
            self._unread = Blocked(failure=failure, attempts=attempts + 1)

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
        self.is_fetching, self._unread = False, None
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
        self._go(lane)

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
                if not self._is_left(lane):
                    return self._stopped_by(failure)
                if self._rules.policy is Policy.BEST_TRIED and self._is_narrowed(lane, failure):
                    return []
        self._hold(lane, failure, now_ms, dice)
        return self._stopped_by(failure)

    def postponed(self, lane_number: int, due_ms: int) -> None:
        """The task was not begun, or not finished, for want of a valid deadline: it begins anew then.

        What it had declared done before does not come again.
        """
        lane, task = self._finish(lane_number)
        lane.due_ms = due_ms
        if isinstance(task, Process):
            self._is_left(lane)
        self._go(lane)

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

    def take(self, task: Process, now_ms: int) -> bool:
        """User code comes for what waits for it; False: it is not to be had any more."""
        lane = self.lanes[task.lane]
        if lane.task is not task or lane.is_taken or self._is_in_doubt:
            return False
        lane.is_taken, lane.began_ms = True, now_ms
        lane.hand(task.piece)
        return True

    def seek(self, offset: int) -> None:
        """User code wants to go on there, back or ahead; what it has in its hands, it finishes first.

        What it declared done stays so: a checkpoint leads forward. Of a shard with one lane.
        """
        (lane,) = self.lanes
        if self.reason is Reason.LOST or self.phase is Phase.STOP_COMPLETED:
            raise LeaseLost(shard=self.shard, epoch=self.epoch)
        if lane.is_waiting:
            lane.task = None
        lane.sought = offset
        self._go(lane)

    def _go(self, lane: Lane) -> None:
        """Where user code wanted to go, as soon as nothing of it runs."""
        if lane.sought is None or lane.task is not None:
            return
        lane.go_to(lane.sought)
        lane.sought = None
        self.fetched, self.end = lane.handed, None
        self.fetch_due_ms, self.is_idle, self._unread = None, False, None
        self._is_astray = self.is_fetching

    def pause(self) -> None:
        """User code wants nothing of it until `resume`. What waits for it goes back."""
        self.is_paused = True

    def resume(self) -> None:
        """It wants to go on."""
        self.is_paused = False

    def save(self, lane_number: int, offset: int | None) -> int:
        """The user declares the lane's records below `offset` done (None: all that it came back from)."""
        lane = self.lanes[lane_number]
        wanted = lane.finished if offset is None else offset
        self.check_save(lane_number, wanted)
        if wanted > lane.done:
            lane.streak = NO_STREAK  # Something went well: what fails next does not fail in a row.
        lane.done = max(lane.done, wanted)
        lane.said = max(lane.said, wanted)
        lane.pass_set_aside()
        return lane.done

    def would_save(self, lane_number: int, offset: int | None) -> int | None:
        """What is to be saved once this is declared done, if the store has not got it. Nothing is, yet."""
        lane = self.lanes[lane_number]
        self.lanes[lane_number] = replace(lane)
        try:
            self.save(lane_number, offset)
            return self.unsaved
        finally:
            self.lanes[lane_number] = lane

    @property
    def kept(self) -> int | None:
        """What the store has: saved again, it shows who owns the shard. None: nobody does, it was consumed to
        its end."""
        return None if self._is_over() else self.persisted

    def check_save(self, lane_number: int, offset: int) -> None:
        """Refuse what cannot be declared done."""
        if self.reason is Reason.LOST or self.phase is Phase.STOP_COMPLETED:
            raise LeaseLost(shard=self.shard, epoch=self.epoch)
        lane = self.lanes[lane_number]
        if offset > max(lane.handed, lane.sought or 0):  # Who leaps ahead may say that it is done with that.
            raise CheckpointMisuse(
                "offset", offset, f"shard {self.shard}: records were given only up to {lane.handed}"
            )

    @property
    def unsaved(self) -> int | None:
        """What is to be saved, if the store has not got it.

        What user code has gone back to counts as done when it is done again: if the end of a shard were saved
        before that, the shard would be over, and its children would begin.
        """
        checkpoint = self._checkpoint(
            [
                self._mark(lane) if (again := lane.again_from) is None else min(self._mark(lane), again)
                for lane in self.lanes
            ]
        )
        is_known = checkpoint < self.persisted or is_same(checkpoint, self.persisted)
        return None if is_known else checkpoint

    def saved(self, checkpoint: int) -> None:
        """The store has it."""
        self.persisted = later(self.persisted, checkpoint)

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
        """Let go while user code still runs: it has been waited for long enough. It can save nothing more.

        What a transaction of it may be saving at this moment is not to be overwritten with what we know.
        """
        assert self.phase is not Phase.STOP_COMPLETED, "there is nothing left to give up"
        in_doubt = self._is_in_doubt or self.committing > 0
        released = Release(checkpoint=None if in_doubt else self.checkpoint, as_saved=in_doubt)
        self.reason, self.phase, self.is_given_up = Reason.LOST, Phase.STOPPING, True
        return released

    def doubt(self) -> None:
        """Whether a commit has saved more than we know, nobody can tell: the same records are not handed out
        again here, and nothing more is saved. Whoever holds the shard next, under another epoch, begins where
        the store says; and the commit, if it is still on its way, is refused."""
        if self.phase is not Phase.STOP_COMPLETED:
            self.reason, self.phase, self._is_in_doubt = Reason.LOST, Phase.STOPPING, True

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
        if self.phase is Phase.PROCESSING and self.end is not None and self._is_through():
            self.phase, self.reason = Phase.STOPPING, Reason.ENDED
        actions: list[Action] = []
        for lane in self.lanes:
            if lane.is_waiting and (self.is_paused or self.phase is not Phase.PROCESSING):
                lane.task = None
            if lane.due_ms is not None and (lane.due_ms <= now_ms or self.reason is not None):
                lane.due_ms = None  # Whether or not there is anything to do: nobody waits for a time gone by.
            if lane.task is None and lane.due_ms is None:
                task = self._next_task(lane)
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

    def _start(self, lane: Lane, task: Task, now_ms: int) -> None:
        lane.task, lane.began_ms, lane.is_told_stuck, lane.said = task, now_ms, False, 0
        lane.is_taken = not (self._is_on_demand and isinstance(task, Process))

    def _finish(self, lane_number: int) -> tuple[Lane, Task]:
        """The lane runs nothing from here on; what it ran."""
        lane = self.lanes[lane_number]
        task = lane.task
        assert task is not None, f"lane {lane_number} runs nothing that could end"
        lane.task = None
        return lane, task

    def _next_task(self, lane: Lane) -> Task | None:
        match self.phase:
            case Phase.INITIALIZING if not lane.is_ready:
                return Initialize(lane=lane.number)
            case Phase.PROCESSING if lane.aside is not None:
                return lane.aside
            case Phase.PROCESSING if lane.queue and lane.missing is None and not self.is_paused:
                piece = lane.queue[0]
                if not self._is_on_demand:
                    lane.hand(piece)
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
            # Not with what we know to be saved: where only marks differ, those of the commit would be undone.
            return [Release(checkpoint=None, as_saved=self._is_in_doubt)]
        if self.reason is Reason.ENDED:
            assert self.end is not None
            return [Release(checkpoint=self.end)]
        return [Release(checkpoint=self.checkpoint)]

    def _is_over(self) -> bool:
        """The store knows that it was consumed to its end."""
        return self.end is not None and self.persisted >= self.end

    def _is_through(self) -> bool:
        """User code has come back from all of it, and has nothing left to declare that it must declare."""
        is_owing = self._is_on_demand and any(lane.done < lane.handed for lane in self.lanes)
        return not self._is_at_work() and not is_owing

    def _is_at_work(self) -> bool:
        return any(lane.queue or lane.missing or lane.task is not None for lane in self.lanes)

    # --- Failures. -----------------------------------------------------------------------------------

    def _stopped_by(self, failure: Failure) -> list[Action]:
        return [StopWorker(failure=failure)] if self._rules.policy is Policy.STOP else []

    @staticmethod
    def _is_left(lane: Lane) -> bool:
        """Of a piece that was not finished, only what was not declared done comes again, if there is such."""
        piece = lane.take()
        left = left_of(piece, lane.said)
        if left is not None:
            lane.put_first([left])
            return True
        lane.finished = piece.next
        lane.attempts, lane.failure = 0, None
        return False

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
            lane.put_first(narrowed(piece, failure.reached))
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
