"""A thousand worlds whose user code polls: it is late, pauses, seeks, and finds its records withdrawn."""

from collections import Counter

import pytest

from sim.world import World

CHUNK = 50
SEEDS = 1000
POLLED = ("polled",)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_history_of_poll_loops_keeps_the_invariants(first: int) -> None:
    failed = {}
    counts: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        run = World(seed, has_workers=True, focus=POLLED).run()
        counts += run.history.counts
        if run.violation is not None:
            failed[seed] = str(run.violation)
    assert not failed
    assert counts["polled"] > counts["withdrawn"] > 0, "otherwise they would prove nothing"
    assert counts["sought"] > 0
