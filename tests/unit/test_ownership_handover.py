"""Hand-over between living consumers, between a dead one and the others, and between two of one name."""

from dataclasses import replace

import pytest

from shoal.core.errors import NameTaken
from shoal.core.events import (
    Expire,
    Forgotten,
    Join,
    Leave,
    Letting,
    Release,
    Retire,
    Sync,
    Update,
)
from shoal.core.group import ShardState
from shoal.core.limits import EPOCH_JUMP, GONE_MEMBERS_KEPT
from shoal.core.model import ShardId
from tests.unit.group_world import INTERVAL_MS, TIMEOUT_MS, World, kinds

# --- Joining. ---------------------------------------------------------------------------------------


def test_a_join_moves_only_what_it_must_and_only_after_a_release_with_the_checkpoint() -> None:
    world = World(4, "a", "b")
    world.release("a1")
    assert world.owners() == ["a1", "a1", "b1", "b1"]
    world.append(3, 10)
    world.join("c1")
    assert world.states() == ["already_alloc", "already_alloc", "already_alloc", "transfer"]
    before = world.claim(3)
    assert (before.owner, before.next) == ("b1", "c1")
    stepped = world.release("b1", 3, checkpoint=6)
    after = world.claim(3)
    assert (after.owner, after.checkpoint, after.next) == ("c1", 6, None)
    assert after.epoch > before.epoch
    assert stepped.let_go == [3]
    assert [(note.kind, note.consumer, note.shard, note.epoch) for note in stepped.notes] == [
        ("released", "b", 3, before.epoch),
        ("granted", "c", 3, after.epoch),
    ]


def test_a_repeated_join_changes_nothing() -> None:
    world = World(2, "a")
    group = world.group
    assert world.join("a1").group is group


def test_a_release_without_a_checkpoint_leaves_what_was_saved() -> None:
    world = World(2, "a", "b")
    world.append(1, 10)
    world.save(1, 4)
    world.release("a1")
    assert world.claim(1).checkpoint == 4


def test_a_repeated_release_and_one_of_an_old_epoch_let_nothing_go() -> None:
    world = World(2, "a", "b")
    old = world.claim(1).epoch
    world.release("a1")
    for incarnation, epoch in (("a1", old), ("b1", old), ("a1", world.claim(1).epoch), ("z1", old)):
        letting = Letting(shard=ShardId(1), epoch=epoch)
        group = world.group
        stepped = world.step(Release(incarnation=incarnation, lettings=[letting, letting]))
        assert stepped.group is group
        assert stepped.let_go == []


def test_a_shard_that_was_not_asked_for_may_be_let_go_and_comes_back_under_a_new_epoch() -> None:
    world = World(1, "a")
    assert kinds(world.release("a1", 0)) == ["released", "granted"]
    assert (world.owners(), world.claim(0).epoch) == (["a1"], 2)


def test_what_is_on_its_way_is_not_moved_again_by_the_next_join() -> None:
    # The Kinesis client's "pending handoff not moved": ours.
    world = World(3, "a", "b")
    assert [claim.next for claim in world.group.claims] == [None, None, "b1"]
    world.join("c1")
    assert [claim.next for claim in world.group.claims] == [None, "c1", "b1"]
    world.release("a1")
    assert world.owners() == ["a1", "c1", "b1"]


def test_a_hand_over_whose_next_consumer_goes_finds_another_one() -> None:
    world = World(3, "a", "b", "c")
    world.leave("b1")
    assert [claim.next for claim in world.group.claims] == [None, "c1", None]
    assert world.owners() == ["a1", "a1", "a1"]


# --- Leaving. ---------------------------------------------------------------------------------------


