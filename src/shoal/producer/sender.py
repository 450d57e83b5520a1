"""Sends what is due, one call at a time, until told to stop. The only one who talks to the hub.

One round: take the heads that are due; look at the map, if that was long ago; send them in one call, again
and again while the failure is a passing one; write each outcome; if a shard was closed, take the new map and
move what waited for it. Because a round is settled before the next begins, nothing is in flight when the map
changes, and a retry repeats the same numbers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from shoal.core.errors import (
    DeliveryTimeout,
    OutOfSequence,
    ProducerClosed,
    ProducerFenced,
    ShardClosed,
    ShoalError,
)
from shoal.core.model import Appended, ShardId, StreamInfo
from shoal.core.routing import ShardMap
from shoal.ports import HubService, Submission
from shoal.producer.futures import settle
from shoal.producer.options import ProducerOptions
from shoal.producer.pending import Pending, PendingRecords
from shoal.producer.queues import Queues
from shoal.producer.statistics import ProducerStats
from shoal.wire.fitting import fit_records
from shoal.wire.layout import Layout

_log: Final = logging.getLogger("shoal.producer")


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
        producer: str,
        unkeyed: Callable[[], int],
    ) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.flushing = 0
        """How many callers wait for everything to be sent."""
        self.is_stopping = False
        self.is_refusing = False
        """Nothing more may be sent: the producer was closed, or fenced."""
        self.failed: list[Pending] = []
        """Batches that failed and whose outcome nobody may have seen yet."""
        self.fatal: ShoalError | None = None
        self._service = service
        self._stream = stream
        self._layout = Layout(stream.settings.schema)
        self._queues = queues
        self._options = options
        self._producer = producer
        self._epoch = 0
        self._sequences: dict[ShardId, int] = {}
        self._unkeyed = unkeyed
        self.stats = ProducerStats()
        self._looked_s = time.monotonic()
        """When the map was last asked for."""
        self.thread = threading.Thread(target=self._run, name=f"shoal-sender-{stream.name}", daemon=True)

    def _run(self) -> None:
        try:
            while True:
                with self.changed:
                    batches = self._take()
                if batches is None:
                    return
                for batch in self._guarded_round(batches):
                    settle(batch)
        except BaseException as error:  # noqa: BLE001 - a thread's top; it ends here
            # Nobody sends any more: whoever waits must hear of it, and whoever comes must be refused.
            _log.exception("the sender of %s ended", self._stream.full_name)
            self._die(ProducerClosed(f"its sending thread ended ({error!r})"))

    def _guarded_round(self, batches: list[Pending]) -> list[Pending]:
        """A round that fails for a reason of ours fails its batches, and not the ones after them."""
        try:
            return self._round(batches)
        except Exception as error:  # noqa: BLE001 - a thread's top: whatever it is, nobody may wait for ever
            _log.exception("the sender of %s failed", self._stream.full_name)
            with self.changed:
                self._fail(
                    [batch for batch in batches if batch.appended is None],
                    error if isinstance(error, ShoalError) else ShoalError(f"the sender failed: {error!r}"),
                )
                self._begin_anew()
            return batches

    def _die(self, error: ProducerClosed) -> None:
        with self.changed:
            left = self._queues.everything()
            self.fatal, self.is_refusing = error, True
            self._fail(left, error)
        for batch in left:
            settle(batch)

    def _take(self) -> list[Pending] | None:
        """Wait until something is due. None means: stop."""
        while True:
            now_s = time.monotonic()
            hurry = self.flushing > 0 or self.is_stopping
            batches = self._queues.ready(now_s, everything=hurry)
            if batches:
                return batches
            if self.is_stopping:
                return None
            self.changed.wait(self._queues.due_in_s(now_s))

    def _round(self, batches: list[Pending]) -> list[Pending]:
        """Send, and write the outcomes. Returns the batches whose outcome is ready to be published."""
        newer = self._newer_map()
        if newer is not None:
            with self.changed:
                self.changed.notify_all()
                return self._follow(newer)  # What was due may lie elsewhere now: the next round takes it.
        submissions = self._submissions(batches)
        answers, attempts = self._send(batches, submissions)
        with self.changed:
            if isinstance(answers, ShoalError):
                self._fail(batches, answers)
                self._begin_anew()
                return batches
            closed: ShardClosed | None = None
            must_begin_anew = False
            settled: list[Pending] = []
            for batch, answer in zip(batches, answers, strict=True):
                match answer:
                    case Appended():
                        self._sequences[batch.shard] = self._sequences.get(batch.shard, 0) + 1
                        batch.appended = answer
                        self.stats.records += len(batch)
                        self.stats.batches += 1
                        self.stats.bytes += batch.size
                        self._queues.remove(batch)
                        batch.settled.set()  # Before `flush` can see the queue empty.
                        settled.append(batch)
                    case ShardClosed():
                        self.stats.refused += 1
                        if closed is None or answer.stream.version > closed.stream.version:
                            closed = answer
                    case OutOfSequence() if attempts == 1:
                        # The log has forgotten us, as it may after days of silence. This was the first
                        # attempt, so nothing of it is stored: begin anew under a new epoch.
                        must_begin_anew = True
                    case _:
                        self._fail([batch], answer)
                        settled.append(batch)
                        must_begin_anew = True
            if must_begin_anew:  # After the loop: until here, numbers are of the epoch that was sent.
                self._begin_anew()
            if closed is not None:
                settled += self._follow(closed.stream)
            self.changed.notify_all()
            return settled

    def _newer_map(self) -> StreamInfo | None:
        """The stream with another map than ours, if it is time to look and there is one."""
        now_s = time.monotonic()
        if now_s - self._looked_s < self._options.refresh_s:
            return None
        self._looked_s = now_s
        try:
            found = self._service.refresh_stream(self._stream)
        except ShoalError as error:
            _log.debug("the map of %s: %s", self._stream.full_name, error)  # An append will say it aloud.
            return None
        return found if found.version > self._stream.version else None

    def _send(
        self, batches: list[Pending], submissions: list[Submission]
    ) -> tuple[list[Appended | ShoalError] | ShoalError, int]:
        """The answers, or the error that ended it; and how many attempts it took."""
        began_s = time.monotonic()
        wait_s = self._options.retry_first_s
        attempts = 0
        while True:
            attempts += 1
            self.stats.calls += 1
            self.stats.retries += attempts > 1
            try:
                return self._service.append(self._stream, submissions), attempts
            except ShoalError as error:
                waited_s = time.monotonic() - began_s
                if not error.retriable:
                    return error, attempts
                if waited_s + wait_s > self._options.delivery_timeout_s:
                    late = DeliveryTimeout(
                        shard=batches[0].shard,
                        records=sum(len(batch) for batch in batches),
                        waited_s=self._options.delivery_timeout_s,
                        last=str(error),
                    )
                    late.__cause__ = error
                    return late, attempts
                _log.warning("append to %s, attempt %d: %s", self._stream.full_name, attempts, error)
            time.sleep(wait_s)
            wait_s = min(wait_s * 2, self._options.retry_most_s)

    def _submissions(self, batches: list[Pending]) -> list[Submission]:
        """The batches with their numbers: those of one shard follow each other."""
        numbers = dict(self._sequences)
        submissions = []
        for batch in batches:
            if isinstance(batch, PendingRecords):
                data = fit_records(self._layout, batch.values, batch.keys, batch.timestamps, batch.headers)
            else:
                data = batch.batch
            number = numbers.get(batch.shard, 0)
            numbers[batch.shard] = number + 1
            submissions.append(
                Submission(
                    shard=batch.shard,
                    batch=data,
                    producer=self._producer,
                    epoch=self._epoch,
                    sequence=number,
                )
            )
        return submissions

    def _follow(self, stream: StreamInfo) -> list[Pending]:
        """Take the new map."""
        self._stream = stream
        moved = self._queues.remap(ShardMap.of(stream), self._unkeyed)
        self.stats.moved += len(moved)
        return moved

    def _fail(self, batches: list[Pending], error: ShoalError) -> None:
        """Write an error as the outcome. The batch may be stored all the same: the caller begins anew."""
        _log.error("records for %s were not stored: %s", self._stream.full_name, error)
        if isinstance(error, ProducerFenced):
            self.fatal, self.is_refusing = error, True
        for batch in batches:
            batch.error = error
            self.stats.failed += len(batch)
            self._queues.remove(batch)
            batch.settled.set()
            self.failed.append(batch)
        del self.failed[:-_FAILED_KEPT]
        self.changed.notify_all()

    def _begin_anew(self) -> None:
        self._epoch += 1
        self._sequences.clear()


_FAILED_KEPT: Final = 1000
"""Failed batches remembered for `flush` to raise: enough to tell, bounded if nobody ever flushes."""
