"""A shard in the hands of a worker, with what the rules do not hold: the user's code, saves on their way.

User code is called from here, in a thread of the pool. What comes of it is told to the worker's deciding
thread.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Protocol

from shoal.consumer.checkpointer import Notebook
from shoal.consumer.membership import Membership, boot_ms
from shoal.consumer.processor import Factory
from shoal.consumer.statistics import WorkerStats
from shoal.consumer.user_code import LOOK_NS, Came, Code, Ended, UserCode, clock_ns
from shoal.core.delivery import Tenure
from shoal.core.errors import DeliveryTimeout, Fenced, LeaseLost, NotOwner
from shoal.core.tasks import Process, Task
from shoal.ports import Commit, GroupSaves, Keep, Pledge
from shoal.wire.batch import Batch


class Hosting(Protocol):
    """Where the code of a worker's shards runs."""

    def host(self, held: Held) -> Code:
        """A place for the code of one shard."""


class Held:
    """One shard under one epoch. Writer of `tenure`: the deciding thread and savers, under `lock`."""

    def __init__(
        self, tenure: Tenure, member: Membership, hosting: Hosting, lock: threading.RLock, stats: WorkerStats
    ) -> None:
        self.tenure = tenure
        self.nothing: Batch | None = None
        """An empty batch of this shard."""
        self.asked_ns: int | None = None
        """When it was to be handed over."""
        self._member = member
        self._lock = lock
        self._stats = stats
        self._persisting = threading.Lock()
        self._code = hosting.host(self)

    # --- User code. ----------------------------------------------------------------------------------

    def begin(self, task: Task, ended: Ended) -> bool:
        """Hand a task to code that ends it later; False: it is to be run."""
        return self._code.begin(task, ended)

    def run(self, task: Task) -> Came:
        """Carry out a task, in this thread."""
        return self._code.run(task, self.nothing)

    @property
    def bereft(self) -> list[int]:
        """Lanes whose processor is gone while nothing runs there, with records that it did not save."""
        lanes = self.tenure.lanes
        return [lane for lane in self._code.bereft if lanes[lane].task is None and lanes[lane].has_unsaved]

    def done_of(self, task: Task) -> int:
        """How many records of a task that raised were declared done before."""
        if not isinstance(task, Process):
            return 0
        return bisect_left(task.piece.offsets, self.tenure.lanes[task.lane].said)

    def guard(self) -> int:
        """Until when records may be given out."""
        until_ns = self.until_ns()
        now_ns = clock_ns()
        if now_ns >= until_ns:
            raise LeaseLost(shard=self.tenure.shard, epoch=self.tenure.epoch)
        return min(until_ns, now_ns + LOOK_NS)

    def until_ns(self) -> int:
        """The deadline on the clock that goes on in suspend; 0 if the shard may not be worked on now."""
        tenure = self.tenure
        lease = self._member.leases.get(tenure.shard)
        if lease is None or not self._member.may_act(tenure.shard, tenure.epoch):
            return 0
        return lease.deadline_ms * 1_000_000

    # --- User code that comes for its records. --------------------------------------------------------

    def take(self, task: Process) -> bool:
        """See Tenure. What has no valid deadline stays where it is."""
        if clock_ns() >= self.until_ns():
            return False
        with self._lock:
            return self.tenure.take(task, boot_ms())

    def is_to_be_had(self, task: Process) -> bool:
        """Whether a task still waits for user code."""
        with self._lock:
            lane = self.tenure.lanes[task.lane]
            return lane.task is task and lane.is_waiting

    def is_persisted(self, offset: int) -> bool:
        """Whether the store knows that all before is done."""
        with self._lock:
            return self.tenure.persisted >= offset

    def seek(self, offset: int) -> None:
        """See Tenure."""
        with self._lock:
            self.tenure.seek(offset)

    def pause(self, *, is_paused: bool) -> None:
        """See Tenure."""
        with self._lock:
            self.tenure.pause() if is_paused else self.tenure.resume()

    @property
    def position(self) -> int:
        """See Tenure."""
        with self._lock:
            return self.tenure.position

    # --- Checkpoints. --------------------------------------------------------------------------------

    def declare(self, lane: int, offset: int | None) -> int:
        """See Notebook."""
        with self._lock:
            try:
                return self.tenure.save(lane, offset)
            except LeaseLost:
                self._stats.fenced += 1
                raise

    def checkpoint(self) -> int:
        """Below it everything is declared done, whether or not it is saved."""
        with self._lock:  # What waits in a lane may be handed out meanwhile.
            return int(self.tenure.checkpoint)

    def notebook(self, lane: int) -> Notebook:
        """Where a lane's checkpointer writes."""
        return _Lane(self, lane)

    def check(self, offset: int) -> None:
        """Refuse what `declare` would refuse."""
        with self._lock:
            self.tenure.check_save(0, offset)

    def declared(self, lane: int) -> int:
        """See Notebook."""
        return self.tenure.lanes[lane].done

    def persist(self) -> None:
        """See Notebook.

        One at a time: of two that pass each other, the hub would refuse the one that comes late. Until the
        answer is noted, `saving` keeps the deciding thread from taking a shard that was saved to its end, and
        so is nobody's any more, for one that is lost.
        """
        try:
            with self._saving():
                self._persist()
        except LeaseLost:
            with self._lock:
                self._stats.fenced += 1
            raise

    def check_pledge(self) -> int:
        """Refuse what no transaction could save. The number of the membership, see Pledge."""
        self._member.check_pledge()
        return id(self._member)

    @staticmethod
    def pledge(several: Sequence[tuple[Held, int, int | None]]) -> Pledge:
        """Of each a lane, and what is to be declared done of it: to be saved by one transaction."""
        shards: dict[tuple[int, int], Keep | None] = {
            (held.check_pledge(), held.tenure.shard): held._keeping for held, _, _ in several
        }
        return Pledge(shards, partial(Held._commit_together, several))

    def commit(self, lane: int, offset: int | None, commit: Commit) -> None:
        """Have the checkpoint saved by `commit`, as if this were declared; if it does, it is."""
        with self._keeping():
            self._commit_together([(self, lane, offset)], commit)

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        """Nobody else saves it."""
        with self._saving(), self._committing():
            yield

    @staticmethod
    def _commit_together(several: Sequence[tuple[Held, int, int | None]], commit: Commit) -> None:
        """What is to be declared done, of each a lane and an offset, saved by one commit; or nothing is.

        If nobody knows what became of the commit, its shards are let go of, and go on from what was saved.
        """
        wanted = [(held, held._would_save(lane, offset)) for held, lane, offset in several]
        if all(checkpoint is None for _, checkpoint in wanted):  # The owner is to be the owner all the same.
            wanted = [(held, held._kept()) for held, _ in wanted]
        try:
            commit([held._saves(checkpoint) for held, checkpoint in wanted if checkpoint is not None])
        except (NotOwner, Fenced) as error:
            lost = next((held for held, _ in wanted if held.tenure.shard == error.shard), wanted[0][0])
            raise LeaseLost(shard=lost.tenure.shard, epoch=lost.tenure.epoch) from error
        except BaseException as error:
            if isinstance(error, DeliveryTimeout) or not isinstance(error, Exception):
                for held, checkpoint in wanted:
                    if checkpoint is not None:
                        held._doubt()
            raise
        for (held, lane, offset), (_, checkpoint) in zip(several, wanted, strict=True):
            held._committed(lane, offset, checkpoint)

    def _doubt(self) -> None:
        with self._lock:
            self.tenure.doubt()

    def _would_save(self, lane: int, offset: int | None) -> int | None:
        with self._lock:
            checkpoint = self.tenure.would_save(lane, offset)
        if not self.is_mine:
            raise LeaseLost(shard=self.tenure.shard, epoch=self.tenure.epoch)
        return checkpoint

    def _kept(self) -> int | None:
        with self._lock:
            return self.tenure.kept

    def _saves(self, checkpoint: int) -> GroupSaves:
        shard = self.tenure.shard
        return self._member.saves({shard: checkpoint}, epochs={shard: self.tenure.epoch})

    def _committed(self, lane: int, offset: int | None, checkpoint: int | None) -> None:
        with self._lock:
            # It was ours when it was committed, whatever became of the shard since.
            with suppress(LeaseLost):
                self.tenure.save(lane, offset)
            if checkpoint is not None:
                self.tenure.saved(checkpoint)

    @contextmanager
    def _saving(self) -> Iterator[None]:
        with self._lock:
            self.tenure.saving += 1
        try:
            with self._persisting:
                yield
        finally:
            with self._lock:
                self.tenure.saving -= 1

    @contextmanager
    def _committing(self) -> Iterator[None]:
        with self._lock:
            self.tenure.committing += 1
        try:
            yield
        finally:
            with self._lock:
                self.tenure.committing -= 1

    def _persist(self) -> None:
        tenure = self.tenure
        checkpoint = self._unsaved()
        if checkpoint is None:
            return
        if not self.is_mine:
            raise LeaseLost(shard=tenure.shard, epoch=tenure.epoch)
        try:
            self._member.checkpoint({tenure.shard: checkpoint}, epochs={tenure.shard: tenure.epoch})
        except (NotOwner, Fenced) as error:
            raise LeaseLost(shard=tenure.shard, epoch=tenure.epoch) from error
        self._saved(checkpoint)

    @staticmethod
    def persist_together(member: Membership, several: Sequence[Held]) -> None:
        """The same for several shards of one member, in one call; one by one if any of them is lost."""
        ordered = sorted(several, key=lambda held: held.tenure.shard)  # All wait for each other in one order.
        with ExitStack() as saving:
            for held in ordered:
                saving.enter_context(held._saving())
            due = {held: held._unsaved() for held in ordered}
            news = {held: checkpoint for held, checkpoint in due.items() if checkpoint is not None}
            try:
                if news and all(held.is_mine for held in news):
                    member.checkpoint(
                        {held.tenure.shard: checkpoint for held, checkpoint in news.items()},
                        epochs={held.tenure.shard: held.tenure.epoch for held in news},
                    )
                    for held, checkpoint in news.items():
                        held._saved(checkpoint)
                    return
            except (NotOwner, Fenced):
                pass  # Which of them, is found below.
        for held in ordered:
            held.persist()

    def _unsaved(self) -> int | None:
        with self._lock:
            return self.tenure.unsaved

    def _saved(self, checkpoint: int) -> None:
        with self._lock:
            self.tenure.saved(checkpoint)

    @property
    def is_mine(self) -> bool:
        """Whether the membership still holds the shard under this epoch."""
        lease = self._member.leases.get(self.tenure.shard)
        return lease is not None and lease.epoch == self.tenure.epoch


class InThreads:
    """Hosting in the worker's own process."""

    def __init__(self, factory: Factory, outages: tuple[type[BaseException], ...]) -> None:
        self._factory, self._outages = factory, outages

    def host(self, held: Held) -> Code:
        """See Hosting."""
        return UserCode(
            self._factory,
            self._outages,
            shard=held.tenure.shard,
            epoch=held.tenure.epoch,
            guard=held.guard,
            notebook=held.notebook,
        )


class _Lane:
    """See Notebook."""

    def __init__(self, held: Held, lane: int) -> None:
        self._held, self._lane = held, lane

    def declare(self, offset: int | None) -> int:
        return self._held.declare(self._lane, offset)

    def persist(self) -> None:
        self._held.persist()

    def pledge(self, offset: int | None) -> Pledge:
        return Held.pledge([(self._held, self._lane, offset)])

    def declared(self) -> int:
        return self._held.declared(self._lane)
