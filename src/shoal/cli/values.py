"""Words of the command line as values: `7d`, `10GB`, `amount:int64`, `latest`. Parses; acts on nothing.

What cannot be read is InvalidInput, with the field and an example that works.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from shoal.core.errors import InvalidInput

_NUMBER: Final = r"(\d{1,15}(?:\.\d{1,6})?)"
_DURATION: Final = re.compile(_NUMBER + r"\s*(ms|s|m|h|d|w)")
_SIZE: Final = re.compile(_NUMBER + r"\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_PREFIXES: Final = ("", "k", "m", "g", "t")


def parse_duration(field: str, text: str) -> timedelta:
    """`90s`, `10m`, `12h`, `7d`, `2w`, `500ms`."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(field, text, "a number with a unit, such as 90s, 10m, 12h, 7d or 2w")
    try:
        return timedelta(seconds=float(found[1]) * _SECONDS[found[2]])
    except OverflowError as error:
        raise InvalidInput(field, text, "longer than any time we can count") from error


def parse_size(field: str, text: str) -> int:
    """`500MB` and `10GB` count in thousands, `10GiB` in 1024s; a bare number is bytes."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(field, text, "a number with a unit, such as 500MB, 10GB or 10GiB")
    step = 1024 if found[3] else 1000
    return int(float(found[1]) * step ** _PREFIXES.index(found[2].lower()))


def parse_schema(text: str) -> dict[str, str]:
    """`amount:int64,customer:string` as column names to the names of Arrow types."""
    columns: dict[str, str] = {}
    for part in text.split(","):
        name, colon, kind = (word.strip() for word in part.partition(":"))
        if not name or not colon or not kind:
            raise InvalidInput("schema", text, "columns as name:type, such as amount:int64,customer:string")
        if name in columns:
            raise InvalidInput("schema", name, "a column is named once")
        columns[name] = kind
    return columns


# --- Where to begin to read. ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Earliest:
    """At the first record that is kept."""


@dataclass(frozen=True, slots=True)
class Latest:
    """After the last record there is now."""


@dataclass(frozen=True, slots=True)
class AtOffset:
    """At an offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """At the first record of a time or later."""

    time: datetime


Start = Earliest | Latest | AtOffset | AtTime


def parse_start(text: str, now: datetime) -> Start:
    """`earliest`, `latest`, an offset, a time in ISO form, or a time ago such as `10m`."""
    word = text.strip()
    if word == "earliest":
        return Earliest()
    if word == "latest":
        return Latest()
    if re.fullmatch(r"\d{1,18}", word):
        return AtOffset(int(word))
    if _DURATION.fullmatch(word):
        ago = parse_duration("from", word)
        try:
            return AtTime(now - ago)
        except OverflowError as error:
            raise InvalidInput("from", text, "longer ago than any time we can count") from error
    try:
        # Without a zone it is the user's own: that is what their clock shows.
        return AtTime(datetime.fromisoformat(word).astimezone())
    except (ValueError, OverflowError) as error:
        raise InvalidInput(
            "from",
            text,
            "earliest, latest, an offset, a time such as 2026-01-31T08:00Z, or 10m for a time ago",
        ) from error
