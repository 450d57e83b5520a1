"""What users hold of a shared group: receive records, settle each. Consumers come and go, and need no one.

A consumer keeps no state but what it has in hand; the hub knows the rest. Whatever it leaves unsettled comes
to another when its time is over, or at once if it is closed.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from shoal.complaints import Complaints
from shoal.consumer.joining import HubCalls, checked_hub, missed_by_name, own_name
from shoal.consumer.membership import BOOT_CLOCK
from shoal.core.checking import as_whole, is_instance_of, is_number, is_whole
from shoal.core.errors import (
    AlreadySettled,
    ConsumerClosed,
    HeldByAnother,
    HoldExpired,
    InvalidInput,
    NeverReceived,
    RecordsRefused,
    StoreError,
    UnknownGroup,
)
from shoal.core.group import Delivery, check_delivery, visibility_ms
from shoal.core.limits import (
    CLOCK_MARGIN,
    DURATION_S_MAX,
    READ_BYTES_DEFAULT,
    READ_WAIT_S_MAX,
    RECEIVE_RECORDS_MAX,
    VISIBILITY_S,
)
from shoal.core.model import ShardId
from shoal.core.names import checked_name, stream_name
from shoal.core.share_acts import Given, How, Receive, Settle, Settled, Why
from shoal.core.share_view import holder
from shoal.core.spans import Range, ranges_of, records, without
from shoal.forks import renew_in_child
from shoal.share_port import Settling
from shoal.wire.batch import Batch
from shoal.wire.record import Record

_log: Final = logging.getLogger("shoal.consumer.shared")

Which = Record | int | range | Iterable[Record | int] | None
"""Of what was received: one record, some, or all (None)."""


class ReceivedBatch:
    """Records of one shard in this consumer's hands: `len()`, iteration over `Record`, `to_arrow()`.

    Falsy if there was nothing. `deadline_s` is what is left of the time that they are this consumer's alone.
    """

    def __init__(
        self, batch: Batch | None, *, hold: int, given: Sequence[Given], deadline: float, waiting_for: str
    ) -> None:
        self.batch = batch
        self.hold = hold
        self.waiting_for = waiting_for
        """Why nothing new is handed out, if a shard has as many open records as it may; otherwise empty."""
        self._given = given
        self._deadline = deadline

    @property
    def shard(self) -> int:
        return -1 if self.batch is None else self.batch.shard

    @property
    def offsets(self) -> Sequence[int]:
        return () if self.batch is None else self.batch.offsets

    @property
    def deadline_s(self) -> float:
        """Seconds until other consumers may get them, by this machine's clock; 0 or less: it is over."""
        return self._deadline - time.clock_gettime(BOOT_CLOCK)

    def attempts(self, which: Record | int) -> int:
        """How often a record has been handed out, this time included."""
        offset = _offset(which)
        return next((one.attempts for one in self._given if one.low <= offset < one.high), 0)

    def to_arrow(self) -> Any:
        """All records as one pyarrow.RecordBatch; None if there are none."""
        return None if self.batch is None else self.batch.to_arrow()

    def __len__(self) -> int:
        return 0 if self.batch is None else len(self.batch)

    def __iter__(self) -> Iterator[Record]:
        return iter(()) if self.batch is None else iter(self.batch)

    def __repr__(self) -> str:
        return f"<ReceivedBatch {len(self)} records of shard {self.shard}>"

    def _extended(self, deadline: float) -> None:
        self._deadline = deadline


