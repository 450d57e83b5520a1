"""What becomes of one append: stored, a repeat, or refused. Load, `decide`, save.

A producer numbers its batches per shard from 0 within an epoch; a higher epoch begins anew at 0.
A repeat is looked for before the closed check, so that "closed" means: not stored, and never will be.

Invariants: a numbered batch is stored at most once; offsets are dense; the times kept with a batch
(`appended_ms`, `top_timestamp_us`) never go down within a shard.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shoal.core.errors import OutOfSequence, ProducerFenced, ShoalError
from shoal.core.limits import PRODUCER_WINDOW
from shoal.core.model import Appended, ProducerStamp, ShardId, ShardStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTail:
    """What an append needs to know of its shard, and leaves behind."""

    shard: ShardId
    status: ShardStatus
    next_offset: int
    bytes: int
    appended_ms: int
    """When the hub took the newest batch. It never goes down, whatever the wall clock does."""
    top_timestamp_us: int
    """The highest record timestamp so far: rising, so that a time can be looked up by bisection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """What a shard remembers of one producer."""

    producer: str
    epoch: int
    last_sequence: int
    recent: tuple[tuple[int, int, int], ...] = ()
    """The newest batches as (sequence, first offset, records), oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One batch that wants to be stored."""

    records: int
    stored_bytes: int
    top_timestamp_us: int
    stamp: ProducerStamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Insert the batch at `at.first_offset` and save both states."""

    at: Appended
    tail: ShardTail
    producer: ProducerState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """It is there already; answer as the first time."""

    at: Appended


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The shard is closed; the caller needs the new map."""

    last_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """The producer is fenced or out of step."""

    error: ShoalError


Decision = Store | Repeat | Closed | Refuse


def decide(tail: ShardTail, known: ProducerState | None, offer: Offer, now_ms: int) -> Decision:
    """Decide on one batch, given its shard's tail and what the shard knows of its producer."""
    state: ProducerState | None = None
    if offer.stamp is not None:
        state, answer = _follow(tail, known, offer.stamp)
        if answer is not None:
            return answer
    if tail.status is not ShardStatus.OPEN:
        return Closed(last_sequence=state.last_sequence if state else -1)
    first, after = tail.next_offset, tail.next_offset + offer.records
    if state is not None and offer.stamp is not None:
        newest = (offer.stamp.sequence, first, offer.records)
        state = replace(
            state,
            last_sequence=offer.stamp.sequence,
            recent=(*state.recent, newest)[-PRODUCER_WINDOW:],
        )
    grown = replace(
        tail,
        next_offset=after,
        bytes=tail.bytes + offer.stored_bytes,
        appended_ms=max(tail.appended_ms, now_ms),
        top_timestamp_us=max(tail.top_timestamp_us, offer.top_timestamp_us),
    )
    return Store(at=Appended(tail.shard, first, after), tail=grown, producer=state)


def _follow(
    tail: ShardTail, known: ProducerState | None, stamp: ProducerStamp
) -> tuple[ProducerState, Repeat | Refuse | None]:
    """The producer's state that this batch continues, and the answer if it must not be stored."""
    if known is None or stamp.epoch > known.epoch:
        known = ProducerState(producer=stamp.producer, epoch=stamp.epoch, last_sequence=-1)
    if stamp.epoch < known.epoch:
        return known, Refuse(
            error=ProducerFenced(producer=stamp.producer, held=stamp.epoch, current=known.epoch)
        )
    if stamp.sequence == known.last_sequence + 1:
        return known, None
    for sequence, first, records in known.recent:
        if sequence == stamp.sequence:
            return known, Repeat(at=Appended(tail.shard, first, first + records))
    return known, Refuse(
        error=OutOfSequence(
            producer=stamp.producer,
            shard=tail.shard,
            sequence=stamp.sequence,
            expected=known.last_sequence + 1,
        )
    )
