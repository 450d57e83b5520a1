"""A group with its stream, for tests of the rules: each of its steps is checked for what must hold after any.

`assert_lawful` knows the rules as the documents state them and shares no code with them.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pytest

from shoal.core.balance import STRATEGIES, Strategy
from shoal.core.errors import ShoalError
from shoal.core.events import (
    Event,
    Expire,
    Forgotten,
    Join,
    Leave,
    Letting,
    Release,
    Rewind,
    Sync,
    Update,
    Watched,
)
from shoal.core.group import RULES, Claim, Group, GroupSettings, Member, MemberStatus, ShardState, Timers
from shoal.core.handover import handed_over
from shoal.core.limits import EPOCH_JUMP
from shoal.core.lineage import ancestors
from shoal.core.membership import watched
from shoal.core.model import Shard, ShardId
from shoal.core.ownership import Stepped, step
from shoal.core.resharding import first_shards, merge, split

WAIT, NOT_ALLOC, OVER = ShardState.WAIT, ShardState.NOT_ALLOC, ShardState.OVER
HELD: Final = (ShardState.ALREADY_ALLOC, ShardState.TRANSFER)
TIMEOUT_MS, INTERVAL_MS = 1000, 250


class World:
    """A group and its stream. A consumer's incarnation is its name and a number: a1 is the first of a."""

    def __init__(
        self, shards: int, *names: str, strategies: Mapping[str, Strategy] = STRATEGIES, **settings: object
    ) -> None:
        self.shards = first_shards(shards, 0)
        self.strategies = strategies
        self.plain = 0
        """Releases that were plain hand-overs."""
        self.group = Group(
            id=1,
            stream_id=1,
            name="billing",
            settings=GroupSettings(timeout_ms=TIMEOUT_MS, **settings),  # type: ignore[arg-type]
        )
        self.step(Sync())
        for name in names:
            self.join(f"{name}1")

    def step(self, event: Event) -> Stepped:
        before = self.group
        stepped = step(before, event, self.shards, self.strategies)
        assert_lawful(before, event, stepped, self)
        if isinstance(event, Release):
            self.plain += assert_as_plain(before, event, stepped, self.shards)
        self.group = stepped.group
        return stepped

    def refused(self, event: Event, error: type[ShoalError]) -> None:
        """The event is refused, and the world goes on as if it had not been."""
        with pytest.raises(error):
            step(self.group, event, self.shards, self.strategies)
        assert step(self.group, Sync(), self.shards, self.strategies).group is self.group

    # --- Events. ---

    def join(self, incarnation: str, timeout_ms: int = TIMEOUT_MS) -> Stepped:
        return self.step(
            Join(
                name=incarnation[:1],
                incarnation=incarnation,
                timeout_ms=timeout_ms,
                interval_ms=INTERVAL_MS,
            )
        )

    def release(self, incarnation: str, *shards: int, checkpoint: int | None = None) -> Stepped:
        """A release of these shards as they are held; without any, of all that the owner is asked for."""
        asked = shards or tuple(
            claim.shard
            for claim in self.group.claims
            if claim.owner == incarnation and claim.state is ShardState.TRANSFER
        )
        lettings = [
            Letting(shard=ShardId(shard), epoch=self.claim(shard).owner_epoch, checkpoint=checkpoint)
            for shard in asked
        ]
        return self.step(Release(incarnation=incarnation, lettings=lettings))

    def leave(self, incarnation: str) -> Stepped:
        return self.step(Leave(incarnation=incarnation))

    def expire(self, incarnation: str) -> Stepped:
        """Everyone watches until its silence is as long as its timeout."""
        member = self.group.members[incarnation]
        while member.stood_ms < member.timeout_ms:
            member = watched(member, INTERVAL_MS)
        self.group = replace(self.group, members={**self.group.members, incarnation: member})
        return self.step(Expire(incarnation=incarnation, beat=member.beat))

    def update(self, **changes: object) -> Stepped:
        return self.step(Update(settings=replace(self.group.settings, **changes)))  # type: ignore[arg-type]

    def rewind(self, positions: dict[int, int]) -> Stepped:
        named = {ShardId(shard): offset for shard, offset in positions.items()}
        return self.step(Rewind(positions=named, why="reset"))

    def watch(self, elapsed_ms: int, times: int = 1) -> list[str]:
        """The notes of a while, looked at in intervals."""
        return [note.kind for _ in range(times) for note in self.watched(elapsed_ms).notes]

    def watched(self, elapsed_ms: int, seen: Timers | None = None) -> Stepped:
        """An observer comes back that has seen these timers; without them, those that there are."""
        return self.step(Watched(elapsed_ms=elapsed_ms, seen=seen or self.group.timers))

    # --- What the log and a consumer do, which is no step of the group. ---

    def append(self, shard: int, records: int) -> None:
        assert self.shards[shard].is_open
        grown = replace(self.shards[shard], next_offset=self.shards[shard].next_offset + records)
        self.shards = (*self.shards[:shard], grown, *self.shards[shard + 1 :])

    def split(self, shard: int) -> Stepped:
        self.shards = split(self.shards, self.shards[shard], None, 1)
        return self.step(Sync())

    def merge(self, left: int, right: int) -> Stepped:
        self.shards = merge(self.shards, self.shards[left], self.shards[right], 1)
        return self.step(Sync())

    def save(self, shard: int, offset: int) -> None:
        """The owner's checkpoint, as a store saves it."""
        claims = list(self.group.claims)
        claims[shard] = replace(claims[shard], checkpoint=offset)
        self.group = replace(self.group, claims=tuple(claims))

    def consume(self, shard: int) -> Stepped:
        """The owner reads a shard to its end, and saves it."""
        self.save(shard, self.shards[shard].next_offset)
        return self.step(Sync())

    # --- What there is to see. ---

    def claim(self, shard: int) -> Claim:
        return self.group.claims[shard]

    def states(self) -> list[str]:
        return [str(claim.state) for claim in self.group.claims]

    def owners(self) -> list[str | None]:
        return [claim.owner for claim in self.group.claims]

    def held(self, incarnation: str) -> list[int]:
        return [claim.shard for claim in self.group.claims if claim.owner == incarnation]

    def status(self, incarnation: str) -> str:
        return str(self.group.members[incarnation].status)


