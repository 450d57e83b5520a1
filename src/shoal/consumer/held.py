"""A shard in the hands of a worker, with what the rules do not hold: processors, checkpointers, records.

User code runs here, in a thread of the pool. What comes of it is told to the worker's deciding thread.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

from shoal.consumer.checkpointer import Checkpointer
from shoal.consumer.membership import BOOT_CLOCK, Membership
from shoal.consumer.processor import Factory, Processor
from shoal.core.checking import is_whole
from shoal.core.delivery import Tenure
from shoal.core.errors import Fenced, LeaseLost, NotOwner, ShoalError
from shoal.core.tasks import Failure, Initialize, Process, ProcessNothing, SetAside, ShutDown, Task
from shoal.wire.batch import Batch
from shoal.wire.delivered import Delivered

_LOOK_NS: Final = 5_000_000
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
    is_dead: bool = False
    """The record was set aside for good."""


class Held:
    """One shard under one epoch. Writer of `tenure`: the deciding thread and savers, under `lock`."""

    def __init__(
        self,
        tenure: Tenure,
        member: Membership,
        factory: Factory,
        lock: threading.RLock,
        outages: tuple[type[BaseException], ...],
    ) -> None:
        self.tenure = tenure
        self.nothing: Batch | None = None
        """An empty batch of this shard."""
        self.asked_ns: int | None = None
        """When it was to be handed over."""
        self._member = member
        self._factory = factory
        self._lock = lock
        self._outages = outages
        self._persisting = threading.Lock()
        self._processors: dict[int, Processor] = {}
        self._checkpointers = [
            Checkpointer(_Lane(self, lane.number), tenure.shard, tenure.epoch) for lane in tenure.lanes
        ]

    # --- User code. ----------------------------------------------------------------------------------

    def run(self, task: Task) -> Came:
        """Carry out a task, in this thread."""
        began_ns = time.perf_counter_ns()
        batch: Delivered | None = None
        try:
            back_to = None
            match task:
                case Initialize(lane=lane):
                    made = self._factory()
                    made.initialize(self.tenure.shard)
                    self._processors[lane] = made
                case Process(lane=lane, piece=piece):
                    source = piece.source
                    assert isinstance(source, Batch)
                    batch = Delivered.of(source, piece.offsets, self._guard, _clock_ns)
                    self._guard()
                    back_to = self._process(lane, batch)
                case ProcessNothing(lane=lane):
                    assert self.nothing is not None
                    self._guard()
                    back_to = self._process(
                        lane, Delivered.of(self.nothing, range(0), self._guard, _clock_ns)
                    )
                case ShutDown(lane=lane, reason=reason):
                    self._processors.pop(lane).shutdown(self._checkpointers[lane], reason)
                case SetAside():
                    raise AssertionError("not user code")
        except BaseException as error:  # noqa: BLE001 - around user code: whatever it is, the policy says what follows
            took_ns = time.perf_counter_ns() - began_ns
            if isinstance(error, LeaseLost) and isinstance(task, Process | ProcessNothing):
                return Came(took_ns=took_ns, is_postponed=True)
            return Came(took_ns=took_ns, error=error, failure=self._failure(error, batch))
        return Came(took_ns=time.perf_counter_ns() - began_ns, back_to=back_to)

    def _failure(self, error: BaseException, batch: Delivered | None) -> Failure:
        # A store that is away when user code saves is no fault of the record either.
        is_away = isinstance(error, ShoalError) and error.retriable
        return Failure(
            kind=type(error).__qualname__,
            text=_text(error),
            reached=None if batch is None else batch.suspect,
            is_outage=is_away or isinstance(error, self._outages),
        )

    def _process(self, lane: int, batch: Delivered) -> int | None:
        checkpointer = self._checkpointers[lane]
        checkpointer.hand(batch)
        try:
            answer: object = self._processors[lane].process(batch, checkpointer)
        finally:
            checkpointer.hand(None)
        if answer is None:
            return None
        if not is_whole(answer) or not 0 <= answer <= batch.next_offset:
            raise TypeError(
                f"process returned {answer!r}: return None, or an offset from 0 to {batch.next_offset} to go "
                "back to"
            )
        return answer

    def _guard(self) -> int:
        """Until when records may be given out."""
        tenure = self.tenure
        lease = self._member.leases.get(tenure.shard)
        now_ns = _clock_ns()
        if lease is None or not self._member.may_act(tenure.shard, tenure.epoch):
            raise LeaseLost(shard=tenure.shard, epoch=tenure.epoch)
        return min(lease.deadline_ms * 1_000_000, now_ns + _LOOK_NS)

    # --- Checkpoints. --------------------------------------------------------------------------------

    def declare(self, lane: int, offset: int | None) -> int:
        """See Notebook."""
        with self._lock:
            return self.tenure.save(lane, offset)

    def declared(self, lane: int) -> int:
        """See Notebook."""
        return self.tenure.lanes[lane].done

    def persist(self) -> None:
        """See Notebook.

        One at a time: of two that pass each other, the hub would refuse the one that comes late. Until the
        answer is noted, `saving` keeps the deciding thread from taking a shard that was saved to its end, and
        so is nobody's any more, for one that is lost.
        """
        with self._lock:
            self.tenure.saving += 1
        try:
            with self._persisting:
                self._persist()
        finally:
            with self._lock:
                self.tenure.saving -= 1

    def _persist(self) -> None:
        tenure = self.tenure
        with self._lock:
            checkpoint = tenure.unsaved
        if checkpoint is None:
            return
        if not self.is_mine:
            raise LeaseLost(shard=tenure.shard, epoch=tenure.epoch)
        try:
            self._member.checkpoint({tenure.shard: checkpoint})
        except (NotOwner, Fenced) as error:
            raise LeaseLost(shard=tenure.shard, epoch=tenure.epoch) from error
        with self._lock:
            tenure.saved(checkpoint)

    @property
    def is_mine(self) -> bool:
        """Whether the membership still holds the shard under this epoch."""
        lease = self._member.leases.get(self.tenure.shard)
        return lease is not None and lease.epoch == self.tenure.epoch


class _Lane:
    """See Notebook."""

    def __init__(self, held: Held, lane: int) -> None:
        self._held, self._lane = held, lane

    def declare(self, offset: int | None) -> int:
        return self._held.declare(self._lane, offset)

    def persist(self) -> None:
        self._held.persist()

    def declared(self) -> int:
        return self._held.declared(self._lane)


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_TEXT_MAX]
    except Exception as worse:  # noqa: BLE001 - around user code: an error that cannot even be shown
        return f"(its text raised {type(worse).__qualname__})"


_clock_ns: Final = partial(time.clock_gettime_ns, BOOT_CLOCK)
"""Asked before every record: a function of ours around it would cost as much again."""


_TEXT_MAX: Final = 2000
