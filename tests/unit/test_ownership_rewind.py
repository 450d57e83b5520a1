"""Forced checkpoints and resets: leases end at once, machines begin anew, and order is kept after them."""

import pytest

from shoal.core.events import Forgotten, Letting, Release
from shoal.core.limits import EPOCH_JUMP
from shoal.core.model import ShardId
from tests.unit.group_world import INTERVAL_MS, World, kinds


def family(*names: str, **settings: object) -> World:
    """Shard 0 was split into 1 and 2, and 2 into 3 and 4; 0 and 2 are consumed, and 3 to its offset 2."""
    world = World(1, *names, **settings)  # type: ignore[arg-type]
    world.append(0, 10)
    world.split(0)
    world.consume(0)
    world.append(2, 10)
    world.split(2)
    world.consume(2)
    world.append(3, 4)
    if names:
        world.save(3, 2)
    return world


# --- Whatever state it is in. -----------------------------------------------------------------------


def test_a_free_shard_goes_on_from_where_it_was_told() -> None:
    world = World(1)
    world.append(0, 10)
    stepped = world.rewind({0: 4})
    assert kinds(stepped) == ["rewound"]
    assert "reset: from 0 to 4" in stepped.notes[0].detail
    assert (world.states(), world.claim(0).checkpoint, world.claim(0).epoch) == (["not_alloc"], 4, 1)


def test_a_shard_that_is_over_is_opened_again_and_given_out() -> None:
    world = World(1, "a", in_order=False)
    world.append(0, 10)
    world.split(0)
    world.consume(0)
    before = world.claim(0)
    assert kinds(world.rewind({0: 9})) == ["rewound", "reopened", "granted"]
    after = world.claim(0)
    assert (after.owner, after.checkpoint) == ("a1", 9)
    assert after.epoch > before.epoch


def test_a_shard_that_is_over_and_is_set_to_its_end_stays_over() -> None:
    world = World(1)
    world.append(0, 10)
    world.split(0)
    world.consume(0)
    assert kinds(world.rewind({0: 10})) == ["rewound"]
    assert world.states() == ["over", "not_alloc", "not_alloc"]


def test_a_closed_shard_set_to_its_end_is_over_and_frees_its_children() -> None:
    world = World(1)
    world.append(0, 10)
    world.split(0)
    assert "ended" in kinds(world.rewind({0: 10}))
    assert world.states() == ["over", "not_alloc", "not_alloc"]


def test_a_shard_that_waits_goes_on_waiting() -> None:
    world = World(1, "a")
    world.append(0, 10)
    world.split(0)
    world.append(1, 10)
    world.rewind({1: 6})
    assert (world.states(), world.claim(1).checkpoint) == (["already_alloc", "wait", "wait"], 6)


def test_a_shard_born_since_the_last_step_can_be_named() -> None:
    world = World(1, in_order=False)
    world.append(0, 10)
    stale = world.group
    world.split(0)
    world.group = stale
    world.append(1, 10)
    world.rewind({1: 6})
    assert world.claim(1).checkpoint == 6


# --- Under a living owner. --------------------------------------------------------------------------


def test_the_owner_is_fenced_at_once_and_the_machine_begins_anew_when_it_has_let_go() -> None:
    world = World(1, "a")
    world.append(0, 10)
    world.save(0, 8)
    given = world.claim(0)
    world.rewind({0: 3})
    asked = world.claim(0)
    assert (asked.owner, asked.owner_epoch, asked.restart, asked.checkpoint) == ("a1", given.epoch, 3, 8)
    assert asked.epoch > given.epoch
    assert (asked.is_fenced, asked.is_extended) == (True, False)
    letting = Letting(shard=ShardId(0), epoch=given.epoch, checkpoint=10)  # It cannot save any more.
    assert world.step(Release(incarnation="a1", lettings=[letting])).let_go == [0]
    after = world.claim(0)
    assert (after.owner, after.checkpoint, after.restart) == ("a1", 3, None)
    assert after.epoch > asked.epoch