def kinds(stepped: Stepped) -> list[str]:
    return [note.kind for note in stepped.notes]


# --- What holds after every step. -------------------------------------------------------------------


def assert_lawful(before: Group, event: Event, stepped: Stepped, world: World) -> None:
    """Everything that must hold after any step from any group that a step has led to."""
    after = stepped.group
    again = step(after, Sync(), world.shards, world.strategies)
    assert (again.group, again.notes) == (after, ()), "nothing moves when nothing happens"
    assert step(before, event, world.shards, world.strategies) == stepped, "same arguments, same answer"
    assert [claim.shard for claim in after.claims] == list(range(len(world.shards)))
    assert after != before or not stepped.notes, "no news without a change"
    _assert_versions(before, event, after)
    _assert_claims(after, world.shards)
    _assert_members(after)
    _assert_epochs(before, after)
    _assert_hands(before, event, after, world.shards)
    _assert_spread(after, world.strategies)


def _assert_versions(before: Group, event: Event, after: Group) -> None:
    if after == before:
        return
    is_forgotten = isinstance(event, Forgotten) and event.seen > before.version
    base = event.seen + EPOCH_JUMP if isinstance(event, Forgotten) and is_forgotten else before.version
    assert after.version == base + 1
    for key, member in after.members.items():
        old = before.members.get(key)
        is_told = (
            old is None
            or old.status is not member.status
            or after.settings != before.settings
            or _told(before, key) != _told(after, key)
        )
        assert member.assigned == (after.version if is_told or old is None else old.assigned), key


def _told(group: Group, incarnation: str) -> set[tuple[int, int, bool, bool]]:
    """What a heartbeat's answer says of the shards of one member."""
    return {
        (claim.shard, claim.owner_epoch, claim.state is ShardState.TRANSFER, claim.is_extended)
        for claim in group.claims
        if claim.owner == incarnation
    }


def _assert_claims(after: Group, shards: tuple[Shard, ...]) -> None:
    for claim, shard in zip(after.claims, shards, strict=True):
        is_drained = not shard.is_open and claim.checkpoint >= shard.next_offset
        ancestors_over = all(after.claims[parent].state is OVER for parent in ancestors(shards, shard.id))
        must_wait = after.settings.in_order and claim.is_bound and not ancestors_over
        assert (claim.state in HELD) == (claim.owner is not None)
        assert (claim.state is OVER) == (is_drained and claim.restart is None)
        assert claim.restart is None or claim.state is ShardState.TRANSFER
        if claim.state in {ShardState.NOT_ALLOC, *HELD} and claim.restart is None:
            assert not must_wait, "no shard is given while an ancestor has not ended"
        if claim.state is WAIT:
            assert must_wait, "nothing waits without a reason"
        if claim.state is not ShardState.TRANSFER:
            assert (claim.next, claim.handover_ms, claim.lapse_ms) == (None, 0, 0)
        if claim.state is ShardState.ALREADY_ALLOC:
            assert not claim.is_fenced