def test_who_leaves_hands_everything_over_at_once() -> None:
    world = World(4, "a", "b")
    world.release("a1")
    world.append(0, 9)
    letting = Letting(shard=ShardId(0), epoch=world.claim(0).epoch, checkpoint=9)
    stepped = world.step(Leave(incarnation="a1", lettings=[letting]))
    assert stepped.let_go == [0, 1]
    assert kinds(stepped) == ["released", "left", "granted", "granted"]
    assert world.owners() == ["b1"] * 4
    assert world.claim(0).checkpoint == 9
    group = world.group
    assert world.leave("a1").group is group


def test_a_leave_while_a_shard_is_asked_back_gives_it_to_the_next_consumer() -> None:
    world = World(2, "a", "b")
    world.leave("a1")
    assert world.owners() == ["b1", "b1"]


def test_who_leaves_under_a_hand_over_that_was_given_up_gets_nothing_back() -> None:
    world = World(2, "a", "b", handover_timeout_ms=INTERVAL_MS)
    world.watch(INTERVAL_MS)
    assert world.claim(1).lapse_ms > 0
    world.leave("b1")  # Now the shard is meant for its owner again, but only under a new epoch.
    assert world.claim(1).next == "a1"
    letting = Letting(shard=ShardId(1), epoch=world.claim(1).owner_epoch)
    stepped = world.step(Leave(incarnation="a1", lettings=[letting]))
    assert kinds(stepped) == ["released", "left"]
    assert stepped.let_go == [1, 0]


def test_who_retires_drains_and_gets_nothing_new() -> None:
    world = World(4, "a", "b")
    world.release("a1")
    assert kinds(world.step(Retire(incarnation="a1"))) == ["leaving", "moving", "moving"]
    assert world.states()[:2] == ["transfer", "transfer"]
    group = world.group
    assert world.step(Retire(incarnation="a1")).group is group
    world.split(3)
    assert world.held("a1") == [0, 1]
    world.release("a1", 0)
    assert (world.held("a1"), world.claim(0).owner) == ([1], "b1")


def test_the_last_one_to_retire_keeps_its_shards_until_someone_comes() -> None:
    world = World(1, "a")
    world.step(Retire(incarnation="a1"))
    assert world.states() == ["already_alloc"]
    world.join("b1")
    assert (world.states(), world.claim(0).next) == (["transfer"], "b1")


# --- Silence. ---------------------------------------------------------------------------------------


def test_a_watch_that_ran_out_before_the_last_heartbeat_expires_nobody() -> None:
    world = World(1, "a")
    member = replace(world.group.members["a1"], beat=5, stood_ms=TIMEOUT_MS)
    world.group = replace(world.group, members={"a1": member})
    group = world.group
    assert world.step(Expire(incarnation="a1", beat=4)).group is group
    assert world.step(Expire(incarnation="z1", beat=5)).group is group
    assert kinds(world.step(Expire(incarnation="a1", beat=5))) == ["expired"]
    assert world.states() == ["not_alloc"]


def test_a_member_is_expired_only_once_its_silence_is_as_long_as_its_timeout() -> None:
    world = World(1, "a")
    member = replace(world.group.members["a1"], stood_ms=TIMEOUT_MS - 1)
    world.group = group = replace(world.group, members={"a1": member})
    assert world.step(Expire(incarnation="a1", beat=0)).group is group


# --- Two processes under one name. ------------------------------------------------------------------


def test_the_newer_process_bars_the_older_and_gets_its_shards_only_after_a_release() -> None:
    world = World(2, "a", "b")
    world.release("a1")
    assert kinds(world.join("a2")) == ["barred", "joined", "moving"]
    assert (world.status("a1"), world.owners(), world.claim(0).next) == ("barred", ["a1", "b1"], "a2")
    world.refused(Join(name="a", incarnation="a1", timeout_ms=1000, interval_ms=250), NameTaken)
    world.release("a1", 0)
    assert (world.status("a1"), world.owners()) == ("gone", ["a2", "b1"])


def test_the_newer_process_gets_the_shards_of_the_older_after_the_watch() -> None:
    world = World(2, "a")
    world.join("a2")
    assert kinds(world.expire("a1")) == ["expired", "granted", "granted"]
    assert world.owners() == ["a2", "a2"]


