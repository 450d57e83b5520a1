"""Splits and merges under a group: children wait for all their ancestors in order, and for none out of it."""

from dataclasses import replace

import pytest

from shoal.core.events import Retire, Sync, Update
from shoal.core.resharding import merge, split
from tests.unit.group_world import World, kinds

# --- In order. --------------------------------------------------------------------------------------


def test_after_a_split_the_children_wait_until_the_parent_is_consumed_and_are_then_spread() -> None:
    world = World(1, "a", "b")
    world.append(0, 10)
    assert kinds(world.split(0)) == ["born", "born"]
    assert world.states() == ["already_alloc", "wait", "wait"]
    world.save(0, 9)
    assert world.step(Sync()).notes == ()
    assert kinds(world.consume(0)) == ["ended", "granted", "granted"]
    assert world.owners() == [None, "a1", "b1"]


def test_after_a_merge_the_child_waits_for_both_parents() -> None:
    world = World(2, "a")
    world.append(0, 10)
    world.append(1, 10)
    world.merge(0, 1)
    assert world.states() == ["already_alloc", "already_alloc", "wait"]
    world.consume(1)
    assert world.states() == ["already_alloc", "over", "wait"]
    world.consume(0)
    assert world.states() == ["over", "over", "already_alloc"]


def test_the_documents_shards_the_grandchild_waits_for_both_sides_of_its_family() -> None:
    # 0 is split into 3 and 4; 4 is merged with 1 into 5: 5 waits for 4, and 4 waits for 0.
    world = World(3, "a")
    for shard in range(3):
        world.append(shard, 10)
    world.split(0)
    world.append(4, 10)
    world.merge(4, 1)
    assert world.states() == [*["already_alloc"] * 3, "wait", "wait", "wait"]
    world.consume(1)
    assert world.states()[3:] == ["wait", "wait", "wait"]
    world.consume(0)
    assert world.states()[3:] == ["already_alloc", "already_alloc", "wait"]
    world.consume(4)
    assert world.states()[3:] == ["already_alloc", "over", "already_alloc"]


@pytest.mark.parametrize(
    ("parent", "state"),
    [("none", "already_alloc"), ("not ended", "wait"), ("ended", "already_alloc")],
)
def test_block_on_parent_as_in_the_tablestore_client_ours(parent: str, state: str) -> None:
    # Its S16. There a parent may also be missing, and the child runs: differing on purpose, since ids are
    # dense and a parent's claim outlives its shard's records, a parent cannot be missing.
    world = World(1, "a")
    if parent != "none":
        world.append(0, 1)
        world.split(0)
    if parent == "ended":
        world.consume(0)
    assert world.states()[-1] == state


def test_an_over_shard_is_not_counted_and_its_end_rebalances() -> None:
    world = World(4, "a")
    for shard in (0, 1):
        world.append(shard, 5)
        world.split(shard)  # The four children wait.
    world.join("b1")
    assert [claim.next for claim in world.group.claims[:4]] == [None, None, "b1", "b1"]
    world.release("a1")
    world.save(0, 5)
    assert kinds(world.consume(1)).count("granted") == 4
    assert (len(world.held("a1")), len(world.held("b1"))) == (3, 3)


def test_a_shard_that_ends_in_transfer_is_over_and_nobody_gets_it() -> None:
    world = World(2, "a", "b")
    world.append(1, 5)
    world.split(1)
    world.consume(1)
    assert (world.states()[1], world.claim(1).owner, world.claim(1).next) == ("over", None, None)


def test_the_last_checkpoint_of_a_release_can_be_the_end() -> None:
    world = World(2, "a", "b")
    world.append(1, 5)
    world.split(1)
    assert kinds(world.release("a1", 1, checkpoint=5))[:2] == ["released", "ended"]
    assert world.states() == ["already_alloc", "over", "already_alloc", "already_alloc"]


def test_what_ends_is_news_for_its_owner_and_for_nobody_who_gets_nothing_by_it() -> None:
    world = World(2, "a", "b")
    world.release("a1")
    world.step(Retire(incarnation="a1"))
    world.append(1, 5)
    world.split(1)
    told = world.group.members["a1"].assigned
    world.consume(1)
    assert world.group.members["a1"].assigned == told
    assert world.group.members["b1"].assigned == world.group.version


# --- Empty shards. ----------------------------------------------------------------------------------


