"""How many requests a client may make."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import RateExceeded
from shoal.core.rate import Rates


def test_a_second_s_worth_may_come_at_once_and_then_as_many_as_the_rate_says() -> None:
    rates = Rates(10)
    for _ in range(10):
        rates.take("a", 5.0)
    with pytest.raises(RateExceeded) as raised:
        rates.take("a", 5.0)
    assert raised.value.retry_s == pytest.approx(0.1)
    rates.take("b", 5.0)  # Nobody is refused for another.
    rates.take("a", 5.0 + raised.value.retry_s + 1e-9)
    with pytest.raises(RateExceeded):
        rates.take("a", 5.1)


@given(st.lists(st.floats(0, 0.3), min_size=1, max_size=200), st.integers(1, 50))
def test_never_more_than_the_rate_and_one_burst_and_who_comes_when_told_to_is_let_in(
    pauses: list[float], rate: int
) -> None:
    rates, now = Rates(rate), 0.0
    for taken, pause in enumerate(pauses, 1):
        now += pause
        try:
            rates.take("a", now)
        except RateExceeded as error:
            now += error.retry_s + 1e-6
            rates.take("a", now)
        assert taken <= rate * (now + 1) + 1e-3


def test_clients_are_forgotten_and_their_number_is_bounded() -> None:
    rates = Rates(1, clients_max=3)
    for place in range(3):
        rates.take(str(place), 0.0)
    rates.take("later", 10.0)
    assert len(rates) == 1
    for place in range(20):
        rates.take(str(place), 10.0)
        assert len(rates) <= 3
