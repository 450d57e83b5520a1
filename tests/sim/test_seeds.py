"""A thousand worlds, each by its seed: what must always hold, holds; and one seed is one history."""

import pytest

from sim.world import World

CHUNK = 50
SEEDS = 1000


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_history_keeps_the_invariants(first: int) -> None:
    failed = {}
    for seed in range(first, first + CHUNK):
        violation = World(seed).run().violation
        if violation is not None:
            failed[seed] = str(violation)
    assert not failed, f"replay with: python -m sim --seed {min(failed)} --trace; {failed}"


@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_one_seed_is_one_history(seed: int) -> None:
    first, second = World(seed, is_traced=True).run(), World(seed, is_traced=True).run()
    assert first.history.digest() == second.history.digest()
    assert first.events == second.events
    assert World(seed).run().events == first.events, "a trace changes nothing"