def test_a_checkpoint_that_leads_nowhere_does_not_keep_a_fenced_owner_from_letting_go() -> None:
    world = World(1, "a")
    world.append(0, 10)
    world.rewind({0: 3})
    assert world.release("a1", 0, checkpoint=99).let_go == [0]


def test_the_last_of_two_forced_checkpoints_counts() -> None:
    world = World(1, "a")
    world.append(0, 10)
    world.rewind({0: 3})
    world.rewind({0: 7})
    world.release("a1")
    assert world.claim(0).checkpoint == 7


def test_a_forced_checkpoint_during_a_hand_over_ends_it_for_both() -> None:
    world = World(2, "a", "b")
    world.append(1, 10)
    world.rewind({1: 5})
    world.release("a1")
    assert (world.claim(1).owner, world.claim(1).checkpoint) == ("b1", 5)


def test_if_the_owner_falls_silent_or_leaves_the_machine_begins_anew_too() -> None:
    for event in ("expire", "leave"):
        world = World(1, "a")
        world.append(0, 10)
        world.save(0, 8)
        world.rewind({0: 3})
        if event == "expire":
            world.expire("a1")
        else:
            world.leave("a1")
        assert (world.states(), world.claim(0).checkpoint) == (["not_alloc"], 3)


def test_a_fenced_owner_that_does_not_let_go_is_forced_by_the_bound() -> None:
    world = World(1, "a", handover_timeout_ms=INTERVAL_MS)
    world.append(0, 10)
    world.rewind({0: 3})
    assert world.watch(INTERVAL_MS, 5) == ["frozen", "forced", "granted"]
    assert world.claim(0).checkpoint == 3


def test_a_shard_that_is_closed_at_its_end_before_its_fenced_owner_let_go_is_not_over() -> None:
    world = World(1, "a")
    world.append(0, 10)
    world.save(0, 10)
    world.rewind({0: 3})
    world.split(0)
    assert world.states() == ["transfer", "wait", "wait"]
    world.release("a1")
    assert (world.states(), world.claim(0).checkpoint) == (["already_alloc", "wait", "wait"], 3)


def test_a_fenced_owner_keeps_nothing_when_the_next_consumer_is_gone() -> None:
    world = World(2, "a", "b")
    world.append(1, 10)
    world.rewind({1: 5})
    world.leave("b1")
    assert (world.states()[1], world.claim(1).is_fenced) == ("transfer", True)
    world.release("a1")
    assert (world.claim(1).owner, world.claim(1).checkpoint) == ("a1", 5)


def test_a_forced_checkpoint_on_a_closed_shard_at_its_end_is_not_lost() -> None:
    # The owner has saved the end, and nobody has looked since: it has ended, and is opened again.
    world = World(1, "a")
    world.append(0, 10)
    world.split(0)
    world.save(0, 10)
    assert kinds(world.rewind({0: 2})) == ["ended", "rewound", "reopened", "granted"]
    assert (world.states(), world.claim(0).checkpoint) == (["already_alloc", "wait", "wait"], 2)


# --- Descendants. -----------------------------------------------------------------------------------


def test_in_order_the_descendants_begin_anew_and_wait_and_the_answer_says_which_had_been_read() -> None:
    world = family("a")
    assert world.states() == ["over", "already_alloc", "over", "already_alloc", "already_alloc"]
    before = [claim.epoch for claim in world.group.claims]
    stepped = world.rewind({0: 0})
    assert stepped.had_been_read == [2, 3]
    assert world.states() == ["already_alloc", "transfer", "over", "transfer", "transfer"]
    assert all(claim.is_fenced for claim in world.group.claims if claim.state == "transfer")
    assert all(new.epoch > old for new, old in zip(world.group.claims, before, strict=True) if new.owner)
    world.release("a1")
    assert world.states() == ["already_alloc", "wait", "over", "wait", "wait"]
    assert world.claim(3).checkpoint == 2  # Only what was named goes back.
    world.consume(0)
    assert world.states() == ["over", "already_alloc", "over", "already_alloc", "already_alloc"]


