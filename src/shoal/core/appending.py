"""What becomes of one append: stored, a repeat, or refused. Load, `decide`, save.

A producer numbers its batches per shard from 0 within an epoch; a higher epoch begins anew at 0.
A repeat is looked for before the closed check, so that "closed" means: not stored, and never will be.

Invariants: a numbered batch is stored at most once; offsets are dense; the times kept with a batch
(`appended_ms`, `top_timestamp_us`) never go down within a shard.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from shoal.core.checking import is_instance_of, is_whole
from shoal.core.errors import (
    EmptyBatch,
    InvalidInput,
    OutOfSequence,
    ProducerFenced,
    ShoalError,
    TooLarge,
)
from shoal.core.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, NAME_LENGTH_MAX, PRODUCER_WINDOW
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
    number: int | None = None
    """The highest of the sender's own numbers that is stored here. It outlives epochs."""


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


def check_batch(records: int, raw_bytes: int) -> None:
    """Refuse a batch that is empty or over a limit."""
    if records == 0:
        raise EmptyBatch("batch", "0 records", "append at least one record")
    if raw_bytes > BATCH_BYTES_MAX:
        remedy = "cut it; a producer does this by itself"
        raise TooLarge("batch", size=raw_bytes, limit=BATCH_BYTES_MAX, remedy=remedy)
    if records > BATCH_RECORDS_MAX:
        raise InvalidInput("batch", f"{records} records", f"a batch has at most {BATCH_RECORDS_MAX}; cut it")


def decide(
    tail: ShardTail, known: ProducerState | None, offer: Offer, now_ms: int, *, opened: int = -1
) -> Decision:
    """Decide on one batch, given its shard's tail and what the shard knows of its producer.

    `opened` is the epoch that the stream last gave to a producer of that name, if it is a named one.

    1. Who shows an old epoch is fenced. 2. A repeat is answered as the first time. 3. A closed shard takes
    nothing more, whatever its number. 4. A gap in the numbers is refused. 5. The rest is stored.
    """
    stamp = offer.stamp
    state = None if stamp is None else _continued(known, stamp)
    if stamp is not None and state is not None:
        if stamp.epoch < max(state.epoch, opened):  # 1.
            current = max(state.epoch, opened)
            return Refuse(error=ProducerFenced(producer=stamp.producer, held=stamp.epoch, current=current))
        for sequence, first, records in state.recent:  # 2.
            if sequence == stamp.sequence:
                return Repeat(at=Appended(tail.shard, first, first + records))
    if tail.status is not ShardStatus.OPEN:  # 3.
        return Closed(last_sequence=state.last_sequence if state else -1)
    if stamp is not None and state is not None and stamp.sequence != state.last_sequence + 1:  # 4.
        return Refuse(
            error=OutOfSequence(
                producer=stamp.producer,
                shard=tail.shard,
                sequence=stamp.sequence,
                expected=state.last_sequence + 1,
            )
        )
    return _store(tail, state, offer, now_ms)  # 5.


def _continued(known: ProducerState | None, stamp: ProducerStamp) -> ProducerState:
    """The producer's state that this batch continues: a new one for a new producer or a higher epoch."""
    if known is None or stamp.epoch > known.epoch:
        number = None if known is None else known.number
        return ProducerState(producer=stamp.producer, epoch=stamp.epoch, last_sequence=-1, number=number)
    return known


def _store(tail: ShardTail, state: ProducerState | None, offer: Offer, now_ms: int) -> Store:
    first, after = tail.next_offset, tail.next_offset + offer.records
    if state is not None and offer.stamp is not None:
        newest = (offer.stamp.sequence, first, offer.records)
        state = replace(
            state,
            last_sequence=offer.stamp.sequence,
            number=higher(state.number, offer.stamp.number),
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


def higher(one: int | None, other: int | None) -> int | None:
    """The higher of two numbers that may not be there."""
    return max((number for number in (one, other) if number is not None), default=None)


def check_stamp(stamp: ProducerStamp) -> None:
    """Refuse a stamp that not every store could keep as it is, and compare byte by byte."""
    if not is_instance_of(stamp.producer, str) or not _PRODUCER.fullmatch(stamp.producer):
        raise InvalidInput(
            "producer", stamp.producer, f"1 to {NAME_LENGTH_MAX} visible ASCII characters, without spaces"
        )
    for field, value in (("epoch", stamp.epoch), ("sequence", stamp.sequence)):
        check_number(field, value)
    if stamp.number is not None:
        check_number("number", stamp.number)


def is_named(producer: str) -> bool:
    """Whether it may come again in another life, under the same name."""
    return not producer.startswith(UNNAMED)


def check_life(producer: str, held: int | None, current: int | None) -> None:
    """Refuse one who wants to go on under a name that another has by now. A forgotten name is nobody's."""
    if held is not None and current is not None and held != current:
        raise ProducerFenced(producer=producer, held=held, current=current)


def is_asked_again(held: int | None, current: int | None, before: int | None) -> bool:
    """Whether who goes on under a name has been given its next life already, and has not heard of it.

    `before`: the life from which the current one was opened, if it was by one who went on.
    """
    return held is not None and current is not None and held == before


def check_fenced(producer: str, epoch: int, opened: int | None) -> None:
    """Refuse who has an older life of a name than the one that was opened last."""
    if opened is not None and epoch < opened:
        raise ProducerFenced(producer=producer, held=epoch, current=opened)


def check_number(field: str, value: object) -> None:
    """Refuse what is no number that every store can keep."""
    if not is_whole(value) or not 0 <= value < _NUMBER_MAX:
        raise InvalidInput(field, value, "a whole number from 0 on, below 2**62")


UNNAMED: Final = "~"
"""How the ids of producers without a name begin. No name does."""

_PRODUCER: Final = re.compile(rf"[!-~]{{1,{NAME_LENGTH_MAX}}}")
_NUMBER_MAX: Final = 1 << 62
