"""Mutations of the rules of coordinated groups: what is put in the place of functions of `shoal.core`.

Each is made anew when it is planted, from the function that is there, and changes one thing in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shoal.core import balance, claims, events, handover, holding, membership, ownership
from shoal.core.group import Claim, Group, GroupSettings, Member, MemberStatus, ShardState
from shoal.core.membership import Beat
from shoal.core.model import Shard, ShardId
from sim.bug import Replacement


def no_margin() -> Replacement:
    return holding, "CLOCK_MARGIN", 0.0


def expire_unseen() -> Replacement:
    def expire(work: Any, event: events.Expire) -> None:
        member = work.members.get(event.incarnation)
        if member is not None and member.is_watched:
            ownership._bury(work, member)

    return ownership, "_expire", expire


def accept_outdated() -> Replacement:
    right = membership.beaten

    def beaten(settings: GroupSettings, member: Member | None, beat: Beat) -> Member:
        before = None if member is None else replace(member, beat=min(member.beat, beat.number - 1))
        return right(settings, before, beat)

    return membership, "beaten", beaten


def inherit_at_once() -> Replacement:
    right = ownership._join

    def join(work: Any, event: events.Join) -> None:
        right(work, event)
        for claim in list(work.claims):
            owner = work.members.get(claim.owner) if claim.owner is not None else None
            if owner is not None and owner.name == event.name and owner.incarnation != event.incarnation:
                ownership._free(work, claim)

    return ownership, "_join", join


def join_after_leave() -> Replacement:
    right = membership.joined

    def joined(
        members: Mapping[str, Member], newcomer: Member, *, is_again: bool = False
    ) -> dict[str, Member]:
        known = members.get(newcomer.incarnation)
        if known is not None and known.status is MemberStatus.GONE:
            members = {key: member for key, member in members.items() if member is not known}
        return right(members, newcomer, is_again=is_again)

    return ownership, "joined", joined


def join_again_bars() -> Replacement:
    right = membership.joined

    def joined(
        members: Mapping[str, Member], newcomer: Member, *, is_again: bool = False
    ) -> dict[str, Member]:
        del is_again
        return right(members, newcomer)

    return ownership, "joined", joined


def same_epoch() -> Replacement:
    return ownership._Work, "next_epoch", lambda work: max(1, work.epoch)


def any_epoch_releases() -> Replacement:
    right = ownership._release

    def release(work: Any, incarnation: str, lettings: Sequence[events.Letting]) -> list[ShardId]:
        shown = [
            replace(letting, epoch=work.claims[letting.shard].owner_epoch, checkpoint=None)
            if letting.shard < len(work.claims)
            else letting
            for letting in lettings
        ]
        return right(work, incarnation, shown)

    return ownership, "_release", release


def force_at_once() -> Replacement:
    right = ownership._steer

    def steer(work: Any, claim: Claim, target: str) -> None:
        right(work, claim, target)
        if claim.state is ShardState.ALREADY_ALLOC and claim.owner != target:
            ownership._free(work, work.claims[claim.shard])

    return ownership, "_steer", steer


def lapse_at_once() -> Replacement:
    right = ownership._lapse

    def lapse(work: Any, claim: Claim, waited: int) -> None:
        right(work, claim, max(waited, claim.lapse_ms))

    return ownership, "_lapse", lapse


def extend_frozen() -> Replacement:
    return Claim, "is_extended", property(lambda _: True)


def reset_unfenced() -> Replacement:
    right = ownership._rewind

    def rewind(work: Any, event: events.Rewind) -> object:
        epochs = [claim.epoch for claim in work.claims]
        read = right(work, event)
        for place, epoch in enumerate(epochs):
            work.claims[place] = replace(work.claims[place], epoch=epoch)
        return read

    return ownership, "_rewind", rewind


def children_first() -> Replacement:
    right = claims.born

    def born(shard: Shard, checkpoint: int, **how: Any) -> Claim:
        return right(shard, checkpoint, **{**how, "ended": shard.parents})

    return claims, "born", born


def late_born_at_the_end() -> Replacement:
    right = claims.born

    def born(shard: Shard, checkpoint: int, **how: Any) -> Claim:
        return right(shard, max(checkpoint, shard.next_offset if shard.parents else 0), **how)

    return claims, "born", born


def empty_is_not_over() -> Replacement:
    def is_at_end(shard: Shard, checkpoint: int) -> bool:
        return not shard.is_open and shard.next_offset > 0 and checkpoint >= shard.next_offset

    return ownership, "is_at_end", is_at_end


def count_by_the_groups() -> Replacement:
    right = holding.answered

    def answered(held: holding.Holding, answer: holding.Assignment) -> holding.Answered:
        return right(replace(held, timeout_ms=answer.timeout_ms), answer)

    return holding, "answered", answered


def shorten_late() -> Replacement:
    right = holding.asked

    def asked(held: holding.Holding, now_ms: int) -> tuple[holding.Holding, Beat]:
        after, beat = right(held, now_ms)
        return replace(after, leases=held.leases), beat

    return holding, "asked", asked


def never_settles() -> Replacement:
    def restless(
        shards: Sequence[ShardId], members: Sequence[str], held: Mapping[ShardId, str]
    ) -> dict[ShardId, str]:
        """Evenly, and each time to the next one: counts are right, and nothing ever stays."""
        names = sorted(members)
        turn = next((names.index(held[shard]) + 1 for shard in shards if held.get(shard) in names), 0)
        return {shard: names[(turn + place) % len(names)] for place, shard in enumerate(sorted(shards))}

    return balance, "STRATEGIES", dict.fromkeys(balance.STRATEGIES, restless)


def unknown_rules_decide() -> Replacement:
    right = ownership._assign

    def assign(work: Any, strategies: ownership.Strategies) -> None:
        right(work, strategies or dict.fromkeys(balance.STRATEGIES, balance.round_robin))

    return ownership, "_assign", assign


def no_wait_after_forgetting() -> Replacement:
    right = ownership._distrust

    def distrust(work: Any, seen: int) -> None:
        right(work, seen)
        work.distrust_ms = 0
        for claim in list(work.claims):
            if claim.owner is not None:
                ownership._free(work, claim)

    return ownership, "_distrust", distrust


def restart_as_loaded() -> Replacement:
    right = ownership._ask_back

    def ask_back(work: Any, claim: Claim, restart: int) -> None:
        right(work, claim, claim.checkpoint if restart < 0 else restart)

    return ownership, "_ask_back", ask_back


def free_on_taking_back() -> Replacement:
    right = ownership._ask_back

    def ask_back(work: Any, claim: Claim, restart: int) -> None:
        right(work, claim, restart)
        ownership._free(work, work.claims[claim.shard])

    return ownership, "_ask_back", ask_back


def older_looks_count() -> Replacement:
    right = holding.viewed

    def viewed(held: holding.Holding, view: holding.View) -> holding.Answered:
        return right(replace(held, seen=min(held.seen, view.version - 1)), view)

    return holding, "viewed", viewed


def hands_over_unsaved() -> Replacement:
    right = handover.handed_over

    def handed_over(group: Group, release: events.Release, *rows: Any) -> handover.HandedOver | None:
        bare = [replace(letting, checkpoint=None) for letting in release.lettings]
        return right(group, replace(release, lettings=bare), *rows)

    return handover, "handed_over", handed_over


def hands_over_the_epoch() -> Replacement:
    right = handover.handed_over

    def handed_over(group: Group, release: events.Release, *rows: Any) -> handover.HandedOver | None:
        after = right(group, release, *rows)
        if after is None:
            return None
        epochs = {letting.shard: letting.epoch for letting in release.lettings}
        same = [
            replace(claim, epoch=epochs[claim.shard], owner_epoch=epochs[claim.shard])
            for claim in after.claims
        ]
        return replace(after, claims=same)

    return handover, "handed_over", handed_over


def hands_over_any_epoch() -> Replacement:
    right = handover._is_plain

    def is_plain(giver: Member, claim: Claim, letting: events.Letting, receiver: Member) -> bool:
        return right(giver, claim, replace(letting, epoch=claim.owner_epoch), receiver)

    return handover, "_is_plain", is_plain


def hands_over_what_was_reset() -> Replacement:
    right = handover.handed_over

    def handed_over(
        group: Group, release: events.Release, held: Mapping[ShardId, Claim], *rows: Any
    ) -> handover.HandedOver | None:
        as_before = {
            shard: replace(claim, restart=None, epoch=claim.owner_epoch) for shard, claim in held.items()
        }
        return right(group, release, as_before, *rows)

    return handover, "handed_over", handed_over
