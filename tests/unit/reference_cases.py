"""Marks for tests that come from the reference cases of other lease systems.

`ours`: we do the same. `differs`: we do otherwise on purpose, and the reason is in the mark; the test shows
what we do instead. `elsewhere`: the case is not about leases, or what it is about does not exist here.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

Test = TypeVar("Test", bound=Callable[..., None])


class Case(NamedTuple):
    name: str
    verdict: str
    reason: str


CASES: list[Case] = []


def ours(*names: str) -> Callable[[Test], Test]:
    """We do as the reference does."""
    CASES.extend(Case(name, "ours", "") for name in names)
    return lambda test: test


def differs(name: str, reason: str) -> Callable[[Test], Test]:
    """We do otherwise on purpose."""
    CASES.append(Case(name, "differs", reason))
    return lambda test: test


def elsewhere(name: str, reason: str) -> None:
    """Not a rule about leases, or not a thing that we have."""
    CASES.append(Case(name, "elsewhere", reason))
