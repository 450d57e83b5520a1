"""What may happen in a small world of a leased group, over the real rules, and what must hold in it.

A consumer is the rules' own `LeasedConsumer` with its two rounds, `look` and `beat`, each of which has at
most one batch of changes under way; what was given up may still come in. The table compares and sets one row
at a time. Changes and answers come at once, or late, or never: what is not at once counts as a fault.

What is checked is the promise, from the outside. In every state: whoever may hand out a batch of a shard is
the one that the row names, under the epoch that it names; no shard is with anyone before its parents are
done. What is checked at every commit is in `small_table`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from shoal.core import resharding
from shoal.core.errors import NameTaken, ShoalError, UnknownConsumer
from shoal.core.group import Coordination, GroupSettings
from shoal.core.holding import Lease
from shoal.core.lease import Change, LeaseRow, SequenceRow, drawn, numbered
from shoal.core.leasing import LeasedConsumer, Outcome
from shoal.core.model import Shard, ShardId
from shoal.core.taking import View
from sim.bound import Bound
from sim.small_leased import (
    INTERVAL_MS,
    TIMEOUT_MS,
    Answer,
    Consumer,
    Sent,
    State,
    Table,
    copied,
    ticked,
)
from sim.small_table import tried

ROUNDS: Final = 6
"""In which a change is tried again on what was found instead."""

Move = tuple[str, State]


def first(bound: Bound) -> State:
    """All but the last have joined and hold what is there: the histories of interest begin there."""
    shards = tuple(replace(shard, next_offset=1) for shard in resharding.first_shards(bound.shards, 0))
    state = State(
        table=Table(sequence=SequenceRow(group="g")),
        shards=shards,
        consumers=tuple(Consumer() for _ in range(bound.consumers)),
    )
    places = range(bound.consumers - 1)
    for action in ("joins", "looks", "looks", "looks", "beats"):
        for place in places:
            state = next(after for name, after in moves(state, bound) if name == f"{place} {action}")
    return state


# --- What may happen. --------------------------------------------------------------------------------


def moves(state: State, bound: Bound) -> Iterator[Move]:
    """Each thing that may happen next, and the state after it."""
    yield "a tick", ticked(state)
    for place, consumer in enumerate(state.consumers):
        if consumer.is_up:
            yield from _acts(state, place, consumer, bound)
            if state.crashes < bound.crashes:
                yield f"{place} crashes", replace(_crashed(state, place), crashes=state.crashes + 1)
    for place, (who, changes) in enumerate(state.wire):
        rest = replace(state, wire=(*state.wire[:place], *state.wire[place + 1 :]))
        yield f"what {who} had given up comes in", tried(rest, who, changes)[0]
    if state.splits < bound.splits:
        children = resharding.split(state.shards, state.shards[0], None, 0)
        full = tuple(replace(shard, next_offset=1) for shard in children)
        yield "split", replace(state, shards=full, splits=state.splits + 1)


def _acts(state: State, place: int, consumer: Consumer, bound: Bound) -> Iterator[Move]:
    member = consumer.member
    if member is None or not consumer.is_joined:
        yield from _joins(state, place, consumer, bound)
        return
    if isinstance(member.error, UnknownConsumer):
        yield from _comes_back(state, place, consumer, bound)
    if consumer.taking is not None:
        yield from _under_way(state, place, consumer.taking, "taking", bound)
    else:
        after = copied(member)
        told = after.look(_view(state), now_ms=0, watch_ms=0)
        yield from _round(_with(state, place, after), place, told.changes, "taking", bound)
    if consumer.renewing is not None:
        yield from _under_way(state, place, consumer.renewing, "renewing", bound)
    elif member.error is None:
        after = copied(member)
        changes = after.beat(0)
        yield from _round(_with(state, place, after), place, changes, "renewing", bound)
    for lease in member.leases.values():
        yield from _works(state, place, member, lease, bound)


def _works(state: State, place: int, member: LeasedConsumer, lease: Lease, bound: Bound) -> Iterator[Move]:
    """It lets go of what it is asked for; it hands out the one record of the shard, and saves."""
    shard, after = state.shards[lease.shard], copied(member)
    if not lease.is_wanted:
        change, what = after.release(shard, lease.epoch, None), f"{place} lets go of {lease.shard}"
    elif bound.splits and member.may_act(lease.shard, lease.epoch, 0):
        held = member._held[lease.shard]
        if held.row.checkpoint >= shard.next_offset:
            return
        try:
            change = after.checkpoint(shard, lease.epoch, shard.next_offset)
        except ShoalError:
            return
        what = f"{place} saves {lease.shard}"
    else:
        return
    yield from _sent(_with(state, place, after), place, [] if change is None else [change], what, bound)


def _round(state: State, place: int, changes: Sequence[Change], which: str, bound: Bound) -> Iterator[Move]:
    what = f"{place} {'looks' if which == 'taking' else 'beats'}"
    decided, drawn_for = _numbered(state, changes)
    yield from _sent(decided, place, drawn_for, what, bound)
    if drawn_for and (hampered := _hampered(decided, bound)) is not None:
        sent = Sent(changes=tuple(drawn_for))
        waiting = _put(hampered, place, _holding(hampered.consumers[place], which, sent))
        yield f"{what}, and what it tries takes a while", waiting


def _sent(state: State, place: int, changes: Sequence[Change], what: str, bound: Bound) -> Iterator[Move]:
    """Changes are tried and answered at once; or are in and not answered; or are given up."""
    yield what, _carried_out(state, place, changes)
    if changes and (hampered := _hampered(state, bound)) is not None:
        who = _member(state, place).me.incarnation
        yield f"{what}, and hears nothing of it", _unheard(tried(hampered, who, changes)[0], place, changes)
        given_up = replace(hampered, wire=(*hampered.wire, (who, tuple(changes))))
        yield f"{what}, and gives it up", _unheard(given_up, place, changes)


def _under_way(state: State, place: int, sent: Sent, which: str, bound: Bound) -> Iterator[Move]:
    who = "the taker" if which == "taking" else "the renewer"
    rest = _put(state, place, _holding(state.consumers[place], which, None))
    if sent.answers is not None:
        yield f"{who} of {place} is answered", _settled(rest, place, sent.changes, sent.answers)
        return
    after, answers = tried(rest, _member(state, place).me.incarnation, sent.changes)
    yield (
        f"what {who} of {place} tried comes in",
        _settled(after, place, sent.changes, answers),
    )
    if (hampered := _hampered(after, bound)) is not None:
        late = replace(sent, answers=tuple(answers))
        waiting = _put(hampered, place, _holding(hampered.consumers[place], which, late))
        yield f"what {who} of {place} tried comes in, and the answers take a while", waiting


def _joins(state: State, place: int, consumer: Consumer, bound: Bound) -> Iterator[Move]:
    member = consumer.member
    if member is None:
        newborn = _newborn(state, place, bound)
        if newborn is None:
            return
        state, member = newborn
    yield from _join(state, place, copied(member), f"{place} joins", bound)


def _join(state: State, place: int, member: LeasedConsumer, what: str, bound: Bound) -> Iterator[Move]:
    """The same incarnation until it is known to be in: a first try may have been."""
    try:
        change = member.join(list(state.table.instances.values()))
    except NameTaken:
        yield f"{what}, and its name is taken", _crashed(_with(state, place, member), place)
        return
    who = member.me.incarnation
    after, ((outcome, found),) = tried(state, who, [change])
    known = copied(member)
    known.settle(change, outcome, found)
    yield what, _put(after, place, Consumer(member=known, is_joined=outcome is Outcome.DONE))
    if (hampered := _hampered(state, bound)) is not None:
        unsure = copied(member)
        unsure.settle(change, Outcome.UNKNOWN)
        in_state = tried(hampered, who, [change])[0]
        yield f"{what}, and hears nothing of it", _put(in_state, place, Consumer(member=unsure))
        given_up = replace(hampered, wire=(*hampered.wire, (who, (change,))))
        yield f"{what}, and gives it up", _put(given_up, place, Consumer(member=unsure))


def _comes_back(state: State, place: int, consumer: Consumer, bound: Bound) -> Iterator[Move]:
    """Expired while away: as another incarnation, unless somebody has its name by now."""
    newborn = _newborn(state, place, bound)
    if newborn is None:
        return
    born, member = newborn
    try:
        member.check_free(list(state.table.instances.values()))
    except NameTaken:
        yield f"{place} stays away", _crashed(state, place)
        return
    taking, renewing = consumer.taking, consumer.renewing
    wire = [sent.changes for sent in (taking, renewing) if sent is not None and sent.answers is None]
    assert consumer.member is not None
    old = consumer.member.me.incarnation
    yield from _join(
        replace(born, wire=(*born.wire, *((old, changes) for changes in wire))),
        place,
        member,
        f"{place} comes back",
        replace(bound, faults=0),
    )


def _newborn(state: State, place: int, bound: Bound) -> tuple[State, LeasedConsumer] | None:
    name = f"c{place % bound.names}"
    lives = state.lives.get(name, 0)
    if lives >= bound.lives:
        return None
    settings = GroupSettings(
        timeout_ms=TIMEOUT_MS,
        coordination=Coordination.LEASED,
        handover_timeout_ms=INTERVAL_MS if bound.is_impatient else None,
    )
    member = LeasedConsumer(
        group="g", name=name, incarnation=f"{name}#{lives}", settings=settings, interval_ms=INTERVAL_MS
    )
    return replace(state, lives={**state.lives, name: lives + 1}), member


# --- The shell of one consumer. ----------------------------------------------------------------------


def _view(state: State) -> View:
    return View(
        rows=list(state.table.leases.values()),
        instances=list(state.table.instances.values()),
        sequence=state.table.sequence,
        shards=state.shards,
    )


def _numbered(state: State, changes: Sequence[Change]) -> tuple[State, list[Change]]:
    """With numbers for those that want one, drawn at once: what is late comes with an old number."""
    wanting = sum(change.wants_number for change in changes)
    if not wanting:
        return state, list(changes)
    sequence = drawn(state.table.sequence, wanting)
    numbers = iter(range(sequence.number - wanting + 1, sequence.number + 1))
    table = replace(state.table, sequence=sequence)
    return replace(state, table=table), [
        numbered(change, next(numbers)) if change.wants_number else change for change in changes
    ]


def _carried_out(state: State, place: int, changes: Sequence[Change]) -> State:
    """Tried and answered at once, with all that follows; and what has ended is nobody's any more."""
    if changes:
        state, answers = tried(state, _member(state, place).me.incarnation, changes)
        state = _settled(state, place, changes, answers)
    return state


