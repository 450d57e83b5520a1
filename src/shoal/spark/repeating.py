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

from collections.abc import Sequence
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
        is_first: bool,
        has_timestamps: bool,
    ) -> None:
        self._service = service
        self._stream = stream
        self._who = who
        self._is_first = is_first
        self._has_timestamps = has_timestamps
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
        """Whether an earlier attempt has stored this round, or one that goes on longer. Stores nothing.

        Its pieces are offered under numbers that no shard can have come to: the refusal says how far it has.
        """
        trial = copy(self)
        pieces = trial._cut(fitted)
        while pieces:
            asked = [
                replace(offer, batch=offer.batch.slice(0, 1), sequence=offer.sequence + NEVER)
                for offer in trial._numbered(pieces)
            ]
            answers = patiently(lambda batch=asked: self._service.append(trial._stream, batch))  # type: ignore[misc]
            left: list[_Piece] = []
            for piece, offer, answer in zip(pieces, asked, answers, strict=True):
                number = offer.sequence - NEVER
                match answer:
                    case OutOfSequence(expected=expected) if expected > number:
                        return True
                    case OutOfSequence():
                        pass
                    case ShardClosed(last_sequence=last) if last >= number:
                        return True
                    case ShardClosed():
                        trial._follow(answer)
                        left.append(piece)
                    case ProducerFenced(current=current):
                        raise fenced(self._who, current) from answer
                    case ShoalError():
                        raise answer
                    case Appended():
                        raise AssertionError("a shard cannot have come to this number")
            pieces = [part for piece in left for part in trial._cut(piece.batch)]
        return False

    def _settle(self, piece: _Piece, submission: Submission, answer: Appended | ShoalError) -> None:
        self._sequences[piece.shard] = submission.sequence + 1
        match answer:
            case Appended(first_offset=first, next_offset=after):
                if after - first != piece.batch.num_rows:  # An attempt at the same time, with other rows.
                    self._refuse(piece, f"{after - first} rows instead of {piece.batch.num_rows}")
                if not self._is_first:
                    self._compare(piece, answer)
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

    def _compare(self, piece: _Piece, stored: Appended) -> None:
        """In an attempt that is not the first: what is stored there must be what would be sent.

        The order within a piece is none of it: a shuffle may bring the same rows in another, and the order in
        which they were stored first is as good.
        """
        wanted, found = piece.batch, 0
        parts: list[pa.RecordBatch] = []
        names = [name for name in wanted.schema.names if name != "timestamp" or self._has_timestamps]
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
            parts.append(part.to_arrow().select(names))
            found += len(part)
            offset += len(part)
        if not _is_same(wanted.select(names), parts):
            self._refuse(piece, f"those at offset {stored.first_offset} of shard {stored.shard} are others")

    def _refuse(self, piece: _Piece, detail: str) -> None:
        raise NotRepeated(where=str(self._who), detail=f"in shard {piece.shard}, {detail}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    shard: ShardId
    batch: pa.RecordBatch


def _is_same(mine: pa.RecordBatch, stored: Sequence[pa.RecordBatch]) -> bool:
    """The same rows, in any order. Arrow says that NaN is not NaN: what seems to differ is written out."""
    if len(stored) == 1 and mine.equals(stored[0]):
        return True
    theirs = (row for part in stored for row in part.to_pylist())
    return sorted(map(repr, mine.to_pylist())) == sorted(map(repr, theirs))


_OPTIONS: Final = ProducerOptions()
