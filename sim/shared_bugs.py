"""Planted bugs of shared groups: every rule, switched off, one at a time. Each must be caught."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

from shoal.core import share, share_view
from shoal.core.model import Shard, ShardId
from shoal.core.share import ShareRules, ShareState
from shoal.core.share_acts import Given, How, Settle, Settled
from shoal.core.spans import Span
from sim import shared_hub
from sim.shared_world import SharedWorld

Replacement = tuple[object, str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBug:
    """One rule, switched off, in worlds that have what it takes for it to show."""

    name: str
    rule: str
    focus: tuple[str, ...] = ("pause",)
    change: Callable[[], Replacement] | None = None
    """None: it is a switch of the shell, by the bug's name."""

    def __str__(self) -> str:
        return self.name

    @contextmanager
    def planted(self) -> Iterator[frozenset[str]]:
        """Worlds made inside, with these switches, have the bug."""
        if self.change is None:
            yield frozenset({self.name})
            return
        where, name, by = self.change()
        with patch.object(where, name, by):
            yield frozenset()

    def world(self, seed: int, switches: frozenset[str] = frozenset()) -> SharedWorld:
        return SharedWorld(seed, switches=switches, focus=self.focus)


def _any_hold() -> Replacement:
    """Whoever settles a record is taken for its holder."""
    real = share._settled

    def settled(
        state: ShareState, act: Settle, shard: Shard, rules: ShareRules
    ) -> tuple[ShareState, Settled]:
        first = act.ranges[0][0] if act.ranges else 0
        held = [span for span in state.open if span.low <= first < span.high and span.hold]
        if held and act.how is How.ACK:
            hold = held[0].hold
            act = replace(act, hold=hold, consumer=state.holders.get(hold, act.consumer))
        return real(state, act, shard, rules)

    return share, "_settled", settled


def _attempts_uncounted() -> Replacement:
    def take(taking: Any, span: Span) -> None:
        cut = min(span.high, span.low + taking.left)
        taking.left -= cut - span.low
        taking.given.append(Given(span.low, cut, 1))
        taking.open.append(Span(span.low, cut, 1, taking.hold, taking.pledge, span.key))
        if cut < span.high:
            taking.open.append(span._replace(low=cut))

    return share._Taking, "take", take


def _keys_together() -> Replacement:
    return share._Taking, "is_busy", lambda *_: False


def _children_at_once() -> Replacement:
    def receivable(shards: Sequence[Shard], states: dict[ShardId, ShareState], _: ShareRules) -> list[Shard]:
        return share_view.receivable(shards, states, ShareRules(max_attempts=1))

    return shared_hub, "receivable", receivable


def _released_is_forgotten() -> Replacement:
    real = share._after

    def after(mine: Sequence[Span], act: Settle, pledge: int, rules: ShareRules) -> Any:
        again, doomed = real(mine, act, pledge, rules)
        return (doomed if act.how is How.RELEASE else again), doomed

    return share, "_after", after


def _never_ends() -> Replacement:
    return share, "_ripened", lambda span, _: span


def _trimmed_closed_shard() -> Replacement:
    return share_view, "settled_below", lambda state, _: state.start


BUGS: Final = (
    SharedBug(name="any hold will do", rule="only the holder settles", change=_any_hold),
    SharedBug(name="an ack looks at no clock", rule="not after its time is over", focus=("retention",)),
    SharedBug(
        name="everyone takes off its own time", rule="what one has told, another does not take off again"
    ),
    SharedBug(
        name="seen before the answer", rule="first seen is stamped after the answer", focus=("slow store",)
    ),
    SharedBug(name="a hold never ends", rule="expiry returns the record", change=_never_ends),
    SharedBug(
        name="attempts are not counted", rule="dead after so many attempts", change=_attempts_uncounted
    ),
    SharedBug(name="rejected may come again", rule="rejected means never again", focus=("crash", "pause")),
    SharedBug(
        name="settled before it is buried",
        rule="durable in the dead stream before it is settled",
        focus=("crash",),
    ),
    SharedBug(
        name="buried before it is settled",
        rule="in the dead stream once: in the commit that settles it",
        focus=("crash", "server crash"),
    ),
    SharedBug(name="keys come together", rule="one record of a key", focus=("keys",), change=_keys_together),
    SharedBug(
        name="children come at once",
        rule="keys in order along the lineage",
        focus=("keys", "split"),
        change=_children_at_once,
    ),
    SharedBug(name="what is released is forgotten", rule="nothing is lost", change=_released_is_forgotten),
    SharedBug(
        name="a closed shard that retention emptied is waited for",
        rule="what retention took is not waited for",
        focus=("keys", "split", "retention"),
        change=_trimmed_closed_shard,
    ),
)
