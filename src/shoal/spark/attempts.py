"""Keeps the attempts of a task apart: the last one that began works on its shards, the one before it stops.

Spark may run a task twice at the same time: speculatively, or when an executor is only out of reach. Both
have the epoch of the query's lease, and the group cannot tell them apart. The ledger can: a later attempt
notes its turn there, as the epoch of a producer that stands for the shard's lease, and whoever shows an
earlier turn is fenced from then on.

An attempt asks whenever it looks at the group, and what it was told holds for at most half of the group's
timeout (see `borrowed`). So a later attempt waits for so long before it begins, unless the one before has
noted that it ended. A task that is run once notes nothing, and asks only where there is a ledger.

Who is fenced neither succeeds nor fails soon: Spark would kill the other for its success, and for its failure
begin one more. It waits until it is killed itself, for as long as the other may take.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from shoal.core.errors import Fenced, OutOfSequence, ProducerFenced, ShoalError, UnknownStream
from shoal.core.model import Appended, ShardId, StreamName
from shoal.core.names import LEDGER
from shoal.ports import HubService, Submission
from shoal.spark.ledger import NEVER, SHARD, found_or_made, patiently, written
from shoal.spark.plan.spans import Span


class Turn(NamedTuple):
    """Of one attempt of a task, in the order in which they begin."""

    batch: int = 0
    attempt: int = 0

    @property
    def number(self) -> int:
        return (self.batch << 20 | min(self.attempt, (1 << 20) - 1)) << 1

    @property
    def ended(self) -> int:
        """The number that says that it works no more."""
        return self.number + 1


FIRST: Final = Turn()


class Attempts:
    """One attempt, among those of the same task, on shards of one stream."""

    def __init__(self, service: HubService, spans: Sequence[Span], project: str, turn: Turn) -> None:
        self._service, self._turn = service, turn
        self._ledger = StreamName(project, LEDGER)
        self._producers = {
            span.shard: f"spark.stay.{span.stream_id}.{span.owner.group_id}.{span.shard}.{span.owner.epoch}"
            for span in spans
            if span.owner is not None
        }
        self.fenced: Fenced | None = None
        """Why this attempt may not go on. Writer: whoever looks first."""
        self._timeout_s = 0.0
        self._epochs = {span.shard: span.owner.epoch for span in spans if span.owner is not None}

    def begin(self, timeout_s: float) -> None:
        """Take the turn. Returns when no earlier attempt may act any more."""
        self._timeout_s = timeout_s
        if self._turn.attempt == 0:
            return
        has_ended = self._is_noted(self._turn._replace(attempt=self._turn.attempt - 1).ended)
        self._note(self._turn.number)
        if not has_ended:
            time.sleep(timeout_s / 2)

    def check(self) -> None:
        """Fenced: a later attempt has begun."""
        for shard, answer in self._offered(self._turn.number, NEVER):
            if isinstance(answer, ProducerFenced):
                epoch = self._epochs[shard]
                self.fenced = Fenced(shard=shard, epoch=epoch, current=epoch)
                raise self.fenced from answer
            _expect_gap(answer)

    def give_way(self, work_s: float) -> None:
        """If a later attempt has begun, wait for what it may take; then fail."""
        if self.fenced is not None:
            time.sleep(self._timeout_s / 2 + work_s)
            raise self.fenced

    def end(self) -> None:
        """Nothing of this attempt goes on: the next one need not wait."""
        self._note(self._turn.ended)

    def _is_noted(self, number: int) -> bool:
        """Whether this number, and no later one, is the last that was noted for every shard."""
        answers = self._offered(number, NEVER)
        return bool(answers) and all(
            isinstance(answer, OutOfSequence) and answer.expected > 0 for _, answer in answers
        )

    def _note(self, number: int) -> None:
        found_or_made(self._service, self._ledger)
        for _, answer in self._offered(number, 0):
            if isinstance(answer, ShoalError) and not isinstance(answer, ProducerFenced):
                raise answer  # One that is fenced says so at its next look.

    def _offered(self, number: int, sequence: int) -> list[tuple[int, Appended | ShoalError]]:
        try:
            ledger = patiently(lambda: self._service.describe_stream(self._ledger))
        except UnknownStream:
            return []  # Nobody has noted anything.
        offers = [
            Submission(
                shard=ShardId(SHARD),
                batch=written(query=producer, batch=number),
                producer=producer,
                epoch=number,
                sequence=sequence,
            )
            for producer in self._producers.values()
        ]
        return list(
            zip(self._producers, patiently(lambda: self._service.append(ledger, offers)), strict=True)
        )


def _expect_gap(answer: Appended | ShoalError) -> None:
    """A note under a number that nobody has come to is refused, and that is how it is seen what is there."""
    if isinstance(answer, ShoalError) and not isinstance(answer, OutOfSequence):
        raise answer
    assert not isinstance(answer, Appended), "no one can have come to this number"