def test_a_third_process_bars_the_second_which_holds_nothing_and_is_gone() -> None:
    world = World(1, "a")
    world.join("a2")
    world.join("a3")
    assert [world.status(key) for key in ("a1", "a2", "a3")] == ["barred", "gone", "active"]
    assert (world.owners(), world.claim(0).next) == (["a1"], "a3")


def test_who_was_expired_and_comes_back_does_not_bar_who_has_its_name_by_now() -> None:
    world = World(2, "a", "b")
    world.expire("b1")
    again = Join(name="b", incarnation="b2", timeout_ms=1000, interval_ms=250, is_again=True)
    assert kinds(world.step(again)) == ["joined", "moving"]
    world.expire("b2")
    world.join("b3")
    world.refused(replace(again, incarnation="b4"), NameTaken)
    assert world.status("b3") == "active"


def test_a_restart_under_its_name_moves_no_shard_of_anyone_else() -> None:
    world = World(6, "a", "b", "c")
    world.release("a1")
    world.release("b1")
    before = world.owners()
    world.join("b2")
    world.release("b1")
    assert world.owners() == [{"b1": "b2"}.get(str(owner), owner) for owner in before]


def test_the_last_to_go_is_remembered_however_long_it_had_been_there() -> None:
    # It joined before all the others that came and went, and nothing was told to it since.
    world = World(1, "a", strategies={})
    for number in range(GONE_MEMBERS_KEPT + 3):
        join = Join(name="b", incarnation=f"b{number}", timeout_ms=1000, interval_ms=250)
        world.step(join)
        world.leave(f"b{number}")
    world.leave("a1")
    assert world.status("a1") == "gone"
    assert len(world.group.members) == GONE_MEMBERS_KEPT
    assert "b0" not in world.group.members


# --- A bound on a hand-over. ------------------------------------------------------------------------


def test_without_a_bound_a_living_owner_is_waited_for_however_long_it_takes() -> None:
    # The Kinesis client's "expired handoff may be moved": differing on purpose. Here a living owner is forced
    # only if the user has set a bound, since to force it is to repeat what it had not saved.
    world = World(2, "a", "b")
    group = world.group
    assert world.watch(INTERVAL_MS, 1000) == []
    assert world.group is group


def test_after_the_bound_the_deadline_is_no_longer_extended_and_once_it_passed_the_shard_moves() -> None:
    world = World(2, "a", "b", handover_timeout_ms=500)
    assert world.watch(INTERVAL_MS) == []
    assert (world.claim(1).handover_ms, world.claim(1).is_extended) == (INTERVAL_MS, True)
    assert world.watch(INTERVAL_MS) == ["frozen"]
    frozen = world.claim(1)
    assert (frozen.lapse_ms, frozen.is_extended, frozen.is_fenced) == (TIMEOUT_MS, False, False)
    assert world.watch(INTERVAL_MS, 3) == []
    assert world.watch(INTERVAL_MS) == ["forced", "granted"]
    assert world.claim(1).owner == "b1"
    assert world.claim(1).epoch > frozen.epoch


def test_a_look_counts_at_most_the_owners_interval_for_a_hand_over() -> None:
    world = World(2, "a", "b", handover_timeout_ms=500)
    assert world.watch(3_600_000) == []
    assert world.claim(1).handover_ms == INTERVAL_MS
    group = world.group
    for nothing in (0, -100):
        assert world.watch(nothing) == []
        assert world.group is group


def test_the_lapse_lasts_as_long_as_the_owner_counts_by() -> None:
    world = World(2, "a", "b", handover_timeout_ms=INTERVAL_MS)
    member = replace(world.group.members["a1"], timeout_ms=2000)
    world.group = replace(world.group, members={**world.group.members, "a1": member})
    assert world.watch(INTERVAL_MS) == ["frozen"]
    assert world.watch(INTERVAL_MS, 7) == []
    assert world.watch(INTERVAL_MS) == ["forced", "granted"]