def test_a_reset_of_the_whole_family_reads_everything_again_in_order() -> None:
    world = family("a")
    stepped = world.rewind(dict.fromkeys(range(5), 0))
    assert stepped.had_been_read == []
    world.release("a1")
    assert world.states() == ["already_alloc", "wait", "wait", "wait", "wait"]
    assert [claim.checkpoint for claim in world.group.claims] == [0] * 5
    world.consume(0)
    assert world.states() == ["over", "already_alloc", "already_alloc", "wait", "wait"]


def test_a_descendant_in_the_middle_leaves_its_ancestors_and_its_siblings_alone() -> None:
    world = family("a")
    untouched = [world.claim(0), world.claim(1)]
    assert world.rewind({2: 5}).had_been_read == [3]
    assert [world.claim(0), world.claim(1)] == untouched
    world.release("a1")
    assert world.states() == ["over", "already_alloc", "already_alloc", "wait", "wait"]


def test_out_of_order_the_descendants_go_on() -> None:
    world = family("a", in_order=False)
    untouched = list(world.group.claims[1:])
    assert world.rewind({0: 0}).had_been_read == []
    assert list(world.group.claims[1:]) == untouched


def test_free_descendants_wait_at_once() -> None:
    world = family()
    assert world.states() == ["over", "not_alloc", "over", "not_alloc", "not_alloc"]
    world.rewind({0: 3})
    assert world.states() == ["not_alloc", "wait", "over", "wait", "wait"]


def test_a_descendant_that_was_never_read_is_not_said_to_have_been() -> None:
    world = World(1, "a")
    world.append(0, 10)
    world.split(0)
    world.consume(0)
    world.split(1)  # Empty: over at once, and nobody has read it.
    assert world.states() == ["over", "over", *["already_alloc"] * 3]
    assert world.rewind({0: 0}).had_been_read == []


def test_a_forced_checkpoint_of_a_child_is_not_forgotten_when_its_parent_is_rewound_before_it_let_go() -> (
    None
):
    world = family("a")
    world.rewind({3: 0})
    world.rewind({0: 0})
    world.release("a1")
    assert (world.states()[3], world.claim(3).checkpoint) == ("wait", 0)


def test_who_was_waiting_in_the_old_order_gets_the_shard_only_in_the_new_one() -> None:
    # A descendant that begins anew must wait, whoever lets go first.
    for order in ([1, 3, 4], [4, 3, 1], [3, 1, 4]):
        world = family("a")
        world.rewind({0: 0})
        for shard in order:
            world.release("a1", shard)
        assert world.states() == ["already_alloc", "wait", "over", "wait", "wait"]


def test_a_reopened_shard_is_shared_out_like_any_other() -> None:
    world = World(1, "a", "b")
    world.append(0, 10)
    world.split(0)
    world.consume(0)
    assert world.owners() == [None, "a1", "b1"]
    world.rewind({0: 0})
    assert world.claim(0).owner in {"a1", "b1"}


# --- Together with a store that forgot. -------------------------------------------------------------


def test_a_forced_checkpoint_under_way_survives_a_store_that_forgot() -> None:
    world = World(1, "a")
    world.append(0, 10)
    world.save(0, 8)
    world.rewind({0: 3})
    world.step(Forgotten(seen=1000))
    world.release("a1")
    assert (world.states(), world.claim(0).checkpoint) == (["not_alloc"], 3)


@pytest.mark.parametrize("checkpoint", [0, 8])
def test_after_the_store_forgot_every_machine_begins_anew_from_what_it_still_knows(checkpoint: int) -> None:
    world = World(1, "a")
    world.append(0, 10)
    world.save(0, checkpoint)
    world.step(Forgotten(seen=1000))
    assert world.claim(0).epoch > EPOCH_JUMP
    world.release("a1", 0, checkpoint=10)
    assert (world.states(), world.claim(0).checkpoint) == (["not_alloc"], checkpoint)