def _settled(state: State, place: int, changes: Sequence[Change], answers: Sequence[Answer]) -> State:
    member = copied(_member(state, place))
    state = _with(state, place, member)
    for _ in range(ROUNDS):
        waiting: list[Change] = []
        for change, (outcome, found) in zip(changes, answers, strict=True):
            waiting += member.settle(change, outcome, found, _shard(state, change)).changes
        if not waiting:
            break
        changes = waiting
        state, answers = tried(state, member.me.incarnation, changes)
    ended = [member.release(state.shards[one.shard], one.epoch, None) for one in member.ended]
    return _carried_out(state, place, [change for change in ended if change is not None])


def _unheard(state: State, place: int, changes: Sequence[Change]) -> State:
    member = copied(_member(state, place))
    for change in changes:
        member.settle(change, Outcome.UNKNOWN, None, _shard(state, change))
    return _with(state, place, member)


def _shard(state: State, change: Change) -> Shard | None:
    return state.shards[change.row.shard] if isinstance(change.row, LeaseRow) else None


def _member(state: State, place: int) -> LeasedConsumer:
    member = state.consumers[place].member
    assert member is not None
    return member


def _with(state: State, place: int, member: LeasedConsumer) -> State:
    return _put(state, place, replace(state.consumers[place], member=member))


