"""What a sink has begun and finished, kept beside the log: how a batch that is run again is known again.

A streaming query runs a batch again after a crash, and a task again after a failure, with the same rows.
The log itself drops a repeated append by (producer, epoch, sequence), here (query and partition, batch,
number). Three facts of the first attempt must outlive it, or the repeat would not be one:

1. *The map it began with.* A shard may be split between two attempts; rows sent by the new map would be
   stored a second time. The claim of a batch, made once by whichever of its tasks comes first, says how
   many shards the stream had. All attempts begin there and follow closed shards one generation at a time
   (`ShardMap.past`), so that each piece is offered first to the shard it was sent to before, which says
   "stored", or "closed, and never will be".
2. *That a partition is complete.* Rows may come in another order, and be cut into one piece more. Once a
   partition is done, everything that is sent for it again is dropped whole.
3. *What it held.* A partition that is dropped must be the one that was written: the same number of rows, of
   key bytes, and their sum. If a batch is run again with its rows divided differently (another number of
   partitions), dropping would lose some and storing would double others; this is refused instead.

The ledger is a stream of one shard, `spark.ledger`, in the project of the stream that is written. It uses
the hub's own idempotent append and nothing else, so every hub has it. Per task and stream it costs one
commit before the first row and one after the last. Each note is stored once: the claim is number 0 of the
producer "query and stream" in epoch "batch"; the beginning of a partition is number 0, its end number 1 of
"query, stream and partition". To ask whether there is an end without writing one, number 2 is offered: the
hub refuses it as out of sequence unless there is. An epoch that is too old is refused as well: a batch
below one that was begun (a checkpoint that was set back, a task left over from an earlier batch) writes
nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar
from uuid import uuid4

from shoal.core.errors import (
    DeliveryTimeout,
    OffsetExpired,
    OutOfSequence,
    ProducerFenced,
    ShoalError,
    StreamExists,
    UnknownStream,
)
from shoal.core.limits import PRODUCER_STATE_KEPT_MS
from shoal.core.model import Appended, ShardId, StreamInfo, StreamName, StreamSettings
from shoal.core.reading import ReadLimits
from shoal.ports import HubService, Submission
from shoal.wire.fitting import fit_records
from shoal.wire.layout import Layout

LEDGER: Final = "spark.ledger"
_SHARD: Final = ShardId(0)
_KEPT_BYTES: Final = 256_000_000
_CLAIM, _BEGUN, _DONE, _ASKED = 0, 0, 1, 2
_RETRY_S: Final = 120.0
"""As long as a producer tries: a store that restarts is back by then."""

Result = TypeVar("Result")


class NotRepeated(ShoalError):
    """A batch or a task was run again with other rows than before; exactly once cannot be kept."""

    def __init__(self, *, where: str, detail: str) -> None:
        super().__init__(
            f"{where} was run before with other rows: {detail}. Rows must come in the same partitions and "
            "order when a batch is run again: restart with the same number of partitions, put "
            ".repartition(n) or .sortWithinPartitions(…) before the sink, or run this batch once with "
            "exactlyOnce=false, which may store rows twice"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who writes: one partition of one batch of one query."""

    query: str
    batch: int
    partition: int

    @property
    def producer(self) -> str:
        """The name of the partition in the log."""
        return f"spark.{self.query}.{self.partition}"

    def __str__(self) -> str:
        return f"partition {self.partition} of batch {self.batch} of query {self.query}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a partition held, whatever its order."""

    rows: int = 0
    key_bytes: int = 0
    key_sum: int = 0

    def __add__(self, other: Contents) -> Contents:
        return Contents(
            rows=self.rows + other.rows,
            key_bytes=self.key_bytes + other.key_bytes,
            key_sum=(self.key_sum + other.key_sum) % (1 << 62),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What the ledger says to a task that begins."""

    born: int
    """How many shards the stream had when the batch was claimed."""
    buffer_bytes: int
    """How rows were gathered then: pieces are the same only if they are cut at the same rows."""
    is_first: bool
    """Nobody has begun this partition before."""
    done: Contents | None
    """What it held, if it is complete."""
    claim: int
    """Where the claim is in the ledger."""


class Ledger:
    """The notes of one query about one stream."""

    def __init__(self, service: HubService, stream: StreamInfo) -> None:
        self._service = service
        self._stream = stream
        self._name = StreamName(stream.project, LEDGER)
        self._ledger = _found_or_made(service, self._name)
        self._layout = Layout(None)

    def begin(self, who: Identity, buffer_bytes: int) -> Beginning:
        """Claim the batch, note that the partition begins, and learn what is known of both."""
        mark = uuid4().hex
        claim, begun, asked = patiently(
            lambda: self._service.append(
                self._ledger,
                [
                    self._note(
                        self._batch_producer(who),
                        who.batch,
                        _CLAIM,
                        {**self._facts(who), "born": len(self._stream.shards), "buffer": buffer_bytes},
                    ),
                    self._note(
                        self._task_producer(who), who.batch, _BEGUN, {**self._facts(who), "begins": mark}
                    ),
                    self._note(
                        self._task_producer(who), who.batch, _ASKED, {**self._facts(who), "asked": True}
                    ),
                ],
            )
        )
        claimed, first = self._read(self._stored(claim, who)), self._read(self._stored(begun, who))
        done: Contents | None = None
        if not isinstance(asked, OutOfSequence):
            self._stored(asked, who)
            # There is an end: number 1 is offered again only to hear where it is.
            done = Contents(**self._read(self._stored(self._end(who, Contents()), who))["done"])
        return Beginning(
            born=claimed["born"],
            buffer_bytes=claimed["buffer"],
            is_first=first["begins"] == mark,
            done=done,
            claim=self._stored(claim, who),
        )

    def finish(self, who: Identity, contents: Contents) -> None:
        """Note that the partition is complete."""
        self._stored(self._end(who, contents), who)

    def begun(self, query: str, batch: int, claim: int) -> set[int]:
        """The partitions of a batch that have begun, in any attempt. `claim` is where its claim is."""
        offset, found = claim, set[int]()
        while True:
            part = patiently(
                lambda offset=offset: self._service.read(self._name, _SHARD, offset, ReadLimits())  # type: ignore[misc]
            )
            if not len(part):
                return found
            for record in part:
                note = json.loads(record.value)
                if (note["query"], note["batch"], note["stream"]) == (query, batch, self._stream.id) and (
                    "begins" in note
                ):
                    found.add(note["partition"])
            offset = part.next_offset

    def _end(self, who: Identity, contents: Contents) -> Appended | ShoalError:
        note = self._note(
            self._task_producer(who), who.batch, _DONE, {**self._facts(who), "done": asdict(contents)}
        )
        return patiently(lambda: self._service.append(self._ledger, [note])[0])

    def _facts(self, who: Identity) -> dict[str, Any]:
        return {"query": who.query, "batch": who.batch, "partition": who.partition, "stream": self._stream.id}

    def _batch_producer(self, who: Identity) -> str:
        return f"spark.{who.query}.{self._stream.id}"

    def _task_producer(self, who: Identity) -> str:
        return f"spark.{who.query}.{self._stream.id}.{who.partition}"

    def _note(self, producer: str, epoch: int, sequence: int, facts: dict[str, Any]) -> Submission:
        value = json.dumps(facts, separators=(",", ":")).encode()
        record = fit_records(self._layout, [value], [None], [time.time_ns() // 1_000_000], None)
        return Submission(shard=_SHARD, batch=record, producer=producer, epoch=epoch, sequence=sequence)

    def _stored(self, answer: Appended | ShoalError, who: Identity) -> int:
        """Where a note is; or why this task must not write."""
        match answer:
            case Appended(first_offset=first):
                return first
            case ProducerFenced(current=current):
                raise fenced(who, current) from answer
            case _:
                raise answer

    def _read(self, offset: int) -> dict[str, Any]:
        try:
            part = patiently(
                lambda: self._service.read(self._name, _SHARD, offset, ReadLimits(max_records=1))
            )
        except OffsetExpired as error:
            raise NotRepeated(
                where=f"a batch of {self._stream.full_name}",
                detail=f"its notes in {self._name} are no longer kept ({error})",
            ) from error
        note: dict[str, Any] = json.loads(next(iter(part)).value)
        return note


def fenced(who: Identity, current: int) -> ShoalError:
    """The error of a task whose batch is older than one that was begun."""
    return ShoalError(
        f"{who}: batch {current} of this query has written already, so this task belongs to the past and "
        "wrote nothing more; if the query's checkpoint was set back on purpose, start it with a new one"
    )


def patiently(call: Callable[[], Result]) -> Result:
    """The call's result, asked for again while the failure is one that passes."""
    began_s, wait_s = time.monotonic(), 0.02
    while True:
        try:
            return call()
        except ShoalError as error:
            waited_s = time.monotonic() - began_s
            if not error.retriable:
                raise
            if waited_s > _RETRY_S:
                raise DeliveryTimeout(shard=0, records=0, waited_s=_RETRY_S, last=str(error)) from error
        time.sleep(wait_s)
        wait_s = min(wait_s * 2, 1.0)


def _found_or_made(service: HubService, name: StreamName) -> StreamInfo:
    try:
        return patiently(lambda: service.describe_stream(name))
    except UnknownStream:
        pass
    settings = StreamSettings(retention_ms=PRODUCER_STATE_KEPT_MS, retention_bytes=_KEPT_BYTES)
    try:
        return patiently(lambda: service.create_stream(name, settings, 1))
    except StreamExists:  # Another task was faster.
        return patiently(lambda: service.describe_stream(name))
