"""Writes the rows of one partition to one stream, so that writing them again changes nothing.

Rows come in rounds, cut at the same rows each time. A round is cut into pieces by shard, its pieces are
numbered, and all of them go in one call, which is one commit. Its outcome decides how the next is cut:

- stored, now or before: the piece is done. A number that the shard has passed was stored before, even if it
  no longer remembers where: `OutOfSequence` expecting more, or `ShardClosed` with a last number that is not
  lower.
- closed: not stored, and never will be. The map follows that shard to its children, and the pieces that lie
  in shards which the map has left are cut again, each by itself and in order.

Why a second attempt sends the same pieces to the same shards: both begin with the same map, and what moves
the map is the data and the answers alone. A piece that was stored is answered as stored for ever; one that
found its shard closed finds it closed again; behind the first piece that the first attempt did not send,
there is nothing to agree with. This holds for attempts one after the other and at the same time.

Order: the pieces of a shard are in the order of the rows, rounds follow each other, and a child's first
piece is sent when its parent has taken its last. So each key is in the order in which its rows came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import xxhash

from shoal.core.errors import (
    NotRepeated,
    OffsetExpired,
    OutOfSequence,
    ProducerFenced,
    ShardClosed,
    ShoalError,
)
from shoal.core.limits import BATCH_BYTES_MAX
from shoal.core.model import Appended, ShardId, StreamInfo
from shoal.core.reading import ReadLimits
from shoal.core.ring import LOGICAL_PARTITIONS, PARTITION_SIZE
from shoal.core.routing import ShardMap
from shoal.ports import HubService, Submission
from shoal.producer.options import ProducerOptions
from shoal.producer.queues import Queues
from shoal.spark.ledger import NEVER, Identity, fenced, patiently


class RepeatableWriter:
    """Sends rounds of one partition to one stream. One thread."""

    def __init__(
        self,
        service: HubService,
        stream: StreamInfo,
        who: Identity,
        *,
        born: int,
    ) -> None:
        self._service = service
        self._stream = stream
        self._who = who
        self._map = ShardMap.as_of(stream, born)
        self._sequences: dict[ShardId, int] = {}
        self._round = 0

    def write(self, fitted: pa.RecordBatch) -> None:
        """One round, in stored layout. Returns when all of it is stored."""
        pieces = self._cut(fitted)
        while pieces:
            submissions = self._numbered(pieces)
            answers = patiently(lambda batch=submissions: self._service.append(self._stream, batch))  # type: ignore[misc]
            closed: list[ShardClosed] = []
            left: list[_Piece] = []
            for piece, submission, answer in zip(pieces, submissions, answers, strict=True):
                if isinstance(answer, ShardClosed) and answer.last_sequence < submission.sequence:
                    closed.append(answer)
                    left.append(piece)
                else:
                    self._settle(piece, submission, answer)
            for answer in closed:
                self._follow(answer)
            pieces = [part for piece in left for part in self._cut(piece.batch)]
        self._round += 1

    def has_sent(self, fitted: pa.RecordBatch) -> bool:
        """Whether an earlier attempt has stored this round, or one that goes on longer. Stores nothing."""
        return any(True for _ in self._trial()._sent_before(fitted))

    def check(self, fitted: pa.RecordBatch, now_ms: int) -> None:
        """In an attempt that is not the first: what is stored of this round must be what would be sent.

        Stores nothing, so that a round of which a part differs is refused whole. `now_ms` is what rows
        without a time were given: stored they have that of the attempt which stored them.
        """
        trial = self._trial()
        sent = list(trial._sent_before(fitted))
        repeats = [offer for _, offer in sent]
        answers = patiently(lambda: self._service.append(trial._stream, repeats)) if repeats else []
        for (piece, offer), answer in zip(sent, answers, strict=True):
            trial._settle(piece, offer, answer)
            if isinstance(answer, Appended):  # Otherwise the shard no longer knows where it is.
                self._compare(piece, answer, now_ms)

    def _trial(self) -> RepeatableWriter:
        trial = copy(self)
        trial._sequences = dict(self._sequences)
        return trial

    def _sent_before(self, fitted: pa.RecordBatch) -> Iterator[tuple[_Piece, Submission]]:
        """The pieces of this round that are stored, and how they are offered again. Called on a copy, which
        follows the map as `write` will.

        Pieces are asked for under numbers that no shard can have come to: the refusal says how far it has.
        """
        pieces = self._cut(fitted)
        while pieces:
            offers = self._numbered(pieces)
            asked = [
                replace(offer, batch=offer.batch.slice(0, 1), sequence=offer.sequence + NEVER)
                for offer in offers
            ]
            answers = patiently(lambda batch=asked: self._service.append(self._stream, batch))  # type: ignore[misc]
            left: list[_Piece] = []
            for piece, offer, answer in zip(pieces, offers, answers, strict=True):
                match answer:
                    case OutOfSequence(expected=expected):
                        self._sequences[piece.shard] = offer.sequence + 1
                        if expected > offer.sequence:
                            yield piece, offer
                    case ShardClosed(last_sequence=last) if last >= offer.sequence:
                        self._sequences[piece.shard] = offer.sequence + 1
                        yield piece, offer
                    case ShardClosed():
                        self._follow(answer)
                        left.append(piece)
                    case ProducerFenced(current=current):
                        raise fenced(self._who, current) from answer
                    case ShoalError():
                        raise answer
                    case Appended():
                        raise AssertionError("a shard cannot have come to this number")
            pieces = [part for piece in left for part in self._cut(piece.batch)]

    def _settle(self, piece: _Piece, submission: Submission, answer: Appended | ShoalError) -> None:
        self._sequences[piece.shard] = submission.sequence + 1
        match answer:
            case Appended(first_offset=first, next_offset=after):
                if after - first != piece.batch.num_rows:  # An attempt at the same time, with other rows.
                    self._refuse(piece, f"{after - first} rows instead of {piece.batch.num_rows}")
            case OutOfSequence(expected=expected) if expected > submission.sequence:
                pass
            case ShardClosed():
                pass
            case OutOfSequence():
                raise NotRepeated(
                    where=str(self._who),
                    detail=f"the hub has forgotten what shard {piece.shard} took ({answer})",
                ) from answer
            case ProducerFenced(current=current):
                raise fenced(self._who, current) from answer
            case _:
                raise answer

    def _follow(self, answer: ShardClosed) -> None:
        if answer.stream.version >= self._stream.version:
            self._stream = answer.stream
        shard = ShardId(answer.shard)
        if shard in self._map.ids:  # Not if a merge with its neighbour took it along.
            self._map = self._map.past(self._stream, shard)

    def _cut(self, batch: pa.RecordBatch) -> list[_Piece]:
        """By the map as it is now. Rows without a key go where chance would send them, the same each time."""
        seed = xxhash.xxh64_intdigest(f"{self._who} {self._round}".encode())
        cutter = Queues(self._map, self._stream.settings.hash, _OPTIONS)
        return [
            _Piece(shard=part.shard, batch=part.batch)
            for part in cutter.cut(batch, seed % LOGICAL_PARTITIONS * PARTITION_SIZE)
        ]

    def _numbered(self, pieces: Sequence[_Piece]) -> list[Submission]:
        numbers = dict(self._sequences)
        submissions = []
        for piece in pieces:
            number = numbers.get(piece.shard, 0)
            numbers[piece.shard] = number + 1
            submissions.append(
                Submission(
                    shard=piece.shard,
                    batch=piece.batch,
                    producer=self._who.producer,
                    epoch=self._who.batch,
                    sequence=number,
                )
            )
        return submissions

    def _compare(self, piece: _Piece, stored: Appended, now_ms: int) -> None:
        """The order within a piece is none of it: a shuffle may bring the same rows in another, and the order
        in which they were stored first is as good."""
        wanted, found = piece.batch, 0
        parts: list[pa.RecordBatch] = []
        if stored.next_offset - stored.first_offset != wanted.num_rows:
            self._refuse(
                piece, f"{stored.next_offset - stored.first_offset} rows instead of {wanted.num_rows}"
            )
        offset = stored.first_offset
        while found < wanted.num_rows:
            limits = ReadLimits(max_records=wanted.num_rows - found, max_bytes=2 * BATCH_BYTES_MAX)
            try:
                part = patiently(
                    lambda offset=offset, limits=limits: self._service.read(  # type: ignore[misc]
                        self._stream.full_name, stored.shard, offset, limits
                    )
                )
            except OffsetExpired:
                return  # Retention took it since; there is nothing left to compare.
            if not len(part):
                self._refuse(piece, f"there are none at offset {offset} of shard {stored.shard}")
            parts.append(part.to_arrow().select(wanted.schema.names))
            found += len(part)
            offset += len(part)
        if not _is_same(wanted, parts, now_ms):
            self._refuse(piece, f"those at offset {stored.first_offset} of shard {stored.shard} are others")

    def _refuse(self, piece: _Piece, detail: str) -> None:
        raise NotRepeated(where=str(self._who), detail=f"in shard {piece.shard}, {detail}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    shard: ShardId
    batch: pa.RecordBatch


def _is_same(mine: pa.RecordBatch, stored: Sequence[pa.RecordBatch], now_ms: int) -> bool:
    """The same rows, in any order. Arrow says that NaN is not NaN: what seems to differ is written out.

    Rows that came without a time have that of their attempt, `now_ms` in this one; the others must be there
    with their own.
    """
    if len(stored) == 1 and mine.equals(stored[0]):
        return True
    ours, theirs = _written_out([mine]), _written_out(stored)
    if Counter(row for _, row in ours) != Counter(row for _, row in theirs):
        return False
    return Counter(one for one in ours if one[0] != now_ms * 1000) <= Counter(theirs)


def _written_out(batches: Sequence[pa.RecordBatch]) -> list[tuple[int, str]]:
    """Of each row its time, and the rest of it as text."""
    return [
        (time, repr(row))
        for batch in batches
        for time, row in zip(
            batch.column("timestamp").view(pa.int64()).to_pylist(),
            batch.drop_columns(["timestamp"]).to_pylist(),
            strict=True,
        )
    ]


_OPTIONS: Final = ProducerOptions()
