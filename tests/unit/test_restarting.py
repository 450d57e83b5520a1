"""When a process is started again, when it is left alone, and when it is killed."""

import pytest

from shoal.core.restarting import (
    Ending,
    Place,
    RestartRules,
    Stage,
    asked_to_stop,
    ended,
    heard,
    killed,
    said_last,
    started,
)
from shoal.core.retry import Backoff

RULES = RestartRules(
    backoff=Backoff(first_s=1.0, factor=2.0, max_s=8.0, jitter=0.0), steady_s=60.0, deaths_max=5, linger_s=3.0
)


def running(now_ms: int = 0) -> Place:
    return heard(started(Place(), now_ms))


def dies(place: Place, now_ms: int, ending: Ending = Ending.DIED) -> Place:
    return ended(place, ending, now_ms, 0.5, RULES)


def test_a_new_place_is_due_at_once_and_runs_when_it_is_heard_of() -> None:
    assert Place().is_due(0)
    begun = started(Place(), 0)
    assert (begun.stage, begun.is_due(0)) == (Stage.STARTING, False)
    assert heard(begun).stage is Stage.RUNNING


def test_who_dies_is_started_again_after_waits_that_grow_up_to_a_bound_and_then_given_up() -> None:
    place, now_ms, waits = Place(), 0, []
    for _ in range(RULES.deaths_max):
        place = dies(heard(started(place, now_ms)), now_ms + 10)
        assert place.stage is Stage.WAITING
        waits.append(place.start_at_ms - now_ms - 10)
        assert not place.is_due(place.start_at_ms - 1)
        now_ms = place.start_at_ms
        assert place.is_due(now_ms)
    assert waits == [1000, 2000, 4000, 8000, 8000]
    place = dies(started(place, now_ms), now_ms + 10)
    assert (place.stage, place.is_over, place.is_clean) == (Stage.GIVEN_UP, True, False)


def test_who_lived_long_dies_for_the_first_time_again() -> None:
    place = dies(running(), 10)
    place = dies(started(place, 1000), 1500)
    assert place.deaths == 2
    place = dies(started(place, 10_000), 10_000 + 60_000)
    assert (place.deaths, place.start_at_ms) == (1, 71_000)


@pytest.mark.parametrize(
    ("ending", "stage"),
    [
        (Ending.DRAINED, Stage.DRAINED),
        (Ending.FAILED, Stage.FAILED),
        (Ending.DIED, Stage.WAITING),
        (Ending.STOPPED, Stage.WAITING),  # By someone else than the supervisor.
    ],
)
def test_only_who_died_or_was_stopped_by_a_stranger_is_started_again(ending: Ending, stage: Stage) -> None:
    assert dies(running(), 10, ending).stage is stage


@pytest.mark.parametrize(
    ("ending", "stage"),
    [
        (Ending.STOPPED, Stage.STOPPED),
        (Ending.DIED, Stage.STOPPED),
        (Ending.DRAINED, Stage.STOPPED),
        (Ending.FAILED, Stage.FAILED),
    ],
)
def test_who_was_asked_to_stop_is_not_started_again(ending: Ending, stage: Stage) -> None:
    stopping = asked_to_stop(running(), 1000, 30.0)
    assert stopping.stage is Stage.STOPPING
    assert dies(stopping, 2000, ending).stage is stage


def test_who_does_not_stop_in_time_is_killed_once() -> None:
    stopping = asked_to_stop(running(), 1000, 30.0)
    assert not stopping.is_overdue(30_999)
    assert stopping.is_overdue(31_000)
    gone = killed(stopping)
    assert not gone.is_overdue(40_000)
    assert (dies(gone, 31_010).stage, dies(gone, 31_010).is_clean) == (Stage.KILLED, False)


def test_who_waits_for_its_next_start_is_stopped_at_once() -> None:
    place = asked_to_stop(dies(running(), 10), 20, 30.0)
    assert (place.stage, place.is_due(10**9)) == (Stage.STOPPED, False)


def test_a_stop_changes_nothing_for_who_is_over() -> None:
    place = dies(running(), 10, Ending.FAILED)
    assert asked_to_stop(place, 20, 30.0) == place


def test_who_said_its_last_word_has_to_be_gone_soon_whatever_it_is() -> None:
    place = said_last(running(), 1000, RULES)
    assert (place.is_overdue(3999), place.is_overdue(4000)) == (False, True)
    assert dies(killed(place), 4010, Ending.DRAINED).stage is Stage.DRAINED
    stopping = asked_to_stop(running(), 0, 2.0)
    assert said_last(stopping, 1000, RULES).kill_at_ms == 2000


def test_a_place_that_was_killed_once_may_be_killed_in_its_next_life() -> None:
    place = killed(said_last(running(), 0, RULES))
    place = started(dies(place, 10, Ending.DIED), 5000)
    assert (place.is_killed, place.kill_at_ms, place.starts) == (False, None, 2)
