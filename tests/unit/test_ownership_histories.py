"""Random histories of small worlds: what must hold after every step holds, and in the end nothing moves.

Every step of `World` is checked by `assert_lawful`. Here are only the events, in any order, and the end of a
history: the world heals, everyone who is asked lets go, and the group must come to rest.
"""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from shoal.core.balance import STRATEGIES
from shoal.core.errors import ShoalError
from shoal.core.events import Event, Expire, Forgotten, Join, Leave, Letting, Release, Retire, Sync
from shoal.core.group import MemberStatus, ShardState
from shoal.core.membership import watched
from shoal.core.model import ShardId
from shoal.core.ownership import step
from tests.unit.group_world import INTERVAL_MS, TIMEOUT_MS, World, may_beat

NAMES = st.sampled_from("abcd")
INCARNATIONS = st.builds("{}{}".format, NAMES, st.integers(1, 6))
CHOICE = st.integers(0, 10**6)
"""Which of what is there at the time: its remainder."""


class Histories(RuleBasedStateMachine):
    """One group over one stream, and whatever may happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(1)
        self.born = dict.fromkeys("abcd", 0)

    @initialize(
        shards=st.integers(1, 4),
        in_order=st.booleans(),
        bound=st.sampled_from([None, INTERVAL_MS, TIMEOUT_MS]),
        strategy=st.sampled_from(["balanced", "balanced", *STRATEGIES]),
    )
    def begin(self, shards: int, in_order: bool, bound: int | None, strategy: str) -> None:
        self.world = World(shards, in_order=in_order, handover_timeout_ms=bound, strategy=strategy)
        self.join("a")
        self.join("b")

    # --- Members. ---

    @rule(name=NAMES)
    def join(self, name: str) -> None:
        self.born[name] += 1
        self.world.join(f"{name}{self.born[name]}")

    @rule(choice=CHOICE)
    def retire(self, choice: int) -> None:
        if who := self._one(self._members(MemberStatus.ACTIVE, MemberStatus.LEAVING), choice):
            self.world.step(Retire(incarnation=who))

    @rule(choice=CHOICE)
    def leave(self, choice: int) -> None:
        if who := self._one(self._members(*MemberStatus), choice):
            self.world.leave(who)

    @rule(choice=CHOICE)
    def fall_silent(self, choice: int) -> None:
        watchable = (MemberStatus.ACTIVE, MemberStatus.LEAVING, MemberStatus.BARRED)
        if who := self._one(self._members(*watchable), choice):
            self.world.expire(who)

    @rule(choice=CHOICE)
    def be_watched_for_a_while(self, choice: int) -> None:
        if who := self._one(self._members(*MemberStatus), choice):
            member = watched(self.world.group.members[who], INTERVAL_MS)
            self.world.group = replace(self.world.group, members={**self.world.group.members, who: member})
            self.world.step(Expire(incarnation=who, beat=member.beat))

    # --- Shards. ---

    @rule(choice=CHOICE)
    def let_go_of_what_is_asked_for(self, choice: int) -> None:
        asked = [claim for claim in self.world.group.claims if claim.state is ShardState.TRANSFER]
        if asked:
            claim = asked[choice % len(asked)]
            end = max(claim.checkpoint, self.world.shards[claim.shard].next_offset)
            checkpoint = [None, claim.checkpoint, end][choice % 3]
            self.world.release(str(claim.owner), claim.shard, checkpoint=checkpoint)

    @rule(choice=CHOICE)
    def let_go_of_anything(self, choice: int) -> None:
        held = [claim for claim in self.world.group.claims if claim.owner is not None]
        if held:
            claim = held[choice % len(held)]
            self.world.release(str(claim.owner), claim.shard)

    @rule(choice=CHOICE, records=st.integers(1, 3))
    def append(self, choice: int, records: int) -> None:
        alive = [shard.id for shard in self.world.shards if shard.is_open]
        self.world.append(alive[choice % len(alive)], records)

    @rule(choice=CHOICE, is_all=st.booleans())
    def consume(self, choice: int, is_all: bool) -> None:
        claims = [claim for claim in self.world.group.claims if claim.owner and not claim.is_fenced]
        if claims:
            claim = claims[choice % len(claims)]
            end = self.world.shards[claim.shard].next_offset
            if end > claim.checkpoint:
                self.world.save(claim.shard, end if is_all else claim.checkpoint + 1)
                self.world.step(Sync())

    @precondition(lambda self: len(self.world.shards) < 14)
    @rule(choice=CHOICE)
    def split(self, choice: int) -> None:
        alive = [shard.id for shard in self.world.shards if shard.is_open]
        self.world.split(alive[choice % len(alive)])

    @precondition(lambda self: len(self.world.shards) < 14)
    @rule(choice=CHOICE)
    def merge(self, choice: int) -> None:
        alive = sorted((shard for shard in self.world.shards if shard.is_open), key=lambda one: one.begin)
        if len(alive) > 1:
            left = choice % (len(alive) - 1)
            self.world.merge(alive[left].id, alive[left + 1].id)

    @rule(choices=st.lists(CHOICE, min_size=1, max_size=3), part=st.integers(0, 3))
    def rewind(self, choices: list[int], part: int) -> None:
        shards = [self.world.shards[choice % len(self.world.shards)] for choice in choices]
        self.world.rewind({shard.id: shard.next_offset * part // 3 for shard in shards})

    # --- The group. ---

    @rule(in_order=st.booleans(), bound=st.sampled_from([None, INTERVAL_MS, TIMEOUT_MS]))
    def update(self, in_order: bool, bound: int | None) -> None:
        self.world.update(in_order=in_order, handover_timeout_ms=bound)

    @rule(name=st.sampled_from([*STRATEGIES, "of a later version"]), rules=st.sampled_from([1, 1, 2]))
    def change_the_rules(self, name: str, rules: int) -> None:
        self.world.update(strategy=name, rules=rules)

    @rule(elapsed_ms=st.integers(-10, 2 * INTERVAL_MS), times=st.integers(1, 6))
    def watch(self, elapsed_ms: int, times: int) -> None:
        self.world.watch(elapsed_ms, times)

    @rule(ahead=st.integers(-1, 3))
    def forget(self, ahead: int) -> None:
        self.world.step(Forgotten(seen=self.world.group.version + ahead))

    @rule(
        who=INCARNATIONS,
        shard=st.integers(-1, 15),
        epoch=st.integers(0, 30),
        checkpoint=st.none() | st.integers(-1, 9),
        kind=st.integers(0, 4),
    )
    def say_something_late_or_wrong(
        self, who: str, shard: int, epoch: int, checkpoint: int | None, kind: int
    ) -> None:
        lettings = [Letting(shard=ShardId(shard), epoch=epoch, checkpoint=checkpoint)]
        events: list[Event] = [
            Join(name=who[0], incarnation=who, timeout_ms=TIMEOUT_MS, interval_ms=INTERVAL_MS),
            Retire(incarnation=who),
            Release(incarnation=who, lettings=lettings),
            Leave(incarnation=who, lettings=lettings),
            Expire(incarnation=who, beat=0),
        ]
        if kind == 0 and who not in self.world.group.members:
            self.born[who[0]] = max(self.born[who[0]], int(who[1:]))
        try:
            self.world.step(events[kind])
        except ShoalError:
            still = step(self.world.group, Sync(), self.world.shards, self.world.strategies)
            assert still.group is self.world.group

    # --- The end: the world heals, and the group must come to rest. ---

    def teardown(self) -> None:
        world = self.world
        world.update(rules=1, strategy="balanced", handover_timeout_ms=None)
        self.born["d"] += 1
        world.join(f"d{self.born['d']}")
        world.watch(INTERVAL_MS, 2 * TIMEOUT_MS // INTERVAL_MS)
        for who in self._members(MemberStatus.LEAVING, MemberStatus.BARRED):
            world.leave(who)
        rounds = 0
        while asked := {str(claim.owner) for claim in world.group.claims if claim.state == "transfer"}:
            world.release(min(asked))
            rounds += 1
            assert rounds <= 2 * len(world.group.members), "hand-overs do not come to an end"
        living = {key for key, member in world.group.members.items() if may_beat(member)}
        for claim in world.group.claims:
            assert claim.state in {ShardState.OVER, ShardState.WAIT} or claim.owner in living
            if claim.state is ShardState.WAIT:
                assert any(world.claim(parent).state is not ShardState.OVER for parent in range(claim.shard))

    def _members(self, *statuses: MemberStatus) -> list[str]:
        return [key for key, member in self.world.group.members.items() if member.status in statuses]

    @staticmethod
    def _one(things: list[str], choice: int) -> str | None:
        return things[choice % len(things)] if things else None


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
