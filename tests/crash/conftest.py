"""How many crashes are played, and by which chance."""

import random

import pytest

ROUNDS_DEFAULT = 14


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--crash-rounds", type=int, default=ROUNDS_DEFAULT, help="rounds of four kills each on SQLite"
    )
    parser.addoption("--crash-seed", type=int, default=None, help="repeat the choices of a run that failed")


@pytest.fixture(scope="session")
def crash_rounds(request: pytest.FixtureRequest) -> int:
    """Rounds to play in all."""
    # Without this folder on the command line these options are not known, and the defaults hold.
    rounds = request.config.getoption("crash_rounds", default=ROUNDS_DEFAULT)
    assert isinstance(rounds, int)
    return rounds


@pytest.fixture(scope="session")
def crash_seed(request: pytest.FixtureRequest) -> int:
    """Where the choices of this run begin; a failure prints it."""
    seed = request.config.getoption("crash_seed", default=None)
    return seed if isinstance(seed, int) else random.SystemRandom().randrange(1_000_000)
