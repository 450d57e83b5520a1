"""What goes wrong again and again is said less and less often, and never dropped in silence."""

import logging

import pytest

from shoal.complaints import Complaints

LOG = logging.getLogger("shoal.test")
EVERY_S = 0.2


class Told:
    """Complaints on a clock that the test winds."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now_s = 0.0
        self._caplog = caplog
        self.complaints = Complaints(LOG, lambda: self.now_s)

    def go_on(self, about: str, for_s: float, every_s: float = EVERY_S) -> list[str]:
        """Complain every so often; what was said."""
        self._caplog.clear()
        for _ in range(round(for_s / every_s)):
            self.complaints.warn(about, "%s is away", about)
            self.now_s += every_s
        return [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    return Told(caplog)


def test_ten_minutes_of_the_same_are_a_few_lines_that_count_the_others(told: Told) -> None:
    said = told.go_on("store", 600)
    assert said[:3] == [
        "store is away",
        "store is away (and 4 times more since)",
        "store is away (and 9 times more since)",
    ]
    assert len(said) == 10


def test_what_comes_once_a_minute_gets_rarer_too(told: Told) -> None:
    assert len(told.go_on("store", 600, every_s=60)) == 4


def test_what_is_new_is_said_at_once_whatever_else_goes_wrong(told: Told) -> None:
    told.go_on("store", 60)
    assert told.go_on("sink", 0.2) == ["sink is away"]


def test_what_was_over_and_comes_again_is_new(told: Told) -> None:
    told.go_on("store", 60)
    told.now_s += 121
    assert told.go_on("store", 0.2) == ["store is away"]


def test_what_is_remembered_has_a_bound(told: Told) -> None:
    for number in range(10_000):
        told.complaints.warn(number, "%s", number)
    assert len(told.complaints._heard) <= 4096
