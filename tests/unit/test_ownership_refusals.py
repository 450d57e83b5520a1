"""Bad input to a step: a clear error, and nothing has changed; and how a user's own strategy is asked."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from shoal.core.balance import STRATEGIES, Members
from shoal.core.errors import (
    CheckpointBackwards,
    InvalidInput,
    NameTaken,
    NotOwner,
    OffsetOutOfRange,
    ShoalError,
    StrategyRefused,
    UnknownConsumer,
)
from shoal.core.events import Join, Leave, Letting, Release, Retire, Sync, Update
from shoal.core.group import Group, GroupSettings
from shoal.core.handover import handed_over
from shoal.core.model import ShardId
from shoal.core.ownership import step
from shoal.core.resharding import first_shards
from tests.unit.group_world import World, kinds


@pytest.mark.parametrize("timing", [(0, 1), (1001, 250), (1000, 1000), (1000, 0)])
def test_a_join_with_timing_that_cannot_be_is_refused(timing: tuple[int, int]) -> None:
    join = Join(name="b", incarnation="b1", timeout_ms=timing[0], interval_ms=timing[1])
    World(2, "a").refused(join, InvalidInput)


def test_a_stranger_and_one_that_is_gone_can_neither_retire_nor_come_back() -> None:
    world = World(2, "a", "b")
    world.leave("b1")
    world.refused(Retire(incarnation="z1"), UnknownConsumer)
    world.refused(Retire(incarnation="b1"), UnknownConsumer)
    join = Join(name="b", incarnation="b1", timeout_ms=1000, interval_ms=250)
    world.refused(join, UnknownConsumer)


@pytest.mark.parametrize(
    ("shard", "checkpoint", "error"),
    [(0, 3, CheckpointBackwards), (0, 11, OffsetOutOfRange), (2, None, NotOwner), (-1, None, NotOwner)],
)
def test_a_release_with_a_fault_in_it_is_refused_as_a_whole(
    shard: int, checkpoint: int | None, error: type[ShoalError]
) -> None:
    world = World(2, "a")
    world.append(0, 10)
    world.save(0, 4)
    good = Letting(shard=ShardId(1), epoch=2)
    bad = Letting(shard=ShardId(shard), epoch=1, checkpoint=checkpoint)
    for event in (
        Release(incarnation="a1", lettings=[good, bad]),
        Leave(incarnation="a1", lettings=[good, bad]),
    ):
        world.refused(event, error)
        assert world.owners() == ["a1", "a1"]


def test_a_users_strategy_whose_answer_is_refused_changes_nothing() -> None:
    world = World(2, "a", strategies={**STRATEGIES, "mine": lambda *_: {}})
    world.refused(Update(settings=replace(world.group.settings, strategy="mine")), StrategyRefused)
    assert world.group.settings.strategy == "balanced"


def test_a_users_strategy_is_asked_by_names_and_about_what_is_intended() -> None:
    asked: list[object] = []

    def all_to_the_last(
        shards: Sequence[ShardId], members: Members, held: Mapping[ShardId, str]
    ) -> Mapping[ShardId, str]:
        asked.append((shards, members, dict(held)))
        return dict.fromkeys(shards, members[-1])

    group = Group(id=1, stream_id=1, name="g", settings=GroupSettings(timeout_ms=1000, strategy="mine"))
    shards = first_shards(2, 0)
    for name in "ab":
        join = Join(name=name, incarnation=f"{name}1", timeout_ms=1000, interval_ms=250)
        group = step(group, join, shards, {"mine": all_to_the_last}).group
    step(group, Sync(), shards, {"mine": all_to_the_last})
    assert asked == [
        ([0, 1], ["a"], {}),
        ([0, 1], ["a", "b"], {0: "a", 1: "a"}),
        ([0, 1], ["a", "b"], {0: "b", 1: "b"}),
    ]


def test_a_strategy_that_uses_up_its_arguments_is_held_to_what_it_was_asked() -> None:
    def forgetful(
        shards: Sequence[ShardId], members: Members, held: Mapping[ShardId, str]
    ) -> Mapping[ShardId, str]:
        assert isinstance(shards, list)
        assert isinstance(members, list)
        shards.pop()
        members.append("z")
        return dict.fromkeys(shards, "z")

    world = World(2, "a", strategies={**STRATEGIES, "mine": forgetful})
    update = Update(settings=replace(world.group.settings, strategy="mine"))
    with pytest.raises(StrategyRefused, match=r"left out the shards \[1\]"):
        step(world.group, update, world.shards, world.strategies)


class UnshowableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("a zero \0 and half \ud800 a pair"), "a zero \\x00 and half \\ud800 a pair"),
        (RuntimeError("x" * 100_000), "x..."),
        (UnshowableError(), "(its text raised RuntimeError)"),
    ],
)
def test_what_a_strategy_raises_hinders_nobody_who_leaves_and_can_be_kept(
    error: Exception, told: str
) -> None:
    def broken(*_: object) -> dict[ShardId, str]:
        raise error

    world = World(2, "a", "b")
    stepped = step(world.group, Leave(incarnation="b1"), world.shards, {"balanced": broken})
    assert stepped.group.members["b1"].status == "gone"
    refused = next(note for note in stepped.notes if note.kind == "refused")
    assert refused.detail.endswith(told)
    assert len(refused.detail) < 3000
    assert "\0" not in refused.detail
    assert refused.detail.encode()


@pytest.mark.parametrize("plain", [True, False])
def test_a_last_checkpoint_that_leads_nowhere_is_refused_in_the_name_of_the_stream(plain: bool) -> None:
    world = World(2, "a")
    if plain:
        world.join("b1")  # One of the two is meant for b from here on.
    claim = next(c for c in world.group.claims if c.owner == "a1" and (c.next is not None) is plain)
    letting = Letting(shard=claim.shard, epoch=claim.owner_epoch, checkpoint=1)
    release = Release(incarnation="a1", lettings=[letting])
    claims = {one.shard: one for one in world.group.claims}
    shards = {shard.id: shard for shard in world.shards}
    assert handed_over(world.group, release, claims, shards, world.group.members) is None
    with pytest.raises(OffsetOutOfRange) as out:
        step(world.group, release, world.shards, world.strategies, stream="shop/orders")
    assert out.value.stream == "shop/orders"


def test_who_is_barred_may_let_go_but_not_retire() -> None:
    world = World(2, "a")
    world.join("a2")
    world.refused(Retire(incarnation="a1"), NameTaken)
    assert kinds(world.release("a1", 0)) == ["released", "granted"]
