"""Mutations of the rules by which workers deliver: what is put in the place of functions of `shoal.core`.

Each is made anew when it is planted, from the function that is there, and changes one thing in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from shoal.core import delivery
from shoal.core.checkpoint import Checkpoint, Marks
from shoal.core.crew import Crew
from shoal.core.delivery import Tenure
from shoal.core.lane import Lane, narrowed
from shoal.core.retry import Policy
from shoal.core.tasks import (
    Action,
    Failure,
    Phase,
    Piece,
    Process,
    ProcessNothing,
    Reason,
    Release,
    ShutDown,
    Task,
)
from sim.bug import Replacement


def furthest_lane_counts() -> Replacement:
    def checkpoint(tenure: Tenure) -> int:
        marks = [
            tenure.fetched if lane.owes_from is None else min(tenure.fetched, lane.owes_from)
            for lane in tenure.lanes
        ]
        return Checkpoint(max(marks))

    return Tenure, "checkpoint", property(checkpoint)


def only_what_was_fetched_counts() -> Replacement:
    def mark(tenure: Tenure, lane: Lane) -> int:
        return tenure.fetched if lane.owes_from is None else min(tenure.fetched, lane.owes_from)

    return Tenure, "_mark", mark


def no_marks() -> Replacement:
    return Tenure, "_checkpoint", lambda _, marks: min(marks)


def marks_are_not_read() -> Replacement:
    return delivery, "beyond", lambda _: ()


def marks_push_each_other_out() -> Replacement:
    def new(cls: type[Checkpoint], offset: int, beyond: Sequence[Marks] = ()) -> Checkpoint:
        made = int.__new__(cls, offset)
        made.beyond = tuple(tuple(marks) for marks in beyond if max(marks, default=0) > offset)[-3:]
        return made

    return Checkpoint, "__new__", new


def preceded_by_nothing() -> Replacement:
    return Crew, "_is_preceded", lambda _crew, tenure, shards: tenure.shard >= len(shards)


def gone_with_the_next() -> Replacement:
    def leave(crew: Crew, tenure: Tenure) -> None:
        crew.held.pop(tenure.shard, None)
        crew._old = [other for other in crew._old if other is not tenure]

    return Crew, "_leave", leave


def begins_again() -> Replacement:
    right = Crew._open

    def open_again(crew: Crew, lease: Any) -> object:
        orders = right(crew, lease)
        del crew._epochs[lease.shard]
        return orders

    return Crew, "_open", open_again


def failed_is_skipped() -> Replacement:
    right = Tenure.raised

    def raised(tenure: Tenure, lane_number: int, failure: Failure, now_ms: int, dice: float) -> list[Action]:
        if isinstance(tenure.lanes[lane_number].task, Process):
            tenure.returned(lane_number)
            return []
        return right(tenure, lane_number, failure, now_ms, dice)

    return Tenure, "raised", raised


def failed_comes_later() -> Replacement:
    right = Tenure.raised

    def raised(tenure: Tenure, lane_number: int, failure: Failure, now_ms: int, dice: float) -> list[Action]:
        lane = tenure.lanes[lane_number]
        is_process = isinstance(lane.task, Process)
        follows = right(tenure, lane_number, failure, now_ms, dice)
        if is_process and len(lane.queue) > 1 and lane.aside is None:
            lane.put([lane.take()])
        return follows

    return Tenure, "raised", raised


def narrowed_to_the_first() -> Replacement:
    def first_two(piece: Piece, reached: int | None) -> list[Piece]:
        return narrowed(piece, reached)[:2]

    return delivery, "narrowed", first_two


def done_before_it_is_durable() -> Replacement:
    right = Tenure._is_narrowed

    def is_narrowed(tenure: Tenure, lane: Lane, failure: Failure) -> bool:
        found = right(tenure, lane, failure)
        if found and lane.aside is not None and lane.done >= lane.finished:
            lane.done = max(lane.done, lane.aside.offset + 1)
        return found

    return Tenure, "_is_narrowed", is_narrowed


def never_set_aside() -> Replacement:
    """It goes on as if it were: by a policy that nobody named."""
    right = Tenure._is_narrowed

    def is_narrowed(tenure: Tenure, lane: Lane, failure: Failure) -> bool:
        found = right(tenure, lane, failure)
        if found and lane.aside is not None:
            lane.finished = lane.done = max(lane.done, lane.take().next)
            lane.aside = None
        return found

    return Tenure, "_is_narrowed", is_narrowed


def never_goes_back() -> Replacement:
    right = Tenure.returned

    def returned(tenure: Tenure, lane_number: int, back_to: int | None = None) -> None:
        del back_to
        right(tenure, lane_number)

    return Tenure, "returned", returned


def hidden_behind_what_comes_again() -> Replacement:
    def owes_from(lane: Lane) -> int | None:
        if lane.done < lane.handed or lane.missing is not None:
            return lane.done
        left = (piece for piece in islice(lane.queue, 2) if piece.next > lane.done)
        return next((max(lane.done, piece.first) for piece in left), None)

    return Lane, "owes_from", property(owes_from)


def falls_back() -> Replacement:
    right = Tenure._next_task

    def next_task(tenure: Tenure, lane: Lane) -> object:
        done = lane.done
        task = right(tenure, lane)
        lane.done = done
        return task

    return Tenure, "_next_task", next_task


def released_as_it_was_persisted() -> Replacement:
    right = Tenure._complete

    def complete(tenure: Tenure) -> list[Action]:
        return [
            Release(checkpoint=tenure.persisted)
            if isinstance(action, Release) and tenure.reason in (Reason.MOVED, Reason.STOPPED)
            else action
            for action in right(tenure)
        ]

    return Tenure, "_complete", complete


def given_up_with_all_that_was_given() -> Replacement:
    right = Tenure.give_up

    def give_up(tenure: Tenure) -> Release:
        right(tenure)
        return Release(checkpoint=max(lane.handed for lane in tenure.lanes))

    return Tenure, "give_up", give_up


def released_while_code_runs() -> Replacement:
    right = Tenure.advance

    def advance(tenure: Tenure, now_ms: int) -> list[Action]:
        if tenure.reason is Reason.MOVED and tenure.phase is Phase.STOPPING:
            tenure.phase = Phase.STOP_COMPLETED
            return [Release(checkpoint=tenure.checkpoint)]
        return right(tenure, now_ms)

    return Tenure, "advance", advance


def saves_after_a_loss() -> Replacement:
    right = Tenure.save

    def save(tenure: Tenure, lane_number: int, offset: int | None) -> int:
        reason, tenure.reason = tenure.reason, None
        try:
            return right(tenure, lane_number, offset)
        finally:
            tenure.reason = reason

    return Tenure, "save", save


def ended_whatever_shutdown_says() -> Replacement:
    right = Tenure.raised

    def raised(tenure: Tenure, lane_number: int, failure: Failure, now_ms: int, dice: float) -> list[Action]:
        task = tenure.lanes[lane_number].task
        if isinstance(task, ShutDown) and task.reason is Reason.ENDED:
            tenure.returned(lane_number)
            return []
        return right(tenure, lane_number, failure, now_ms, dice)

    return Tenure, "raised", raised


def ended_by_the_first_lane() -> Replacement:
    def is_at_work(tenure: Tenure) -> bool:
        first = tenure.lanes[0]
        return bool(first.queue or first.missing or first.task is not None)

    return Tenure, "_is_at_work", is_at_work


def deaf_while_it_reads() -> Replacement:
    def came_to_tail(tenure: Tenure, now_ms: int, _: int | None = None) -> None:
        tenure.is_idle, tenure.idle_ms = True, now_ms

    return Tenure, "came_to_tail", came_to_tail


def strict_sets_aside() -> Replacement:
    """Under `strict` too, a record that fails alone is passed over once it has failed twice."""
    right = Tenure._hold

    def hold(tenure: Tenure, lane: Lane, failure: Failure, now_ms: int, dice: float) -> None:
        right(tenure, lane, failure, now_ms, dice)
        if tenure._rules.policy is Policy.STRICT and lane.attempts > 1 and lane.queue:
            lane.finished = lane.take().next
            lane.due_ms, lane.attempts, lane.failure = None, 0, None

    return Tenure, "_hold", hold


def all_of_it_after_the_deadline() -> Replacement:
    def postponed(tenure: Tenure, lane_number: int, due_ms: int) -> None:
        lane = tenure.lanes[lane_number]
        lane.task, lane.due_ms = None, due_ms

    return Tenure, "postponed", postponed


def nobody_waits_for_who_polls() -> list[Replacement]:
    """What was taken is withdrawn like what waits."""
    return [(Lane, "is_waiting", property(lambda lane: isinstance(lane.task, Process))), _ends_of_nothing()]


def withdrawn_is_given() -> list[Replacement]:
    """Who polls gets what was on its desk, whatever has happened since."""
    right: Any = Tenure.take

    def take(tenure: Tenure, task: Process, now_ms: int) -> bool:
        right(tenure, task, now_ms)
        return True

    return [(Tenure, "take", take), _ends_of_nothing()]


def a_read_from_before_a_seek_counts() -> Replacement:
    """What is being read elsewhere is taken for what was sought."""
    right: Any = Tenure._go

    def _go(tenure: Tenure, lane: Lane) -> None:
        right(tenure, lane)
        tenure._is_astray = False

    return Tenure, "_go", _go


def _ends_of_nothing() -> Replacement:
    """What was withdrawn from user code ends all the same: the checkers are to see it, not an assertion."""

    def finish(tenure: Tenure, lane_number: int) -> tuple[Lane, Task]:
        lane = tenure.lanes[lane_number]
        task, lane.task = lane.task, None
        return lane, task or ProcessNothing(lane=lane_number)

    return Tenure, "_finish", finish
