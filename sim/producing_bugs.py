"""Mistakes that the checkers of `producing` must catch: of the log's rules, and of the machine that sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar
from unittest.mock import patch

from shoal.core import sending
from shoal.core.errors import ShoalError
from shoal.core.model import Appended, ShardId
from shoal.core.parcels import Lane, Parcel, Settled
from shoal.core.sending import Sending

OF_THE_LOG: Final = {
    "no_fence": "an older life of a name is not refused by shards that the newer one has not written to",
    "own_number_only": "a new life looks only at the open shard for what is stored",
    "parents_highest": "a child counts as stored all that any of its ancestors has a higher number than",
    "closed_before_repeat": "a closed shard is noticed before a repeat",
    "closed_takes_more": "a shard that was closed stores what comes late",
    "gap": "a reshard leaves a place on the ring without a shard",
    "answers_first": "now and then an answer is given before the commit, which fails",
}

P = TypeVar("P", bound=Parcel)


class NumbersAnew(Sending[P]):
    """A retry numbers its batches anew."""

    def answered(
        self, parcels: Sequence[P], answers: Sequence[Appended | ShoalError], now_s: float, dice: float
    ) -> Settled[P]:
        settled = super().answered(parcels, answers, now_s, dice)
        for parcel in parcels:
            parcel.sequence = None
        return settled


class GoesOn(Sending[P]):
    """After a batch was given up, the next ones go out under the same life, from its number on."""

    def _leave(self, parcel: P) -> None:
        if parcel.sequence is not None:
            self.sequences[parcel.shard] = parcel.sequence
            parcel.sequence = None
        self._remove(parcel)


class FollowsAtOnce(Sending[P]):
    """Sends by the new map do not wait for what is on its way to the parents."""

    @property
    def can_follow(self) -> bool:
        return self.newer is not None


class FollowsUncertain(Sending[P]):
    """Calls on their way are waited for, but not what must be sent again since nobody knows its fate."""

    @property
    def can_follow(self) -> bool:
        return self.newer is not None and not self.calls


class ToTheTail(Sending[P]):
    """A batch that failed goes to the end of its lane."""

    def _missed(
        self, missed: Sequence[tuple[P, ShoalError]], settled: Settled[P], now_s: float, dice: float
    ) -> None:
        super()._missed(missed, settled, now_s, dice)
        for parcel, _ in missed:
            if parcel.sequence is not None and not parcel.is_uncertain:
                self._leave(parcel)
                self.put(parcel)


class StrictElsewhere(Sending[P]):
    """A strict batch goes to another shard after a failed attempt."""

    def _missed(
        self, missed: Sequence[tuple[P, ShoalError]], settled: Settled[P], now_s: float, dice: float
    ) -> None:
        super()._missed(missed, settled, now_s, dice)
        for parcel, _ in missed:
            if parcel.sequence is not None and parcel.is_strict and not parcel.is_uncertain:
                self._reroute(parcel, Settled(), dice)


class UncertainElsewhere(Sending[P]):
    """`best_tried` goes to another shard, although the failed attempt may have stored it."""

    def _missed(
        self, missed: Sequence[tuple[P, ShoalError]], settled: Settled[P], now_s: float, dice: float
    ) -> None:
        super()._missed(missed, settled, now_s, dice)
        for parcel, _ in missed:
            if parcel.sequence is not None and not parcel.is_strict:
                self._reroute(parcel, settled, dice)


class Uncounted(Sending[P]):
    """What went to another shard is not told."""

    def _reroute(self, parcel: P, settled: Settled[P], dice: float) -> None:  # noqa: ARG002
        super()._reroute(parcel, Settled(), dice)


class LostElsewhere(Sending[P]):
    """What is to go to another shard is dropped on the way."""

    def _reroute(self, parcel: P, settled: Settled[P], dice: float) -> None:
        super()._reroute(parcel, settled, dice)
        if settled.rerouted[-1:] == [parcel]:
            self._remove(parcel)


class HastyLife(Sending[P]):
    """A new life begins while batches of the last one are not settled."""

    def wants_life(self, now_s: float) -> bool:  # noqa: ARG002
        return self.is_life_over and bool(self)

    def live(self) -> None:
        super().live()
        for parcel in self.everything():
            if not parcel.is_flying:
                parcel.sequence = None


class NumberedGoesOn(Sending[P]):
    """What is behind a numbered batch that failed is sent all the same."""

    def _end_if_fatal(self, settled: Settled[P]) -> None:
        settled.fatal = None


class WideWindow(Sending[P]):
    """More batches of a shard are on their way than the log remembers."""

    def _ready(
        self, shard: ShardId, lane: Lane[P], now_s: float, *, hurry: bool, only_numbered: bool
    ) -> list[P]:
        with patch.object(sending, "PRODUCER_WINDOW", 64):
            return super()._ready(shard, lane, now_s, hurry=hurry, only_numbered=only_numbered)


class Tires(Sending[P]):
    """A strict batch is given up after so many attempts."""

    def _missed(
        self, missed: Sequence[tuple[P, ShoalError]], settled: Settled[P], now_s: float, dice: float
    ) -> None:
        super()._missed(missed, settled, now_s, dice)
        for parcel, error in missed:
            if parcel.sequence is not None and parcel.attempts >= self.rules.max_attempts:
                self._give_up(parcel, error, settled)


class NeverTires(Sending[P]):
    """`best_tried` knows no `max_attempts`."""

    def _missed(
        self, missed: Sequence[tuple[P, ShoalError]], settled: Settled[P], now_s: float, dice: float
    ) -> None:
        for parcel, _ in missed:
            parcel.attempts = min(parcel.attempts, 1)
        super()._missed(missed, settled, now_s, dice)


class NeverLate(Sending[P]):
    """The delivery timeout is forgotten."""

    def _missed(
        self, missed: Sequence[tuple[P, ShoalError]], settled: Settled[P], now_s: float, dice: float
    ) -> None:
        for parcel, _ in missed:
            parcel.began_s = now_s
        super()._missed(missed, settled, now_s, dice)


class Forgotten(Sending[P]):
    """A log that has forgotten the producer is asked the same again."""

    def answered(
        self, parcels: Sequence[P], answers: Sequence[Appended | ShoalError], now_s: float, dice: float
    ) -> Settled[P]:
        settled = super().answered(parcels, answers, now_s, dice)
        if self.is_life_over and not settled.failed and not settled.aside:
            self.is_life_over = False
        return settled


OF_THE_SENDER: Final[dict[str, Any]] = {
    "numbers_anew": NumbersAnew,
    "goes_on": GoesOn,
    "follows_at_once": FollowsAtOnce,
    "follows_uncertain": FollowsUncertain,
    "to_the_tail": ToTheTail,
    "strict_elsewhere": StrictElsewhere,
    "uncertain_elsewhere": UncertainElsewhere,
    "uncounted": Uncounted,
    "lost_elsewhere": LostElsewhere,
    "hasty_life": HastyLife,
    "numbered_goes_on": NumberedGoesOn,
    "wide_window": WideWindow,
    "tires": Tires,
    "never_tires": NeverTires,
    "never_late": NeverLate,
    "forgotten": Forgotten,
}

OF_THE_SHELL: Final = {
    "as_they_lie": "shards that become one are emptied one after the other, whatever the numbers",
    "more_time": "what moves to the heirs has the whole delivery timeout and all attempts before it again",
}

BUGS: Final = {
    **OF_THE_LOG,
    **OF_THE_SHELL,
    **{name: str(kind.__doc__) for name, kind in OF_THE_SENDER.items()},
}
