"""The explorer's states of a coordinated group, and what makes two of them one.

Times are relative to now. Of epochs, versions and heartbeats' numbers only their order counts: they rise
for ever, and nothing asks more of them than which is the higher one.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from shoal.core import membership
from shoal.core.group import Group, Member
from shoal.core.holding import Assignment, Holding
from shoal.core.membership import Beat
from shoal.core.model import Shard
from sim.ranks import Ranks

TICK_MS: Final = 1000
TIMEOUT_MS: Final = 2 * TICK_MS
INTERVAL_MS: Final = TICK_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """One consumer: what it holds, and its one message under way."""

    is_up: bool = True
    held: Holding | None = None
    """None: it has not joined. Times in it are relative to now."""
    beat: Beat | None = None
    """Sent, and not at the hub yet."""
    answer: Assignment | None = None
    """Answered, and not with the consumer yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """Someone who watches the members, whoever that is."""

    seen: tuple[tuple[str, int, int, int], ...] = ()
    """(Member, beat, stood, ticks since it was read)."""
    verdict: tuple[str, int] | None = None
    """Found dead, at this counter; the step is still to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The world at one instant."""

    group: Group
    shards: tuple[Shard, ...]
    consumers: tuple[Consumer, ...]
    watchers: tuple[Watcher, ...]
    crashes: int = 0
    splits: int = 0
    rewinds: int = 0
    faults: int = 0
    """Messages that were late or lost so far."""


def key_of(state: State) -> Hashable:
    """What tells two states apart: of epochs, versions and beats only which is the higher one."""
    group = state.group
    members = {key: member for key, member in group.members.items() if member.is_watched}
    epochs, versions = Ranks(), Ranks()
    for claim in group.claims:
        epochs.add(claim.epoch, claim.owner_epoch)
    versions.add(group.version, *(member.assigned for member in members.values()))
    for one in state.consumers:
        if one.held is not None:
            epochs.add(*(lease.epoch for lease in one.held.leases.values()), *one.held.released.values())
            versions.add(one.held.seen)
        if one.beat is not None:
            epochs.add(*one.beat.held.values())
            versions.add(one.beat.seen)
        if one.answer is not None:
            epochs.add(*(grant.epoch for grant in one.answer.granted or ()))
            versions.add(one.answer.version)
    return (
        versions(group.version),
        tuple(
            (key, one.status, min(one.stood_ms, TIMEOUT_MS), versions(one.assigned), _is_known(state, one))
            for key, one in sorted(members.items())
        ),
        tuple(
            (
                one.state,
                one.checkpoint,
                epochs(one.epoch),
                one.owner,
                epochs(one.owner_epoch),
                one.next,
                one.restart,
                one.is_bound,
            )
            for one in group.claims
        ),
        tuple((shard.status, shard.next_offset) for shard in state.shards),
        tuple(_consumer_key(one, members, epochs, versions) for one in state.consumers),
        tuple(_watcher_key(one, members) for one in state.watchers),
        (state.crashes, state.splits, state.rewinds, state.faults),
    )


def _is_known(state: State, member: Member) -> bool:
    """Whether the hub has seen what the consumer would report now."""
    return any(
        one.held is not None
        and one.held.incarnation == member.incarnation
        and membership.digest({key: lease.epoch for key, lease in one.held.leases.items()}) == member.held
        for one in state.consumers
    )


def _consumer_key(one: Consumer, members: dict[str, Member], epochs: Ranks, versions: Ranks) -> Hashable:
    held, beat, answer = one.held, one.beat, one.answer
    mine = members.get(held.incarnation) if held is not None else None
    return (
        one.is_up,
        held
        and (
            held.incarnation,
            mine is not None and held.number > mine.beat,
            held.asked_ms if answer is not None or beat is not None else 0,
            versions(held.seen),
            tuple(
                (key, epochs(lease.epoch), max(0, lease.deadline_ms), lease.is_wanted, lease.is_extended)
                for key, lease in sorted(held.leases.items())
            ),
            tuple((key, epochs(epoch)) for key, epoch in sorted(held.released.items())),
        ),
        beat
        and (
            beat.incarnation,
            versions(beat.seen),
            tuple((key, epochs(epoch)) for key, epoch in sorted(beat.held.items())),
        ),
        answer
        and (
            held is not None and answer.number == held.number,
            versions(answer.version),
            None
            if answer.granted is None
            else tuple(
                (grant.shard, epochs(grant.epoch), grant.checkpoint, grant.is_wanted, grant.is_extended)
                for grant in answer.granted
            ),
        ),
    )


def _watcher_key(one: Watcher, members: dict[str, Member]) -> Hashable:
    """What has changed since it was read adds nothing: it might as well not have been read."""
    verdict = one.verdict
    return (
        tuple(
            (who, ticks)
            for who, beat, stood, ticks in one.seen
            if who in members and (beat, stood) == (members[who].beat, members[who].stood_ms)
        ),
        verdict and (verdict[0], verdict[0] in members and members[verdict[0]].beat == verdict[1]),
    )