def _put(state: State, place: int, consumer: Consumer) -> State:
    consumers = (*state.consumers[:place], consumer, *state.consumers[place + 1 :])
    return replace(state, consumers=consumers)


def _holding(consumer: Consumer, which: str, sent: Sent | None) -> Consumer:
    return replace(consumer, taking=sent) if which == "taking" else replace(consumer, renewing=sent)


def _crashed(state: State, place: int) -> State:
    """What it had sent is no longer in its hands."""
    consumer = state.consumers[place]
    wire = list(state.wire)
    for sent in (consumer.taking, consumer.renewing):
        if sent is not None and sent.answers is None:
            wire.append((_member(state, place).me.incarnation, sent.changes))
    return _put(replace(state, wire=tuple(wire)), place, Consumer(is_up=False))


def _hampered(state: State, bound: Bound) -> State | None:
    """The state with one more message late or lost, if that many may be."""
    return replace(state, faults=state.faults + 1) if state.faults < bound.faults else None


# --- What must hold. ---------------------------------------------------------------------------------


def broken(state: State) -> str | None:
    """Why this state breaks the promise, if it does."""
    if state.fault is not None:
        return state.fault
    rows = state.table.leases
    for place, consumer in enumerate(state.consumers):
        member = consumer.member
        if member is None:
            continue
        for shard, lease in member.leases.items():
            # One that has nothing left to hand out may think what it likes.
            if not member.may_act(shard, lease.epoch, 0) or shard in state.done:
                continue
            row = rows.get(shard)
            held = (None, 0) if row is None else (row.consumer_owner, row.owner_epoch)
            if held != (member.me.incarnation, lease.epoch):
                text = f"{place} may act on shard {shard} at {lease.epoch}, which is with"
                return f"{text} {held[0]} at {held[1]}"
    for row in rows.values():
        if row.consumer_owner is not None and any(up not in state.done for up in _parents(state, row.shard)):
            return f"shard {row.shard} is with {row.consumer_owner}, before its parents are done"
    return None


def _parents(state: State, shard: ShardId) -> Sequence[ShardId]:
    return state.shards[shard].parents
