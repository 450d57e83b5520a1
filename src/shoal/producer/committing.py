"""How a transaction is sent: numbered, tried again as it was, re-routed when a shard was closed."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from shoal.core.errors import (
    DeliveryTimeout,
    Fenced,
    InvalidInput,
    NotOwner,
    OutOfSequence,
    ProducerFenced,
    ShardClosed,
    ShoalError,
)
from shoal.core.limits import RETRIES_MAX
from shoal.core.model import Appended, ShardId, StreamInfo
from shoal.ports import GroupSaves, ProducerLife, Submission
from shoal.producer.futures import settle
from shoal.producer.pending import Pending, delays_of
from shoal.producer.sender import Sender
from shoal.producer.transaction import StreamPart

_log: Final = logging.getLogger("shoal.producer")


class Committing:
    """One transaction on its way. In the sender's thread, between its rounds."""

    def __init__(
        self,
        sender: Sender,
        parts: Sequence[StreamPart],
        saves: Sequence[GroupSaves],
        numbers: dict[tuple[int, ShardId], int],
    ) -> None:
        self._sender, self._parts, self._saves = sender, {part.stream.id: part for part in parts}, saves
        self._numbers = numbers
        """Of batches for streams that are not the producer's own, in its present life."""
        self._is_uncertain = False
        """An attempt may have been made, and nobody knows."""

    def run(self) -> list[Appended]:
        """Until it is committed, refused, or given up."""
        options = self._sender.options
        began_s, wait_s = time.monotonic(), options.retry_first_s
        attempts = forgotten = 0
        own = self._parts.get(self._sender.stream.id)
        if own is not None and own.stream.version < self._sender.stream.version:
            self._sender.stats.moved += own.follow(self._sender.stream)
        while True:
            try:
                if self._sender.is_life_over:
                    self._sender.live_again()
                    self._numbers.clear()
                batches, appends = self._submissions()
                attempts += 1
                self._sender.stats.calls += 1
                answers = self._sender.service.transact(self._life(), appends, self._saves)
            except ShardClosed as closed:
                self._sender.stats.refused += 1
                if not self._follow(closed.stream):  # The map is not newer than ours.
                    if time.monotonic() - began_s + wait_s > options.delivery_timeout_s:
                        self._sender.begin_anew()
                        raise self._late(closed) from closed
                    time.sleep(wait_s)
                    wait_s = min(wait_s * 2, options.retry_most_s)
            except OutOfSequence:
                # The log has forgotten us, as it may after days of silence. Nothing of it is stored.
                forgotten += 1
                self._sender.begin_anew()
                if attempts > forgotten or forgotten > RETRIES_MAX:
                    raise
            except ShoalError as error:
                is_late = time.monotonic() - began_s + wait_s > options.delivery_timeout_s
                self._check_failed(error, is_late=is_late)
                self._is_uncertain |= attempts > 0 and not error.untouched
                self._sender.stats.retries += 1
                _log.warning("a transaction, attempt %d: %s", attempts, error)
                time.sleep(wait_s)
                wait_s = min(wait_s * 2, options.retry_most_s)
            except Exception:
                self._sender.begin_anew()  # Whether it is stored is not known: no other may have its numbers.
                raise
            else:
                return self._done(batches, answers)

    def _check_failed(self, error: ShoalError, *, is_late: bool) -> None:
        """Raise what ends it; otherwise it is tried again."""
        if isinstance(error, ProducerFenced):
            self._sender.refuse(error)
        if isinstance(error, _UNSTORED):
            raise error
        if is_late or not error.retriable:
            self._sender.begin_anew()  # Under its numbers the next one might be taken for a repeat.
            if error.retriable or self._is_uncertain:
                raise self._late(error) from error
            raise error

    def _life(self) -> ProducerLife:
        life = self._sender.life
        return ProducerLife(stream_id=self._sender.stream.id, producer=life.producer, epoch=life.epoch)

    def _submissions(self) -> tuple[list[tuple[StreamPart, Pending]], list[tuple[StreamInfo, Submission]]]:
        life, own = self._sender.life, self._sender.stream.id
        taken: dict[tuple[int, ShardId], int] = {}
        batches, appends = [], []
        for part in self._parts.values():
            # Another producer of that stream may have the same name.
            producer = life.producer if part.stream.id == own else f"{life.producer}>{own}"
            for batch in part.batches():
                where = (part.stream.id, batch.shard)
                number = taken.get(where, self._next(where))
                taken[where] = number + 1
                submission = Submission(
                    shard=batch.shard,
                    batch=self._sender.fitted(part.layout, batch),
                    producer=producer,
                    epoch=life.epoch,
                    sequence=number,
                    delays=delays_of(batch),
                )
                batches.append((part, batch))
                appends.append((part.stream, submission))
        return batches, appends

    def _next(self, where: tuple[int, ShardId]) -> int:
        if where[0] == self._sender.stream.id:
            return self._sender.next_sequence(where[1])
        return self._numbers.get(where, 0)

    def _done(
        self, batches: Sequence[tuple[StreamPart, Pending]], answers: Sequence[Appended]
    ) -> list[Appended]:
        for (part, batch), answer in zip(batches, answers, strict=True):
            where = (part.stream.id, batch.shard)
            if part.stream.id == self._sender.stream.id:
                self._sender.noted(batch.shard)
            else:
                self._numbers[where] = self._next(where) + 1
            batch.appended = answer
            self._sender.count(batch)
            settle(batch)
        self._sender.stats.transactions += 1
        return list(answers)

    def _follow(self, stream: StreamInfo) -> bool:
        """Whether the map is newer than what is known."""
        part = self._parts[stream.id]
        is_newer = stream.version > part.stream.version
        self._sender.stats.moved += part.follow(stream)
        if stream.id == self._sender.stream.id:
            with self._sender.changed:
                moved = self._sender.follow(stream)
            for batch in moved:
                settle(batch)
        return is_newer

    def _late(self, last: ShoalError) -> DeliveryTimeout:
        batches = [batch for part in self._parts.values() for batch in part.batches()]
        return DeliveryTimeout(
            shard=batches[0].shard if batches else 0,
            records=sum(map(len, batches)),
            waited_s=self._sender.options.delivery_timeout_s,
            last=str(last),
        )


_UNSTORED: Final = (InvalidInput, NotOwner, Fenced)
"""What is stored already is answered as the first time, before anyone looks at its checkpoints: who hears
these knows that no attempt before has stored it."""