class SharedConsumer:
    """Receives records of a group with `delivery="shared"`, and says what became of each.

    `ack`: done. `release`: to be handed out again, now or after `delay` seconds. `reject`: to the dead
    stream. `extend`: more time. Each takes what `receive` returned, and which of it: a record, an offset, a
    range, several, or all. May be used from several threads.
    """

    def __init__(self, hub: HubCalls, stream: str, group: str, name: str | None = None) -> None:
        self._service = checked_hub(hub).service
        self._stream = stream_name(stream)
        found = self._service.groups.find(self._stream, checked_name("group", group))
        check_delivery(found, str(self._stream), Delivery.SHARED)
        self.group = found.name
        self._group_id = found.id
        self._visibility_ms = found.settings.visibility_ms or round(VISIBILITY_S * 1000)
        self.name = own_name() if name is None else checked_name("name", name)
        self._is_closed = False
        self._complaints = Complaints(_log)
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed. A forked child is another consumer, and has nothing in hand."""
        self._incarnation = holder(self.name, secrets.token_hex(8))
        self._in_hand: dict[tuple[int, int], _InHand] = {}
        """By shard and hold: what was received and not settled. Writer: any thread, under `_lock`."""
        self._lock = threading.Lock()

    def receive(
        self,
        max: int = 500,
        *,
        visibility: float | None = None,
        wait: float = 0.0,
        max_bytes: int = READ_BYTES_DEFAULT,
    ) -> ReceivedBatch:
        """Up to `max` records of one shard, for this consumer alone for `visibility` seconds.

        With `wait`, waits so many seconds for some. What is not settled in time is handed out again.
        """
        if not is_whole(max) or not 1 <= max <= RECEIVE_RECORDS_MAX:
            raise InvalidInput("max", max, f"from 1 to {RECEIVE_RECORDS_MAX} records")
        if not is_whole(max_bytes) or max_bytes < 1:
            raise InvalidInput("max_bytes", max_bytes, "at least 1; one record comes however large it is")
        if not is_number(wait) or not 0 <= wait <= READ_WAIT_S_MAX:
            raise InvalidInput("wait", wait, f"seconds from 0 to {READ_WAIT_S_MAX:g}")
        held_ms = self._visibility_ms if visibility is None else visibility_ms(visibility)
        asked = Receive(consumer=self._incarnation, max_records=max, visibility_ms=held_ms)
        deadline = time.monotonic() + wait
        while True:
            self._check_open()
            asked_s = time.clock_gettime(BOOT_CLOCK)
            # In slices, so that a close is noticed.
            slice_s = min(deadline - time.monotonic(), _SLICE_S)
            with missed_by_name(self._stream, self.group):
                found = self._service.shares.receive(
                    self._stream,
                    self._group_id,
                    asked,
                    wait_s=slice_s if slice_s > 0 else 0.0,
                    max_bytes=max_bytes,
                )
            if found.batch is not None or time.monotonic() >= deadline:
                break
        received = ReceivedBatch(
            found.batch,
            hold=found.hold,
            given=found.given,
            deadline=asked_s + found.waited_s + held_ms / 1000 * (1 - CLOCK_MARGIN),
            waiting_for=found.waiting_for,
        )
        if found.batch is not None:
            ranges = [(one.low, one.high) for one in found.given]
            with self._lock:
                self._let_go_of_expired(asked_s + found.waited_s)
                self._in_hand[found.batch.shard, found.hold] = _InHand(ranges, received._deadline)
        return received

    def __iter__(self) -> Iterator[ReceivedBatch]:
        """What comes, until the consumer is closed; an outage of the store is waited for."""
        while not self._is_closed:
            try:
                received = self.receive(wait=_SLICE_S * 4)
            except ConsumerClosed:
                return
            except StoreError as error:
                if not error.retriable:
                    raise
                self._complaints.warn(type(error).__name__, "receiving: %s", error)
                time.sleep(_OUTAGE_S)
                continue
            if received:
                yield received

    def ack(self, received: ReceivedBatch, which: Which = None) -> int:
        """These are done: durable when it returns. How many were acknowledged."""
        return self._settle(received, which, How.ACK)

    def release(self, received: ReceivedBatch, which: Which = None, *, delay: float = 0.0) -> int:
        """These are to be handed out again, at once or after `delay` seconds.

        After the last attempt they go to the dead stream instead.
        """
        if not is_number(delay) or not 0 <= delay <= DURATION_S_MAX:
            raise InvalidInput("delay", delay, f"seconds from 0 to {DURATION_S_MAX:g}")
        return self._settle(received, which, How.RELEASE, for_ms=round(delay * 1000))

    def reject(self, received: ReceivedBatch, which: Which = None, *, reason: str = "rejected") -> int:
        """These cannot be processed: they go to the group's dead stream, and are settled."""

        def call(settling: Settling) -> Settled:
            return self._service.shares.reject(self._stream, self._group_id, [settling], reason)[0]

        if not is_instance_of(reason, str) or not reason:
            raise InvalidInput("reason", reason, "a sentence for whoever looks at the dead letters")
        return self._settle(received, which, How.DEAD, call=call)

    def extend(self, received: ReceivedBatch, which: Which = None, *, visibility: float | None = None) -> int:
        """More time: `visibility` seconds from now on, or as much as the group gives."""
        held_ms = self._visibility_ms if visibility is None else visibility_ms(visibility)
        asked_s = time.clock_gettime(BOOT_CLOCK)
        taken = self._settle(received, which, How.EXTEND, for_ms=held_ms)
        until_s = asked_s + held_ms / 1000 * (1 - CLOCK_MARGIN)
        if which is None:
            received._extended(until_s)
        with self._lock:
            if (in_hand := self._in_hand.get((received.shard, received.hold))) is not None:
                in_hand.until_s = max(in_hand.until_s, until_s)
        return taken

    def close(self) -> None:
        """Release what is in hand, so that others get it at once."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            in_hand, self._in_hand = self._in_hand, {}
        settlings = [
            self._settling(shard, hold, one.ranges, How.RELEASE) for (shard, hold), one in in_hand.items()
        ]
        if not settlings:
            return
        try:
            # What ran out meanwhile is refused, and comes to others anyway.
            self._service.shares.settle(self._stream, self._group_id, settlings)
        except UnknownGroup:
            _log.info("closing: group %s is deleted, and with it what was in hand", self.group)
        except StoreError as error:
            if not error.retriable:
                raise
            self._complaints.warn("close", "closing: %s; what is in hand comes to others in its time", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SharedConsumer {self.name} of {self.group} on {self._stream}>"

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConsumerClosed("close() was called")

    def _settle(
        self,
        received: ReceivedBatch,
        which: Which,
        how: How,
        *,
        for_ms: int = 0,
        call: Callable[[Settling], Settled] | None = None,
    ) -> int:
        self._check_open()
        if not is_instance_of(received, ReceivedBatch):
            raise InvalidInput("received", received, "what receive() returned")
        ranges = _chosen(received, which)
        if not ranges:
            return 0
        settling = self._settling(received.shard, received.hold, ranges, how, for_ms)
        answer = self._answered(settling, call or self._call, received)
        self._let_go(settling, how)
        _raise_refused(received.shard, answer)
        return answer.taken

    def _settling(
        self, shard: int, hold: int, ranges: Sequence[Range], how: How, for_ms: int = 0
    ) -> Settling:
        act = Settle(consumer=self._incarnation, hold=hold, ranges=ranges, how=how, for_ms=for_ms)
        return Settling(shard=ShardId(shard), act=act)

    def _call(self, settling: Settling) -> Settled:
        return self._service.shares.settle(self._stream, self._group_id, [settling])[0]

    def _answered(
        self, settling: Settling, call: Callable[[Settling], Settled], received: ReceivedBatch
    ) -> Settled:
        """The hub's answer. When none came, the same is asked again while the records are ours.

        What an attempt without an answer had settled is then settled already, and by us.
        """
        is_again = False
        while True:
            try:
                with missed_by_name(self._stream, self.group):
                    answer = call(settling)
            except StoreError as error:
                if not error.retriable or received.deadline_s <= _OUTAGE_S:
                    raise
                self._complaints.warn(type(error).__name__, "settling: %s; it is tried again", error)
                is_again = True
                time.sleep(_OUTAGE_S)
                continue
            return _forgiven(answer, settling.act.how) if is_again else answer

    def _let_go(self, settling: Settling, how: How) -> None:
        if how is How.EXTEND:
            return
        where = (int(settling.shard), settling.act.hold)
        with self._lock:
            in_hand = self._in_hand.get(where)
            if in_hand is None:
                return
            in_hand.ranges = without(in_hand.ranges, settling.act.ranges)
            if not in_hand.ranges:
                del self._in_hand[where]

    def _let_go_of_expired(self, now_s: float) -> None:
        """Who settles nothing, ever, keeps no list of it. Under `_lock`."""
        for where in [where for where, one in self._in_hand.items() if one.until_s < now_s]:
            del self._in_hand[where]


@dataclass(slots=True)
class _InHand:
    ranges: list[Range]
    until_s: float
    """By this machine's clock: when it is this consumer's no more."""


def _chosen(received: ReceivedBatch, which: Which) -> Sequence[Range]:
    """What is meant, as ranges; NeverReceived if it is not part of what was received."""
    if received.batch is None:
        if which is None:
            return ()
        raise NeverReceived(shard=-1, offsets=_offsets(which), taken=0)
    if which is None:
        given = [(one.low, one.high) for one in received._given]
        return ranges_of(received.offsets) if records(given) != len(received) else given
    offsets = _offsets(which)
    ranges = ranges_of(offsets)
    strangers = without(ranges, [(one.low, one.high) for one in received._given])
    if strangers:
        never = [offset for low, high in strangers for offset in range(low, high)]
        raise NeverReceived(shard=received.shard, offsets=never, taken=0)
    return ranges


def _offsets(which: object) -> Sequence[int]:
    if isinstance(which, range):
        return which
    if isinstance(which, Record):
        return (which.offset,)
    number = as_whole(which)
    if number is not None:
        return (number,)
    if isinstance(which, Iterable) and not isinstance(which, str | bytes):
        return [_offset(one) for one in which]
    raise InvalidInput("which", which, _WHICH)


def _offset(one: object) -> int:
    number = one.offset if isinstance(one, Record) else as_whole(one)
    if number is None:
        raise InvalidInput("which", one, _WHICH)
    return number


def _forgiven(answer: Settled, how: How) -> Settled:
    """The answer to a repeated question, the first of which may have been heard."""
    own = Why.SETTLED if how in (How.ACK, How.DEAD) else Why.EXPIRED
    forgiven = [part for part, why in answer.refused if why is own]
    return Settled(
        taken=answer.taken + records(forgiven),
        refused=tuple((part, why) for part, why in answer.refused if why is not own),
    )


def _raise_refused(shard: int, answer: Settled) -> None:
    """The worst of it as an error, with all offsets that it is about."""
    for why, kind in _KINDS:
        offsets = [offset for (low, high), of in answer.refused if of is why for offset in range(low, high)]
        if offsets:
            raise kind(shard=shard, offsets=offsets, taken=answer.taken)


_KINDS: Final[Sequence[tuple[Why, type[RecordsRefused]]]] = (
    (Why.OTHER, HeldByAnother),
    (Why.NEVER, NeverReceived),
    (Why.EXPIRED, HoldExpired),
    (Why.SETTLED, AlreadySettled),
)
_WHICH: Final = "a record, an offset, a range, several of them, or None for all that was received"
_SLICE_S: Final = 5.0
_OUTAGE_S: Final = 0.2
"""How long to wait before the store is asked again."""
