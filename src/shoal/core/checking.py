"""Questions about values that a caller gave, whatever their annotations promised."""

from __future__ import annotations

from operator import index
from typing import SupportsIndex, TypeGuard


def is_whole(value: object) -> TypeGuard[int]:
    """A whole number. True and False are not numbers here."""
    return isinstance(value, int) and not isinstance(value, bool)


def as_whole(value: object) -> int | None:
    """A whole number, of Python or of NumPy, as one of Python; None if it is none. A bool is none."""
    if type(value) is int:  # Nearly always, and told much sooner than by what follows.
        return value
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return index(value)
    except TypeError:  # An array, or a bool of NumPy.
        return None


def is_number(value: object) -> TypeGuard[int | float]:
    """A number that can be compared: not a bool, not NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # noqa: PLR0124


def is_instance_of(value: object, kind: type | tuple[type, ...]) -> bool:
    """`isinstance` for a value whose annotation already says so, and may be wrong."""
    return isinstance(value, kind)
