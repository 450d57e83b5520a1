"""One shard in a worker's hands, case by case: phases, endings, going back, failures, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from shoal.core.checkpoint import Checkpoint, is_same
from shoal.core.delivery import Tenure
from shoal.core.errors import CheckpointMisuse, LeaseLost
from shoal.core.model import ShardId
from shoal.core.retry import Backoff, FailureRules, Policy
from shoal.core.tasks import (
    Action,
    Blocked,
    Failure,
    Fetch,
    Initialize,
    Phase,
    Piece,
    Process,
    ProcessNothing,
    Reason,
    Release,
    SetAside,
    ShutDown,
    StopWorker,
)
from tests.unit.reference_cases import ours

ODD = Failure(kind="ValueError", text="odd")
AWAY = Failure(kind="ConnectionError", text="away", is_outage=True)
STRICT = FailureRules(backoff=Backoff(first_s=1.0, jitter=0))
BEST = FailureRules(policy=Policy.BEST_TRIED, backoff=Backoff(first_s=1.0, jitter=0), outage_after=2)
STOP = FailureRules(policy=Policy.STOP, backoff=Backoff(first_s=1.0, jitter=0))


def tenure(rules: FailureRules = STRICT, *, at: int = 0, lanes: int = 1, limit: int | None = None) -> Tenure:
    return Tenure(ShardId(3), 7, at, rules, lanes=lanes, limit=limit)


def processing(
    rules: FailureRules = STRICT, *, at: int = 0, lanes: int = 1, limit: int | None = None
) -> Tenure:
    """One whose lanes are initialized."""
    made = tenure(rules, at=at, lanes=lanes, limit=limit)
    made.begin()
    for action in made.advance(0):
        assert isinstance(action, Initialize)
        made.returned(action.lane)
    assert made.advance(0) == []
    assert phase(made) is Phase.PROCESSING
    return made


def phase(made: Tenure) -> Phase:
    return made.phase


def blocked(made: Tenure) -> Blocked | None:
    return made.blocked


def wanted(made: Tenure) -> Fetch | None:
    return made.wanted


def is_drained(made: Tenure) -> bool:
    return made.is_drained


def give(made: Tenure, *parts: Sequence[int], is_end: bool = False, lanes: int = 1) -> None:
    """Fetch these pieces: offset o belongs to lane o % lanes."""
    cut: list[list[Piece]] = [[] for _ in range(lanes)]
    for part in parts:
        for lane in range(lanes):
            mine = [offset for offset in part if offset % lanes == lane]
            if mine:
                cut[lane].append(Piece(mine, 10 * len(mine)))
    last = max((part[-1] + 1 for part in parts if part), default=made.fetched)
    made.got(cut, last, is_end=is_end)


def begun(made: Tenure, now_ms: int = 0) -> list[Action]:
    return made.advance(now_ms)


def process(made: Tenure, now_ms: int = 0) -> list[int]:
    """The one batch that is handed out now."""
    (action,) = made.advance(now_ms)
    assert isinstance(action, Process), action
    return list(action.piece.offsets)


# --- Phases. -----------------------------------------------------------------------------------------


@ours("S17")
def test_a_shard_waits_initializes_processes_stops_and_completes() -> None:
    made = tenure()
    assert begun(made) == []
    assert phase(made) is Phase.WAITING
    made.begin()
    assert begun(made) == [Initialize(lane=0)]
    assert begun(made) == [], "one call at a time"
    made.returned(0)
    assert begun(made) == []
    assert phase(made) is Phase.PROCESSING
    assert wanted(made) == Fetch(offset=0)
    give(made, [0, 1])
    assert process(made) == [0, 1]
    made.ask(Reason.MOVED)
    assert begun(made) == [], "what runs may finish"
    assert made.save(0, 2) == 2
    made.returned(0)
    assert begun(made) == [ShutDown(lane=0, reason=Reason.MOVED)]
    made.returned(0)
    assert begun(made) == [Release(checkpoint=2)]
    assert phase(made) is Phase.STOP_COMPLETED
    assert begun(made) == []


def test_begin_matters_only_to_one_that_waits() -> None:
    made = processing()
    made.begin()
    assert phase(made) is Phase.PROCESSING


def test_one_that_never_began_is_released_without_a_word_to_user_code() -> None:
    made = tenure(at=5)
    made.ask(Reason.STOPPED)
    assert begun(made) == [Release(checkpoint=5)]


def test_one_asked_for_while_it_initializes_is_shut_down_after_it() -> None:
    made = tenure()
    made.begin()
    begun(made)
    made.ask(Reason.MOVED)
    assert begun(made) == []
    made.returned(0)
    assert begun(made) == [ShutDown(lane=0, reason=Reason.MOVED)]


def test_initialize_that_raises_is_tried_again_after_a_while() -> None:
    made = tenure()
    made.begin()
    begun(made)
    assert made.raised(0, ODD, 100, 0.5) == []
    assert blocked(made) == Blocked(failure=ODD, attempts=1)
    assert made.due_ms() == 1100
    assert begun(made, 1099) == []
    assert begun(made, 1100) == [Initialize(lane=0)]
    made.returned(0)
    begun(made, 1100)
    assert blocked(made) is None
    assert phase(made) is Phase.PROCESSING


def test_initialize_that_raises_on_the_way_out_is_not_shut_down() -> None:
    made = tenure()
    made.begin()
    begun(made)
    made.ask(Reason.STOPPED)
    assert made.raised(0, ODD, 0, 0.5) == []
    assert begun(made) == [Release(checkpoint=0)]


@pytest.mark.parametrize("lanes", [1, 3])
def test_what_cannot_happen_raises_and_changes_nothing(lanes: int) -> None:
    made = processing(lanes=lanes)
    give(made, range(6), lanes=lanes)
    before = _state(made)
    events: list[Any] = [
        lambda: made.returned(0),
        lambda: made.returned(0, back_to=0),
        lambda: made.raised(0, ODD, 0, 0.5),
        lambda: made.postponed(0, 5),
        lambda: made.got([[]] * (lanes + 1), 9, is_end=True),
    ]
    for event in events:
        with pytest.raises(AssertionError):
            event()
        assert _state(made) == before
    with pytest.raises(CheckpointMisuse):
        made.save(0, 1)
    assert _state(made) == before


def test_one_that_completed_cannot_be_given_up_saved_or_lost_any_more() -> None:
    made = processing(at=4)
    made.ask(Reason.STOPPED)
    begun(made)
    made.returned(0)
    begun(made)
    assert phase(made) is Phase.STOP_COMPLETED
    with pytest.raises(AssertionError):
        made.give_up()
    with pytest.raises(LeaseLost):
        made.save(0, None)
    made.lose(None)
    made.ask(Reason.MOVED)
    assert (made.phase, made.reason) == (Phase.STOP_COMPLETED, Reason.STOPPED)


# --- Endings. ----------------------------------------------------------------------------------------


def test_the_end_is_saved_for_the_user_when_shutdown_returned() -> None:
    made = processing()
    give(made, [0, 1], is_end=True)
    process(made)
    made.returned(0)
    assert begun(made) == [ShutDown(lane=0, reason=Reason.ENDED)]
    made.returned(0)
    assert begun(made) == [Release(checkpoint=2)]


def test_a_shard_that_ends_without_a_record_is_shut_down_too() -> None:
    made = processing(at=9)
    made.got([[]], 9, is_end=True)
    assert begun(made) == [ShutDown(lane=0, reason=Reason.ENDED)]


def test_when_shutdown_of_an_ended_shard_raises_what_was_not_saved_comes_again() -> None:
    made = processing()
    give(made, [0, 1, 2], is_end=True)
    process(made)
    made.save(0, 1)
    made.returned(0)
    begun(made)
    assert made.raised(0, ODD, 0, 0.5) == []
    assert begun(made) == []
    assert phase(made) is Phase.INITIALIZING
    assert wanted(made) is None
    assert begun(made, 1000) == [Initialize(lane=0)]
    made.returned(0)
    begun(made, 1000)
    assert wanted(made) == Fetch(offset=1)
    assert made.save(0, None) == 1, "what was processed before does not count as processed now"
    give(made, [1, 2], is_end=True)
    assert process(made, 1000) == [1, 2]
    made.returned(0)
    assert begun(made, 1000) == [ShutDown(lane=0, reason=Reason.ENDED)]
    made.returned(0)
    assert begun(made, 1000) == [Release(checkpoint=3)]


def test_when_shutdown_raises_after_the_store_has_the_end_the_shard_has_ended() -> None:
    made = processing()
    give(made, [0], is_end=True)
    process(made)
    made.save(0, 1)
    made.persisted = 1
    made.returned(0)
    begun(made)
    assert made.raised(0, ODD, 0, 0.5) == []
    assert begun(made) == [Release(checkpoint=1)]


def test_one_that_is_wanted_elsewhere_is_not_opened_again_when_its_last_shutdown_raises() -> None:
    made = processing()
    give(made, [0, 1], is_end=True)
    process(made)
    made.save(0, 1)
    made.returned(0)
    begun(made)
    made.ask(Reason.MOVED)
    made.raised(0, ODD, 0, 0.5)
    assert begun(made) == [Release(checkpoint=1)]
    assert (made.phase, made.reason) == (Phase.STOP_COMPLETED, Reason.MOVED)


def test_one_that_is_lost_is_not_opened_again_when_its_last_shutdown_raises() -> None:
    made = processing()
    give(made, [0, 1], is_end=True)
    process(made)
    made.returned(0)
    begun(made)
    made.raised(0, ODD, 0, 0.5)
    made.lose(2)
    assert begun(made) == [Release(checkpoint=None)]


@pytest.mark.parametrize("reason", [Reason.MOVED, Reason.STOPPED])
def test_a_shutdown_that_raises_had_its_chance(reason: Reason) -> None:
    made = processing()
    give(made, [0, 1])
    process(made)
    made.returned(0)
    made.ask(reason)
    begun(made)
    made.save(0, None)
    assert made.raised(0, ODD, 0, 0.5) == []
    assert begun(made) == [Release(checkpoint=2)]


@ours("S17 a lost lease is shut down at once, without rights")
def test_one_that_is_lost_saves_nothing_and_releases_nothing() -> None:
    made = processing()
    give(made, [0, 1])
    process(made)
    made.lose(None)
    with pytest.raises(LeaseLost):
        made.save(0, 2)
    assert begun(made) == []
    made.returned(0)
    assert begun(made) == [ShutDown(lane=0, reason=Reason.LOST)]
    with pytest.raises(LeaseLost):
        made.save(0, None)
    made.returned(0)
    assert begun(made) == [Release(checkpoint=None)]


def test_one_that_is_in_doubt_saves_nothing_more_and_is_let_go_of_as_it_was_saved() -> None:
    made = processing()
    give(made, [0, 1])
    process(made)
    made.doubt()
    with pytest.raises(LeaseLost):
        made.save(0, 2)
    made.returned(0)
    assert begun(made) == [ShutDown(lane=0, reason=Reason.LOST)]
    made.returned(0)
    (release,) = begun(made)
    assert release == Release(checkpoint=None, as_saved=True)
    assert release.is_due


def test_one_that_is_in_doubt_and_given_up_is_let_go_of_as_it_was_saved() -> None:
    made = processing()
    give(made, [0, 1])
    process(made)
    made.doubt()
    assert made.give_up() == Release(checkpoint=None, as_saved=True)


def test_one_that_is_given_up_while_a_transaction_saves_it_is_let_go_of_as_it_was_saved() -> None:
    made = processing()
    give(made, [0, 1])
    process(made)
    made.committing += 1
    assert made.give_up() == Release(checkpoint=None, as_saved=True)


@pytest.mark.parametrize(
    ("persisted", "end", "reason"),
    [(2, 2, Reason.ENDED), (2, 3, Reason.LOST), (2, None, Reason.LOST), (1, 2, Reason.LOST)],
)
def test_one_that_is_gone_has_ended_only_if_the_store_had_its_end(
    persisted: int, end: int | None, reason: Reason
) -> None:
    made = processing()
    give(made, [0, 1])
    process(made)
    made.save(0, 2)
    made.persisted = persisted
    made.lose(end)
    assert made.reason is reason
    made.returned(0)
    assert begun(made) == [ShutDown(lane=0, reason=reason)]
    made.returned(0)
    (release,) = begun(made)
    assert isinstance(release, Release)
    assert release.checkpoint == (end if reason is Reason.ENDED else None)


def test_one_that_was_asked_for_and_is_lost_meanwhile_is_lost() -> None:
    made = processing()
    give(made, [0])
    process(made)
    made.ask(Reason.MOVED)
    made.lose(None)
    made.returned(0)
    assert begun(made) == [ShutDown(lane=0, reason=Reason.LOST)]


def test_giving_up_releases_what_was_declared_done_and_nothing_later_counts() -> None:
    made = processing()
    give(made, [0, 1, 2])
    process(made)
    made.save(0, 1)
    assert made.give_up() == Release(checkpoint=1)
    with pytest.raises(LeaseLost):
        made.save(0, 2)
    assert begun(made) == []
    made.returned(0)
    assert begun(made) == [ShutDown(lane=0, reason=Reason.LOST)]


def test_a_stuck_call_is_told_of_once_and_only_process_is_stuck() -> None:
    made = tenure()
    made.begin()
    begun(made)
    assert made.stuck(10**9, 50) == []
    made.returned(0)
    begun(made)
    give(made, [0], [1])
    begun(made, 100)
    assert made.stuck(150, 50) == []
    assert [lane.number for lane in made.stuck(151, 50)] == [0]
    assert made.stuck(10**9, 50) == []
    made.returned(0)
    begun(made, 200)
    assert [lane.number for lane in made.stuck(10**9, 50)] == [0], "the next call is another one"


# --- Fetching, limits, retention. --------------------------------------------------------------------


def test_nothing_is_fetched_twice_at_once_nor_past_the_end_nor_before_its_time() -> None:
    made = processing(at=5)
    assert wanted(made) == Fetch(offset=5)
    made.is_fetching = True
    assert wanted(made) is None
    made.fetch_failed(due_ms=30)
    assert wanted(made) is None
    assert made.due_ms() == 30
    begun(made, 30)
    assert wanted(made) == Fetch(offset=5)
    give(made, [5], is_end=True)
    assert wanted(made) is None


def test_what_comes_after_a_stop_is_of_no_use() -> None:
    made = processing()
    made.is_fetching = True
    made.ask(Reason.STOPPED)
    give(made, [0, 1], is_end=True)
    assert not made.is_fetching
    assert (made.queued_bytes, made.end, made.fetched) == (0, None, 0)


def test_a_limit_is_drained_when_user_code_came_back_from_all_below() -> None:
    made = processing(limit=2)
    assert wanted(made) == Fetch(offset=0, until=2)
    assert not is_drained(made)
    give(made, [0, 1])
    assert wanted(made) is None
    assert not is_drained(made)
    process(made)
    assert not is_drained(made)
    made.returned(0)
    assert is_drained(made)
    assert not processing().is_drained, "without a limit there is always more"
    assert processing(at=9, limit=2).is_drained


def test_a_jump_says_how_many_were_never_seen_and_only_forward() -> None:
    made = processing()
    give(made, [0, 1])
    assert made.jump(10) == 8
    assert wanted(made) == Fetch(offset=10)
    assert made.jump(4) == 0
    assert made.fetched == 10
    assert made.checkpoint == 0, "what was fetched before is not done by a jump"
    process(made)
    made.save(0, 2)
    made.returned(0)
    assert made.checkpoint == 10


def test_a_jump_of_a_lane_that_went_back_gives_up_what_is_gone() -> None:
    made = processing()
    give(made, [0, 1, 2, 3])
    process(made)
    made.returned(0, back_to=0)
    assert made.jump(2, 0) == 0
    assert wanted(made) == Fetch(offset=2, until=4, lane=0)
    assert made.jump(7, 0) == 0
    assert wanted(made) == Fetch(offset=4)


def test_a_jump_that_comes_after_a_stop_changes_nothing() -> None:
    made = processing()
    made.ask(Reason.MOVED)
    assert made.jump(10) == 0
    assert made.checkpoint == 0


# --- Going back. -------------------------------------------------------------------------------------


def test_going_back_brings_the_same_records_again_before_those_behind() -> None:
    made = processing()
    give(made, [0, 1, 2, 3], [4, 5])
    process(made)
    made.returned(0, back_to=1)
    assert wanted(made) == Fetch(offset=1, until=4, lane=0)
    assert begun(made) == [], "nothing overtakes what is wanted once more"
    made.got_again(0, [Piece([1, 2])], 3)
    assert begun(made) == []
    assert wanted(made) == Fetch(offset=3, until=4, lane=0)
    made.got_again(0, [Piece([3])], 4)
    handed = []
    for _ in range(3):
        handed.append(process(made))
        made.returned(0)
    assert handed == [[1, 2], [3], [4, 5]]
    assert wanted(made) == Fetch(offset=6)


@pytest.mark.parametrize("back_to", [2, 3])
def test_going_back_to_where_one_is_is_no_way_back(back_to: int) -> None:
    made = processing()
    give(made, [0, 1, 2])
    process(made)
    made.returned(0, back_to=back_to)
    assert wanted(made) == (Fetch(offset=2, until=3, lane=0) if back_to == 2 else Fetch(offset=3))


def test_a_save_after_going_back_covers_only_what_was_not_sent_back() -> None:
    made = processing()
    give(made, [0, 1, 2, 3])
    process(made)
    made.returned(0, back_to=2)
    assert made.save(0, None) == 2
    assert made.checkpoint == 2


def test_going_back_below_what_was_saved_does_not_take_the_checkpoint_back() -> None:
    made = processing()
    give(made, [0, 1, 2, 3])
    process(made)
    made.save(0, 4)
    made.returned(0, back_to=1)
    assert made.checkpoint == 4
    made.got_again(0, [Piece([1, 2, 3])], 4)
    assert process(made) == [1, 2, 3]
    assert made.save(0, 2) == 4


def test_what_fails_after_going_back_comes_again_though_it_was_saved_before() -> None:
    made = processing()
    give(made, [0, 1, 2, 3], [4])
    process(made)
    made.save(0, 4)
    made.returned(0, back_to=1)
    made.got_again(0, [Piece([1, 2, 3])], 4)
    process(made)
    made.save(0, 2)
    made.raised(0, ODD, 0, 0.5)
    assert process(made, 1000) == [2, 3]
    assert made.checkpoint == 4


def test_one_lane_goes_back_while_the_others_go_on() -> None:
    made = processing(lanes=2)
    give(made, range(6), lanes=2)
    assert len(begun(made)) == 2
    made.save(1, 6)
    made.returned(1)
    made.returned(0, back_to=2)
    assert wanted(made) == Fetch(offset=2, until=5, lane=0)
    give(made, range(6, 10), lanes=2)
    (action,) = begun(made)
    assert isinstance(action, Process)
    assert (action.lane, action.piece.offsets) == (1, [7, 9])
    made.got_again(0, [Piece([2, 4])], 5)
    assert process(made) == [2, 4]
    made.returned(0)
    assert process(made) == [6, 8]


def test_what_is_brought_again_after_a_stop_is_dropped() -> None:
    made = processing()
    give(made, [0, 1])
    process(made)
    made.returned(0, back_to=0)
    made.ask(Reason.MOVED)
    made.got_again(0, [Piece([0, 1])], 2)
    assert begun(made) == [ShutDown(lane=0, reason=Reason.MOVED)]
    made.returned(0)
    assert begun(made) == [Release(checkpoint=0)]


def test_an_idle_call_comes_only_when_nothing_is_to_be_done_and_may_go_back() -> None:
    made = processing()
    give(made, [0, 1])
    assert made.call_idle(0) == []
    process(made)
    assert made.call_idle(0) == []
    made.returned(0)
    assert made.call_idle(5) == [ProcessNothing(lane=0)]
    assert made.call_idle(5) == []
    made.returned(0, back_to=1)
    assert wanted(made) == Fetch(offset=1, until=2, lane=0)
    assert made.call_idle(6) == []


def test_an_idle_call_that_failed_or_was_put_off_leaves_no_time_behind_to_wait_for() -> None:
    made = processing()
    made.call_idle(0)
    made.postponed(0, 50)
    assert made.due_ms() == 50
    assert begun(made, 50) == []
    assert made.due_ms() is None
    made.call_idle(50)
    made.raised(0, ODD, 50, 0.5)
    assert made.call_idle(60) == []
    begun(made, 1050)
    assert made.due_ms() is None
    assert made.call_idle(1050) == [ProcessNothing(lane=0)]


# --- Failures. ---------------------------------------------------------------------------------------


def test_strict_hands_out_the_same_again_with_growing_delays_and_nothing_else() -> None:
    made = processing()
    give(made, [0, 1, 2], [3])
    now_ms = 0
    for attempt, delay_ms in enumerate([1000, 2000, 4000], 1):
        (action,) = begun(made, now_ms)
        assert isinstance(action, Process)
        assert (list(action.piece.offsets), action.attempt) == ([0, 1, 2], attempt)
        made.raised(0, ODD, now_ms, 0.5)
        assert begun(made, now_ms + delay_ms - 1) == []
        now_ms += delay_ms
    (action,) = begun(made, now_ms)
    assert isinstance(action, Process)
    assert action.attempt == 4
    made.returned(0)
    assert blocked(made) is None
    (action,) = begun(made, now_ms)
    assert isinstance(action, Process)
    assert (list(action.piece.offsets), action.attempt) == ([3], 1)


def test_what_was_declared_done_before_the_failure_does_not_come_again() -> None:
    made = processing()
    give(made, [0, 1, 2, 3])
    process(made)
    made.save(0, 2)
    made.raised(0, ODD, 0, 0.5)
    assert made.queued_bytes == 20
    assert process(made, 1000) == [2, 3]


def test_a_failure_after_everything_was_declared_done_holds_nothing_up() -> None:
    made = processing()
    give(made, [0, 1])
    process(made)
    made.save(0, 2)
    assert made.raised(0, ODD, 0, 0.5) == []
    assert (blocked(made), made.due_ms(), made.checkpoint) == (None, None, 2)
    give(made, [2])
    (action,) = begun(made)
    assert isinstance(action, Process)
    assert (list(action.piece.offsets), action.attempt) == ([2], 1)


def test_one_put_off_for_want_of_a_deadline_begins_anew_and_counts_no_attempt() -> None:
    made = processing()
    give(made, [0])
    process(made)
    made.postponed(0, 50)
    assert begun(made, 49) == []
    (action,) = begun(made, 50)
    assert isinstance(action, Process)
    assert action.attempt == 1


def test_what_was_declared_done_before_the_deadline_passed_does_not_come_again() -> None:
    made = processing()
    give(made, [0, 1, 2, 3], [4])
    process(made)
    made.save(0, 2)
    made.postponed(0, 50)
    assert made.queued_bytes == 30
    assert process(made, 50) == [2, 3]
    made.save(0, 4)
    made.postponed(0, 100)
    assert process(made, 100) == [4]
    assert made.checkpoint == 4


def test_a_failure_on_the_way_out_is_left_to_the_next_owner() -> None:
    made = processing(STOP)
    give(made, [0, 1])
    process(made)
    made.ask(Reason.MOVED)
    assert made.raised(0, ODD, 0, 0.5) == []
    assert begun(made) == [ShutDown(lane=0, reason=Reason.MOVED)]
    assert made.checkpoint == 0


def test_the_stop_policy_stops_the_worker_and_keeps_what_was_declared_done() -> None:
    made = processing(STOP)
    give(made, [0, 1])
    process(made)
    made.save(0, 1)
    assert made.raised(0, ODD, 0, 0.5) == [StopWorker(failure=ODD)]
    made.ask(Reason.STOPPED)
    assert begun(made) == [ShutDown(lane=0, reason=Reason.STOPPED)], "at once, whatever the delay"
    made.returned(0)
    assert begun(made) == [Release(checkpoint=1)]


def test_the_stop_policy_stops_even_if_everything_was_declared_done() -> None:
    made = processing(STOP)
    give(made, [0])
    process(made)
    made.save(0, 1)
    assert made.raised(0, ODD, 0, 0.5) == [StopWorker(failure=ODD)]


def test_the_stop_policy_stops_for_initialize_and_a_last_shutdown_too() -> None:
    made = tenure(STOP)
    made.begin()
    begun(made)
    assert made.raised(0, ODD, 0, 0.5) == [StopWorker(failure=ODD)]
    ended = processing(STOP)
    give(ended, [0], is_end=True)
    process(ended)
    ended.returned(0)
    begun(ended)
    assert ended.raised(0, ODD, 0, 0.5) == [StopWorker(failure=ODD)]
    ended.ask(Reason.STOPPED)
    assert begun(ended) == [Release(checkpoint=0)]


def test_best_tried_finds_the_poison_at_once_if_it_is_told_where_the_loop_was() -> None:
    made = processing(BEST)
    give(made, range(8))
    process(made)
    made.raised(0, Failure(kind="E", text="", reached=5), 0, 0.5)
    assert process(made) == [0, 1, 2, 3, 4]
    made.save(0, 5)
    made.returned(0)
    assert process(made) == [5]
    made.raised(0, ODD, 0, 0.5)
    assert begun(made) == [SetAside(lane=0, offset=5, failure=ODD)]
    made.returned(0)
    assert made.checkpoint == 6
    assert process(made) == [6, 7]


def test_best_tried_finds_the_poison_by_halves_if_it_is_not_told() -> None:
    made = processing(BEST)
    give(made, range(8))
    handed = []
    for _ in range(20):
        actions = begun(made)
        if not actions:
            break
        (action,) = actions
        if isinstance(action, SetAside):
            assert action.offset == 5
            made.returned(0)
            continue
        assert isinstance(action, Process)
        offsets = list(action.piece.offsets)
        handed.append(offsets)
        if 5 in offsets:
            made.raised(0, ODD, 0, 0.5)
        else:
            made.save(0, offsets[-1] + 1)
            made.returned(0)
    assert handed == [[*range(8)], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [4], [5], [6, 7]]
    assert made.checkpoint == 8


def test_an_outage_that_says_so_is_waited_for_in_place() -> None:
    made = processing(BEST)
    give(made, [0, 1])
    process(made)
    assert made.raised(0, AWAY, 0, 0.5) == []
    assert blocked(made) is not None
    assert process(made, 1000) == [0, 1]


def test_many_records_that_fail_alike_are_an_outage_and_not_all_set_aside() -> None:
    made = processing(BEST)
    give(made, *([offset] for offset in range(4)))
    for offset in range(2):
        assert process(made) == [offset]
        made.raised(0, ODD, 0, 0.5)
        (action,) = begun(made)
        assert isinstance(action, SetAside)
        made.returned(0)
    assert process(made) == [2]
    made.raised(0, ODD, 0, 0.5)
    assert blocked(made) is not None
    assert begun(made) == []
    assert process(made, 1000) == [2]
    made.returned(0)
    assert process(made, 1000) == [3]
    made.raised(0, ODD, 0, 0.5)
    (action,) = begun(made, 1000)
    assert isinstance(action, SetAside), "one that was processed ends the row"


def test_bad_records_with_good_ones_between_that_were_declared_done_are_no_outage() -> None:
    made = processing(BEST)
    give(made, range(42))
    for bad in range(3, 40, 4):
        offsets = process(made)
        made.save(0, bad)
        made.raised(0, replace(ODD, reached=bad), 0, 0.5)
        offsets = process(made)
        assert offsets == [bad], "alone, to be sure"
        made.raised(0, replace(ODD, reached=bad), 0, 0.5)
        (action,) = begun(made)
        assert isinstance(action, SetAside)
        made.returned(0)
    assert blocked(made) is None


def test_records_that_fail_in_different_ways_are_no_outage() -> None:
    made = processing(BEST)
    give(made, *([offset] for offset in range(6)))
    for offset in range(6):
        assert process(made) == [offset]
        made.raised(0, Failure(kind=f"E{offset % 2}", text=""), 0, 0.5)
        (action,) = begun(made)
        assert isinstance(action, SetAside)
        made.returned(0)
    assert made.checkpoint == 6


def test_setting_aside_that_fails_is_tried_again_before_anything_else() -> None:
    made = processing(BEST)
    give(made, [0], [1])
    process(made)
    made.raised(0, ODD, 0, 0.5)
    begun(made)
    made.raised(0, AWAY, 0, 0.5)
    assert blocked(made) is not None
    assert begun(made, 999) == []
    assert begun(made, 1000) == [SetAside(lane=0, offset=0, failure=ODD)]
    made.returned(0)
    assert made.checkpoint == 1
    assert process(made, 1000) == [1]


def test_setting_aside_declares_nothing_done_that_came_before() -> None:
    made = processing(BEST)
    give(made, [0], [1])
    process(made)
    made.returned(0)
    process(made)
    made.raised(0, ODD, 0, 0.5)
    begun(made)
    made.returned(0)
    assert made.checkpoint == 0
    assert made.save(0, None) == 2


def test_the_last_record_of_a_lane_set_aside_does_not_hold_the_checkpoint_back() -> None:
    made = processing(BEST, lanes=3)
    give(made, range(7), lanes=3)
    for action in begun(made):
        assert isinstance(action, Process)
        if action.lane == 0:
            made.save(0, 4)
            made.raised(0, ODD, 0, 0.5)
        else:
            made.save(action.lane, action.piece.next)
            made.returned(action.lane)
    assert begun(made) == [SetAside(lane=0, offset=6, failure=ODD)]
    assert made.checkpoint == 4
    made.returned(0)
    assert made.checkpoint == 7


def test_one_asked_for_before_a_record_was_set_aside_leaves_it_to_the_next_owner() -> None:
    made = processing(BEST)
    give(made, [0])
    process(made)
    made.raised(0, ODD, 0, 0.5)
    made.ask(Reason.MOVED)
    assert begun(made) == [ShutDown(lane=0, reason=Reason.MOVED)]
    made.returned(0)
    assert begun(made) == [Release(checkpoint=0)]


# --- Lanes and checkpoints. --------------------------------------------------------------------------


def test_the_checkpoint_is_the_end_of_the_finished_prefix_over_all_lanes() -> None:
    made = processing(lanes=2)
    give(made, range(4), range(4, 8), lanes=2)
    begun(made)
    made.save(1, 4)
    made.returned(1)
    assert is_same(made.checkpoint, Checkpoint(0, [(0, 5)])), "the next of lane 1 is 5"
    made.save(0, 1)
    assert made.checkpoint == 1
    made.save(0, 3)
    made.returned(0)
    assert made.checkpoint == 4, "what comes next for lane 0 is 4, and for lane 1 it is 5"
    assert is_same(made.checkpoint, Checkpoint(4, [(4, 5)]))


def test_a_lane_that_gets_nothing_does_not_hold_the_checkpoint_back() -> None:
    made = processing(lanes=2)
    give(made, [0, 2, 4], lanes=2)
    (action,) = begun(made)
    assert action == Process(lane=0, piece=Piece([0, 2, 4], 30), attempt=1)
    made.save(0, 5)
    made.returned(0)
    assert made.checkpoint == 5


def test_what_earlier_lanes_had_done_beyond_the_checkpoint_goes_on_with_it() -> None:
    made = Tenure(ShardId(0), 1, Checkpoint(4, [(4, 9)]), STRICT)
    assert made.done_before == ((4, 9),)
    assert is_same(made.checkpoint, Checkpoint(4, [(4, 9)]))


def test_all_lanes_are_shut_down_before_the_release() -> None:
    made = processing(lanes=3)
    made.ask(Reason.STOPPED)
    assert {type(action) for action in begun(made)} == {ShutDown}
    made.returned(0)
    made.raised(2, ODD, 0, 0.5)
    assert begun(made) == []
    made.returned(1)
    assert begun(made) == [Release(checkpoint=0)]


def test_a_save_never_goes_back_and_never_past_what_was_given() -> None:
    made = processing(at=2)
    assert made.save(0, None) == 2
    give(made, [2, 3])
    process(made)
    assert made.save(0, 4) == 4
    assert made.save(0, 3) == 4
    with pytest.raises(CheckpointMisuse):
        made.save(0, 5)
    assert made.save(0, None) == 4


def _state(made: Tenure) -> str:
    shown = [str({name: getattr(lane, name) for name in lane.__slots__}) for lane in made.lanes]
    return str([made.phase, made.reason, made.fetched, made.end, made.is_fetching, made.due_ms(), shown])


# --- What the simulator found. -----------------------------------------------------------------------


def test_the_checkpoint_does_not_fall_back_when_a_lane_gets_records_after_a_long_time() -> None:
    made = processing(lanes=2)
    give(made, [0, 2, 4], lanes=2)
    assert len(begun(made)) == 1, "there is nothing for the other lane"
    made.save(0, 5)
    made.returned(0)
    assert made.checkpoint == 5
    give(made, [5, 7], lanes=2)
    assert len(begun(made)) == 1
    assert made.checkpoint == 5
    made.ask(Reason.MOVED)
    made.returned(1)
    for action in begun(made):
        assert isinstance(action, ShutDown)
        made.returned(action.lane)
    assert begun(made) == [Release(checkpoint=5)], "a checkpoint that led back would be refused"


def test_the_checkpoint_does_not_pass_what_waits_behind_records_that_are_wanted_again() -> None:
    made = processing()
    give(made, [0, 1, 2], [3], [4])
    assert process(made) == [0, 1, 2]
    made.save(0, 3)
    made.returned(0, back_to=0)
    assert made.checkpoint == 3
    made.got_again(0, [Piece([0]), Piece([1]), Piece([2])], 3)
    assert made.checkpoint == 3


def test_the_checkpoint_does_not_fall_back_when_a_lane_goes_back_to_what_it_had_declared_done() -> None:
    made = processing(lanes=2)
    give(made, [0, 1], lanes=2)
    begun(made)
    for lane in (0, 1):
        made.save(lane, lane + 1)
        made.returned(lane)
    give(made, [2, 4, 6], lanes=2)
    begun(made)
    made.save(0, 7)
    made.returned(0)
    assert made.checkpoint == 7
    made.call_idle(0)
    made.returned(0)
    made.returned(1, back_to=0)
    assert made.checkpoint == 7


def test_one_that_begins_anew_since_its_shutdown_failed_keeps_what_its_lanes_have_done() -> None:
    made = processing(lanes=2)
    give(made, [0, 1, 2, 3], is_end=True, lanes=2)
    begun(made)
    made.save(1, 4)
    made.returned(0)
    made.returned(1)
    assert is_same(made.checkpoint, Checkpoint(0, [(0, 4)]))
    assert len(begun(made)) == 2, "both lanes are shut down"
    made.raised(0, ODD, 0, 0.5)
    made.returned(1)
    begun(made, 2000)
    assert phase(made) is Phase.INITIALIZING
    assert is_same(made.checkpoint, Checkpoint(0, [(0, 4)]))


# --- A processor that is gone. -----------------------------------------------------------------------


def test_what_a_lost_processor_did_not_declare_done_comes_again_before_anything_else() -> None:
    made = processing()
    give(made, [0, 1], [2, 3], [4])
    assert process(made) == [0, 1]
    made.returned(0)
    assert process(made) == [2, 3]
    made.save(0, 1)
    made.returned(0)
    assert process(made) == [4]
    made.bereft(0)
    assert wanted(made) == Fetch(offset=1, until=5, lane=0)
    made.got_again(0, [Piece([1, 2]), Piece([3, 4])], 5)
    assert process(made) == [1, 2]
    made.returned(0)
    assert process(made) == [3, 4]
    made.returned(0)
    assert made.save(0, None) == made.checkpoint == 5


def test_a_lost_processor_that_had_declared_everything_done_takes_nothing_with_it() -> None:
    made = processing()
    give(made, [0, 1], [2])
    assert process(made) == [0, 1]
    made.save(0, 2)
    made.returned(0)
    assert process(made) == [2]
    made.bereft(0)
    assert process(made) == [2]


def test_a_lane_that_rests_gets_what_its_lost_processor_had_not_declared_done() -> None:
    made = processing()
    give(made, [0, 1])
    assert process(made) == [0, 1]
    made.returned(0)
    made.bereft(0)
    assert wanted(made) == Fetch(offset=0, until=2, lane=0)
    assert made.checkpoint == 0
    made.bereft(0)
    assert wanted(made) == Fetch(offset=0, until=2, lane=0), "once"


def test_a_shard_that_is_asked_for_does_not_wait_for_what_its_lost_processor_had() -> None:
    made = processing()
    give(made, [0], [1])
    assert process(made) == [0]
    made.returned(0)
    assert process(made) == [1]
    made.ask(Reason.MOVED)
    made.bereft(0)
    assert begun(made) == [ShutDown(lane=0, reason=Reason.MOVED)]
    made.returned(0)
    assert begun(made) == [Release(checkpoint=0)]


def test_failures_go_on_counting_when_the_processor_is_lost() -> None:
    made = processing()
    give(made, [0], [1])
    assert process(made) == [0]
    made.returned(0)
    assert process(made) == [1]
    made.raised(0, ODD, 0, 0.5)
    assert process(made, 1000) == [1]
    made.bereft(0)
    made.got_again(0, [Piece([0, 1])], 2)
    (action,) = begun(made, 1000)
    assert isinstance(action, Process)
    assert action.attempt == 2
    assert blocked(made) == Blocked(failure=ODD, attempts=1)


def test_what_was_set_aside_does_not_come_again_to_the_next_processor() -> None:
    made = processing(BEST)
    give(made, [0], [1])
    assert process(made) == [0]
    made.returned(0)
    assert process(made) == [1]
    made.raised(0, ODD, 0, 0.5)
    assert begun(made) == [SetAside(lane=0, offset=1, failure=ODD)]
    made.returned(0)
    assert made.checkpoint == 0, "what is before it is not declared done"
    made.bereft(0)
    made.got_again(0, [Piece([0, 1])], 2)
    assert process(made) == [0]
    made.save(0, 1)
    made.returned(0)
    assert made.checkpoint == 2, "and it is done with what is before it"
    assert begun(made) == []


def test_who_goes_back_behind_what_was_set_aside_gets_it_again() -> None:
    made = processing(BEST)
    give(made, [0], [1], [2])
    assert process(made) == [0]
    made.returned(0)
    assert process(made) == [1]
    made.raised(0, ODD, 0, 0.5)
    assert begun(made) == [SetAside(lane=0, offset=1, failure=ODD)]
    made.returned(0)
    assert process(made) == [2]
    made.returned(0, back_to=0)
    made.got_again(0, [Piece([0, 1, 2])], 3)
    assert process(made) == [0, 1, 2]


def test_a_shard_is_not_saved_to_its_end_while_a_lane_has_gone_back() -> None:
    made = processing(lanes=2)
    give(made, [0, 1, 2, 3], lanes=2)
    begun(made)
    made.save(0, 3)
    made.returned(0)
    made.save(1, 4)
    assert made.unsaved == 4
    made.returned(1, back_to=1)
    assert made.unsaved is not None
    assert int(made.unsaved) == 1, "or the shard would be over, and its children would begin"
    assert made.checkpoint == 4
    made.got_again(1, [Piece([1]), Piece([3])], 4)
    assert made.unsaved is not None
    assert int(made.unsaved) == 1
    begun(made)
    made.save(1, 2)
    assert made.unsaved is not None
    assert int(made.unsaved) == 2
    made.returned(1)
    begun(made)
    made.returned(1)
    assert made.unsaved == 4
