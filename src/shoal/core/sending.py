"""What a producer sends where and when, and what waits for what. A shell carries it out.

Every shard has a lane: parcels in the order of their `send` calls. A parcel is numbered when it is first
sent, and keeps its number until its fate is known; several of a lane may be on their way at once.

Rules:

1. A lane is sent from its head on. What is sent again goes with its old number, and not while a lower number
   is on its way.
2. A call that failed for a passing reason is made again after a wait that grows; the lane waits with it.
   Lanes that failed share no call with others, and with fewer and fewer of each other: a shard that does not
   work holds up none that does.
3. A closed shard has not stored it, and never will. Sends by the new map wait until all that is numbered in
   closed shards is settled; then what is left there moves whole, in order, and the sender's own numbers rise.
   A map that is announced holds up whatever has no number yet, for a moment; if it does not come, not again
   for a while.
4. A number that nobody will use any more ends the life: what is on its way is settled first, and the next
   life begins at 0, under a higher epoch that fences whatever copies are still about. If a lower number was
   given up in doubt, a copy of it may yet come, and ours behind it: what became of ours, nobody can know.
5. `strict` keeps its shard while that is open, until the delivery timeout. `best_tried` goes to another lane
   that works, if the failed attempt has surely stored nothing, and is set aside after `max_attempts`.
6. What the sender has numbered itself is never passed over: when such a parcel fails, all that waits fails.

Invariants: from the lowest number of a lane that is not settled to the highest, there are no more than the
log remembers; nothing strict is sent before what was put into its lane earlier; an uncertain parcel never
changes its shard or its number within a life.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, Generic

from shoal.core.delaying import DELAYED
from shoal.core.errors import DeliveryTimeout, OutOfSequence, ProducerFenced, ShardClosed, ShoalError
from shoal.core.limits import PRODUCER_WINDOW, ROUND_BATCHES_PER_SHARD, ROUND_BYTES_MAX
from shoal.core.model import Appended, ShardId, StreamInfo
from shoal.core.parcels import Lane, P, Parcel, SendingRules, Settled
from shoal.core.routing import ShardMap


class Sending(Generic[P]):
    """The lanes of one producer. One at a time: the shell has a lock."""

    def __init__(self, shards: ShardMap, rules: SendingRules) -> None:
        self.shards = shards
        self.rules = rules
        self.newer: StreamInfo | None = None
        """A newer map that was heard of, and is followed as soon as that is safe."""
        self._held_until_s = 0.0
        """A newer map is announced: until it is heard of, or until then, nothing new is sent."""
        self._deaf_until_s = 0.0
        """Until then announcements hold up nothing: the last one came to nothing so far."""
        self.is_life_over = False
        self.sequences: dict[ShardId, int] = {}
        """The next number of each shard, in this life."""
        self.calls = 0
        """On their way."""
        self._lanes: dict[ShardId, Lane[P]] = {}
        self._known: dict[ShardId, int] = {}
        """So many of a shard's numbers are stored for sure."""
        self._astray: dict[ShardId, int] = {}
        """The lowest number of a shard that was given up in doubt, in this life."""
        self._flying_bytes = 0
        self._dice = 0.0
        """Of the last answer. Decides which of the lanes that failed share a call."""
        self._stillborn = 0
        """Times in a row that no new life was to be had."""
        self._reborn_s = 0.0
        """When it is tried again."""

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def everything(self) -> list[P]:
        """All that is not settled, those of a lane in order."""
        return [parcel for lane in self._lanes.values() for parcel in lane.queue]

    @property
    def is_quiet(self) -> bool:
        """Nothing is on its way, and nothing has a number whose fate is not known."""
        return not self.calls and not any(
            parcel.sequence is not None for lane in self._lanes.values() for parcel in lane.queue
        )

    def wants_life(self, now_s: float) -> bool:
        """The life is over, all that was sent in it is settled, and something waits for the next."""
        return self.is_life_over and bool(self._lanes) and now_s >= self._reborn_s and self.is_quiet

    @property
    def can_follow(self) -> bool:
        """A newer map was heard of, and nothing of closed shards is on its way: rule 3."""
        return self.newer is not None and not any(
            parcel.sequence is not None
            for shard, lane in self._lanes.items()
            if self._is_closing(shard)
            for parcel in lane.queue
        )

    # --- What happens. ---

    def put(self, parcel: P) -> None:
        """At the end of its lane."""
        lane = self._lanes.get(parcel.shard)
        if lane is None:
            lane = self._lanes[parcel.shard] = Lane()
        lane.queue.append(parcel)

    def take(self, now_s: float, *, hurry: bool, only_numbered: bool = False) -> list[P]:
        """One call's worth of what is due, numbered: the heads of all lanes first, then what follows them.

        `hurry`: nothing waits for company. `only_numbered`: what was sent before, and nothing else.
        """
        if self.calls >= self.rules.calls_max:
            return []
        only_numbered = only_numbered or self.is_held(now_s)
        found = {
            shard: some
            for shard, lane in self._lanes.items()
            if lane.not_before_s <= now_s
            and (some := self._ready(shard, lane, now_s, hurry=hurry, only_numbered=only_numbered))
        }
        ready = self._together(found)
        most = min(ROUND_BYTES_MAX, self._flying_bytes + ROUND_BYTES_MAX // self.rules.calls_max)
        size = self._flying_bytes
        taken: list[P] = []
        for rank in range(ROUND_BATCHES_PER_SHARD):
            for parcels in ready:
                if rank >= len(parcels):
                    continue
                parcel = parcels[rank]
                if (taken or self.calls) and size + parcel.size > most:
                    # And no later rank either: it would overtake what did not fit.
                    return self._sent(taken, now_s)
                taken.append(parcel)
                size += parcel.size
        return self._sent(taken, now_s)

    def due_in_s(self, now_s: float, *, hurry: bool = False, only_numbered: bool = False) -> float | None:
        """Seconds until there may be something to do; None if only an answer can change that."""
        if self.calls >= self.rules.calls_max:
            return None
        waits = [self._reborn_s - now_s] if self.is_life_over and self._lanes and self.is_quiet else []
        for shard, lane in self._lanes.items():
            # What is due, and what will be.
            ready = self._ready(shard, lane, _NEVER_S, hurry=hurry, only_numbered=only_numbered)
            if ready:
                due_s = min(
                    now_s
                    if parcel.sequence is not None
                    else max(self._held_until_s, now_s if hurry else parcel.due_s)
                    for parcel in ready
                )
                waits.append(max(lane.not_before_s, due_s) - now_s)
        return max(0.0, min(waits)) if waits else None

    def answered(
        self, parcels: Sequence[P], answers: Sequence[Appended | ShoalError], now_s: float, dice: float
    ) -> Settled[P]:
        """A call has come back: an answer for each parcel. `dice` is random, from 0 up to 1."""
        settled: Settled[P] = Settled()
        self.calls -= 1
        self._dice = dice
        missed: list[tuple[P, ShoalError]] = []
        unmapped: list[tuple[P, ShoalError]] = []
        for parcel, answer in zip(parcels, answers, strict=True):
            self._flying_bytes -= parcel.size
            parcel.is_flying = False
            if parcel.sequence is None:
                continue  # It has failed with another meanwhile.
            match answer:
                case Appended():
                    self._stored(parcel)
                    settled.stored.append((parcel, answer))
                case ShardClosed():
                    settled.refused += 1
                    parcel.attempts -= 1  # No shard has failed: it is another's.
                    parcel.sequence, parcel.is_uncertain = None, False
                    self.hear(answer.stream)
                    unmapped.append((parcel, answer))
                case OutOfSequence() if self._is_early(parcel):
                    parcel.attempts -= 1  # It came before its turn: rule 1 waits for that.
                case OutOfSequence() if self._is_unstored(parcel, answer):
                    parcel.sequence, parcel.is_uncertain, self.is_life_over = None, False, True
                case OutOfSequence() if not parcel.is_strict:
                    self._leave(parcel)
                    settled.aside.append((parcel, answer))
                case _ if answer.retriable:
                    parcel.is_uncertain |= not answer.untouched
                    missed.append((parcel, answer))
                case _:
                    self._fail(parcel, answer, settled)
        self._missed(missed, settled, now_s, dice)
        self._wait_for_map(unmapped, settled, now_s)
        self._end_if_fatal(settled)
        return settled

    def hear(self, stream: StreamInfo) -> None:
        """Of a map, perhaps a newer one."""
        known = self.shards.version if self.newer is None else self.newer.version
        if stream.version > known:
            self.newer = stream
            self._held_until_s = self._deaf_until_s = 0.0

    def hold(self, now_s: float, hold_s: float) -> bool:
        """A newer map is announced: rule 3. Whether sends wait for it."""
        if self.newer is not None or now_s < self._deaf_until_s:
            return False
        self._held_until_s = now_s + hold_s
        self._deaf_until_s = now_s + hold_s * _DEAF
        return True

    def is_held(self, now_s: float) -> bool:
        """Whether sends wait for a map that is announced."""
        return now_s < self._held_until_s

    def follow(self) -> list[list[P]]:
        """Take the newer map; only if `can_follow`. What was in closed shards, by lane, is to be put where it
        belongs now: see `merged`.

        The numbers of closed shards stay. A transaction that was made by the older map is still to be refused
        there; with a number that was used before, it would be taken for a repeat, and be lost.
        """
        assert self.newer is not None
        self.shards, self.newer = ShardMap.of(self.newer), None
        kept = {*self.shards.ids, DELAYED}
        return [
            list(self._lanes.pop(shard).queue)
            for shard in [shard for shard in self._lanes if shard not in kept]
        ]

    def live(self) -> None:
        """A new life has begun, under a higher epoch; nothing of the last one is on its way."""
        self.sequences.clear()
        self._known.clear()
        self._astray.clear()
        self.is_life_over, self._stillborn, self._reborn_s = False, 0, 0.0

    def lifeless(self, error: ShoalError, now_s: float) -> Settled[P]:
        """No new life was to be had. What waits tries again after a while, or fails if that is no use."""
        settled: Settled[P] = Settled(retried=error if error.retriable else None)
        self._stillborn += 1
        wait_s = self.rules.wait_s(self._stillborn)
        self._reborn_s = now_s + wait_s
        for parcel in self.everything():
            parcel.began_s = parcel.began_s or now_s
            if not error.retriable:
                self._fail(parcel, error, settled)
            elif now_s - parcel.began_s + wait_s > self.rules.delivery_timeout_s:
                self._give_up(parcel, error, settled)
        self._end_if_fatal(settled)
        return settled

    def end(self, error: ShoalError) -> Settled[P]:
        """Nobody sends any more."""
        settled: Settled[P] = Settled(fatal=error)
        self._end_if_fatal(settled)
        return settled

    def noted(self, shard: ShardId) -> None:
        """A number of this shard was used, and stored, by another way: a transaction."""
        self.sequences[shard] = self._known[shard] = self.sequences.get(shard, 0) + 1

    # --- Rules. ---

    def _ready(
        self, shard: ShardId, lane: Lane[P], now_s: float, *, hurry: bool, only_numbered: bool
    ) -> list[P]:
        """What of a lane may be sent now, in order: rules 1, 3 and 4."""
        only_numbered = only_numbered or self.is_life_over or self._is_closing(shard)
        if len(lane.queue) == 1 and lane.queue[0].sequence is None:  # Mostly so, and asked at every turn.
            (one,) = lane.queue
            return [one] if not only_numbered and (hurry or one.due_s <= now_s) else []
        again: list[P] = []
        fresh: list[P] = []
        flying: list[int] = []
        for parcel in lane.queue if only_numbered else islice(lane.queue, 2 * PRODUCER_WINDOW):
            if parcel.is_flying:
                flying.append(_sequence(parcel))
            elif parcel.sequence is not None:
                again.append(parcel)
            elif not only_numbered and (hurry or parcel.due_s <= now_s):
                fresh.append(parcel)
        if not (again or flying):
            return fresh[:ROUND_BATCHES_PER_SHARD]
        numbers = [*flying, *map(_sequence, again)]
        # However many are settled in between, the log answers for the lowest only within its window.
        room = PRODUCER_WINDOW - (self.sequences[shard] - min(numbers))
        if again:
            again.sort(key=_sequence)
            if flying:
                again = [parcel for parcel in again if _sequence(parcel) < min(flying)]
                room = 0
        return (again + fresh[: max(0, room)])[:ROUND_BATCHES_PER_SHARD]

    def _together(self, found: dict[ShardId, list[P]]) -> list[list[P]]:
        """Which lanes share a call: rule 2. Those that failed come first, since they do not come often."""
        failing = [shard for shard in found if self._lanes[shard].failures]
        if not failing:
            return list(found.values())
        parts = 1 << min(max(self._lanes[shard].failures for shard in failing), _PARTINGS)
        # By chance: with any turn of their own, some would fail in step, and never be parted.
        part = {shard: _scattered(shard, self._dice) % parts for shard in failing}
        return [found[shard] for shard in failing if part[shard] == part[failing[0]]]

    def _sent(self, taken: list[P], now_s: float) -> list[P]:
        """On their way, with numbers."""
        for parcel in taken:
            if parcel.sequence is None:
                parcel.sequence = self.sequences.get(parcel.shard, 0)
                self.sequences[parcel.shard] = parcel.sequence + 1
            parcel.attempts += 1
            parcel.began_s = parcel.began_s or now_s
            parcel.is_flying = True
            self._flying_bytes += parcel.size
        self.calls += bool(taken)
        return taken

    def _stored(self, parcel: P) -> None:
        known = self._known.get(parcel.shard, 0)
        self._known[parcel.shard] = max(known, _sequence(parcel) + 1)
        lane = self._lanes[parcel.shard]
        lane.failures, lane.not_before_s = 0, 0.0
        parcel.sequence = None
        self._remove(parcel)

    def _is_early(self, parcel: P) -> bool:
        """A lower number of its lane is not settled."""
        return any(
            other.sequence is not None and other.sequence < _sequence(parcel)
            for other in self._lanes[parcel.shard].queue
        )

    def _is_unstored(self, parcel: P, answer: OutOfSequence) -> bool:
        """No attempt can have stored it: the log knows us, and has not come to its number; or it has
        forgotten us, and every attempt was answered."""
        if not parcel.is_uncertain:
            return True
        if self._astray.get(parcel.shard, _sequence(parcel)) < _sequence(parcel):
            return False  # Rule 4.
        return self._known.get(parcel.shard, 0) <= answer.expected < _sequence(parcel)

    def _missed(
        self, missed: Sequence[tuple[P, ShoalError]], settled: Settled[P], now_s: float, dice: float
    ) -> None:
        """Rules 2 and 5, after an attempt that failed for a passing reason."""
        self._slow_down(missed, now_s)
        for parcel, error in reversed(missed):  # Numbers are given back from the last on.
            settled.retried = error
            wait_s = self._lanes[parcel.shard].not_before_s - now_s
            is_late = now_s - parcel.began_s + wait_s > self.rules.delivery_timeout_s
            is_tired = not parcel.is_strict and parcel.attempts >= self.rules.max_attempts
            if is_late or is_tired:
                self._give_up(parcel, error, settled, is_late=is_late)
            elif not parcel.is_strict and not parcel.is_uncertain:
                self._reroute(parcel, settled, dice)

    def _wait_for_map(
        self, unmapped: Sequence[tuple[P, ShoalError]], settled: Settled[P], now_s: float
    ) -> None:
        """Refused by a closed shard. If nobody knows its heirs yet, it is tried again after a while."""
        if self.newer is not None:
            return
        self._slow_down(unmapped, now_s)
        for parcel, error in unmapped:
            settled.retried = error
            wait_s = self._lanes[parcel.shard].not_before_s - now_s
            if now_s - parcel.began_s + wait_s > self.rules.delivery_timeout_s:
                self._give_up(parcel, error, settled)

    def _slow_down(self, missed: Sequence[tuple[P, ShoalError]], now_s: float) -> None:
        for shard in {parcel.shard for parcel, _ in missed}:
            lane = self._lanes[shard]
            lane.failures += 1
            lane.not_before_s = now_s + self.rules.wait_s(lane.failures)

    def _reroute(self, parcel: P, settled: Settled[P], dice: float) -> None:
        """To another lane that works, and will be there; if there is one."""
        if parcel.shard == DELAYED:
            return
        others = [
            shard
            for shard in self.shards.ids
            if shard != parcel.shard
            and not self._is_closing(shard)
            and (shard not in self._lanes or not self._lanes[shard].failures)
        ]
        if not others:
            return
        if self.sequences[parcel.shard] == _sequence(parcel) + 1:
            self.sequences[parcel.shard] = _sequence(parcel)  # Given back: no copy of it is about.
            parcel.sequence = None
        self._leave(parcel)
        parcel.shard = others[int(dice * len(others))]
        self.put(parcel)
        settled.rerouted.append(parcel)

    def _give_up(self, parcel: P, error: ShoalError, settled: Settled[P], *, is_late: bool = True) -> None:
        late = DeliveryTimeout(
            shard=parcel.shard,
            records=len(parcel),
            waited_s=self.rules.delivery_timeout_s,
            last=str(error),
            attempts=0 if is_late else self.rules.max_attempts,
        )
        late.__cause__ = error
        if parcel.is_strict:
            self._fail(parcel, late, settled)
        else:
            self._leave(parcel)
            settled.aside.append((parcel, late))

    def _fail(self, parcel: P, error: ShoalError, settled: Settled[P]) -> None:
        self._leave(parcel)
        settled.failed.append((parcel, error))
        if isinstance(error, ProducerFenced) or parcel.is_numbered:
            settled.fatal = settled.fatal or error

    def _end_if_fatal(self, settled: Settled[P]) -> None:
        """Rule 6; and who is fenced sends nothing more."""
        if settled.fatal is not None:
            for parcel in self.everything():
                self._fail(parcel, settled.fatal, settled)

    def _leave(self, parcel: P) -> None:
        """It goes out of its lane. If it has a number, nobody will use that any more: rule 4."""
        if parcel.sequence is not None:
            self.is_life_over = True
            if parcel.is_uncertain:
                lowest = self._astray.get(parcel.shard, parcel.sequence)
                self._astray[parcel.shard] = min(lowest, parcel.sequence)
            parcel.sequence = None
        self._remove(parcel)

    def _remove(self, parcel: P) -> None:
        lane = self._lanes[parcel.shard]
        lane.queue.remove(parcel)
        if not lane.queue:
            del self._lanes[parcel.shard]

    def _is_closing(self, shard: ShardId) -> bool:
        if self.newer is None or shard == DELAYED:
            return False
        return not self.newer.shards[shard].is_open


def _scattered(shard: ShardId, dice: float) -> int:
    """A number that says nothing about the shard."""
    return ((shard ^ int(dice * 2**53)) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) >> 32


def _sequence(parcel: Parcel) -> int:
    assert parcel.sequence is not None
    return parcel.sequence


_DEAF: Final = 20
"""An announcement that comes to nothing costs a twentieth of the time, however many there are."""
_PARTINGS: Final = 3
"""Lanes that failed are halved so often at most: while the whole store is away, each part costs a call."""
_NEVER_S: Final = float("inf")