def test_a_shard_that_is_closed_empty_is_over_at_once_also_under_its_owner() -> None:
    world = World(1, "a")
    assert kinds(world.split(0)) == ["ended", "born", "born", "granted", "granted"]
    assert world.states() == ["over", "already_alloc", "already_alloc"]


def test_a_chain_of_empty_shards_is_walked_through_in_one_step() -> None:
    world = World(1, "a")
    world.append(0, 5)
    for shard in (0, 1, 3, 5):
        world.split(shard)
    assert world.states() == ["already_alloc", *["over", "wait"] * 3, "wait", "wait"]
    world.consume(0)
    assert [state for state in world.states() if state == "wait"] == []
    assert world.states().count("over") == 4


def test_a_shard_that_waits_and_is_closed_empty_is_over_but_has_not_ended() -> None:
    world = World(1, "a")
    world.append(0, 5)
    world.split(0)
    world.split(1)
    assert world.states() == ["already_alloc", "over", "wait", "wait", "wait"]
    world.consume(0)
    assert world.states() == ["over", "over", *["already_alloc"] * 3]


def test_a_merge_of_an_empty_and_a_full_shard_waits_for_the_full_one() -> None:
    world = World(2, "a")
    world.append(1, 5)
    world.merge(0, 1)
    assert world.states() == ["over", "already_alloc", "wait"]
    world.consume(1)
    assert world.states() == ["over", "over", "already_alloc"]


def test_a_shard_emptied_by_retention_is_not_empty() -> None:
    world = World(1, "a")
    world.append(0, 5)
    world.shards = (replace(world.shards[0], first_offset=5),)
    world.split(0)
    assert world.states()[0] == "already_alloc"


# --- Out of order, and from one to the other. -------------------------------------------------------


def test_out_of_order_children_are_free_at_once() -> None:
    world = World(2, "a", "b", in_order=False)
    world.release("a1")
    world.append(0, 5)
    world.append(1, 5)
    world.split(0)
    world.merge(3, 1)
    assert "wait" not in world.states()
    assert (len(world.held("a1")), len(world.held("b1"))) == (2, 2)


def test_from_in_order_to_not_the_waiting_shards_are_released() -> None:
    world = World(1, "a")
    world.append(0, 5)
    world.split(0)
    assert kinds(world.update(in_order=False)) == ["updated", "granted", "granted"]
    assert world.states() == ["already_alloc"] * 3


def test_from_not_to_in_order_only_shards_born_later_are_bound() -> None:
    world = World(1, "a", in_order=False)
    world.append(0, 5)
    world.split(0)
    world.append(2, 5)
    world.update(in_order=True)
    assert world.states() == ["already_alloc"] * 3
    world.split(2)
    assert world.states() == [*["already_alloc"] * 3, "wait", "wait"]
    world.consume(2)
    assert world.states()[3:] == ["wait", "wait"]  # The grandparent has not ended.
    world.consume(0)
    assert world.states() == ["over", "already_alloc", "over", "already_alloc", "already_alloc"]


def test_a_shard_born_before_the_change_and_seen_with_it_is_not_bound() -> None:
    world = World(1, "a", in_order=False)
    world.append(0, 5)
    world.shards = split(world.shards, world.shards[0], None, 1)
    world.update(in_order=True)
    assert world.states() == ["already_alloc"] * 3


def test_from_in_order_to_not_and_back_nothing_waits_again() -> None:
    world = World(2, "a")
    world.append(0, 5)
    world.append(1, 5)
    world.merge(0, 1)
    world.update(in_order=False)
    world.update(in_order=True)
    assert world.states() == ["already_alloc"] * 3


def test_the_same_settings_again_change_nothing_and_others_are_told_to_everyone() -> None:
    world = World(1, "a", "b")
    group = world.group
    assert world.step(Update(settings=group.settings)).group is group
    world.update(timeout_ms=5000)
    assert {member.assigned for member in world.group.members.values()} == {world.group.version}


def test_births_are_seen_by_whatever_step_comes_next() -> None:
    world = World(2, "a", in_order=False)
    world.append(0, 5)
    world.shards = merge(world.shards, world.shards[0], world.shards[1], 1)
    assert "born" in kinds(world.join("b1"))
    assert world.states() == ["already_alloc", "over", "already_alloc"]
