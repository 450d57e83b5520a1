"""Questions about values that a caller gave, whatever their annotations promised."""

from __future__ import annotations

from typing import TypeGuard


def is_whole(value: object) -> TypeGuard[int]:
    """A whole number. True and False are not numbers here."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """A number that can be compared: not a bool, not NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # noqa: PLR0124


def is_instance_of(value: object, kind: type | tuple[type, ...]) -> bool:
    """`isinstance` for a value whose annotation already says so, and may be wrong."""
    return isinstance(value, kind)
