"""A consumer that polls, without its waiting: what threads and event loops share.

It keeps which streams are read, what the user has in its hands, and what it is to be told. Everything that
takes time is a step (`steps`): who drives them decides how to wait. What becomes of a shard is decided by the
crews of its streams, which are the same as a worker's.

Invariant: what a poll returned is in the user's hands until the next poll, `subscribe` or `close`; a planned
hand-over waits for that.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from shoal.complaints import Complaints
from shoal.consumer.by_hand import committed_by_hand
from shoal.consumer.consumer_options import ConsumerOptions
from shoal.consumer.desk import RETRY_S, Desk, Notice, Offer
from shoal.consumer.held import Held
from shoal.consumer.joining import HubCalls, checked_hub, own_name, see_group
from shoal.consumer.membership import boot_ms
from shoal.consumer.reader import Reader
from shoal.consumer.statistics import WorkerStats
from shoal.consumer.steps import Errand, Rest, Steps, Tell
from shoal.consumer.user_code import Came
from shoal.core.errors import (
    ConsumerBusy,
    ConsumerClosed,
    InvalidInput,
    LeaseLost,
    NameTaken,
    NotFound,
    NotOwner,
    OffsetExpired,
    PollTooLate,
    ShoalError,
    UnknownGroup,
    UnknownStream,
    WokenUp,
)
from shoal.core.lineage import find_shard
from shoal.core.model import ShardId, StreamName
from shoal.core.names import checked_name, stream_name
from shoal.core.polling import (
    StreamShard,
    Subscription,
    check_listener,
    is_too_late,
    place_of,
    subscription_of,
)
from shoal.core.tasks import Failure
from shoal.wire.batch import Batch
from shoal.wire.delivered import Decoding

_log: Final = logging.getLogger("shoal.consumer")

Committed = Callable[[Mapping[StreamShard, int], ShoalError | None], object]
"""Is told what an asynchronous commit was of, and why it failed, if it did."""
_LEAVE_S: Final = 10.0
"""What leaving itself may take, beyond what the user is waited for."""


class Polling:
    """See Consumer for what its calls mean. Its calls may come from any thread, `poll` from one at a time."""

    def __init__(
        self,
        hub: HubCalls,
        group: str | None,
        name: str | None,
        options: ConsumerOptions,
        *,
        desk: Desk,
        decides: bool,
    ) -> None:
        """`decides`: who polls may also do what little follows, as it may wait."""
        self.hub, self.options, self.desk = checked_hub(hub), options, desk
        self.group = None if group is None else checked_name("group", group)
        self.name = own_name() if name is None else checked_name("consumer", name)
        self.readers: dict[str, Reader] = {}
        self.listener: object = None
        self._decides = decides
        self._decoding: Decoding | None = None
        if options.key_deserializer is not None or options.value_deserializer is not None:
            self._decoding = Decoding(options.key_deserializer, options.value_deserializer)
        self._subscription: Subscription | None = None
        self._is_by_hand = False
        self._look_at_s = 0.0
        """When to look for streams next."""
        self._in_hand: list[Offer] = []
        self.sought: set[StreamShard] = set()
        """Where it went by itself since the last poll: with auto commit it is done with what it left out."""
        self._told: deque[Callable[[], object]] = deque()
        """Callbacks that wait for who polls."""
        self._trouble: dict[StreamShard, ShoalError] = {}
        self._fatal: ShoalError | None = None
        """It will never work again."""
        self._is_woken = False
        self._busy = threading.Lock()
        self._doing = ""
        self._process = os.getpid()
        self._left_ms: int | None = None
        """When the last poll ended; None while one runs."""
        self._complaints = Complaints(_log)
        self._past = WorkerStats()
        """Of streams that are not read any more."""

    # --- Poller. -------------------------------------------------------------------------------------

    def why_gone(self) -> BaseException | None:
        """See Poller. In any thread."""
        interval_s = self.options.max_poll_interval
        interval_ms = None if interval_s is None else round(interval_s * 1000)
        if interval_s is not None and is_too_late(self._left_ms, boot_ms(), interval_ms):
            return PollTooLate(consumer=self.name, interval_s=interval_s)
        return ConsumerClosed("the program ends") if _is_program_ending() else None

    def could_not_read(self, stream: StreamName, shard: ShardId, error: ShoalError) -> None:
        """See Poller. What the user has to decide is raised by the next poll; all else is tried again."""
        if isinstance(error, OffsetExpired):
            self._trouble[StreamShard(str(stream), int(shard))] = error
            self.desk.ring()

    # --- Polling. ------------------------------------------------------------------------------------

    def poll(self, timeout_s: float | None) -> Steps[list[Batch]]:
        """See Consumer."""
        with self._alone("poll"):
            if self._subscription is None and not self._is_by_hand:
                raise InvalidInput("subscription", None, "subscribe(), or assign(), before the first poll")
            self._come_back(is_done=self.options.auto_commit)
            until_s = None if timeout_s is None else time.monotonic() + timeout_s
            while True:
                self.desk.look()
                yield from self.tell()
                self._raise_if_woken()
                yield from self._follow()
                self._raise_trouble()
                taken, is_stalled = self.desk.take(self.options.max_poll_records)
                if taken:
                    self._in_hand = taken
                    return [offer.open(self._decoding) for offer in taken]
                left_s = None if until_s is None else until_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return []
                yield Rest(self._pause_s(left_s, is_stalled=is_stalled))

    def _pause_s(self, left_s: float | None, *, is_stalled: bool) -> float:
        """Until it is time to look for something that nobody tells of."""
        pauses = [_PAUSE_S if left_s is None else left_s]
        if self._subscription is not None:
            pauses.append(max(0.0, self._look_at_s - time.monotonic()))
        if is_stalled:
            pauses.append(RETRY_S)
        return min(pauses)

    def wake(self) -> None:
        """See Consumer.wakeup."""
        self._is_woken = True
        self.desk.ring()

    def _raise_if_woken(self) -> None:
        if self._fatal is not None:
            raise self._fatal
        if self._is_woken:
            self._is_woken = False
            raise WokenUp

    def _raise_trouble(self) -> None:
        while self._trouble:
            place, error = self._trouble.popitem()
            reader = self.readers.get(place.stream)
            # Whoever has sought another place since, or lost the shard, has heard enough.
            held = None if reader is None else reader.runtime.held.get(ShardId(place.shard))
            if isinstance(error, OffsetExpired) and held is not None and held.position < error.first_offset:
                raise error

    def _come_back(self, *, is_done: bool) -> None:
        """The user is done with what it had in its hands, or at least has it no more."""
        offers, self._in_hand = self._in_hand, []
        self._stay_at_unread(offer for offer in offers if offer.place not in self.sought)
        sought, self.sought = self.sought - {offer.place for offer in offers}, set()
        if is_done:
            self._declare([offer.place for offer in offers if not offer.is_cut])
            self._declare(sought)
            for place in sought & set(self.shards):
                self.stir(place)
        for offer in offers:
            took_ns = time.perf_counter_ns() - offer.taken_ns
            offer.ended(Came(took_ns=took_ns, is_postponed=offer.is_cut, may_decide=self._decides))

    def _stay_at_unread(self, offers: Iterable[Offer]) -> None:
        """What could not be deserialized was given to nobody, nor was what comes after it: it comes again."""
        for offer in offers:
            if offer.batch is not None and offer.batch.unread is not None and not offer.is_cut:
                with suppress(LeaseLost):
                    offer.held.seek(offer.batch.unread)

    def _declare(self, places: Iterable[StreamShard]) -> None:
        """All before the position: not all that was returned last, as it may have sought back since."""
        for place in places:
            try:
                self.held(place).declare(0, self.held(place).position)
            except (LeaseLost, NotOwner):
                _log.debug("%s: %s was lost before it was done", self.name, place)

    # --- Telling. ------------------------------------------------------------------------------------

    def say(self, call: Callable[[], object]) -> None:
        """In any thread: have the user told by who polls."""
        self._told.append(call)
        self.desk.ring()

    def tell(self) -> Steps[None]:
        """The user's functions, one after the other."""
        while self._told:
            yield Tell(self._told.popleft())
        while notices := self.desk.notices():
            yield from self._notify(notices)

    def _notify(self, notices: Sequence[Notice]) -> Steps[None]:
        kind = notices[0].kind
        call = getattr(self.listener, kind, None)
        error: BaseException | None = None
        failure: Failure | None = None
        try:
            if call is not None:
                yield Tell(partial(call, [notice.place for notice in notices]))
        except BaseException as raised:
            error, failure = raised, Failure(kind=type(raised).__qualname__, text=str(raised))
            raise
        finally:
            for notice in notices:
                notice.ended(Came(took_ns=0, error=error, failure=failure, may_decide=self._decides))

    # --- Streams. ------------------------------------------------------------------------------------

    def subscribe(self, streams: object, pattern: object, listener: object) -> Steps[None]:
        """See Consumer."""
        wanted = subscription_of(streams, pattern)
        if self.group is None:
            raise InvalidInput("group", None, "a group shares the streams; for none, assign() shards by hand")
        check_listener(listener)
        with self._alone("subscribe"):
            if self._is_by_hand:
                raise InvalidInput("subscription", wanted, "shards are assigned by hand; unsubscribe() first")
            for name in wanted.names:  # All of them, before anything is begun.
                yield Errand(partial(self.hub.service.describe_stream, name))
            self._come_back(is_done=self.options.auto_commit)
            self._subscription, self.listener = wanted, listener
            self.desk.has_listener = listener is not None
            keep = {str(name) for name in wanted.names}
            if wanted.pattern is not None:
                keep = {name for name in self.readers if wanted.wanted([stream_name(name)])}
            self._look_at_s = 0.0
            yield from self._end([reader for name, reader in self.readers.items() if name not in keep])
            yield from self._follow(is_first=True)

    def assign(self, shards: Sequence[object]) -> Steps[None]:
        """See Consumer."""
        with self._alone("assign"):
            if self._subscription is not None:
                raise InvalidInput("shards", shards, "it is subscribed; unsubscribe() first")
            by_stream: dict[StreamName, list[int]] = {}
            for given in shards:
                place = place_of(given, ())
                by_stream.setdefault(stream_name(place.stream), []).append(place.shard)
            starts = {}
            for name, numbers in by_stream.items():
                starts[name] = yield Errand(partial(self._starts, name, numbers))
            self._come_back(is_done=self.options.auto_commit)
            yield from self._end(list(self.readers.values()))
            self._is_by_hand = True
            for name, at in starts.items():
                yield Errand(partial(self._read_by_hand, name, at))

    def _read_by_hand(self, name: StreamName, starts: Mapping[int, int]) -> None:
        self.readers[str(name)] = Reader.by_hand(
            self.hub,
            name,
            self.group,
            self.name,
            starts=starts,
            options=self.options.as_worker(is_several=False),
            desk=self.desk,
            poller=self,
        )

    def _starts(self, name: StreamName, shards: Sequence[int]) -> dict[int, int]:
        """Where to begin in shards that were chosen by hand: as committed, or as the options say."""
        stream = self.hub.service.describe_stream(name)
        found = {number: find_shard(stream, number) for number in shards}
        reset = self.options.auto_offset_reset
        if self.group is not None and reset != "none":
            see_group(
                self.hub, str(name), self.group, self.options.as_worker(is_several=False, in_order=False)
            )
        committed = committed_by_hand(self.hub.service, name, self.group)
        if committed is not None:
            return {n: committed.get(n, shard.first_offset) for n, shard in found.items()}
        if reset == "none":
            if self.group is None:
                raise InvalidInput("auto_offset_reset", reset, _NOWHERE)
            raise UnknownGroup(stream=str(name), group=self.group)
        is_latest = reset == "latest"
        return {n: shard.next_offset if is_latest else shard.first_offset for n, shard in found.items()}

    def unsubscribe(self) -> Steps[None]:
        """See Consumer."""
        with self._alone("unsubscribe"):
            self._come_back(is_done=self.options.auto_commit)
            self._subscription, self._is_by_hand = None, False
            yield from self._end(list(self.readers.values()))

    def _follow(self, *, is_first: bool = False) -> Steps[None]:
        """See to streams that ended, and, when it is time, to those that are new."""
        for reader in [reader for reader in self.readers.values() if reader.is_ending]:
            if self.readers.get(reader.name) is reader:
                yield from self._dismiss(reader)
        subscription = self._subscription
        if subscription is None or time.monotonic() < self._look_at_s:
            return
        self._look_at_s = time.monotonic() + self.options.look_interval
        existing: Sequence[StreamName] = ()
        try:
            if subscription.pattern is not None:
                existing = yield Errand(self._existing)
        except ShoalError as error:
            self._raise_unless_passing(error, is_first=is_first)
        for name in subscription.wanted(existing):
            if str(name) in self.readers:
                continue
            try:
                yield Errand(partial(self._join, name, subscription))
            except ShoalError as error:
                self._raise_unless_passing(error, is_first=is_first)

    def _raise_unless_passing(self, error: ShoalError, *, is_first: bool) -> None:
        """A stream was deleted meanwhile, or the store is away: that is looked at again."""
        if is_first or not (error.retriable or isinstance(error, UnknownStream)):
            raise error
        self._complaints.warn("follow", "%s looks for its streams: %s", self.name, error)

    def _existing(self) -> list[StreamName]:
        return [info.full_name for info in self.hub.service.list_streams(None)]

    def _join(self, name: StreamName, subscription: Subscription) -> None:
        """Kept at once: who sent for it may have been cancelled meanwhile."""
        assert self.group is not None
        is_several = subscription.pattern is not None or len(subscription.names) > 1
        self.readers[str(name)] = Reader.joined(
            self.hub,
            name,
            self.group,
            self.name,
            options=self.options.as_worker(is_several=is_several),
            desk=self.desk,
            poller=self,
        )

    def _dismiss(self, reader: Reader) -> Steps[None]:
        """A stream's part has ended by itself. Why, the user is told once; then it is tried again."""
        error = reader.runtime.error
        alike = [reader]
        if isinstance(error, PollTooLate):
            alike = [one for one in self.readers.values() if isinstance(one.runtime.error, PollTooLate)]
        raised = yield from self._wait_until_over(alike, self.options.close_timeout)
        if raised is not None:
            raise raised  # The next poll tells the rest.
        self._forget(alike)
        self._look_at_s = 0.0
        if isinstance(error, NameTaken | ConsumerClosed):
            self._fatal = error
        is_matched = self._subscription is not None and self._subscription.pattern is not None
        if isinstance(error, NotFound):
            if is_matched:
                return  # One stream less that matches.
            yield Errand(partial(self.hub.service.describe_stream, reader.stream))  # Or UnknownStream.
        if error is not None:
            raise error

    def _end(self, readers: Sequence[Reader]) -> Steps[None]:
        """Hand these over."""
        for reader in readers:
            reader.runtime.stop(self.options.close_timeout)
        raised = yield from self._wait_until_over(readers, self.options.close_timeout)
        self._forget(readers)
        if raised is not None:
            raise raised

    def _forget(self, readers: Sequence[Reader]) -> None:
        self._past = WorkerStats.sum([self._past, *(reader.runtime.stats for reader in readers)])
        for reader in readers:
            self.readers.pop(reader.name, None)

    def _wait_until_over(self, readers: Sequence[Reader], timeout_s: float) -> Steps[Exception | None]:
        """The listener is told what it must be told meanwhile; what it raised first.

        Whatever that is, the others are handed over all the same: nobody would come to do it later.
        """
        until_s = time.monotonic() + timeout_s + _LEAVE_S
        first: Exception | None = None
        while True:
            self.desk.look()
            is_all_told = True
            try:
                yield from self.tell()
            except Exception as error:  # noqa: BLE001 - around user code; the caller raises it
                first, is_all_told = first or error, False
            left_s = until_s - time.monotonic()
            if left_s <= 0 or (is_all_told and all(reader.is_over for reader in readers)):
                return first
            if is_all_told:
                yield Rest(left_s)

    # --- The end. ------------------------------------------------------------------------------------

    def close(self, timeout_s: float, *, is_clean: bool) -> Steps[None]:
        """See Consumer. `is_clean`: the user is done with what it has."""
        if self._process != os.getpid() or (self._fatal is not None and not self.readers):
            return
        until_s = time.monotonic() + timeout_s
        self._fatal = self._fatal or ConsumerClosed("close() was called")
        self.desk.ring()
        while not self._busy.acquire(blocking=False):
            if time.monotonic() >= until_s:
                raise ConsumerBusy(consumer=self.name, doing=self._doing)
            yield Rest(_BUSY_S)
        try:
            self._come_back(is_done=is_clean and self.options.auto_commit)
            readers = list(self.readers.values())
            for reader in readers:
                reader.runtime.stop(max(0.0, until_s - time.monotonic()))
            raised = yield from self._wait_until_over(readers, max(0.0, until_s - time.monotonic()))
            self._forget(readers)
            if raised is not None:
                raise raised
        finally:
            self._busy.release()

    @contextmanager
    def _alone(self, doing: str) -> Iterator[None]:
        """One at a time: who comes second is refused, and changes nothing."""
        if self._process != os.getpid():
            raise ConsumerClosed(_FORKED)
        if self._fatal is not None:
            raise self._fatal
        if not self._busy.acquire(blocking=False):
            raise ConsumerBusy(consumer=self.name, doing=self._doing)
        self._doing, self._left_ms = doing, None
        try:
            yield
        finally:
            self._left_ms = boot_ms()
            self._busy.release()

    # --- Positions. ----------------------------------------------------------------------------------

    @property
    def shards(self) -> list[StreamShard]:
        """What may be polled."""
        return [place for reader in list(self.readers.values()) for place in reader.shards]

    @property
    def stats(self) -> WorkerStats:
        """What it has done so far."""
        return WorkerStats.sum([self._past, *(reader.runtime.stats for reader in self.readers.values())])

    def check_open(self) -> None:
        """Refuse what can do nothing any more. While it closes, the listener may still commit."""
        if self._process != os.getpid():
            raise ConsumerClosed(_FORKED)
        if self._fatal is not None and not self.readers:
            raise self._fatal

    def place(self, given: object) -> StreamShard:
        """A shard as the user names it."""
        return place_of(given, list(self.readers))

    def places(self, given: object) -> list[StreamShard]:
        """Shards as the user names them; None: all that it has."""
        if given is None:
            return self.shards
        if isinstance(given, str | bytes | StreamShard) or not isinstance(given, Iterable):
            raise InvalidInput("shards", given, "a list of (stream, shard), or None for all that it has")
        return [self.place(one) for one in given]

    def reader(self, place: StreamShard) -> Reader:
        """Of a shard's stream."""
        found = self.readers.get(place.stream)
        if found is None:
            raise NotOwner(shard=place.shard, consumer=self.name, owner=None, stream=place.stream)
        return found

    def held(self, place: StreamShard) -> Held:
        """A shard in this consumer's hands."""
        return self.reader(place).held(place.shard)

    def stir(self, place: StreamShard) -> None:
        """Something was said about a shard that its crew should look at."""
        self.reader(place).runtime.stir(ShardId(place.shard))

    def done_upto(self, place: StreamShard) -> int:
        """What a commit of everything means: all that was returned; in the midst of a loop, up to there."""
        position = self.held(place).position
        for offer in self._in_hand:
            if offer.place == place and offer.batch is not None and position == offer.batch.next_offset:
                declared = offer.batch.declared
                return offer.batch.first_offset if declared is None else declared
        return position


def _is_program_ending() -> bool:
    """The main thread has ended, and no other that the program would wait for can come to poll."""
    main = threading.main_thread()
    if main.is_alive():
        return False
    others = (one for one in threading.enumerate() if one is not main and not one.daemon)
    return all(one.name.startswith("shoal-") for one in others)


_FORKED: Final = "it belongs to the process that made it, and this is a fork of it"
_NOWHERE: Final = "without a group no position is kept; name a group, or say earliest or latest, and seek()"
_PAUSE_S: Final = 60.0
"""Nothing is looked for so rarely; who waits without a bound is rung."""
_BUSY_S: Final = 0.005
