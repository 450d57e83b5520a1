"""Numbers that rise for ever, as small ones: what tells two states apart is which of them is the higher one.

Where one is made from another by adding one, it also counts whether two are neighbours; see `Steps`.
"""

from __future__ import annotations

from collections.abc import Hashable


class Ranks:
    """Numbers by their order among those that occur."""

    def __init__(self) -> None:
        self._found: set[int] = {0}
        self._rank: dict[int, int] = {}

    def add(self, *numbers: int) -> None:
        self._found.update(numbers)

    def __call__(self, number: int) -> int:
        if not self._rank:
            self._rank = {found: rank for rank, found in enumerate(sorted(self._found))}
        return self._rank[number]


class Steps:
    """Counters, each by what it counts: their order, and which of them are one apart."""

    def __init__(self) -> None:
        self._found: dict[Hashable, set[int]] = {}
        self._place: dict[Hashable, dict[int, int]] = {}

    def add(self, what: Hashable, number: int) -> None:
        self._found.setdefault(what, set()).add(number)

    def __call__(self, what: Hashable, number: int) -> int:
        places = self._place.get(what)
        if places is None:
            places = self._place[what] = {}
            place, before = 0, None
            for found in sorted(self._found[what]):
                place += 0 if before is None else min(found - before, 2)
                places[found] = place
                before = found
        return places[number]
