"""Every rule of ownership, switched off, is caught: the checkers are themselves checked."""

import pytest

from sim.bugs import BUGS, Bug
from sim.world import World

SEEDS_MAX = 400
"""Of worlds that have what the bug needs to show. Most bugs take fewer than ten; see `Bug.focus`."""


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_rule_that_is_switched_off_is_caught(bug: Bug) -> None:
    with bug.planted() as switches:
        for seed in range(SEEDS_MAX):
            if World(seed, switches=switches, focus=bug.focus).run().violation is not None:
                return
    pytest.fail(f"{SEEDS_MAX} seeds did not notice: {bug.rule}")


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_the_same_worlds_without_the_bug_are_sound(bug: Bug) -> None:
    for seed in range(3):
        assert World(seed, focus=bug.focus).run().violation is None
