"""How many shards each consumer of a leased group takes, and from whom: numbers only, no rows.

Every taker thinks for all, by the same rule from the same rows, and does only its own part. So takers that
look at the same moment neither fight for a row nor empty a full consumer together.

Invariant: what is dealt and levelled ends with counts within one of each other, and is then left alone.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple


class Theft(NamedTuple):
    """So many shards of one consumer are to go to another."""

    victim: str
    thief: str
    shards: int


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


def levelled(counts: Mapping[str, int]) -> list[Theft]:
    """Who steals how many from whom, until nobody holds two more than another.

    One after the other goes from whoever is fullest at that moment to whoever is emptiest. So nobody ends
    above `ceil(shards / consumers)`, the document's target, and no more moves than must. Of the victims it is
    the document's batch in another form: the K fullest are lowered to one level, AVG_LEFT, within one, and
    those who hold less than that are left alone. Stopping where the fullest holds less than two more is what
    makes it settle: by `ceil` alone 10 shards on 3 consumers swap for ever (3, 4, 3: two want a fourth).
    """
    level = dict(counts)
    fullest = [(-count, name) for name, count in counts.items()]
    emptiest = [(count, name) for name, count in counts.items()]
    heapq.heapify(fullest)
    heapq.heapify(emptiest)
    thefts: dict[tuple[str, str], int] = {}
    while counts:
        victim, thief = _top(fullest, level), _top(emptiest, level)
        if level[victim] < level[thief] + 2:
            break
        for name, by in ((victim, -1), (thief, 1)):
            level[name] += by
            heapq.heappush(fullest, (-level[name], name))
            heapq.heappush(emptiest, (level[name], name))
        thefts[victim, thief] = thefts.get((victim, thief), 0) + 1
    return [Theft(victim, thief, shards) for (victim, thief), shards in thefts.items()]


def dealt_to(quota: Mapping[str, int], counts: Mapping[str, int], free: int) -> list[str]:
    """Who takes each of so many free shards: always the one that lacks most, by name among equals."""
    heap = [(counts[name] - quota[name], name) for name in counts]
    heapq.heapify(heap)
    takers = []
    for _ in range(free if heap else 0):
        lack, name = heap[0]
        takers.append(name)
        heapq.heapreplace(heap, (lack + 1, name))
    return takers


def evened(quota: Mapping[str, int], counts: Mapping[str, int]) -> list[Theft]:
    """Who steals how many from whom, until everyone has its quota.

    Those who have more than that give to those who have less, and only to them: whoever all see the same
    consumers in, each theft brings nearer to one and the same end, and there nothing is stolen any more.
    """
    thieves = [name for name in sorted(counts) for _ in range(quota[name] - counts[name])]
    victims = [name for name in sorted(counts) for _ in range(counts[name] - quota[name])]
    thefts = Counter(zip(victims, thieves, strict=False))
    return [Theft(victim, thief, shards) for (victim, thief), shards in thefts.items()]


def _top(heap: list[tuple[int, str]], level: Mapping[str, int]) -> str:
    """The first of the heap, after what has changed since it was pushed is gone from there."""
    while abs(heap[0][0]) != level[heap[0][1]]:
        heapq.heappop(heap)
    return heap[0][1]
