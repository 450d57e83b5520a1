"""The machine of one shard in a shared group: what is settled, what is in whose hands, what comes back when.

All below `start` is settled; between `start` and `next`, everything but the open spans; from `next` on
nothing was handed out yet. A hold is a number that is given once; whoever settles a record shows the number
it was handed out under, and is refused once that hold has ended. So a record is settled once.

No instant is kept, and no clock compared with another: each wait (a hold's end, a delay) is a pledge with a
number of its own and what is left of it. Whoever has seen a pledge takes off what it has measured since, on
its own clock (see `hub.watches`); so it never ends early, and ends as long as anyone looks.

Invariants: spans rise, do not overlap, and lie below `next`; a record is in at most one hold; with keys one
at a time, a record is handed out only if no earlier one of its key is open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, assert_never

from shoal.core.limits import EPOCH_JUMP, SHARE_RECORDS_HELD, SHARE_SPANS_MAX
from shoal.core.model import Shard
from shoal.core.share_acts import (
    DOOMED,
    Act,
    Answer,
    Given,
    Granted,
    How,
    Left,
    Receive,
    Reopen,
    Restart,
    Settle,
    Settled,
    Why,
)
from shoal.core.spans import Range, Span, carve, joined, put_back, records


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRules:
    """What a group says about its records."""

    max_attempts: int
    key_ordered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareState:
    """One shard in one shared group."""

    next: int = 0
    """The first offset that was never handed out, or looked at."""
    open: tuple[Span, ...] = ()
    pledges: int = 0
    """The last number that was given to a wait."""
    left: Mapping[int, int] = field(default_factory=dict)
    """How much is left of each wait, in milliseconds, as far as anyone has told."""
    holds: int = 0
    """The last number that was given to a hold."""
    holders: Mapping[int, str] = field(default_factory=dict)
    """Who has which hold, of those that are not over."""
    acknowledged: int = 0
    dead: int = 0
    lost: int = 0
    """Records that retention took before anyone had settled them."""
    version: int = 0
    """Rises with every step that changed something."""
    news: int = 0
    """Rises when something may be received that could not be before, without time or appends bringing it."""

    @property
    def start(self) -> int:
        """All below is settled."""
        return self.open[0].low if self.open else self.next

    @property
    def in_flight(self) -> int:
        return records(span for span in self.open if span.hold)

    def unsettled(self, shard: Shard) -> int:
        """Records that are kept, and neither acknowledged nor dead."""
        kept = sum(span.high - max(span.low, shard.first_offset) for span in self.open)
        return max(0, kept) + max(0, shard.next_offset - max(self.next, shard.first_offset))


def step(
    state: ShareState, act: Act, shard: Shard, rules: ShareRules, left: Left
) -> tuple[ShareState, Answer]:
    """Let time pass, as far as `left` knows of it, then do this. Same arguments, same answer."""
    now = passed(state, shard, left)
    after: ShareState
    answer: Answer
    match act:
        case Receive():
            after, answer = _received(now, act, shard, rules)
        case Settle():
            after, answer = _settled(now, act, shard, rules)
        case Reopen():
            after, answer = _reopened(now, act)
        case Restart():
            after, answer = _restarted(now, act), Settled()
        case _:
            assert_never(act)
    if after == state:
        return state, answer
    return replace(after, version=state.version + 1), answer


def forgotten(state: ShareState, seen: int) -> ShareState:
    """Someone has seen a later version than the store has: no number that was given since comes again."""
    return replace(
        state,
        version=seen,
        holds=state.holds + EPOCH_JUMP,
        pledges=state.pledges + EPOCH_JUMP,
        news=state.news + EPOCH_JUMP,
    )


def passed(state: ShareState, shard: Shard, left: Left) -> ShareState:
    """The state by now: waits that ran out have ended, and what retention took is counted.

    `left`: what an observer knows to be left at most, of waits that it has seen.
    """
    if state.start < shard.first_offset:
        state = _trimmed(state, shard.first_offset)
    if not state.left:
        return state
    now = {pledge: min(rest, left.get(pledge, rest)) for pledge, rest in state.left.items()}
    if now == state.left:
        return state
    state = replace(state, left=now)
    over = {pledge for pledge, rest in now.items() if rest <= 0}
    if not over:
        return state
    return _with_open(state, joined(_ripened(span, over) for span in state.open))


def _ripened(span: Span, over: set[int]) -> Span:
    """What ran out is nobody's, and may be received; so may what was to wait until now."""
    return span._replace(hold=0, pledge=0) if span.pledge in over else span


