"""Small worlds, all ways through them: no state that can be reached breaks the promise."""

from dataclasses import replace

import pytest

from shoal.core.group import Coordination
from sim.bound import Bound
from sim.bugs import BUGS
from sim.explorer import COMPLETE, WORLDS, explore

STATES = 2_000
"""Of worlds that are too large to be seen as a whole here."""


@pytest.mark.parametrize("world", COMPLETE, ids=str)
def test_every_reachable_state_of_the_smallest_worlds_keeps_the_promise(world: Bound) -> None:
    found = explore(world)
    assert found.violation is None, found.path
    assert found.is_complete
    assert found.depth < world.depth, "it ended by itself"


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_no_reachable_state_breaks_the_promise(world: Bound) -> None:
    found = explore(replace(world, states=STATES))
    assert found.violation is None, found.path
    assert found.states >= STATES or found.is_complete


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Coordination.COORDINATED, "a living owner is forced"),
        (Coordination.COORDINATED, "inherits at once"),
        (Coordination.COORDINATED, "reset without letting go"),
        (Coordination.LEASED, "a steal does not wait for the drain"),
        (Coordination.LEASED, "a renewal is taken for the one before it"),
        (Coordination.LEASED, "watch without the counter"),
        (Coordination.LEASED, "inherits at once"),
        (Coordination.LEASED, "children come first"),
    ],
)
def test_a_planted_bug_is_found_with_the_way_to_it(kind: Coordination, name: str) -> None:
    bug = next(bug for bug in BUGS if (bug.kind, bug.name) == (kind, name))
    with bug.planted():
        found = (
            explore(replace(world, states=states))
            for states in (600, 4_000, 15_000)
            for world in reversed(WORLDS)
            if world.kind is kind
        )
        broken = next((one for one in found if one.violation is not None), None)
    assert broken is not None
    assert broken.path
