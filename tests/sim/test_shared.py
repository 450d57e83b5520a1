"""A thousand worlds of shared groups: what must hold, holds; and every rule, switched off, is caught."""

import pytest

from sim.shared_bugs import BUGS, SharedBug
from sim.shared_world import SharedWorld

CHUNK = 100
SEEDS = 1000
SEEDS_MAX = 60
"""Of worlds that have what a bug needs to show."""


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_history_of_a_shared_group_settles_each_record_once_and_loses_none(first: int) -> None:
    failed = {}
    for seed in range(first, first + CHUNK):
        violation = SharedWorld(seed).run().violation
        if violation is not None:
            failed[seed] = str(violation)
    assert not failed, f"replay with: python -m sim --shared --seed {min(failed)} --trace; {failed}"


@pytest.mark.parametrize("seed", range(0, 40, 8))
def test_one_seed_of_a_shared_group_is_one_history(seed: int) -> None:
    first, second = SharedWorld(seed, is_traced=True).run(), SharedWorld(seed).run()
    assert first.events == second.events
    assert first.virtual_ms == second.virtual_ms


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_rule_of_shared_groups_that_is_switched_off_is_caught(bug: SharedBug) -> None:
    with bug.planted() as switches:
        for seed in range(SEEDS_MAX):
            if bug.world(seed, switches).run().violation is not None:
                return
    pytest.fail(f"{SEEDS_MAX} seeds did not notice: {bug.rule}")


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_the_same_worlds_of_shared_groups_without_the_bug_are_sound(bug: SharedBug) -> None:
    for seed in range(3):
        assert bug.world(seed).run().violation is None