def _trimmed(state: ShareState, first_offset: int) -> ShareState:
    kept = tuple(
        span._replace(low=max(span.low, first_offset)) for span in state.open if span.high > first_offset
    )
    lost = records(state.open) - records(kept) + max(0, first_offset - state.next)
    return replace(
        _with_open(state, kept),
        next=max(state.next, first_offset),
        lost=state.lost + lost,
        news=state.news + 1,
    )


def _with_open(state: ShareState, spans: tuple[Span, ...]) -> ShareState:
    """These are open from now on. Holds and waits without a record are over."""
    holds = {span.hold for span in spans}
    pledges = {span.pledge for span in spans}
    return replace(
        state,
        open=spans,
        holders={hold: consumer for hold, consumer in state.holders.items() if hold in holds},
        left={pledge: rest for pledge, rest in state.left.items() if pledge in pledges},
    )


def _pledged(state: ShareState, for_ms: int) -> ShareState:
    """One more wait; its number is the last that was given."""
    number = state.pledges + 1
    return replace(state, pledges=number, left={**state.left, number: max(1, for_ms)})


# --- Receiving. -------------------------------------------------------------------------------------


class _Taking:
    """What one receive takes, on its way through the spans."""

    def __init__(self, state: ShareState, act: Receive, rules: ShareRules) -> None:
        self.hold = state.holds + 1
        self.pledge = state.pledges + 1
        self.left = act.max_records
        self.rules = rules
        self.open: list[Span] = []
        self.given: list[Given] = []
        self.doomed: list[Given] = []
        self.busy: set[int] = set()
        """Keys of which a record is open."""

    def take(self, span: Span) -> None:
        """As much of it as is still wanted; the rest stays as it is."""
        cut = min(span.high, span.low + self.left)
        self.left -= cut - span.low
        is_doomed = span.attempts >= self.rules.max_attempts
        attempts = span.attempts if is_doomed else span.attempts + 1
        (self.doomed if is_doomed else self.given).append(Given(span.low, cut, attempts % DOOMED))
        self.open.append(Span(span.low, cut, attempts, self.hold, self.pledge, span.key))
        if cut < span.high:
            self.open.append(span._replace(low=cut))

    def pass_by(self, span: Span) -> None:
        self.open.append(span)

    def is_busy(self, key: int) -> bool:
        """Whether an earlier record of the key is open; from now on one is."""
        if not key:
            return False
        was = key in self.busy
        self.busy.add(key)
        return was


def _received(state: ShareState, act: Receive, shard: Shard, rules: ShareRules) -> tuple[ShareState, Granted]:
    taking = _Taking(state, act, rules)
    for span in state.open:
        is_blocked = taking.is_busy(span.key)
        if taking.left and not span.pledge and not is_blocked:
            taking.take(span)
        else:
            taking.pass_by(span)
    is_full = is_at_bound(state)
    upto = state.next
    if not is_full:
        upto = (
            _take_by_key(taking, state, act, shard) if rules.key_ordered else _take_new(taking, state, shard)
        )
    answer = Granted(
        hold=taking.hold if taking.given or taking.doomed else 0,
        given=tuple(taking.given),
        doomed=tuple(taking.doomed),
        is_full=is_full and state.next < shard.next_offset,
        wants_keys=rules.key_ordered and not is_full and bool(taking.left) and upto < shard.next_offset,
    )
    if not answer.hold:
        # Records may have been passed by all the same.
        return replace(state, open=tuple(taking.open), next=upto), answer
    after = replace(
        _pledged(state, act.visibility_ms),
        open=joined(taking.open),
        next=upto,
        holds=taking.hold,
        holders={**state.holders, taking.hold: act.consumer},
    )
    return after, answer