def _assert_members(after: Group) -> None:
    living = [member.name for member in after.members.values() if may_beat(member)]
    assert len(living) == len(set(living)), "one incarnation of a name"
    owners = {claim.owner for claim in after.claims} - {None}
    for key, member in after.members.items():
        assert member.status is not MemberStatus.GONE or key not in owners, "the dead hold nothing"
        assert member.status is not MemberStatus.BARRED or key in owners, "who is barred and done is gone"
    assert owners <= after.members.keys()
    nexts = {claim.next for claim in after.claims if claim.next is not None}
    assert all(after.members[key].status is MemberStatus.ACTIVE for key in nexts)


def may_beat(member: Member) -> bool:
    return member.status in {MemberStatus.ACTIVE, MemberStatus.LEAVING}


def _assert_epochs(before: Group, after: Group) -> None:
    given = [claim.owner_epoch for claim in after.claims if claim.owner is not None]
    assert len(given) == len(set(given)), "an epoch is given once"
    assert after.epoch >= max([before.epoch, *(claim.epoch for claim in after.claims)])
    for old, new in zip(before.claims, after.claims, strict=False):
        assert new.epoch >= old.epoch
        if new.owner is not None and (new.owner, new.owner_epoch) != (old.owner, old.owner_epoch):
            assert new.owner_epoch == new.epoch > before.epoch, "a new owner, a new epoch"
            assert after.members[new.owner].status is MemberStatus.ACTIVE
            assert after.distrust_ms == 0
        if new.checkpoint < old.checkpoint:
            assert old.restart is not None or new.epoch > old.epoch, "only a forced checkpoint goes back"


def _assert_hands(before: Group, event: Event, after: Group, shards: tuple[Shard, ...]) -> None:
    """A holder loses a shard by its own release or leave, its silence, its lapse, or the shard's end."""
    for old, new, shard in zip(before.claims, after.claims, shards, strict=False):
        if old.owner is None or (old.owner, old.owner_epoch) == (new.owner, new.owner_epoch):
            continue
        if not shard.is_open and old.checkpoint >= shard.next_offset and old.restart is None:
            continue
        match event:
            case Release():
                assert event.incarnation == old.owner
                assert (old.shard, old.owner_epoch) in {(one.shard, one.epoch) for one in event.lettings}
            case Leave() | Expire():
                assert event.incarnation == old.owner
            case Watched():
                assert old.lapse_ms > 0
            case _:
                raise AssertionError(f"{event} took shard {old.shard} from {old.owner}")


def _assert_spread(after: Group, strategies: Mapping[str, Strategy]) -> None:
    """Everything that can be consumed is with a candidate, or on its way there; counts are within one."""
    active = {key for key, one in after.members.items() if one.status is MemberStatus.ACTIVE}
    is_known = after.settings.strategy in strategies and after.settings.rules == RULES
    if not active or not is_known or after.distrust_ms:
        return
    intended = [claim.next or claim.owner for claim in after.claims if claim.state not in {WAIT, OVER}]
    assert set(intended) <= active
    counts = Counter(intended)
    each = [counts[key] for key in active]
    assert max(each) - min(each) <= 1


def assert_as_plain(before: Group, release: Release, stepped: Stepped, shards: tuple[Shard, ...]) -> bool:
    """Where the short way answers, it answers as the step does, to the last note; whether it did."""
    claims = {claim.shard: claim for claim in before.claims}
    places = {shard.id: shard for shard in shards}
    # What a store would look at: the group's own row, and not more of the rest than the release names.
    alone = replace(before, claims=(), members={})
    outcome = handed_over(alone, release, claims, places, before.members)
    if outcome is None:
        return False
    after = stepped.group
    assert (outcome.group.version, outcome.group.epoch) == (after.version, after.epoch)
    assert tuple(outcome.notes) == tuple(stepped.notes)
    assert [claim.shard for claim in outcome.claims] == list(stepped.let_go)
    changed = {claim.shard: claim for claim in outcome.claims}
    assert tuple(changed.get(claim.shard, claim) for claim in before.claims) == tuple(after.claims)
    told = {member.incarnation: member for member in outcome.members}
    assert {**before.members, **told} == dict(after.members)
    return True
