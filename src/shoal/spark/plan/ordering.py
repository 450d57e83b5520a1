"""Which streams of a query are read in order: children after their parents, and a shard by one task.

A query says so itself (`inOrder`), or the groups say it, each of its stream. Where no shard is cut follows
from all of them together: a batch is divided in one way.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.core.errors import InvalidInput


def in_order(asked: bool | None, said: Mapping[str, bool | None]) -> dict[str, bool]:
    """By stream, whether it is read in order. `said`: what its group says; None of a group that is not there,
    which is to be made as the others are (and in order, if it is the first)."""
    if asked is not None:
        return dict.fromkeys(said, asked)
    known = [one for one in said.values() if one is not None]
    otherwise = any(known) if known else True
    return {name: otherwise if one is None else one for name, one in said.items()}


def check_asked(asked: bool | None, said: bool, group: str, stream: str) -> None:
    """Refuse a query that was told otherwise than the group of one of its streams says."""
    if asked is not None and asked != said:
        raise InvalidInput(
            "inOrder",
            str(asked).lower(),
            f"group {group!r} of {stream} says otherwise; leave it out, or change the group with "
            "update_group()",
        )
