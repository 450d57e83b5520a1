"""Carries out what `core/sending` decides: makes the calls, waits, writes outcomes, follows maps.

One thread does all of it, and callbacks run in it. While a call is on its way and more is due, helpers make
the further calls: as many at once as `calls_max` allows. Only this thread decides what an answer means.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias, TypeVar

import pyarrow as pa

from shoal.core.appending import is_named
from shoal.core.delaying import NOWHERE
from shoal.core.errors import ProducerClosed, ShoalError
from shoal.core.model import Appended, ShardId, StreamInfo
from shoal.core.parcels import Settled
from shoal.ports import HubService, Submission
from shoal.producer.calling import Helpers
from shoal.producer.futures import settle
from shoal.producer.options import ProducerOptions
from shoal.producer.pending import Pending, PendingRecords, delays_of, number_of
from shoal.producer.queues import Queues
from shoal.producer.routes import Routes
from shoal.producer.setting_aside import put_aside
from shoal.producer.statistics import ProducerStats
from shoal.wire.fitting import fit_records
from shoal.wire.layout import Layout

Answer = TypeVar("Answer")
Answers: TypeAlias = "Sequence[Appended | ShoalError]"
Step: TypeAlias = "Callable[[], list[Pending]]"
"""What is done without the lock; the batches whose outcome is ready to be published."""

_log: Final = logging.getLogger("shoal.producer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Under which name and epoch a producer numbers its batches."""

    producer: str
    epoch: int


