"""The root of the tree, the two parents that most parts of the house derive from, and the tree's leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from shoal.core.errors.texts import shown


class ShoalError(Exception):
    """The root. Catch it to catch everything that Shoal raises on purpose."""

    retriable: ClassVar[bool] = False
    untouched: bool = False
    """Of an append that failed with it: surely nothing of that is stored, nor will be."""


class InvalidInput(ShoalError, ValueError):
    """A value given by the caller is outside what the field takes; nothing was changed."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field}={shown(value)}: {remedy}")
        self.field, self.value, self.remedy = field, value, remedy


class NotFound(ShoalError, LookupError):
    """Something named by the caller does not exist."""


def leaves(root: type[ShoalError] = ShoalError) -> set[type[ShoalError]]:
    """All errors that no other error derives from: what an edge's table must cover."""
    children: Sequence[type[ShoalError]] = root.__subclasses__()
    if not children:
        return {root}
    return set().union(*(leaves(child) for child in children))
