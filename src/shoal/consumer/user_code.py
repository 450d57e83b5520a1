"""User code of one shard, in this process: a processor for each lane, and what comes of calling it.

It runs in whichever thread calls. Nothing here knows whether the process is the worker's own or a lane's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from shoal.consumer.checkpointer import Checkpointer, Notebook
from shoal.consumer.membership import BOOT_CLOCK
from shoal.consumer.processor import Factory, Processor
from shoal.consumer.steps import Steps, Tell, driven
from shoal.core.checking import is_whole
from shoal.core.errors import LeaseLost, ShoalError, text_of
from shoal.core.tasks import Failure, Initialize, Process, ProcessNothing, SetAside, ShutDown, Task
from shoal.wire.batch import Batch
from shoal.wire.delivered import Delivered, Guard

LOOK_NS: Final = 5_000_000
"""While a batch is iterated, the lease itself is looked at so often; its deadline, with every record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """How a task ended."""

    took_ns: int
    back_to: int | None = None
    error: BaseException | None = None
    failure: Failure | None = None
    is_postponed: bool = False
    """There was no valid deadline."""
    is_bereft: bool = False
    """It was not begun: the processor is gone, with records that it had not declared done."""
    is_dead: bool = False
    """The record was set aside for good."""
    may_decide: bool = True
    """Of a task that was taken over: the thread that says so may see to what follows."""


Ended = Callable[[Came], None]
"""Is told, from any thread, how a task ended that was taken over."""
Deliver = Callable[[Batch, Sequence[int], Guard, Callable[[], int]], Delivered]


class Code(Protocol):
    """The user's code on one shard under one epoch, wherever it runs."""

    def begin(self, task: Task, ended: Ended) -> bool:
        """Take the task over, and say later how it ended, without a thread that waits. False: run it."""

    def run(self, task: Task, nothing: Batch | None) -> Came:
        """Carry out a task, and wait for it. `nothing`: an empty batch of the shard, if one is known."""

    @property
    def bereft(self) -> Sequence[int]:
        """Lanes whose processor is gone."""


class UserCode:
    """See Code. One task of a lane at a time."""

    bereft: Final[Sequence[int]] = ()
    """A processor in this process goes with it."""

    def __init__(
        self,
        factory: Factory,
        outages: tuple[type[BaseException], ...],
        *,
        shard: int,
        epoch: int,
        guard: Guard,
        notebook: Callable[[int], Notebook],
    ) -> None:
        """`guard` says until when records may be given out; `notebook` is where a lane's saves go."""
        self._factory, self._outages, self._guard = factory, outages, guard
        self._shard, self._epoch, self._notebook = shard, epoch, notebook
        self._processors: dict[int, Processor] = {}
        self._checkpointers: dict[int, Checkpointer] = {}

    def begin(self, task: Task, ended: Ended) -> bool:
        """See Code. A call of a plain function takes a thread."""
        del task, ended
        return False

    @property
    def lanes(self) -> set[int]:
        """Those that have a processor."""
        return set(self._processors)

    def run(self, task: Task, nothing: Batch | None, deliver: Deliver = Delivered.of) -> Came:
        """See Code. `deliver` makes what `process` is given."""
        return driven(self.steps(task, nothing, deliver))

    def steps(self, task: Task, nothing: Batch | None, deliver: Deliver = Delivered.of) -> Steps[Came]:
        """The same in steps: each is a call of the user's code, which may be a coroutine."""
        began_ns = time.perf_counter_ns()
        batch: Delivered | None = None
        back_to = None
        try:
            match task:
                case Initialize(lane=lane):
                    made = self._factory()
                    yield Tell(partial(made.initialize, self._shard))
                    self._processors[lane] = made
                case Process(lane=lane, piece=piece):
                    source = piece.source
                    assert isinstance(source, Batch)
                    batch = deliver(source, piece.offsets, self._guard, clock_ns)
                    back_to = yield from self._process(lane, batch)
                case ProcessNothing(lane=lane):
                    assert nothing is not None
                    empty = Delivered.of(nothing, range(0), self._guard, clock_ns)
                    back_to = yield from self._process(lane, empty)
                case ShutDown(lane=lane, reason=reason):
                    yield Tell(partial(self._processors.pop(lane).shutdown, self._checkpointer(lane), reason))
                case SetAside():
                    raise AssertionError("not user code")
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - around user code: whatever it is, the policy says what follows
            took_ns = time.perf_counter_ns() - began_ns
            if isinstance(error, LeaseLost) and isinstance(task, Process | ProcessNothing):
                return Came(took_ns=took_ns, is_postponed=True)
            return Came(took_ns=took_ns, error=error, failure=self._failure(error, batch))
        return Came(took_ns=time.perf_counter_ns() - began_ns, back_to=back_to)

    def _process(self, lane: int, batch: Delivered) -> Steps[int | None]:
        self._guard()
        checkpointer = self._checkpointer(lane)
        checkpointer.hand(batch)
        try:
            answer: object = yield Tell(partial(self._processors[lane].process, batch, checkpointer))
        finally:
            checkpointer.hand(None)
        if answer is None:
            return None
        if is_whole(answer) and answer > batch.next_offset and answer == checkpointer.position():
            return batch.next_offset  # Who went back had declared more done before: there is no rest of this.
        if not is_whole(answer) or not 0 <= answer <= batch.next_offset:
            raise TypeError(
                f"process returned {answer!r}: return None, or an offset from 0 to {batch.next_offset} to go "
                "back to"
            )
        return answer

    def _checkpointer(self, lane: int) -> Checkpointer:
        if lane not in self._checkpointers:
            self._checkpointers[lane] = Checkpointer(self._notebook(lane), self._shard, self._epoch)
        return self._checkpointers[lane]

    def _failure(self, error: BaseException, batch: Delivered | None) -> Failure:
        # A store that is away when user code saves is no fault of the record either.
        is_away = isinstance(error, ShoalError) and error.retriable
        return Failure(
            kind=type(error).__qualname__,
            text=text_of(error),
            reached=None if batch is None else batch.suspect,
            is_outage=is_away or isinstance(error, self._outages),
        )


clock_ns: Final = partial(time.clock_gettime_ns, BOOT_CLOCK)
"""The clock that deadlines count by, one for all processes of a machine. It is asked before every record: a
function of ours around it would cost as much again."""
