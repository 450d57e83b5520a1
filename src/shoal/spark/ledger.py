"""What a sink has begun and finished, kept beside the log: how a batch that is run again is known again.

A streaming query runs a batch again after a crash, and a task again after a failure, with the same rows.
The log itself drops a repeated append by (producer, epoch, sequence), here (query and partition, batch,
number). Some facts of the first attempt must outlive it, or the repeat would not be one:

1. *The map it began with.* A shard may be split between two attempts; rows sent by the new map would be
   stored a second time. A stream's claim, made once for a batch by whichever of its tasks comes first, says
   how many shards it had. All attempts begin there and follow closed shards one generation at a time
   (`ShardMap.past`), so that each piece is offered first to the shard it was sent to before, which says
   "stored", or "closed, and never will be".
2. *Where it ended.* When a task fails before the sink, in Spark's own code, the sink's input does not break
   off: it ends, as if the partition were complete, and the rows that were left are sent as a last, shorter
   piece. So where the input ends is noted before that piece is sent, with what had come by then; later
   attempts cut there as well, and are refused before they send anything more if they had something else.
3. *That a batch is complete, and what it held.* For the same reason no task can know this; the driver notes
   it when Spark commits the batch. Rows that come again are dropped whole, whatever their order, after a
   look whether they are the same: the number of rows, of their keys' bytes, and the sum of those. If a
   batch is run again with its rows divided differently, dropping would lose some and storing would double
   others; this is refused.

The ledger is a stream of one shard, `spark.ledger`, in the project of the stream that is written. It uses
the hub's own idempotent append and nothing else, so every hub has it. A task costs one commit more, or two
if its rows do not fit one append; a batch one for its end. Each note is the first of its number: the claim
of a batch is number 0 of the producer "query" in epoch "batch", that of a stream of "query and stream", the
beginning of a partition of "query and partition", followed there by the ends that attempts came to. An
epoch that is too old is refused: a batch below one that was begun (a checkpoint that was set back, a task
left over from an earlier batch) writes nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar
from uuid import uuid4

import pyarrow as pa

from shoal.core.errors import (
    DeliveryTimeout,
    NotRepeated,
    OffsetExpired,
    OutOfSequence,
    ProducerFenced,
    ShoalError,
    StreamExists,
    UnknownStream,
)
from shoal.core.limits import PRODUCER_STATE_KEPT_MS
from shoal.core.model import Appended, ShardId, StreamInfo, StreamName, StreamSettings
from shoal.core.names import LEDGER
from shoal.core.reading import ReadLimits
from shoal.ports import HubService, Submission
from shoal.wire.fitting import fit_records
from shoal.wire.layout import Layout

SHARD: Final = ShardId(0)
_KEPT_BYTES: Final = 256_000_000
_RETRY_S: Final = 120.0
"""As long as a producer tries: a store that restarts is back by then."""

NEVER: Final = 1 << 40
"""A number that no producer can have come to: an offer under it is refused with what is there."""

Result = TypeVar("Result")


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

    claim: int
    """Where the notes of the batch begin."""
    buffer_bytes: int
    """How rows were gathered the first time: pieces are the same only if they are cut at the same rows."""
    is_first: bool
    """Nobody has begun this partition before."""
    ends: Mapping[int, Contents] = field(default_factory=dict)
    """So many rows had come when the input of an earlier attempt ended, and what they held."""
    next_note: int = 1
    """The number of the partition's next note."""
    done: Mapping[int, Contents] | None = None
    """What each partition held, if the batch is complete."""


