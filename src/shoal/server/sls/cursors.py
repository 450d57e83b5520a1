"""Cursors: a place in a shard as Aliyun's clients carry it about.

A cursor is the base64 of a decimal number: the shard's birth in nanoseconds, plus an offset. Clients do
arithmetic on it (the one before, by minus one), and a cursor of a stream that was deleted and made again lies
outside of what the new one has.

A consumer that begins at the end of a shard gets its cursor with a nought before the number, and keeps it
until it has been given something: so any server can tell that nothing it was given can be under way.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from shoal.core.model import Shard

_NUMBER: Final = re.compile(rb"0?[0-9]{1,19}")
_IDLE: Final = "0"
_LONGEST: Final = 64


class NoCursor(Exception):
    """Not a cursor, or not one of this shard."""


def cursor_at(shard: Shard, offset: int, *, is_idle: bool = False) -> str:
    """The cursor of an offset; `is_idle`: of a consumer that has been given nothing yet."""
    number = str(_base(shard) + offset)
    return base64.b64encode(((_IDLE if is_idle else "") + number).encode()).decode()


def is_idle(cursor: str) -> bool:
    """Whether a good cursor is that of a consumer which has been given nothing yet."""
    return base64.b64decode(cursor.strip()).startswith(_IDLE.encode())


def offset_of(shard: Shard, cursor: str) -> int:
    """The offset of a cursor; some clients leave a line feed at its end."""
    given = cursor.strip()
    try:
        text = base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError) as error:
        raise NoCursor(f"{cursor[:_LONGEST]!r} is not encoded by base64") from error
    if len(given) > _LONGEST or not _NUMBER.fullmatch(text):
        raise NoCursor(f"{cursor[:_LONGEST]!r} is no cursor")
    offset = int(text) - _base(shard)
    # One before the beginning is what clients make of the first cursor when they look back.
    if not -1 <= offset <= shard.next_offset:
        raise NoCursor(f"{cursor[:_LONGEST]!r} is not a cursor of shard {shard.id}")
    return offset


def kept_from(shard: Shard, offset: int, stop: int | None) -> int:
    """Where logs from an offset on begin, of which retention may have taken the first; `stop` is where who
    asks wants to end. It is never led past that: it waits until it is told that very place."""
    end = shard.first_offset if stop is None or offset > stop else min(shard.first_offset, stop)
    return max(offset, end)


def _base(shard: Shard) -> int:
    return shard.created_ms * 1_000_000