def _take_new(taking: _Taking, state: ShareState, shard: Shard) -> int:
    """What was never handed out, as much as is wanted; how far that goes."""
    room = SHARE_RECORDS_HELD - records(state.open)
    upto = min(shard.next_offset, state.next + min(taking.left, max(0, room)))
    if upto > state.next:
        taking.take(Span(state.next, upto))
    return max(upto, state.next)


def _take_by_key(taking: _Taking, state: ShareState, act: Receive, shard: Shard) -> int:
    """The same, one record of a key at a time: who comes after an open one of its key waits for it."""
    first, keys = act.keys
    if not first <= state.next <= first + len(keys):
        return state.next
    offset = state.next
    for key in keys[offset - first :]:
        if not taking.left or offset >= shard.next_offset or len(taking.open) >= SHARE_SPANS_MAX:
            break
        span = Span(offset, offset + 1, key=key)
        if taking.is_busy(key):
            taking.pass_by(span)
        else:
            taking.take(span)
        offset += 1
    return offset


def is_at_bound(state: ShareState) -> bool:
    """Whether so much is open that nothing new is handed out until some of it is settled."""
    return len(state.open) >= SHARE_SPANS_MAX or records(state.open) >= SHARE_RECORDS_HELD


# --- Settling. --------------------------------------------------------------------------------------


def _settled(state: ShareState, act: Settle, shard: Shard, rules: ShareRules) -> tuple[ShareState, Settled]:
    if not act.ranges:
        return state, Settled()
    if act.hold > state.holds:
        return state, Settled(refused=tuple((part, Why.NEVER) for part in act.ranges))
    if state.holders.get(act.hold, act.consumer) != act.consumer:
        return state, Settled(refused=tuple((part, Why.OTHER) for part in act.ranges))
    carved = carve(state.open, act.ranges)
    mine = [part for part in carved.parts if part.hold == act.hold and act.hold]
    others = [part for part in carved.parts if part.hold != act.hold or not act.hold]
    refused = [((part.low, part.high), _why(part, act)) for part in others]
    refused += [piece for part in carved.missing for piece in _missing(part, state.next)]
    if refused and act.is_whole:
        return state, Settled(refused=tuple(sorted(refused)))
    if mine and (act.how in (How.EXTEND, How.DOOM) or (act.how is How.RELEASE and act.for_ms)):
        state = _pledged(state, act.for_ms)
    again, doomed = _after(mine, act, state.pledges, rules)
    after = _with_open(state, put_back(carved, [*others, *again]))
    taken = records(mine) - records(doomed)
    if act.how is How.ACK:
        after = replace(after, acknowledged=after.acknowledged + taken)
    if act.how is How.DEAD:
        after = replace(after, dead=after.dead + taken)
    if taken and _is_news(state, after, act, shard, rules):
        after = replace(after, news=after.news + 1)
    answer = Settled(
        taken=taken,
        refused=tuple(sorted(refused)),
        doomed=tuple(Given(part.low, part.high, part.attempts % DOOMED) for part in doomed),
    )
    return after, answer


def _after(
    mine: Sequence[Span], act: Settle, pledge: int, rules: ShareRules
) -> tuple[list[Span], list[Span]]:
    """What stays open of the holder's records, and which of them have had their last attempt.

    `pledge` is the wait that begins with this act, if one does.
    """
    match act.how:
        case How.ACK | How.DEAD:
            return [], []
        case How.EXTEND:
            return [part._replace(pledge=pledge) for part in mine], []
        case How.DOOM:
            dead = [part.attempts % DOOMED + DOOMED for part in mine]
            return [
                part._replace(pledge=pledge, attempts=count) for part, count in zip(mine, dead, strict=True)
            ], []
        case How.RETURN:
            return [part._replace(hold=0, pledge=0, attempts=part.attempts - 1) for part in mine], []
        case How.RELEASE:
            doomed = [part for part in mine if part.attempts >= rules.max_attempts]
            due = pledge if act.for_ms else 0
            again = [part._replace(hold=0, pledge=due) for part in mine if part.attempts < rules.max_attempts]
            return [*again, *doomed], doomed
        case _:
            assert_never(act.how)