class Ledger:
    """The notes of sinks about the streams of one project."""

    def __init__(self, service: HubService, project: str) -> None:
        self._service = service
        self._name = StreamName(project, LEDGER)
        self._ledger = found_or_made(service, self._name)

    def begin(self, who: Identity, buffer_bytes: int, held: Contents | None) -> Beginning:
        """Note that the partition begins, and that it ends after these rows if that is known already."""
        mark = uuid4().hex
        facts = {"begins": mark, "partition": who.partition, "buffer": buffer_bytes}
        if held is not None:
            facts |= _noted(held)
        claim, _ = self._append(who, [(_of_batch(who), 0, {"claimed": True}), (_of_task(who), 0, facts)])
        first: dict[str, Any] | None = None
        ends: dict[int, Contents] = {}
        next_note = 0
        done: dict[int, Contents] | None = None
        # All notes of the batch, also for a partition that nobody has begun: the batch may be complete.
        for note in self._notes(who, claim):
            if "done" in note:
                done = {int(number): Contents(**held) for number, held in note["done"].items()}
            elif note.get("partition") == who.partition:
                next_note += 1
                if "begins" in note:
                    first = note
                if "ends" in note:
                    ends[note["ends"]] = Contents(**note["held"])
        assert first is not None, "it was noted just now, or before"
        is_first = first["begins"] == mark
        return Beginning(
            claim=claim,
            buffer_bytes=first["buffer"],
            is_first=is_first,
            ends={} if is_first else ends,
            next_note=next_note,
            done=done,
        )

    def claim(self, who: Identity) -> int:
        """Where the notes of the batch begin."""
        (at,) = self._append(who, [(_of_batch(who), 0, {"claimed": True})])
        return at

    def claim_stream(self, who: Identity, stream: StreamInfo) -> int:
        """How many shards a stream had when the batch first came to it."""
        facts = {"stream": stream.id, "born": len(stream.shards)}
        (at,) = self._append(who, [(f"{_of_batch(who)}.stream-{stream.id}", 0, facts)])
        born: int = self._read(at)["born"]
        return born

    def note_end(self, who: Identity, number: int, held: Contents) -> None:
        """Note, under the number of the partition's next note, that its input ended after these rows."""
        facts = {"partition": who.partition, **_noted(held)}
        (at,) = self._append(who, [(_of_task(who), number, facts)])
        if self._read(at)["ends"] != held.rows:
            raise NotRepeated(where=str(who), detail="another attempt runs, and its rows ended elsewhere")

    def finish(self, query: str, batch: int, claim: int, held: Mapping[int, Contents]) -> None:
        """Note that a batch is complete, unless partitions were written before that hold nothing now.

        Again is as once.
        """
        who = Identity(query=query, batch=batch, partition=-1)
        notes = list(self._notes(who, claim))
        done = next((note["done"] for note in notes if "done" in note), None)
        begun = {note["partition"] for note in notes if "begins" in note} if done is None else map(int, done)
        if missing := set(begun) - set(held):
            raise NotRepeated(
                where=f"batch {batch} of query {query}",
                detail=f"partitions {sorted(missing)[:5]} were written then, and hold nothing now",
            )
        if done is not None:
            return  # Its tasks have looked whether what they had now is what was there then.
        facts = {"done": {str(number): asdict(contents) for number, contents in held.items()}}
        self._append(who, [(f"{_of_batch(who)}.done", 0, facts)])

    def _append(self, who: Identity, notes: Sequence[tuple[str, int, dict[str, Any]]]) -> list[int]:
        """Where the notes are: these, or those that were there before under their numbers."""
        submissions = []
        for producer, number, facts in notes:
            note = written(query=who.query, batch=who.batch, **facts)
            submissions.append(
                Submission(shard=SHARD, batch=note, producer=producer, epoch=who.batch, sequence=number)
            )
        return [
            self._place(who, answer)
            for answer in patiently(lambda: self._service.append(self._ledger, submissions))
        ]

    def _place(self, who: Identity, answer: Appended | ShoalError) -> int:
        match answer:
            case Appended(first_offset=first):
                return first
            case ProducerFenced(current=current):
                raise fenced(who, current) from answer
            case _:
                raise answer

    def _read(self, offset: int) -> dict[str, Any]:
        """The note that the log says is there."""
        notes, _ = self._part(offset, ReadLimits(max_records=1))
        if not notes or notes[0] is None:
            raise ShoalError(
                f"{self._name} has no note of a sink's at offset {offset}, though one was stored there; let "
                "nothing else write to that stream, and run this batch with exactlyOnce=false"
            )
        return notes[0]

    def _notes(self, who: Identity, offset: int) -> Iterator[dict[str, Any]]:
        """All notes of a batch."""
        while True:
            notes, after = self._part(offset, ReadLimits())
            if not notes:
                return
            for note in notes:
                if note is not None and (note["query"], note["batch"]) == (who.query, who.batch):
                    yield note
            offset = after

    def _part(self, offset: int, limits: ReadLimits) -> tuple[list[dict[str, Any] | None], int]:
        """What is there. None for each that is no note: others may have written there, which
        changes nothing for us."""
        try:
            part = patiently(lambda: self._service.read(self._name, SHARD, offset, limits))
        except OffsetExpired as error:
            raise NotRepeated(
                where="this batch", detail=f"its notes in {self._name} are no longer kept ({error})"
            ) from error
        return [_as_note(record.value) for record in part], part.next_offset


def begun_at(service: HubService, project: str, who: Identity) -> int | None:
    """Where the notes of a batch begin, if an attempt of it has stored rows. Makes no ledger, and no note.

    The claim is offered under a number that nobody can have come to: the refusal says whether it is there.
    """
    try:
        ledger = patiently(lambda: service.describe_stream(StreamName(project, LEDGER)))
    except UnknownStream:
        return None
    note = written(query=who.query, batch=who.batch)
    offer = Submission(shard=SHARD, batch=note, producer=_of_batch(who), epoch=who.batch, sequence=NEVER)
    (answer,) = patiently(lambda: service.append(ledger, [offer]))
    match answer:
        case OutOfSequence(expected=0):
            return None
        case OutOfSequence():
            return Ledger(service, project).claim(who)
        case ProducerFenced(current=current):
            raise fenced(who, current) from answer
        case ShoalError():
            raise answer
        case Appended():
            raise AssertionError("no one can have come to this number")


def _as_note(value: object) -> dict[str, Any] | None:
    """What `written` wrote; None if it was somebody else."""
    if not isinstance(value, bytes):
        return None
    try:
        note = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return note if isinstance(note, dict) and {"query", "batch"} <= note.keys() else None


def _noted(held: Contents) -> dict[str, Any]:
    """What is noted of an end. The number of rows stands apart: it is where later attempts cut."""
    return {"ends": held.rows, "held": asdict(held)}


def _of_batch(who: Identity) -> str:
    return f"spark.{who.query}"


def _of_task(who: Identity) -> str:
    return f"spark.{who.query}.{who.partition}"


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


def written(*, query: str, batch: int, **facts: Any) -> pa.RecordBatch:
    """A note as the ledger takes it. Whoever reads notes knows his own by their query and batch."""
    value = json.dumps({"query": query, "batch": batch, **facts}, separators=(",", ":"))
    return fit_records(Layout(None), [value.encode()], [None], [time.time_ns() // 1_000_000], None)


def found_or_made(service: HubService, name: StreamName) -> StreamInfo:
    """The ledger, from the first note on."""
    try:
        return patiently(lambda: service.describe_stream(name))
    except UnknownStream:
        pass
    settings = StreamSettings(retention_ms=PRODUCER_STATE_KEPT_MS, retention_bytes=_KEPT_BYTES)
    try:
        return patiently(lambda: service.create_stream(name, settings, 1))
    except StreamExists:  # Another task was faster.
        return patiently(lambda: service.describe_stream(name))
