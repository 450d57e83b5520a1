"""Histories of producers, and the mistakes that their checkers must catch."""

import os
from collections import Counter

import pytest

from sim.producing import BUGS, Broken, World

SEEDS = int(os.environ.get("SHOAL_PRODUCING_SEEDS", "30"))


def test_whatever_happens_to_producers_everything_is_stored_once_and_in_order() -> None:
    figures: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = World(seed)
        try:
            world.run()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        figures.update(world.figures)
    assert min(figures.values()) > SEEDS, f"too little happens to show anything: {figures}"


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str) -> None:
    for seed in range(300):
        try:
            World(seed, bug).run()
        except Broken:
            return
        except KeyError:
            continue  # The machine tripped over itself; whether the checkers see the mistake, others show.
    pytest.fail(f"{bug} was not caught: {BUGS[bug]}")
