"""What a consumer that polls wants, as values: which streams, how much at once, and who is too late.

Not here: what happens to a shard. That is `delivery`'s, whoever calls and whoever polls.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from shoal.core.checking import as_whole
from shoal.core.errors import InvalidInput
from shoal.core.model import StreamName
from shoal.core.names import LEDGER, stream_name


class StreamShard(NamedTuple):
    """A shard of one of the streams that a consumer reads."""

    stream: str
    """`stream`, or `project/stream`."""
    shard: int


@dataclass(frozen=True, slots=True)
class Subscription:
    """Streams by name, or all whose full name a pattern matches as a whole."""

    names: tuple[StreamName, ...] = ()
    pattern: re.Pattern[str] | None = None

    def wanted(self, existing: Iterable[StreamName]) -> list[StreamName]:
        """Which of them are meant. Streams of records that were set aside, and those of our own notes, match
        no pattern: who reads everything and writes it elsewhere would feed itself."""
        if self.pattern is None:
            return list(self.names)
        return [
            name
            for name in existing
            if self.pattern.fullmatch(str(name))
            and not name.stream.endswith(_ASIDE)
            and name.stream != LEDGER
        ]


def subscription_of(streams: object, pattern: object) -> Subscription:
    """What the user asked for, or an error that says what was wrong with it."""
    if isinstance(streams, re.Pattern) and pattern is None:
        streams, pattern = None, streams
    if (streams is None) == (pattern is None):
        raise InvalidInput("streams", streams, "give a list of names, or a pattern, and not both")
    if pattern is not None:
        return Subscription(pattern=_pattern(pattern))
    if isinstance(streams, str | bytes | Mapping) or not isinstance(streams, Collection):
        raise InvalidInput("streams", streams, "a list of names; for a pattern say pattern=…")
    names = tuple(dict.fromkeys(stream_name(one) for one in streams))
    if not names:
        raise InvalidInput("streams", streams, "at least one; unsubscribe() is for none")
    return Subscription(names=names)


def check_listener(listener: object) -> None:
    """Refuse what would be told nothing, or could not be: a class that was not called."""
    is_one = any(callable(getattr(listener, name, None)) for name in LISTENED)
    if listener is not None and (isinstance(listener, type) or not is_one):
        raise InvalidInput("listener", listener, f"an object with some of {', '.join(LISTENED)}")


def _pattern(given: object) -> re.Pattern[str]:
    if isinstance(given, re.Pattern) and isinstance(given.pattern, str):
        return given
    if not isinstance(given, str):
        raise InvalidInput("pattern", given, "a regular expression, as text or compiled of text")
    try:
        return re.compile(given)
    except re.error as error:
        raise InvalidInput("pattern", given, f"no regular expression: {error}") from error


def place_of(given: object, streams: Sequence[str]) -> StreamShard:
    """A shard as users name it: (stream, shard), or its number alone if there is only one stream."""
    number = as_whole(given)
    if number is not None:
        if len(streams) != 1:
            raise InvalidInput("shard", given, f"of {len(streams)} streams: name it as (stream, shard)")
        return StreamShard(streams[0], number)
    if isinstance(given, tuple) and len(given) == 2 and (number := as_whole(given[1])) is not None:
        return StreamShard(str(stream_name(given[0])), number)
    raise InvalidInput("shard", given, "(stream, shard), or the number of a shard of the only stream")


def fitting(sizes: Iterable[int], most: int) -> int:
    """How many of these, in order, are given out at once: at least one, and together not above `most`."""
    count = total = 0
    for size in sizes:
        total += size
        if count and total > most:
            break
        count += 1
    return count


def is_too_late(left_ms: int | None, now_ms: int, interval_ms: int | None) -> bool:
    """Whether one who left its last poll then has stayed away too long; None: it is in one, or need not."""
    return left_ms is not None and interval_ms is not None and now_ms - left_ms > interval_ms


LISTENED: Final = ("on_assigned", "on_revoked", "on_lost")
_ASIDE: Final = (".retry", ".dead")