class Sender:
    """The sending thread of one producer.

    `lock` is the producer's one lock, and `changed` its condition. It guards the queues and every field that
    both threads touch.
    """

    def __init__(
        self,
        service: HubService,
        stream: StreamInfo,
        queues: Queues,
        *,
        options: ProducerOptions,
        life: Life,
        unkeyed: Callable[[], int],
    ) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.flushing = 0
        """How many callers wait for everything to be sent."""
        self.stats = ProducerStats()
        self.is_stopping = False
        self.is_refusing = False
        """Nothing more may be sent: the producer was closed, or fenced."""
        self.failed: list[Pending] = []
        """Batches that failed and whose outcome nobody may have seen yet."""
        self.fatal: ShoalError | None = None
        self._errands: deque[Callable[[], None]] = deque()
        """What is to be done between two rounds, by others' wish."""
        self.service = service
        self.stream = stream
        self._layout = Layout(stream.settings.schema)
        self._queues = queues
        self.options = options
        self.life = life
        self._lanes = queues.lanes
        self._helpers = Helpers(f"shoal-sender-{stream.name}")
        self._landed: deque[tuple[list[Pending], Answers]] = deque()
        """Calls of helpers that have come back."""
        self._unkeyed = unkeyed
        self._routes = Routes(service, options, time.monotonic())
        self.thread = threading.Thread(target=self._run, name=f"shoal-sender-{stream.name}", daemon=True)

    def _run(self) -> None:
        try:
            while True:
                with self.changed:
                    step = self._next()
                if step is None:
                    return
                for batch in step():
                    settle(batch)
        except BaseException as error:  # noqa: BLE001 - a thread's top; it ends here
            # Nobody sends any more: whoever waits must hear of it, and whoever comes must be refused.
            _log.exception("the sender of %s ended", self.stream.full_name)
            self._die(ProducerClosed(f"its sending thread ended ({error!r})"))
        finally:
            self._routes.rest()
            self._helpers.close()

    def _next(self) -> Step | None:
        """Under the lock: wait until something is to be done. None means: stop."""
        while True:
            now_s = time.monotonic()
            step = self._before_sending(now_s) or self._due(now_s)
            if step is not None:
                return step
            if self.is_stopping and not self._queues and not self._lanes.calls:
                return None
            self._wait(now_s)

    def _wait(self, now_s: float) -> None:
        """Under the lock: until there may be something to do."""
        due_s, idle_s = self._due_in_s(now_s), self._routes.idle_in_s(now_s)
        if idle_s == 0.0:
            self._routes.rest()
            idle_s = None
        if self._lanes.is_held(now_s):
            idle_s = _HEARD_S
        self.changed.wait(min((s for s in (due_s, idle_s) if s is not None), default=None))

    def _before_sending(self, now_s: float) -> Step | None:
        if self._landed:
            return partial(self._answered, *self._landed.popleft())
        if self._lanes.can_follow:
            assert self._lanes.newer is not None
            moved = self.follow(self._lanes.newer)
            return lambda: moved
        if self._routes.is_told and (self._queues or self._errands):
            return self._look
        if self._errands and self._lanes.is_quiet and not self._lanes.is_held(now_s):
            self._routes.sent(self.stream, now_s)
            return self._errand(self._errands.popleft())
        if self._lanes.wants_life(now_s):
            return self._be_reborn
        is_old = self._routes.is_old(now_s) and self._queues
        return self._look if is_old and self._due_in_s(now_s) == 0.0 else None

    def _due(self, now_s: float) -> Step | None:
        """The next call; by a helper, if there is another to make meanwhile."""
        batches = self._queues.take(now_s, hurry=self._is_hurried, only_numbered=bool(self._errands))
        if not batches:
            return None
        self.stats.calls += 1
        self._routes.sent(self.stream, now_s)
        is_more = self._lanes.calls > 1 or self._due_in_s(now_s) == 0.0
        if self.options.calls_max > 1 and any(batch.attempts > 1 for batch in batches):
            is_more = True  # What failed may be long in failing again.
        return partial(self._call_apart if is_more else self._call, batches)

    def _due_in_s(self, now_s: float) -> float | None:
        return self._lanes.due_in_s(now_s, hurry=self._is_hurried, only_numbered=bool(self._errands))

    @property
    def _is_hurried(self) -> bool:
        """Nothing waits for company."""
        return self.flushing > 0 or self.is_stopping

    @staticmethod
    def _errand(errand: Callable[[], None]) -> Step:
        def run() -> list[Pending]:
            errand()
            return []

        return run

    def _call(self, batches: list[Pending]) -> list[Pending]:
        return self._answered(batches, self._asked(batches))

    def _call_apart(self, batches: list[Pending]) -> list[Pending]:
        """While a helper waits for the answer, the next call can be made."""

        def make() -> None:
            answers = self._asked(batches)
            with self.changed:
                self._landed.append((batches, answers))
                self.changed.notify_all()

        self._helpers.start(make)
        return []

    def alone(self, job: Callable[[], Answer]) -> Answer:
        """Have a job done in the sending thread, between two rounds, and wait for what it brings."""
        errand: Future[Answer] = Future()

        def run() -> None:
            try:
                errand.set_result(job())
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                errand.set_exception(error)

        with self.changed:
            if self.fatal is not None:
                raise self.fatal
            self._errands.append(run)
            self.changed.notify_all()
        while True:
            try:
                return errand.result(_ALIVE_S)
            except TimeoutError:
                if errand.done():
                    raise
                if not self.thread.is_alive():
                    raise ProducerClosed("its sending thread ended") from None

    def count(self, batch: Pending) -> None:
        """It is stored."""
        self.stats.records += len(batch)
        self.stats.batches += 1
        self.stats.bytes += batch.size
        if delays_of(batch) is not None:
            self.stats.delayed += len(batch)

    def _count_displaced(self, batch: Pending) -> None:
        """Its records have lost their place, or have again: each counts once."""
        self.stats.reordered += len(batch) - batch.displaced
        batch.displaced = len(batch)

    def refuse(self, error: ShoalError) -> None:
        """Nothing more may be sent."""
        with self.changed:
            self.fatal, self.is_refusing = error, True

    def _die(self, error: ProducerClosed) -> None:
        with self.changed:
            self._queues.everything()
            settled = self._write(self._lanes.end(error))
        for batch in settled:
            settle(batch)

    def _asked(self, batches: list[Pending]) -> Answers:
        """Make the call: an answer for each batch, or why there is none."""
        try:
            submissions = [self._submission(batch) for batch in batches]
            return self.service.append(self.stream, submissions)
        except ShoalError as error:
            return [error] * len(batches)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
            _log.exception("the sender of %s failed", self.stream.full_name)
            return [ShoalError(f"the sender failed: {error!r}")] * len(batches)

    def _answered(self, batches: list[Pending], answers: Answers) -> list[Pending]:
        with self.changed:
            settled = self._lanes.answered(batches, answers, time.monotonic(), random.random())
            if settled.retried is not None:
                attempts = max(batch.attempts for batch in batches)
                _log.warning("append to %s, attempt %d: %s", self.stream.full_name, attempts, settled.retried)
            aside = settled.aside
            outcomes = self._write(settled)
        return [*outcomes, *self._set_aside(aside)]

    def _write(self, settled: Settled[Pending]) -> list[Pending]:
        """Under the lock: what became of batches, before it is published."""
        self.stats.refused += settled.refused
        self.stats.retries += settled.retried is not None
        for batch in settled.rerouted:
            self._count_displaced(batch)
        done: list[Pending] = []
        for batch, appended in settled.stored:
            batch.appended = appended
            self.count(batch)
            done.append(batch)
        for batch, error in settled.failed:
            self._note_failed(batch, error)
            done.append(batch)
        for batch in done:
            self._queues.dropped(batch)
            batch.settled.set()  # Before `flush` can see the queue empty.
        if settled.failed:
            _log.error("records for %s were not stored: %s", self.stream.full_name, settled.failed[0][1])
        if settled.fatal is not None:
            self.fatal, self.is_refusing = self.fatal or settled.fatal, True
        self.changed.notify_all()
        return done

    def _note_failed(self, batch: Pending, error: ShoalError) -> None:
        batch.error = error
        self.stats.failed += len(batch)
        self.failed.append(batch)
        del self.failed[:-_FAILED_KEPT]

    def _set_aside(self, aside: Sequence[tuple[Pending, ShoalError]]) -> list[Pending]:
        """Into the outbox, if there is one; otherwise they fail."""
        for batch, error in aside:
            is_kept = put_aside(self.options.outbox, self.stream, batch, error)
            with self.changed:
                if is_kept:
                    batch.is_aside = True
                    batch.appended = Appended(batch.shard, NOWHERE, NOWHERE)
                    self.stats.outboxed += len(batch)
                    self._count_displaced(batch)
                else:
                    _log.error("records for %s were not stored: %s", self.stream.full_name, error)
                    self._note_failed(batch, error)
                self._queues.dropped(batch)
                batch.settled.set()
                self.changed.notify_all()
        return [batch for batch, _ in aside]

    def _look(self) -> list[Pending]:
        """Whether there is a newer map: mostly it is known then before a batch is refused for it."""
        found, was_told = self._routes.look(self.stream, time.monotonic())
        with self.changed:
            self._lanes.hear(found)
            if was_told:
                self.stats.held += self._lanes.hold(time.monotonic(), self.options.hold_s)
        return []

    def _submission(self, batch: Pending) -> Submission:
        assert batch.sequence is not None
        return Submission(
            shard=batch.shard,
            batch=self.fitted(self._layout, batch),
            producer=self.life.producer,
            epoch=self.life.epoch,
            sequence=batch.sequence,
            number=number_of(batch),
            delays=delays_of(batch),
        )

    @staticmethod
    def fitted(layout: Layout, batch: Pending) -> pa.RecordBatch:
        """A batch as it is stored."""
        if isinstance(batch, PendingRecords):
            return fit_records(layout, batch.values, batch.keys, batch.timestamps, batch.headers)
        return batch.batch

    def follow(self, stream: StreamInfo) -> list[Pending]:
        """Take the new map; nothing of closed shards is on its way."""
        self.stream = stream
        self._routes.follow(stream)
        moved = self._queues.remap(stream, self._unkeyed)
        self.stats.moved += len(moved)
        self.changed.notify_all()
        return moved

    def _be_reborn(self) -> list[Pending]:
        try:
            self.live_again()
        except ShoalError as error:
            with self.changed:
                settled = self._lanes.lifeless(error, time.monotonic())
                aside = settled.aside
                outcomes = self._write(settled)
            return [*outcomes, *self._set_aside(aside)]
        return []

    @property
    def is_life_over(self) -> bool:
        """What became of a batch is not known: the next call begins another life."""
        return self._lanes.is_life_over

    def next_sequence(self, shard: ShardId) -> int:
        """The number of the next batch for a shard; nothing is on its way."""
        return self._lanes.sequences.get(shard, 0)

    def noted(self, shard: ShardId) -> None:
        """That number was used."""
        self._lanes.noted(shard)

    def begin_anew(self) -> None:
        """Before anything else is sent."""
        self._lanes.is_life_over = True

    def live_again(self) -> None:
        """A higher epoch: of an unnamed producer the next, of a named one what the hub gives, if it is
        still ours."""
        life = self.life
        if is_named(life.producer):
            epoch = self.service.open_producer(self.stream, life.producer, life.epoch).epoch
        else:
            epoch = life.epoch + 1
        with self.changed:
            self.life = replace(life, epoch=epoch)
            self._lanes.live()
            self.stats.lives += 1


_ALIVE_S: Final = 1.0
_HEARD_S: Final = 0.005
"""How often it is seen whether a map that was announced is there: who tells must not wait for our lock."""
_FAILED_KEPT: Final = 1000
"""Failed batches remembered for `flush` to raise: enough to tell, bounded if nobody ever flushes."""
