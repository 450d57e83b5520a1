"""A planted bug: one rule of ownership, switched off, in worlds that have what it takes for it to show.

A bug of a rule replaces a function of `shoal.core` for as long as the context lasts; a bug of the shell is
a switch that the simulated hub, table, watcher, seat or consumer looks at. One that no seed catches means
that the simulator is too weak, or that the rule is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeAlias
from unittest.mock import patch

from shoal.core.group import Coordination
from sim.world import World

Replacement: TypeAlias = tuple[object, str, object]
"""Where, which name, and by what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One rule, switched off."""

    name: str
    rule: str
    """What the design says, in a few words."""
    kind: Coordination | None = Coordination.COORDINATED
    """None: the seed's own."""
    has_workers: bool = False
    """Only whole workers can show it."""
    focus: tuple[str, ...] = ()
    """What must be in a world for the bug to show; see `swarm`."""
    change: Callable[[], Replacement | list[Replacement]] | None = None
    """What is replaced in the rules. None: it is a switch of the shell, by the bug's name."""

    def __str__(self) -> str:
        kind = "" if self.kind is None else f"{self.kind}: "
        return f"{'workers: ' if self.has_workers else ''}{kind}{self.name}"

    @contextmanager
    def planted(self) -> Iterator[frozenset[str]]:
        """Worlds made inside, with these switches, have the bug."""
        if self.change is None:
            yield frozenset({self.name})
            return
        made = self.change()
        with ExitStack() as stack:
            for where, name, by in made if isinstance(made, list) else [made]:
                stack.enter_context(patch.object(where, name, by))
            yield frozenset()

    def world(self, seed: int, switches: frozenset[str] = frozenset()) -> World:
        """A world of its kind, with what it takes for the bug to show."""
        return World(seed, switches=switches, focus=self.focus, kind=self.kind, has_workers=self.has_workers)
