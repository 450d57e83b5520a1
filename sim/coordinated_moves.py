"""What may happen in a small world of a coordinated group, over the real rules, and what must hold in it.

Time comes in ticks; a clock is never read out, only differences matter, so every time is kept relative to
now and states that differ in nothing else are one.

What is checked in every state is the promise, from the outside: whoever may hand out a batch of a shard is
the one holder that the rows name, under the epoch that they name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shoal.core import events, holding, membership, ownership, resharding
from shoal.core.balance import STRATEGIES
from shoal.core.errors import ShoalError
from shoal.core.group import Group, GroupSettings, Member, MemberStatus, ShardState
from shoal.core.holding import Assignment, Holding
from shoal.core.membership import Beat
from shoal.core.model import ShardId
from sim.bound import Bound
from sim.small_coordinated import INTERVAL_MS, TICK_MS, TIMEOUT_MS, Consumer, State, Watcher


def first(bound: Bound) -> State:
    """All but the last have joined and know what they hold: the histories of interest begin there."""
    shards = resharding.first_shards(bound.shards, 0)
    shards = tuple(replace(shard, next_offset=1) for shard in shards)
    group = Group(id=1, stream_id=1, name="g", settings=GroupSettings(timeout_ms=TIMEOUT_MS))
    group = ownership.step(group, events.Sync(), shards, STRATEGIES).group
    state = State(
        group=group,
        shards=shards,
        consumers=tuple(Consumer() for _ in range(bound.consumers)),
        watchers=tuple(Watcher() for _ in range(bound.watchers)),
    )
    for place in range(bound.consumers - 1):
        for action in (f"{place} joins", f"{place} is answered"):
            state = next(after for name, after in moves(state, bound) if name == action)
    return state


# --- What may happen. --------------------------------------------------------------------------------


def moves(state: State, bound: Bound) -> Iterator[tuple[str, State]]:
    """Each thing that may happen next, and the state after it."""
    yield "a tick", _ticked(state)
    for place, consumer in enumerate(state.consumers):
        if consumer.is_up:
            yield from _acts(state, place, consumer, bound)
            if state.crashes < bound.crashes:
                crashed = replace(consumer, is_up=False, held=None, answer=None)
                yield f"{place} crashes", replace(_with(state, place, crashed), crashes=state.crashes + 1)
        yield from _messages(state, place, consumer, bound)
    for place, watcher in enumerate(state.watchers):
        yield from _watches(state, place, watcher)
    if state.splits < bound.splits:
        split = resharding.split(state.shards, state.shards[0], None, 0)
        full = tuple(replace(shard, next_offset=1) for shard in split)
        yield from _stepped(replace(state, shards=full, splits=state.splits + 1), "split", events.Sync())
    if state.rewinds < bound.rewinds:
        rewound = replace(state, rewinds=state.rewinds + 1)
        yield from _stepped(rewound, "rewind", events.Rewind(positions={ShardId(0): 0}, why="test"))


def _acts(state: State, place: int, consumer: Consumer, bound: Bound) -> Iterator[tuple[str, State]]:
    held = consumer.held
    if held is None:
        name = f"c{place % bound.names}"
        lives = sum(member.name == name for member in state.group.members.values())
        if lives >= bound.lives:
            return
        mine = f"{name}#{lives}"
        join = events.Join(name=name, incarnation=mine, timeout_ms=TIMEOUT_MS, interval_ms=INTERVAL_MS)
        fresh = Holding(incarnation=mine, timeout_ms=TIMEOUT_MS, interval_ms=INTERVAL_MS)
        joined = _with(state, place, replace(consumer, held=fresh))
        yield from _stepped(joined, f"{place} joins", join)
        return
    if consumer.beat is None and consumer.answer is None:
        after, beat = holding.asked(held, 0)
        asking = replace(consumer, held=after, beat=beat)
        sent = _with(state, place, asking)
        if (hampered := _hampered(sent, bound)) is not None:
            yield f"{place} asks, and it takes a while", hampered
        yield from _counted(sent, place, asking, beat, bound)
    for lease in held.leases.values():
        if not lease.is_wanted:
            release = events.Release(
                incarnation=held.incarnation,
                lettings=[events.Letting(shard=lease.shard, epoch=lease.epoch)],
            )
            let_go = replace(consumer, held=holding.let_go(held, lease.shard, lease.epoch))
            yield from _stepped(_with(state, place, let_go), f"{place} releases {lease.shard}", release)
            # The release is lost on the way; the next full answer shows that it is still wanted.
            if (hampered := _hampered(_with(state, place, let_go), bound)) is not None:
                yield f"{place} loses the release of {lease.shard}", hampered
        elif bound.splits and holding.may_act(held, lease.shard, lease.epoch, 0):
            yield from _saved(state, place, held, lease)


def _saved(state: State, place: int, held: Holding, lease: holding.Lease) -> Iterator[tuple[str, State]]:
    """It hands out the one record of the shard and saves."""
    claim, shard = state.group.claims[lease.shard], state.shards[lease.shard]
    if claim.owner != held.incarnation or claim.epoch != lease.epoch or claim.checkpoint >= shard.next_offset:
        return
    claims = list(state.group.claims)
    claims[lease.shard] = replace(claim, checkpoint=shard.next_offset)
    group = replace(state.group, claims=tuple(claims))
    yield from _stepped(replace(state, group=group), f"{place} saves {lease.shard}", events.Sync())


def _hampered(state: State, bound: Bound) -> State | None:
    """The state with one more message late or lost, if that many may be."""
    return replace(state, faults=state.faults + 1) if state.faults < bound.faults else None


def _messages(state: State, place: int, consumer: Consumer, bound: Bound) -> Iterator[tuple[str, State]]:
    # One that is lost is one that stays on its way: it changes nothing either.
    if consumer.beat is not None:
        yield from _counted(state, place, consumer, consumer.beat, bound)
    if consumer.answer is not None and consumer.held is not None:
        yield from _taken(state, place, consumer, consumer.held, consumer.answer)


def _counted(
    state: State, place: int, consumer: Consumer, beat: Beat, bound: Bound
) -> Iterator[tuple[str, State]]:
    """A heartbeat at the hub. Its answer is taken at once, is on its way, or is lost."""
    member = state.group.members.get(beat.incarnation)
    try:
        after = membership.beaten(state.group.settings, member, beat)
    except ShoalError:
        refused = replace(consumer, beat=None, held=None)
        yield f"the beat of {place} is refused", _with(state, place, refused)
        return
    mine = [claim for claim in state.group.claims if claim.owner == beat.incarnation]
    is_new = beat.seen != after.assigned or membership.digest(beat.held) != after.held
    if is_new:
        after = replace(after, held=membership.remembered(beat.held, mine))
    answer = holding.assignment(state.group.settings, after, mine if is_new else None, beat)
    members = {**state.group.members, beat.incarnation: after}
    counted = replace(state, group=replace(state.group, members=members))
    unheard = replace(consumer, beat=None)
    if (hampered := _hampered(_with(counted, place, unheard), bound)) is not None:
        yield f"{place} beats, and the answer is lost", hampered
    if consumer.is_up and consumer.held is not None:
        waiting = replace(unheard, answer=answer)
        if (hampered := _hampered(_with(counted, place, waiting), bound)) is not None:
            yield f"{place} beats, and the answer takes a while", hampered
        yield from _taken(_with(counted, place, waiting), place, waiting, consumer.held, answer)


def _taken(
    state: State, place: int, consumer: Consumer, held: Holding, answer: Assignment
) -> Iterator[tuple[str, State]]:
    taken = holding.answered(held, answer)
    known = _with(state, place, replace(consumer, answer=None, held=taken.holding))
    yield f"{place} is answered", known
    if taken.release_again:
        lettings = [events.Letting(shard=shard, epoch=epoch) for shard, epoch in taken.release_again]
        release = events.Release(incarnation=held.incarnation, lettings=lettings)
        yield from _stepped(known, f"{place} is answered, and releases again", release)


def _watches(state: State, place: int, watcher: Watcher) -> Iterator[tuple[str, State]]:
    """A watcher reads, later adds its own time to what is still as it was read, and later still expires."""
    if watcher.verdict is not None:
        incarnation, beat = watcher.verdict
        after = _watching(state, place, Watcher())
        expire = events.Expire(incarnation=incarnation, beat=beat)
        yield from _stepped(after, f"watcher {place} expires {incarnation}", expire)
        return
    members: dict[str, Member] = dict(state.group.members)
    for incarnation, beat, stood, ticks in watcher.seen:
        member = members.get(incarnation)
        if member is not None and member.is_watched and (member.beat, member.stood_ms) == (beat, stood):
            members[incarnation] = membership.watched(member, ticks * TICK_MS)
    watched = [member for member in members.values() if member.is_watched]
    seen = tuple((member.incarnation, member.beat, member.stood_ms, 0) for member in watched)
    dead = [member for member in watched if membership.is_dead(member)]
    verdict = (dead[0].incarnation, dead[0].beat) if dead else None
    after = replace(state, group=replace(state.group, members=members))
    looks = Watcher(seen=() if dead else seen, verdict=verdict)
    yield f"watcher {place} adds its time", _watching(after, place, looks)


def _watching(state: State, place: int, watcher: Watcher) -> State:
    return replace(state, watchers=(*state.watchers[:place], watcher, *state.watchers[place + 1 :]))


def _stepped(state: State, action: str, event: events.Event) -> Iterator[tuple[str, State]]:
    try:
        group = ownership.step(state.group, event, state.shards, STRATEGIES).group
    except ShoalError:
        return
    yield action, replace(state, group=group)


def _with(state: State, place: int, consumer: Consumer) -> State:
    consumers = (*state.consumers[:place], consumer, *state.consumers[place + 1 :])
    return replace(state, consumers=consumers)


def _ticked(state: State) -> State:
    """One tick passes for everyone: what lay ahead is nearer, and what was seen is older."""
    consumers = []
    for consumer in state.consumers:
        held = consumer.held
        if held is not None:
            leases = {
                shard: replace(lease, deadline_ms=max(0, lease.deadline_ms - TICK_MS))
                for shard, lease in held.leases.items()
            }
            asked_ms = max(held.asked_ms - TICK_MS, -TIMEOUT_MS)
            held = replace(held, leases=leases, asked_ms=asked_ms)
        consumers.append(replace(consumer, held=held))
    watchers = tuple(
        replace(
            one, seen=tuple((who, beat, stood, min(ticks + 1, 2)) for who, beat, stood, ticks in one.seen)
        )
        for one in state.watchers
    )
    return replace(state, consumers=tuple(consumers), watchers=watchers)


# --- What must hold. ---------------------------------------------------------------------------------


def broken(state: State) -> str | None:
    """Why this state breaks the promise, if it does."""
    claims = state.group.claims
    for place, consumer in enumerate(state.consumers):
        if consumer.held is None:
            continue
        mine = consumer.held.incarnation
        for shard, lease in consumer.held.leases.items():
            if not holding.may_act(consumer.held, shard, lease.epoch, 0):
                continue
            claim = claims[shard]
            # One that has nothing left to hand out may think what it likes.
            is_over = claim.state is ShardState.OVER
            if (claim.owner, claim.owner_epoch) != (mine, lease.epoch) and not is_over:
                held = f"{claim.owner} at {claim.owner_epoch}"
                return f"{place} may act on shard {shard} at {lease.epoch}, which is with {held}"
    for shard_row, claim in zip(state.shards, claims, strict=False):
        if claim.owner is not None and any(
            claims[up].state is not ShardState.OVER for up in shard_row.parents
        ):
            return f"shard {shard_row.id} is with {claim.owner}, before its parents are over"
        if claim.owner is not None and state.group.members[claim.owner].status is MemberStatus.GONE:
            return f"shard {shard_row.id} is with {claim.owner}, which is gone"
    return None