def test_an_owner_that_lets_go_in_time_is_not_forced() -> None:
    world = World(2, "a", "b", handover_timeout_ms=INTERVAL_MS)
    world.append(1, 9)
    world.watch(INTERVAL_MS)
    world.release("a1", 1, checkpoint=9)
    assert (world.claim(1).owner, world.claim(1).checkpoint, world.claim(1).lapse_ms) == ("b1", 9, 0)
    assert world.watch(INTERVAL_MS, 10) == []


def test_a_hand_over_that_was_given_up_runs_out_even_if_the_bound_is_taken_away() -> None:
    world = World(2, "a", "b", handover_timeout_ms=INTERVAL_MS)
    world.watch(INTERVAL_MS)
    world.update(handover_timeout_ms=None)
    assert world.watch(INTERVAL_MS, 4) == ["forced", "granted"]


def test_a_hand_over_is_watched_whatever_else_happens_in_the_group() -> None:
    world = World(4, "a", "b", handover_timeout_ms=500)
    told = []
    for round_ in range(8):
        seen = world.group.timers
        asked = [claim.shard for claim in world.group.claims if claim.state is ShardState.TRANSFER]
        world.join(f"z{round_}")
        world.update(timeout_ms=TIMEOUT_MS + round_)
        world.leave(f"z{round_}")
        told += [note.kind for note in world.watched(INTERVAL_MS, seen).notes if note.shard in asked]
    assert "frozen" in told
    assert told.count("forced") == 2
    assert sorted(str(owner) for owner in world.owners()) == ["a1", "a1", "b1", "b1"]


def test_two_who_watched_the_same_time_count_it_once_and_what_began_since_nobody_has_watched() -> None:
    world = World(2, "a", "b", handover_timeout_ms=1000)
    seen = world.group.timers
    world.watched(INTERVAL_MS, seen)
    after = world.group
    world.watched(INTERVAL_MS, seen)
    assert world.group is after
    assert world.claim(1).handover_ms == INTERVAL_MS
    world.watch(INTERVAL_MS, 2)
    asked = world.group.timers
    assert world.watch(INTERVAL_MS) == ["frozen"]
    frozen = world.group
    world.watched(INTERVAL_MS, asked)  # It saw the owner asked, not that its deadline stands.
    assert world.group is frozen
    world.release("a1")
    world.leave("a1")
    world.join("a2")
    fresh = world.group
    assert ShardState.TRANSFER in {claim.state for claim in fresh.claims}
    world.watched(INTERVAL_MS, frozen.timers)
    assert world.group is fresh


def test_distrust_passes_whatever_else_happens_and_a_second_forgetting_waits_it_out_anew() -> None:
    world = World(2, "a", "b")
    world.step(Forgotten(seen=world.group.version + 7))
    seen = world.group.timers
    world.join("c1")
    world.watched(INTERVAL_MS, seen)
    assert world.group.distrust_ms == TIMEOUT_MS - INTERVAL_MS
    again = world.group
    world.watched(INTERVAL_MS, seen)
    assert world.group is again
    world.step(Forgotten(seen=world.group.version + 7))
    seen = world.group.timers
    world.step(Forgotten(seen=world.group.version + 7))
    assert world.group.distrust_ms == seen.distrust[0] == TIMEOUT_MS
    world.watched(INTERVAL_MS, seen)
    assert world.group.distrust_ms == TIMEOUT_MS


def test_a_watch_that_ticks_is_not_news_for_the_owner() -> None:
    world = World(2, "a", "b", handover_timeout_ms=1000)
    told = world.group.members["a1"].assigned
    world.watch(INTERVAL_MS, 3)
    assert world.group.members["a1"].assigned == told
    world.watch(INTERVAL_MS)  # Frozen: now it is.
    assert world.group.members["a1"].assigned == world.group.version


# --- A store that forgot, and rules that are not known. ---------------------------------------------