def _why(part: Span, act: Settle) -> Why:
    """Of a record that is open, and not under this hold."""
    if act.hold:
        return Why.EXPIRED
    return Why.OTHER if part.hold else Why.NEVER


def _missing(part: Range, next_offset: int) -> list[tuple[Range, Why]]:
    """Of records that are not open: settled, or not handed out yet."""
    low, high = part
    pieces = []
    if low < next_offset:
        pieces.append(((low, min(high, next_offset)), Why.SETTLED))
    if high > next_offset:
        pieces.append(((max(low, next_offset), high), Why.NEVER))
    return pieces


def _is_news(before: ShareState, after: ShareState, act: Settle, shard: Shard, rules: ShareRules) -> bool:
    """Whether someone who waits may have something to receive now."""
    if act.how in (How.EXTEND, How.DOOM):
        return False
    if act.how in (How.RELEASE, How.RETURN):
        return not act.for_ms
    return is_at_bound(before) or rules.key_ordered or is_over(after, shard)


# --- Ends. ------------------------------------------------------------------------------------------


def is_over(state: ShareState, shard: Shard) -> bool:
    """Nothing is left in it for this group, and nothing will come."""
    return not shard.is_open and settled_below(state, shard) >= shard.next_offset


def settled_below(state: ShareState, shard: Shard) -> int:
    """All below is settled, or was taken by retention, whether or not that is written down yet."""
    return state.start if state.start >= shard.first_offset else _trimmed(state, shard.first_offset).start


def _reopened(state: ShareState, act: Reopen) -> tuple[ShareState, Settled]:
    """What is open already stays as it is; what was never handed out will be anyway."""
    if not act.ranges:
        return state, Settled()
    asked = [offset for low, high in act.ranges for offset in range(low, high)]
    of_key = dict(zip(asked, act.keys, strict=False))
    missing = [
        (low, min(high, state.next))
        for low, high in carve(state.open, act.ranges).missing
        if low < state.next
    ]
    fresh = [
        Span(offset, offset + 1, key=of_key.get(offset, 0))
        for low, high in missing
        for offset in range(low, high)
    ]
    after = _with_open(state, joined(sorted((*state.open, *fresh))))
    taken = len(fresh)
    dead = max(0, after.dead - taken)
    return replace(after, dead=dead, news=after.news + bool(taken)), Settled(taken=taken)


def _restarted(state: ShareState, act: Restart) -> ShareState:
    return replace(state, next=act.offset, open=(), holders={}, left={}, news=state.news + 1)


# --- Looking ahead. ---------------------------------------------------------------------------------


class Outlook(NamedTuple):
    """What a receive would find."""

    has_some: bool
    """Something can be handed out now; or, where keys are kept one at a time, perhaps."""
    due_ms: int | None
    """How long until time itself brings something; None: it does not."""
    is_full: bool


def outlook(state: ShareState, shard: Shard, left: Left) -> Outlook:
    """Without changing anything: whether it is worth asking."""
    now = passed(state, shard, left)
    busy: set[int] = set()
    has_some = False
    for span in now.open:
        if not span.pledge and span.key not in busy:
            has_some = True
            break
        if span.key:
            busy.add(span.key)
    is_full = is_at_bound(now)
    has_new = now.next < shard.next_offset
    due_ms = min(now.left.values(), default=None)
    return Outlook(has_some or (has_new and not is_full), due_ms, is_full and has_new)
