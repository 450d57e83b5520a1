"""A shard whose user code comes for its records: what waits, what is taken, where it goes on."""

import pytest

from shoal.core.delivery import Tenure
from shoal.core.errors import CheckpointMisuse, LeaseLost
from shoal.core.model import ShardId
from shoal.core.retry import FailureRules
from shoal.core.tasks import Action, Initialize, Piece, Process, Reason, Release, ShutDown


def opened(checkpoint: int = 0) -> Tenure:
    """A shard that is ready, with nothing fetched."""
    tenure = Tenure(ShardId(0), 5, checkpoint, FailureRules(), is_on_demand=True)
    tenure.begin()
    (initialize,) = tenure.advance(0)
    assert isinstance(initialize, Initialize)
    tenure.returned(0)
    assert tenure.advance(0) == []
    return tenure


def fetch(tenure: Tenure, low: int, high: int, *, is_end: bool = False) -> None:
    tenure.fetching()
    tenure.got([[Piece(range(low, high), 10)]], high, is_end=is_end)


def offered(tenure: Tenure) -> Process:
    (task,) = tenure.advance(0)
    assert isinstance(task, Process)
    return task


def taken(tenure: Tenure) -> Process:
    task = offered(tenure)
    assert tenure.take(task, 0)
    return task


def ended(tenure: Tenure) -> Release:
    """What follows from a request, if user code has nothing in its hands."""
    (shut_down,) = tenure.advance(0)
    assert isinstance(shut_down, ShutDown)
    tenure.returned(0)
    actions: list[Action] = tenure.advance(0)
    assert len(actions) == 1
    assert isinstance(actions[0], Release)
    return actions[0]


def test_what_waits_was_not_given_and_cannot_be_declared_done() -> None:
    tenure = opened()
    fetch(tenure, 0, 10)
    task = offered(tenure)
    assert tenure.position == 0
    with pytest.raises(CheckpointMisuse):
        tenure.save(0, 1)
    assert tenure.take(task, 0)
    assert tenure.position == 10
    assert tenure.save(0, 10) == 10


def test_nothing_is_taken_twice() -> None:
    tenure = opened()
    fetch(tenure, 0, 10)
    task = taken(tenure)
    assert not tenure.take(task, 0)


def test_a_hand_over_does_not_wait_for_what_nobody_has_taken() -> None:
    tenure = opened()
    fetch(tenure, 0, 10)
    task = offered(tenure)
    tenure.ask(Reason.MOVED)
    assert ended(tenure).checkpoint == 0
    assert not tenure.take(task, 0)


def test_a_hand_over_waits_for_what_was_taken_and_goes_with_what_was_declared() -> None:
    tenure = opened()
    fetch(tenure, 0, 10)
    taken(tenure)
    tenure.ask(Reason.MOVED)
    assert tenure.advance(0) == []
    tenure.save(0, 10)
    tenure.returned(0)
    assert ended(tenure).checkpoint == 10


def test_a_closed_shard_has_ended_only_when_all_of_it_was_declared_done() -> None:
    tenure = opened()
    fetch(tenure, 0, 10, is_end=True)
    taken(tenure)
    tenure.returned(0)
    assert tenure.advance(0) == []
    tenure.save(0, 9)
    assert tenure.advance(0) == []
    tenure.save(0, 10)
    assert ended(tenure).checkpoint == 10


def test_one_seeks_back_and_ahead_and_only_what_is_declared_done_is_done() -> None:
    tenure = opened()
    fetch(tenure, 0, 10)
    taken(tenure)
    tenure.save(0, 4)
    tenure.seek(2)
    assert tenure.position == 2
    tenure.returned(0)
    wanted = tenure.wanted
    assert wanted is not None
    assert (wanted.offset, wanted.until, wanted.lane) == (2, 10, 0)
    tenure.seek(50)
    assert tenure.position == 50
    wanted = tenure.wanted
    assert wanted is not None
    assert (wanted.offset, wanted.until) == (50, None)
    assert tenure.checkpoint == 4
    assert tenure.save(0, 50) == 50
    assert tenure.checkpoint == 50


def test_what_was_being_read_when_one_sought_is_dropped() -> None:
    tenure = opened()
    tenure.fetching()
    tenure.seek(5)
    assert tenure.is_fetching
    assert tenure.is_of_no_use()
    wanted = tenure.wanted
    assert wanted is not None
    assert wanted.offset == 5
    fetch(tenure, 5, 10)
    assert taken(tenure).piece.first == 5


def test_what_waits_goes_back_when_one_seeks() -> None:
    tenure = opened()
    fetch(tenure, 0, 10)
    task = offered(tenure)
    tenure.seek(3)
    assert not tenure.take(task, 0)


def test_who_seeks_before_the_first_record_begins_there() -> None:
    tenure = Tenure(ShardId(0), 5, 7, FailureRules(), is_on_demand=True)
    tenure.begin()
    tenure.advance(0)
    tenure.seek(3)
    assert tenure.position == 3
    tenure.returned(0)
    tenure.advance(0)
    assert tenure.wanted is not None
    assert tenure.wanted.offset == 3
    assert tenure.checkpoint == 7


def test_a_paused_shard_gives_nothing_and_fetches_nothing_until_it_is_resumed() -> None:
    tenure = opened()
    fetch(tenure, 0, 10)
    task = offered(tenure)
    tenure.pause()
    assert tenure.advance(0) == []
    assert not tenure.take(task, 0)
    assert tenure.wanted is None
    tenure.resume()
    assert taken(tenure).piece.first == 0


def test_a_paused_shard_is_handed_over_like_any_other() -> None:
    tenure = opened()
    fetch(tenure, 0, 10)
    tenure.pause()
    tenure.ask(Reason.STOPPED)
    assert ended(tenure).checkpoint == 0


def test_nobody_seeks_in_what_is_lost() -> None:
    tenure = opened()
    tenure.lose(None)
    with pytest.raises(LeaseLost):
        tenure.seek(3)