def test_after_the_store_forgot_commits_nobody_is_granted_anything_for_one_timeout() -> None:
    world = World(2, "a", "b")
    world.release("a1")
    before = world.group
    assert kinds(world.step(Forgotten(seen=before.version + 7))) == ["distrusted"]
    assert world.group.version == before.version + 8 + EPOCH_JUMP
    assert world.group.epoch > before.epoch + EPOCH_JUMP
    assert all(claim.is_fenced for claim in world.group.claims)
    world.release("a1")
    world.leave("b1")
    assert world.owners() == [None, None]
    assert world.watch(3_600_000, 3) == []
    assert world.watch(INTERVAL_MS) == ["granted", "granted"]
    assert world.owners() == ["a1", "a1"]
    assert all(claim.epoch > before.epoch + EPOCH_JUMP for claim in world.group.claims)


@pytest.mark.parametrize("state", ["not_alloc", "already_alloc", "transfer"])
def test_an_epoch_that_was_given_and_forgotten_lies_behind_whatever_the_store_knows(state: str) -> None:
    # Ahead, it would be taken for one that was never given, and its consumer's heartbeats would be refused.
    world = World(1)
    world.append(0, 5)
    if state != "not_alloc":
        world.join("a1")
    if state == "transfer":
        world.rewind({0: 2})
    assert world.states() == [state]
    given_and_forgotten = world.group.epoch + 5
    world.step(Forgotten(seen=world.group.version + 5))
    assert world.claim(0).epoch > given_and_forgotten


def test_a_version_that_the_store_has_is_no_forgetting() -> None:
    world = World(2, "a")
    group = world.group
    assert world.step(Forgotten(seen=group.version)).group is group


def test_the_longest_timeout_that_anyone_counts_by_is_waited_out() -> None:
    world = World(1, "a")
    member = replace(world.group.members["a1"], timeout_ms=5000)
    world.group = replace(world.group, members={"a1": member})
    world.step(Forgotten(seen=100))
    assert world.group.distrust_ms == 5000


@pytest.mark.parametrize("unknown", [{"rules": 99}, {"strategy": "of a later version"}])
def test_rules_or_a_strategy_not_known_decide_nothing_and_members_come_and_go(
    unknown: dict[str, object],
) -> None:
    world = World(3, "a")
    world.update(**unknown)
    assert kinds(world.join("b1")) == ["joined"]
    assert world.owners() == ["a1"] * 3
    assert kinds(world.step(Retire(incarnation="a1"))) == ["leaving"]
    assert kinds(world.expire("a1")) == ["expired"]
    assert (world.owners(), world.status("b1")) == ([None] * 3, "active")
    world.step(Update(settings=replace(world.group.settings, rules=1, strategy="balanced")))
    assert world.owners() == ["b1"] * 3


def test_under_rules_not_known_a_release_grants_nothing() -> None:
    world = World(2, "a", "b")
    world.update(rules=99)
    assert kinds(world.release("a1", 1)) == ["released"]
    assert world.states() == ["already_alloc", "not_alloc"]
    assert world.step(Sync()).notes == ()


# --- The short way. ---------------------------------------------------------------------------------


def test_a_release_to_a_living_next_consumer_is_plain_and_comes_out_as_the_step_does() -> None:
    world = World(6, "a", "b", "c")
    world.release("a1")
    assert world.plain == 1
    world.leave("c1")
    assert world.owners().count("a1") == world.owners().count("b1")


def test_what_is_more_than_a_hand_over_is_left_to_the_step() -> None:
    nobody_next = World(2, "a")
    nobody_next.release("a1", 0)
    begins_anew = World(2, "a")
    begins_anew.rewind({0: 0})
    begins_anew.release("a1", 0)
    not_theirs = World(4, "a", "b")
    not_theirs.step(Release(incarnation="b1", lettings=[Letting(shard=ShardId(3), epoch=4)]))
    assert (nobody_next.plain, begins_anew.plain, not_theirs.plain) == (0, 0, 0)
