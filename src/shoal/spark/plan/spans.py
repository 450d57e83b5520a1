"""Which offsets a read covers: spans of shards, in the order of the lineage, within limits.

A position may carry what lanes have done beyond it (`core.checkpoint`): a span from there on leaves that
out, and the positions after it carry along what is still ahead.

Invariants: a span lies within what its shard holds; in order, no span of a shard is due before every ancestor
has been read to its end in an *earlier* batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shoal.core.checkpoint import Marks, beyond, onward
from shoal.core.errors import OffsetExpired, OffsetOutOfRange
from shoal.core.lineage import readable
from shoal.core.model import Shard, StreamInfo


class Owner(NamedTuple):
    """What a member's read shows: the group, and the epoch under which it holds the shard."""

    group_id: int
    epoch: int
    is_leased: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Offsets `[start, end)` of one shard."""

    stream: str
    stream_id: int
    shard: int
    start: int
    end: int
    record_bytes: int = 0
    """Of one record as it is stored, about."""
    owner: Owner | None = None
    beyond: tuple[Marks, ...] = ()
    """What the lanes of earlier owners have done of it."""

    @property
    def records(self) -> int:
        return self.end - self.start

    def part(self, start: int, end: int) -> Span:
        """A part of it. (`dataclasses.replace` costs more than all the rest of a plan of thousands.)"""
        return Span(
            stream=self.stream,
            stream_id=self.stream_id,
            shard=self.shard,
            start=start,
            end=end,
            record_bytes=self.record_bytes,
            owner=self.owner,
            beyond=self.beyond,
        )


def kept(stream: str, shard: Shard, position: int, *, strict: bool) -> int:
    """A position that can be read from. What is not there (any more) is an error, or is passed."""
    if position > shard.next_offset:
        if strict:
            raise OffsetOutOfRange(
                stream=stream, shard=shard.id, offset=position, next_offset=shard.next_offset
            )
        return shard.next_offset
    if position < shard.first_offset:
        if strict:
            raise OffsetExpired(
                stream=stream, shard=shard.id, offset=position, first_offset=shard.first_offset
            )
        return onward(position, shard.first_offset)
    return position


def begun_in(info: StreamInfo) -> dict[int, int]:
    """Where a query stands in a stream that it comes to later: before the first record that is there."""
    return {int(shard.id): shard.first_offset for shard in info.shards if shard.first_offset}


def standing(info: StreamInfo, positions: Mapping[int, int], *, strict: bool) -> dict[int, int]:
    """Where a query with these positions stands in each shard, by what can be read now. Of a new shard that
    it has not begun, nothing is said."""
    name, at = str(info.full_name), {}
    for shard in info.shards:
        there = kept(name, shard, positions.get(shard.id, 0), strict=strict)
        if there or shard.id in positions:
            at[int(shard.id)] = there
    return at


def due(
    info: StreamInfo,
    positions: Mapping[int, int],
    *,
    in_order: bool,
    until: Mapping[int, int] | None = None,
) -> list[Span]:
    """What may be read now, from these positions on. A shard without one is read from its first record.

    `until` bounds each shard, and leaves out those that it does not name.
    """
    spans = []
    for number in readable(info.shards, positions, in_order=in_order):
        shard = info.shards[number]
        start = positions.get(number, 0)
        end = shard.next_offset if until is None else min(shard.next_offset, until.get(number, 0))
        if start < end:
            spans.append(span_of(info, shard, start, end))
    return spans


def span_of(info: StreamInfo, shard: Shard, start: int, end: int) -> Span:
    """So much of a shard, without what the start says is done beyond it."""
    return Span(
        stream=str(info.full_name),
        stream_id=info.id,
        shard=shard.id,
        start=int(start),
        end=int(end),
        record_bytes=_record_bytes(shard),
        beyond=beyond(start),
    )


class Turns(NamedTuple):
    """Whose turn it is, where a batch has not a record for each shard. It follows from how far a query is, so
    that a plan which is made again is the same.

    The shards stand in a ring. As many as there are records have their turn: the next ones with something
    left, from the place on to which the count of all records that were read points. That place moves on by
    the records of a batch, and the batch reaches at least as far: so no shard is leapt over, and each has its
    turn before the ring has gone round once. (A shard that comes or goes turns the ring; that is seldom.)
    """

    ring: Sequence[tuple[str, int]]
    """Streams and shards: all that may have records, whether they have some now or not."""
    read: int
    """How many records have been read."""

    def after(self, spans: Sequence[Span]) -> list[int]:
        """The places of the spans, those first whose turn it is."""
        places = {shard: number for number, shard in enumerate(self.ring)}
        waits = [
            (places[span.stream, span.shard] - self.read) % len(places)
            if (span.stream, span.shard) in places
            else 0
            for span in spans
        ]
        return sorted(range(len(spans)), key=waits.__getitem__)


def turns(streams: Mapping[str, StreamInfo], positions: Mapping[str, Mapping[int, int]]) -> Turns:
    """Of a query that reads these streams, and has come so far."""
    return Turns(
        ring=[
            (name, int(shard.id))
            for name in sorted(streams)
            for shard in streams[name].shards
            if shard.is_open or positions[name].get(shard.id, 0) < shard.next_offset
        ],
        read=sum(sum(positions[name].values()) for name in streams),
    )


def limited(
    spans: Sequence[Span],
    *,
    records_max: int | None = None,
    bytes_max: int | None = None,
    turns: Turns | None = None,
) -> list[Span]:
    """As much of the spans as the limits allow: of each one record, and of the rest the same part. So none
    falls behind, and none with little in it waits for those with much. Where there is not a record for each,
    they take turns (without `turns`, among themselves).

    At least one record, however large: a query never stands still.
    """
    total = sum(span.records for span in spans)
    wanted = total
    if records_max is not None:
        wanted = min(wanted, records_max)
    size = sum(span.records * span.record_bytes for span in spans)
    if bytes_max is not None and size > bytes_max:
        wanted = min(wanted, max(1, total * bytes_max // size))
    if wanted >= total:
        return list(spans)
    if wanted < len(spans):
        turns = turns or Turns([(span.stream, span.shard) for span in spans], sum(one.start for one in spans))
        return [
            spans[place].part(spans[place].start, spans[place].start + 1)
            for place in sorted(turns.after(spans)[:wanted])
        ]
    shared, rest = wanted - len(spans), total - len(spans)
    taken = [1 + (span.records - 1) * shared // rest for span in spans]
    left = wanted - sum(taken)
    # What rounding left over goes to those with the most to come, one record each.
    for place in sorted(range(len(spans)), key=lambda place: taken[place] - spans[place].records)[:left]:
        taken[place] += 1
    return [span.part(span.start, span.start + count) for span, count in zip(spans, taken, strict=True)]


def awaited(spans: Iterable[Span], streams: Mapping[str, StreamInfo]) -> int | None:
    """The records there are, for who would wait for more of them. None: not to be waited for. A closed shard
    gets no more, and what comes after it waits for its end."""
    total = 0
    for span in spans:
        if not streams[span.stream].shards[span.shard].is_open:
            return None
        total += span.records
    return total or None


def reached(positions: Mapping[int, int], spans: Iterable[Span]) -> dict[int, int]:
    """The positions once these spans of the same stream have been read."""
    after = dict(positions)
    for span in spans:
        before = after.get(span.shard, 0)
        after[span.shard] = onward(before, max(span.end, before))
    return after


def _record_bytes(shard: Shard) -> int:
    records = shard.next_offset - shard.first_offset
    return -(-shard.bytes // records) if records > 0 else 0
