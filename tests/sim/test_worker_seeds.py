"""A thousand worlds of whole workers, each by its seed: what must always hold, holds for every record."""

from collections import Counter

import pytest

from shoal.core.orders import What
from sim.world import World

CHUNK = 50
SEEDS = 1000


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_history_of_workers_keeps_the_invariants(first: int) -> None:
    failed = {}
    for seed in range(first, first + CHUNK):
        violation = World(seed, has_workers=True).run().violation
        if violation is not None:
            failed[seed] = str(violation)
    assert not failed, f"replay with: python -m sim --workers --seed {min(failed)} --trace; {failed}"


@pytest.mark.parametrize("seed", range(0, 20, 4))
def test_one_seed_is_one_history_of_workers(seed: int) -> None:
    first = World(seed, has_workers=True, is_traced=True).run()
    second = World(seed, has_workers=True, is_traced=True).run()
    assert first.history.digest() == second.history.digest()
    assert World(seed, has_workers=True).run().events == first.events, "a trace changes nothing"


def test_the_worlds_of_workers_have_seen_everything_that_they_are_about() -> None:
    """Otherwise a thousand of them would prove nothing."""
    counts: Counter[str] = Counter()
    for seed in range(60):
        counts += World(seed, has_workers=True).run().history.counts
    wanted = {
        *("records", "failures", "dead letters", "retried", "Stuck", "Show", "Skipped", "ReadFailed"),
        *(f"tenures {what}" for what in What),
        *("plain hand-overs", "expired", "refused by a sink", "saves that failed", "went back"),
    }
    assert not wanted - counts.keys()
