"""The explorer: every history of a small world, breadth first, over the real rules.

Where the simulator takes one way through a large world, this takes all ways through a small one: 2 or 3
consumers, 2 shards and one split, crashes, pauses, answers that are lost. What may happen, what must hold and
what makes two states one differs between the kinds of group; the search does not.

A pause needs no action of its own: whoever is not chosen to act stands still while time passes. The same
holds for a message that is late.

The bound is the number of actions, or of states, whichever comes first: the last line says which.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Final, TypeVar

from shoal.core.group import Coordination
from sim import coordinated_moves, leased_moves, small_coordinated, small_leased
from sim.bound import Bound, Explored

S = TypeVar("S")

STATES: Final = 25_000
"""Of one world: a useful bound that takes seconds."""


def explore(bound: Bound) -> Explored:
    """All states within the bound, or the first that breaks the promise and the way there."""
    if bound.kind is Coordination.LEASED:
        return _search(
            bound, leased_moves.first, leased_moves.moves, small_leased.key_of, leased_moves.broken
        )
    return _search(
        bound,
        coordinated_moves.first,
        coordinated_moves.moves,
        small_coordinated.key_of,
        coordinated_moves.broken,
    )


def _search(
    bound: Bound,
    first: Callable[[Bound], S],
    moves: Callable[[S, Bound], Iterator[tuple[str, S]]],
    key_of: Callable[[S], Hashable],
    broken: Callable[[S], str | None],
) -> Explored:
    found = Explored()
    begin = first(bound)
    came: dict[Hashable, tuple[Hashable | None, str]] = {key_of(begin): (None, "")}
    waiting = deque([(begin, key_of(begin), 0)])
    while waiting:
        state, key, depth = waiting.popleft()
        found.depth = max(found.depth, depth)
        if depth == bound.depth:
            continue
        for action, after in moves(state, bound):
            place = key_of(after)
            if place in came:
                continue
            came[place] = (key, action)
            found.states = len(came)
            if (why := broken(after)) is not None:
                found.violation, found.path = why, _way(came, place)
                return found
            if found.states >= bound.states:
                return found
            waiting.append((after, place, depth + 1))
    found.is_complete = True
    return found


def _way(came: dict[Hashable, tuple[Hashable | None, str]], place: Hashable | None) -> list[str]:
    way: list[str] = []
    while place is not None:
        place, action = came[place]
        way.append(action)
    return way[-2::-1]


LEASED: Final = Coordination.LEASED

COMPLETE: Final = (
    Bound(shards=1, crashes=1, splits=0, faults=0, lives=2, depth=500),
    Bound(shards=1, crashes=0, splits=0, faults=1, lives=1, depth=500),
    Bound(kind=LEASED, shards=1, crashes=1, splits=0, faults=0, lives=2, depth=500),
)
"""The smallest worlds: every state that can be reached in them is seen, in seconds."""

WORLDS: Final = (
    Bound(consumers=3, shards=2, crashes=1, splits=1),
    Bound(consumers=2, shards=2, crashes=1, splits=1),
    Bound(consumers=3, shards=2, crashes=1, splits=0),
    Bound(consumers=2, shards=1, watchers=2, crashes=1, splits=0),
    Bound(consumers=2, shards=1, crashes=0, splits=0, rewinds=1),
    Bound(consumers=2, names=1, shards=1, crashes=0, splits=0),
    Bound(kind=LEASED, consumers=3, shards=2, crashes=1, splits=1, faults=1, lives=1),
    Bound(kind=LEASED, consumers=2, shards=2, crashes=1, splits=1, faults=1, lives=1),
    Bound(kind=LEASED, consumers=3, shards=2, crashes=1, splits=0, faults=1, lives=1),
    Bound(kind=LEASED, consumers=2, shards=1, crashes=0, splits=0, faults=2, lives=2),
    Bound(kind=LEASED, consumers=2, shards=2, crashes=0, splits=0, faults=1, lives=1, is_impatient=True),
    Bound(kind=LEASED, consumers=2, names=1, shards=1, crashes=0, splits=0, faults=1, lives=2),
    Bound(kind=LEASED, consumers=2, shards=1, crashes=0, splits=0, faults=1, lives=1),
)
"""Small worlds with more in them, as far as the bound on states goes."""

EXHAUSTIBLE: Final = (
    *COMPLETE,
    Bound(kind=LEASED, shards=1, crashes=0, splits=0, faults=1, lives=1, depth=500),
    Bound(kind=LEASED, shards=2, crashes=1, splits=0, faults=0, lives=1, depth=500),
    Bound(shards=2, crashes=1, splits=1, faults=0, lives=1, depth=500),
)
"""Worlds that end by themselves; each of the last takes a minute or so."""


def main(arguments: list[str] | None = None) -> int:
    """Explore the small worlds, further with `--depth` and `--states`."""
    parser = argparse.ArgumentParser(prog="python -m sim explore", description=__doc__)
    parser.add_argument("--depth", type=int, default=30, help="actions of a world without an end, at most")
    parser.add_argument("--states", type=int, default=STATES, help="states of such a world, at most")
    options = parser.parse_args(arguments)
    failed = 0
    endless = [replace(world, depth=options.depth, states=options.states) for world in WORLDS]
    for bound in (*EXHAUSTIBLE, *endless):
        began = time.monotonic()
        found = explore(bound)
        depth = f"depth {found.depth}{'' if found.is_complete else ' (not all of it)'}"
        took = f"{time.monotonic() - began:.1f} s"
        verdict = found.violation or "all hold"
        sys.stdout.write(f"{bound}: {found.states:,} states, {depth}, {took}: {verdict}\n")
        for action in found.path:
            sys.stdout.write(f"    {action}\n")
        failed += found.violation is not None
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
