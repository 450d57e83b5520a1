"""Every rule of ownership, switched off, is caught: the checkers are themselves checked."""

import pytest

from sim.bug import Bug
from sim.bugs import BUGS

SEEDS_MAX = 200
"""Of worlds that have what the bug needs to show. Most take fewer than five; see `Bug.focus`."""


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_rule_that_is_switched_off_is_caught(bug: Bug) -> None:
    with bug.planted() as switches:
        for seed in range(SEEDS_MAX):
            if bug.world(seed, switches).run().violation is not None:
                return
    pytest.fail(f"{SEEDS_MAX} seeds did not notice: {bug.rule}")


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_the_same_worlds_without_the_bug_are_sound(bug: Bug) -> None:
    assert bug.world(0).run().violation is None
