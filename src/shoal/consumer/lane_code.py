"""User code of one shard whose lanes are processes: each task is a call to the process where its lane lives.

Here it is known where a lane's processor is, and that it is gone. What follows from that is said by the
tenure.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

import pyarrow as pa

from shoal.consumer.held import Held
from shoal.consumer.lane_messages import Call, Finished, Handed
from shoal.consumer.lane_process import LaneProcess
from shoal.consumer.user_code import Came, Ended
from shoal.core.tasks import Failure, Initialize, Process, ProcessNothing, Reason, SetAside, ShutDown, Task
from shoal.wire.batch import Batch
from shoal.wire.crossing import Label, pack

_DIED: Final = "LaneProcessDied"


class LaneDied(RuntimeError):
    """The process of a lane ended in the midst of a call."""


class RemoteFailure(Exception):
    """An error as its own process showed it: the cause of the one that is logged."""

    def __init__(self, trace: str) -> None:
        super().__init__(f"\n{trace.rstrip()}")


class Processes(Protocol):
    """What is needed of a pool."""

    def process(self, number: int) -> LaneProcess | None:
        """The process for a lane; None if there are none any more."""

    def enter(self, code: RemoteCode) -> None:
        """Its checkpointers may ask from now on."""

    def forget(self, code: RemoteCode) -> None:
        """Its checkpointers are refused from now on."""


class RemoteCode:
    """See Code: of one shard under one epoch, in a pool's processes."""

    def __init__(self, pool: Processes, held: Held, number: int) -> None:
        """`number` names it to the processes."""
        self.held, self.number = held, number
        self._pool = pool
        self._homes: dict[int, LaneProcess] = {}
        """Where each lane's processor is. Writer: the one task of a lane that runs."""

    def begin(self, task: Task, ended: Ended) -> bool:
        """See Code. Who asks a process waits for its answer in a thread."""
        del task, ended
        return False

    @property
    def bereft(self) -> list[int]:
        """See Code."""
        return [lane for lane, home in list(self._homes.items()) if home.is_dead]

    def run(self, task: Task, nothing: Batch | None) -> Came:
        """See Code."""
        began_ns = time.perf_counter_ns()
        home = self._homes.get(task.lane)
        if home is None or home.is_dead:
            refused = self._without_processor(task, home)
            if refused is not None:
                return refused
            try:
                home = self._pool.process(self.held.tenure.shard + task.lane)
            except (OSError, RuntimeError) as error:  # No memory, no descriptors, no threads: that passes.
                failure = Failure(kind=_DIED, text=f"it cannot be started: {error}", is_outage=True)
                return Came(took_ns=time.perf_counter_ns() - began_ns, error=error, failure=failure)
        if home is None:
            return _died(began_ns, "the worker has ended")
        return self._run_in(home, task, nothing, began_ns)

    def _without_processor(self, task: Task, home: LaneProcess | None) -> Came | None:
        """What comes of a task whose processor is gone; None: another can be made for it."""
        has_unsaved = self.held.tenure.lanes[task.lane].has_unsaved
        match task:
            case Initialize():
                self._pool.enter(self)
            case ShutDown(lane=lane, reason=reason):
                # Nobody is there to be told. Only an end that covers what was not declared done is refused.
                self._leave(lane)
                if reason is not Reason.ENDED or not has_unsaved:
                    return Came(took_ns=0)
                return _died(time.perf_counter_ns(), "the process of its lane", home)
            case Process() | ProcessNothing() if has_unsaved:
                return Came(took_ns=0, is_bereft=True)
        return None

    def _run_in(self, process: LaneProcess, task: Task, nothing: Batch | None, began_ns: int) -> Came:
        mark = process.take_mark()
        try:
            ended = self._call(process, task, nothing, mark)
        finally:
            reached = process.give_mark(mark)
        if isinstance(task, ShutDown):
            self._leave(task.lane)
        elif ended is None or ended.failure is None or not isinstance(task, Initialize):
            self._homes[task.lane] = process
        if ended is None:
            return _died(began_ns, f"process {process.pid}", process, reached)
        return _came(ended)

    def _call(self, process: LaneProcess, task: Task, nothing: Batch | None, mark: int) -> Finished | None:
        payload: pa.Buffer | None = None
        empty: Label | None = None
        sent: Initialize | Handed | ProcessNothing | ShutDown
        match task:
            case Process(lane=lane, piece=piece, attempt=attempt):
                assert isinstance(piece.source, Batch)
                label, payload = pack(piece.source, piece.offsets)
                sent = Handed(lane=lane, attempt=attempt, label=label, mark=mark)
            case ProcessNothing():
                assert nothing is not None
                sent, (empty, _) = task, pack(nothing, range(0))
            case SetAside():
                raise AssertionError("not user code")
            case _:
                sent = task

        def make(number: int) -> Call:
            return Call(
                number=number,
                tenure=self.number,
                shard=self.held.tenure.shard,
                epoch=self.held.tenure.epoch,
                until_ns=self.held.until_ns(),
                task=sent,
                nothing=empty,
            )

        return process.call(make, payload, self.held)

    def _leave(self, lane: int) -> None:
        self._homes.pop(lane, None)
        if not self._homes:
            self._pool.forget(self)


def _died(began_ns: int, what: str, process: LaneProcess | None = None, reached: int | None = None) -> Came:
    how = process.end_text if process is not None else ""
    text = f"{what} ended{f': {how}' if how else ''}"
    return Came(
        took_ns=time.perf_counter_ns() - began_ns,
        error=LaneDied(text),
        failure=Failure(kind=_DIED, text=text, reached=reached),
    )


def _came(ended: Finished) -> Came:
    error: BaseException | None = None
    if ended.failure is not None:
        error = RuntimeError(f"{ended.failure.kind}: {ended.failure.text}")
        error.__cause__ = RemoteFailure(ended.trace)
    return Came(
        took_ns=ended.took_ns,
        back_to=ended.back_to,
        error=error,
        failure=ended.failure,
        is_postponed=ended.is_postponed,
    )
