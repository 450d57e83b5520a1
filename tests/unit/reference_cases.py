"""Marks for tests that come from the reference cases of other lease systems.

`ours`: we do the same. `differs`: we do otherwise on purpose, and the reason is in the mark; the test shows
what we do instead.
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
