"""The consumer's side: until when it may act, and what an answer opens, closes and takes away."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.claims import ALREADY_ALLOC, TRANSFER
from shoal.core.group import Claim, GroupSettings, Member
from shoal.core.holding import (
    Answered,
    Assignment,
    Granted,
    Holding,
    answered,
    asked,
    assignment,
    let_go,
    may_act,
)
from shoal.core.limits import CLOCK_MARGIN
from shoal.core.membership import Beat
from shoal.core.model import ShardId

S0, S1, S2 = ShardId(0), ShardId(1), ShardId(2)
NEW = Holding(incarnation="a-1", timeout_ms=1000, interval_ms=250)
USABLE_MS = 950
"""Of a timeout of a second, less the margin."""


def grant(shard: ShardId, epoch: int, **changes: bool) -> Granted:
    return Granted(shard=shard, epoch=epoch, checkpoint=10 * epoch, **changes)


def answer(number: int, *granted: Granted, version: int = 1, timeout_ms: int = 1000) -> Assignment:
    return Assignment(number=number, version=version, timeout_ms=timeout_ms, granted=granted)


def unchanged(number: int, version: int = 1) -> Assignment:
    return Assignment(number=number, version=version, timeout_ms=1000, granted=None)


def told(holding: Holding, now_ms: int, *granted: Granted) -> Answered:
    """The holding after a heartbeat asked now, and its answer."""
    holding, beat = asked(holding, now_ms)
    return answered(holding, answer(beat.number, *granted))


# --- Deadlines. -------------------------------------------------------------------------------------


def test_the_margin_is_what_these_tests_count_with() -> None:
    assert int(1000 * (1 - CLOCK_MARGIN)) == USABLE_MS


def test_a_deadline_counts_from_the_question_not_from_the_answer_and_is_shorter_by_the_margin() -> None:
    holding = told(NEW, 5000, grant(S0, 7)).holding
    assert holding.leases[S0].deadline_ms == 5000 + USABLE_MS
    assert may_act(holding, S0, 7, 5000 + USABLE_MS - 1)
    assert not may_act(holding, S0, 7, 5000 + USABLE_MS)


def test_only_the_epoch_that_was_given_may_act_and_only_on_its_shard() -> None:
    holding = told(NEW, 0, grant(S0, 7)).holding
    assert may_act(holding, S0, 7, 1)
    assert not may_act(holding, S0, 6, 1)
    assert not may_act(holding, S0, 8, 1)
    assert not may_act(holding, S1, 7, 1)


def test_asking_alone_extends_nothing() -> None:
    holding = told(NEW, 0, grant(S0, 7)).holding
    holding, _ = asked(holding, 900)
    assert not may_act(holding, S0, 7, USABLE_MS)


def test_an_answer_extends_from_its_own_question_also_when_the_deadline_had_passed() -> None:
    holding = told(NEW, 0, grant(S0, 7)).holding
    holding, beat = asked(holding, 3000)
    assert not may_act(holding, S0, 7, 3001)
    holding = answered(holding, unchanged(beat.number)).holding
    assert holding.leases[S0].deadline_ms == 3000 + USABLE_MS


@pytest.mark.parametrize("is_short", [True, False])
def test_every_answer_but_that_to_the_last_heartbeat_is_dropped(is_short: bool) -> None:
    holding = told(NEW, 0, grant(S0, 7)).holding
    holding, first = asked(holding, 100)
    holding, second = asked(holding, 200)
    for number in (0, first.number, second.number + 1):
        late = unchanged(number, 99) if is_short else answer(number, grant(S1, 9), version=99)
        assert answered(holding, late) == Answered(holding=holding)
    after = answered(holding, unchanged(second.number, 5)).holding
    assert (after.leases[S0].deadline_ms, after.seen) == (200 + USABLE_MS, 5)


def test_heartbeats_are_numbered_and_say_what_is_held_and_seen() -> None:
    holding = told(NEW, 0, grant(S0, 7), grant(S2, 8)).holding
    holding, beat = asked(holding, 250)
    assert beat == Beat(
        incarnation="a-1", number=2, timeout_ms=1000, interval_ms=250, held={S0: 7, S2: 8}, seen=1
    )
    _, beat = asked(holding, 500)
    assert beat.number == 3


def test_a_lease_that_is_no_longer_extended_keeps_its_deadline_from_then_on() -> None:
    holding = told(NEW, 0, grant(S0, 7), grant(S1, 8)).holding
    after = told(holding, 500, grant(S0, 7, is_wanted=False, is_extended=False), grant(S1, 8)).holding
    assert after.leases[S0].deadline_ms == USABLE_MS
    assert after.leases[S1].deadline_ms == 500 + USABLE_MS
    after, beat = asked(after, 700)
    after = answered(after, unchanged(beat.number)).holding
    assert after.leases[S0].deadline_ms == USABLE_MS
    assert after.leases[S1].deadline_ms == 700 + USABLE_MS


# --- The timeout that is counted by. ----------------------------------------------------------------


def test_a_shorter_timeout_is_stated_with_the_next_heartbeat_and_shortens_what_is_held_at_once() -> None:
    holding = told(NEW, 0, grant(S0, 7)).holding
    holding, beat = asked(holding, 100)
    holding = answered(holding, answer(beat.number, grant(S0, 7), timeout_ms=400)).holding
    assert holding.leases[S0].deadline_ms == 100 + USABLE_MS  # So far it is watched by the longer one.
    holding, beat = asked(holding, 200)
    assert (beat.timeout_ms, beat.interval_ms) == (400, 200)
    assert holding.leases[S0].deadline_ms == 200 + 380
    holding, beat = asked(holding, 300)
    assert beat.timeout_ms == 400
    assert holding.leases[S0].deadline_ms == 200 + 380


def test_the_interval_goes_back_to_the_one_that_was_wished_when_the_timeout_allows_it_again() -> None:
    holding = replace(NEW, interval_ms=800, wished_ms=800)
    for timeout_ms, interval_ms in ((1000, 500), (400, 200), (1000, 500), (5000, 800)):
        holding, beat = asked(replace(holding, group_timeout_ms=timeout_ms), 0)
        assert (beat.timeout_ms, beat.interval_ms) == (timeout_ms, interval_ms)
        assert holding.interval_ms == interval_ms


def test_stating_a_shorter_timeout_never_moves_a_deadline_away() -> None:
    holding = told(NEW, 0, grant(S0, 7)).holding
    holding = replace(holding, group_timeout_ms=900)
    holding, _ = asked(holding, 800)
    assert holding.leases[S0].deadline_ms == USABLE_MS


def test_a_longer_timeout_counts_only_from_the_answer_to_the_heartbeat_that_stated_it() -> None:
    holding, beat = asked(NEW, 0)
    holding = answered(holding, answer(beat.number, grant(S0, 7), timeout_ms=4000)).holding
    assert holding.leases[S0].deadline_ms == USABLE_MS
    holding, beat = asked(holding, 200)
    assert beat.timeout_ms == 4000
    assert holding.leases[S0].deadline_ms == USABLE_MS
    holding = answered(holding, answer(beat.number, grant(S0, 7), timeout_ms=4000)).holding
    assert holding.leases[S0].deadline_ms == 200 + 3800
    assert holding.group_timeout_ms is None


# --- What an answer opens, closes and takes away. ---------------------------------------------------


def test_what_is_new_is_opened_from_its_checkpoint_and_told_once() -> None:
    first = told(NEW, 0, grant(S0, 7))
    assert [(lease.shard, lease.epoch, lease.checkpoint) for lease in first.opened] == [(S0, 7, 70)]
    assert (first.closing, first.lost, first.release_again) == ([], [], [])
    second = told(first.holding, 100, grant(S0, 7), grant(S1, 8))
    assert [lease.shard for lease in second.opened] == [S1]


def test_what_is_not_wanted_is_closing_and_acts_until_it_is_released() -> None:
    holding = told(NEW, 0, grant(S0, 7), grant(S1, 8)).holding
    for now_ms in (100, 200):
        after = told(holding, now_ms, grant(S0, 7, is_wanted=False), grant(S1, 8))
        assert [lease.shard for lease in after.closing] == [S0]
        assert (after.opened, after.lost) == ([], [])
        holding = after.holding
        assert may_act(holding, S0, 7, now_ms + USABLE_MS - 1)
    kept = told(holding, 300, grant(S0, 7), grant(S1, 8))
    assert kept.closing == []
    assert kept.holding.leases[S0].is_wanted


def test_what_the_hub_does_not_name_is_lost() -> None:
    holding = told(NEW, 0, grant(S0, 7), grant(S1, 8)).holding
    after = told(holding, 100, grant(S1, 8))
    assert [(lease.shard, lease.epoch) for lease in after.lost] == [(S0, 7)]
    assert not may_act(after.holding, S0, 7, 101)


def test_the_same_shard_under_a_new_epoch_is_lost_and_opened() -> None:
    holding = told(NEW, 0, grant(S0, 7)).holding
    after = told(holding, 100, grant(S0, 9))
    assert [lease.epoch for lease in after.lost] == [7]
    assert [(lease.epoch, lease.checkpoint) for lease in after.opened] == [(9, 90)]
    assert not may_act(after.holding, S0, 7, 101)
    assert may_act(after.holding, S0, 9, 101)


@pytest.mark.parametrize(("is_wanted", "is_extended"), [(False, False), (False, True), (True, False)])
def test_a_lease_that_was_taken_back_before_it_was_heard_of_is_released_unopened(
    is_wanted: bool, is_extended: bool
) -> None:
    after = told(NEW, 0, grant(S0, 7, is_wanted=is_wanted, is_extended=is_extended))
    assert (after.opened, after.closing, after.release_again) == ([], [], [(S0, 7)])
    assert not may_act(after.holding, S0, 7, 1)
    again = told(after.holding, 10, grant(S0, 7))
    assert (again.opened, again.release_again) == ([], [(S0, 7)])


# --- A release is for ever. -------------------------------------------------------------------------


def test_who_has_sent_a_release_acts_no_more_under_that_epoch_even_if_it_is_granted_again() -> None:
    holding = let_go(told(NEW, 0, grant(S0, 7), grant(S1, 8)).holding, S0, 7)
    assert not may_act(holding, S0, 7, 1)
    assert may_act(holding, S1, 8, 1)
    for now_ms in (100, 200):  # The hub has not heard of it: it is told again, and again.
        after = told(holding, now_ms, grant(S0, 7), grant(S1, 8))
        assert (after.opened, after.lost, after.release_again) == ([], [], [(S0, 7)])
        assert not may_act(after.holding, S0, 7, now_ms + 1)
        holding = after.holding


def test_a_shard_comes_back_under_a_higher_epoch() -> None:
    holding = let_go(told(NEW, 0, grant(S0, 7)).holding, S0, 7)
    after = told(holding, 100, grant(S0, 8))
    assert [lease.epoch for lease in after.opened] == [8]
    assert may_act(after.holding, S0, 8, 101)


def test_a_late_release_of_an_older_epoch_leaves_the_newer_lease_alone() -> None:
    holding = told(told(NEW, 0, grant(S0, 7)).holding, 100, grant(S0, 9)).holding
    assert may_act(let_go(holding, S0, 7), S0, 9, 101)


def test_a_late_release_of_an_older_epoch_does_not_undo_a_newer_release() -> None:
    holding = let_go(told(NEW, 0, grant(S0, 9)).holding, S0, 9)
    holding = let_go(holding, S0, 7)
    assert not told(holding, 100, grant(S0, 9)).opened


def test_hearing_of_an_older_epoch_does_not_undo_a_newer_release() -> None:
    holding = let_go(told(NEW, 0, grant(S0, 9)).holding, S0, 9)
    after = told(holding, 100, grant(S0, 7))
    assert after.release_again == [(S0, 7)]
    assert not told(after.holding, 200, grant(S0, 9)).opened


# --- The hub's answer. ------------------------------------------------------------------------------


def test_the_answer_names_what_the_member_holds_by_the_epoch_it_was_given() -> None:
    held = Claim(shard=S0, state=ALREADY_ALLOC, checkpoint=5, epoch=7, owner="a-1", owner_epoch=7)
    moving = replace(held, shard=S1, state=TRANSFER, epoch=8, owner_epoch=8, next="b-1")
    fenced = replace(held, shard=S2, state=TRANSFER, epoch=12, owner_epoch=9)
    frozen = replace(moving, shard=ShardId(3), lapse_ms=1)
    member = Member(incarnation="a-1", name="a", timeout_ms=900, interval_ms=250, assigned=42)
    beat = Beat(incarnation="a-1", number=6, timeout_ms=900, interval_ms=250, held={}, seen=41)
    settings = GroupSettings(timeout_ms=1000)
    full = assignment(settings, member, [held, moving, fenced, frozen], beat)
    assert (full.number, full.version, full.timeout_ms) == (6, 42, 1000)
    assert full.granted == (
        Granted(shard=S0, epoch=7, checkpoint=5),
        Granted(shard=S1, epoch=8, checkpoint=5, is_wanted=False),
        Granted(shard=S2, epoch=9, checkpoint=5, is_wanted=False, is_extended=False),
        Granted(shard=ShardId(3), epoch=8, checkpoint=5, is_wanted=False, is_extended=False),
    )
    assert assignment(settings, member, None, beat).granted is None


# --- Any history. -----------------------------------------------------------------------------------


@given(st.data())
def test_in_any_history_nothing_acts_beyond_its_question_plus_timeout_or_after_its_release(
    data: st.DataObject,
) -> None:
    holding, now_ms, questions = NEW, 0, [0]
    released: set[tuple[ShardId, int]] = set()
    granted = st.builds(
        grant,
        st.sampled_from([S0, S1]),
        st.integers(1, 6),
        is_wanted=st.booleans(),
        is_extended=st.booleans(),
    )
    for _ in range(data.draw(st.integers(1, 25))):
        now_ms += data.draw(st.integers(0, 400))
        match data.draw(st.sampled_from(["ask", "answer", "answer", "let go"])):
            case "ask":
                holding, beat = asked(holding, now_ms)
                questions.append(now_ms)
                assert beat.number == len(questions) - 1
            case "answer":
                number = data.draw(st.integers(max(0, holding.number - 1), holding.number))
                grants = data.draw(st.lists(granted, max_size=2, unique_by=lambda one: one.shard))
                timeout_ms = data.draw(st.sampled_from([400, 1000]))
                before = holding
                change = answered(holding, answer(number, *grants, timeout_ms=timeout_ms))
                holding = change.holding
                gone = {(lease.shard, lease.epoch) for lease in change.lost}
                opened = {(lease.shard, lease.epoch) for lease in change.opened}
                held = {(lease.shard, lease.epoch) for lease in before.leases.values()}
                assert {(lease.shard, lease.epoch) for lease in holding.leases.values()} == (
                    held - gone
                ) | opened
                released |= set(change.release_again)
            case _:
                pair = (data.draw(st.sampled_from([S0, S1])), data.draw(st.integers(1, 6)))
                holding = let_go(holding, *pair)
                released.add(pair)
        for shard, epoch in released:
            assert not may_act(holding, shard, epoch, 0)
        for lease in holding.leases.values():
            assert lease.deadline_ms <= questions[-1] + USABLE_MS
