"""What a consumer library says of itself in its User-Agent: the group, and the consumer's name. Pure.

Anyone can make one up: so it is asked of the groups alone in which the caller may do what comes of it, and
nothing is told of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

_PYTHON: Final = "-consumergroup-"
_JAVA: Final = "Consumer-Library-"
"""What stands before the group."""


def is_consumer(agent: str) -> bool:
    """Whether it is a consumer library's: they carry cursors about, and do not compare them."""
    return _PYTHON in agent or _JAVA in agent


def is_java(agent: str) -> bool:
    """Whether it is that of Java's consumers, which do not tell the names of groups apart by capitals."""
    return _JAVA in agent


def spelled(group: str, groups: Iterable[str], may: Callable[[str], bool]) -> str | None:
    """The group that Java's consumers mean by a name: the one of just this name, or else the only one of it
    in other capitals. They take such a group for theirs when they list, and then ask for it in their own
    letters."""
    alike = [name for name in groups if name.lower() == group.lower() and may(name)]
    if group in alike:
        return group
    return alike[0] if len(alike) == 1 else None


def consumers_in(agent: str, groups: Collection[str], may: Callable[[str], bool]) -> list[tuple[str, str]]:
    """The groups that it may speak of, each with the consumer. Python's names with dashes can be read in two
    ways."""
    found = []
    for group in groups:
        _, _, consumer = agent.partition(f"{_PYTHON}{group}-")
        if consumer and may(group):
            found.append((group, consumer))
    named, _, consumer = agent.partition(_JAVA)[2].partition("/")
    if consumer and (meant := spelled(named, groups, may)) is not None:
        found.append((meant, consumer))
    return found
