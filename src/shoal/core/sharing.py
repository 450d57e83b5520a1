"""How many shards each consumer of a leased group takes, and from whom: numbers only, no rows.

Every taker thinks for all, by the same rule from the same rows, and does only its own part. So takers that
look at the same moment neither fight for a row nor empty a full consumer together.

Invariant: what is dealt and levelled ends with counts within one of each other, and is then left alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import NamedTuple


class Theft(NamedTuple):
    """So many shards of one consumer are to go to another."""

    victim: str
    thief: str
    shards: int


def target(shards: int, consumers: int) -> int:
    """The most that a consumer should hold: `ceil(shards / consumers)`, as in the founding document."""
    return -(-shards // consumers) if consumers else 0


def dealt(counts: Mapping[str, int], free: int) -> list[str]:
    """Who takes each of so many free shards: always the one with the fewest, by name among equals."""
    heap = [(count, name) for name, count in counts.items()]
    heapq.heapify(heap)
    takers = []
    for _ in range(free if heap else 0):
        count, name = heap[0]
        takers.append(name)
        heapq.heapreplace(heap, (count + 1, name))
    return takers


def levelled(counts: Mapping[str, int], most: int) -> list[Theft]:
    """Who steals how many from whom, until all hold at most `most` and nobody holds two more than another.

    Each thief, the emptiest first, takes one after the other from whoever is fullest at that moment. That is
    the document's batch in another form: it lowers the K fullest to one level, AVG_LEFT, within one, and
    leaves alone those who hold less than that. Stopping where the fullest holds less than two more than the
    thief is what makes it settle: `ceil` alone has 10 shards on 3 consumers swap for ever (4, 4, 2: the third
    wants two more, then the others do).
    """
    level = dict(counts)
    fullest = [(-count, name) for name, count in counts.items()]
    heapq.heapify(fullest)
    thefts: dict[tuple[str, str], int] = {}
    for thief in sorted(counts, key=lambda name: (counts[name], name)):
        while level[thief] < most:
            victim = _fullest(fullest, level)
            if level[victim] < level[thief] + 2:
                break
            for name, by in ((victim, -1), (thief, 1)):
                level[name] += by
                heapq.heappush(fullest, (-level[name], name))
            thefts[victim, thief] = thefts.get((victim, thief), 0) + 1
    return [Theft(victim, thief, shards) for (victim, thief), shards in thefts.items()]


def _fullest(heap: list[tuple[int, str]], level: Mapping[str, int]) -> str:
    """The top of the heap, after what has changed since it was pushed is gone from there."""
    while -heap[0][0] != level[heap[0][1]]:
        heapq.heappop(heap)
    return heap[0][1]
