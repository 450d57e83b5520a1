"""Looking again and again, until Ctrl-C: a store that is away for a while ends no watch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from shoal.cli import output
from shoal.core.errors import InvalidInput, ShoalError

INTERVAL_S_MIN: Final = 0.1
"""More often nobody can read, and every look is a few queries."""
INTERVAL_S_MAX: Final = 86400.0

_Seen = TypeVar("_Seen")


def checked_interval(field: str, seconds: float) -> float:
    """Seconds between two looks."""
    if not INTERVAL_S_MIN <= seconds <= INTERVAL_S_MAX:
        raise InvalidInput(
            field, seconds, f"seconds from {INTERVAL_S_MIN:g} to {INTERVAL_S_MAX:g}, such as 2s"
        )
    return seconds


def looks(look: Callable[[], _Seen], every_s: float) -> Iterator[_Seen]:
    """What each look sees. The first must succeed; one that fails later is made again if it may succeed."""
    yield look()
    while True:
        time.sleep(every_s)
        yield patiently(look, every_s)


def patiently(look: Callable[[], _Seen], every_s: float) -> _Seen:
    """What a look sees once it succeeds, unless it fails for good.

    An outage is told once, on standard error, and so is its end.
    """
    is_away = False
    while True:
        try:
            seen = look()
        except ShoalError as error:
            if not error.retriable:
                raise
            if not is_away:
                output.note(f"{error}; looking again every {every_s:g} s")
            is_away = True
            time.sleep(every_s)
            continue
        if is_away:
            output.note("the store is there again")
        return seen
