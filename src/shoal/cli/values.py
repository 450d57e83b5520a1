"""Words of the command line as values: `7d`, `10GB`, `amount:int64`, `latest`, `3=120`. Parses; acts not.

What cannot be read is InvalidInput, with the field and an example that works.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from shoal.core.errors import InvalidInput

_NUMBER: Final = r"(\d{1,15}(?:\.\d{1,6})?)"
_DURATION: Final = re.compile(_NUMBER + r"\s*(ms|s|m|h|d|w)")
_BARE: Final = re.compile(_NUMBER)
_OFFSET: Final = re.compile(r"(\d{1,9})\s*=\s*(\d{1,18})")
_SIZE: Final = re.compile(_NUMBER + r"\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_PORT_DIGITS: Final = 5
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


def parse_seconds(field: str, text: str) -> float:
    """`30s`, `5m`, `1h`; a bare number is seconds."""
    word = text.strip()
    if _BARE.fullmatch(word):
        return float(word)
    if not _DURATION.fullmatch(word):
        raise InvalidInput(field, text, "seconds, or a number with a unit, such as 500ms, 30s, 5m or 1h")
    return parse_duration(field, word).total_seconds()


def parse_bound(field: str, text: str) -> float | None:
    """Seconds, as above, or `none` for no bound at all."""
    return None if text.strip().lower() == "none" else parse_seconds(field, text)


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


def parse_start(text: str, now: datetime, field: str = "from") -> Start:
    """`earliest`, `latest`, an offset, a time in ISO form, or a time ago such as `10m`."""
    word = text.strip()
    if word == "earliest":
        return Earliest()
    if word == "latest":
        return Latest()
    if re.fullmatch(r"\d{1,18}", word):
        return AtOffset(int(word))
    time = _time(field, word, now)
    if time is None:
        raise InvalidInput(field, text, f"earliest, latest, an offset, {_TIMES}")
    return AtTime(time)


# --- Where a group goes on. -------------------------------------------------------------------------


Position = str | datetime | dict[int, int]
"""As the hub takes it: a word, a time, or offsets by shard."""


def parse_position(field: str, words: Sequence[str], now: datetime) -> Position:
    """`earliest`, `latest`, a time or a time ago; or an offset for each shard that is named, as `3=120`."""
    if len(words) > 1 or any("=" in word for word in words):
        return parse_offsets(field, words)
    word = "".join(words).strip()
    if word in ("earliest", "latest"):
        return word
    time = _time(field, word, now)
    if time is None:
        raise InvalidInput(field, word, f"earliest, latest, {_TIMES}, or shards with offsets such as 3=120")
    return time


def parse_offsets(field: str, words: Sequence[str]) -> dict[int, int]:
    """`3=120` for each shard."""
    offsets: dict[int, int] = {}
    for word in words:
        found = _OFFSET.fullmatch(word.strip())
        if found is None:
            raise InvalidInput(field, word, "a shard with an offset, such as 3=120")
        if int(found[1]) in offsets:
            raise InvalidInput(field, word, f"shard {found[1]} is named once")
        offsets[int(found[1])] = int(found[2])
    return offsets


# --- Times. -----------------------------------------------------------------------------------------

_TIMES: Final = "a time such as 2026-01-31T08:00Z, or 10m for a time ago"


def _time(field: str, word: str, now: datetime) -> datetime | None:
    """A time in ISO form, or how long ago; None of a word that is neither."""
    if _DURATION.fullmatch(word):
        try:
            return now - parse_duration(field, word)
        except OverflowError as error:
            raise InvalidInput(field, word, "longer ago than any time we can count") from error
    try:
        # Without a zone it is the user's own: that is what their clock shows.
        return datetime.fromisoformat(word).astimezone()
    except (ValueError, OverflowError):
        return None


def parse_place(field: str, text: str, port: int) -> tuple[str, int]:
    """A host and its port, or this one. A number alone is refused: it is a port, and would be a host."""
    host, colon, given = text.rpartition(":") if ":" in text else (text, "", str(port))
    is_port = given.isascii() and given.isdigit() and len(given) <= _PORT_DIGITS
    if not host or not is_port or (not colon and host.isdigit()):
        raise InvalidInput(field, text, f"HOST:PORT, such as 127.0.0.1:{port}")
    return host.strip("[]"), int(given)
