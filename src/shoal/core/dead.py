"""Dead letters: records that could not be processed, until someone settles them.

They lie in a stream of their own, which is only ever appended to: settling one appends a line that says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from shoal.core.aside import Origin, origin_of
from shoal.core.errors import UnknownDeadLetter

_SETTLES: Final = "shoal-settles"


class Line(Protocol):
    """A record of the dead stream."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> object: ...
    @property
    def headers(self) -> Mapping[str, bytes]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A record that ran out of attempts."""

    number: int
    """What it is called by: its offset in the dead stream."""
    died_ms: int
    key: bytes | None
    value: object
    headers: Mapping[str, bytes]
    origin: Origin


def open_letters(lines: Iterable[Line]) -> list[DeadLetter]:
    """Those that nobody has settled, oldest first."""
    letters: dict[int, DeadLetter] = {}
    for line in lines:
        settled = settled_by(line.headers)
        if settled:
            for number in settled:
                letters.pop(number, None)
            continue
        origin = origin_of(line.headers)
        if origin is not None:
            letters[line.offset] = DeadLetter(
                number=line.offset,
                died_ms=line.timestamp,
                key=line.key,
                value=line.value,
                headers=line.headers,
                origin=origin,
            )
    return list(letters.values())


def chosen(letters: Sequence[DeadLetter], numbers: Sequence[int] | None, where: str) -> list[DeadLetter]:
    """Those that were asked for (None: all), or an error that names the one that is not there."""
    if numbers is None:
        return list(letters)
    known = {letter.number: letter for letter in letters}
    for number in numbers:
        if number not in known:
            raise UnknownDeadLetter(where=where, number=number)
    return [known[number] for number in dict.fromkeys(numbers)]


def settlement(numbers: Iterable[int]) -> dict[str, bytes]:
    """The headers of a line that settles letters."""
    return {_SETTLES: ",".join(str(number) for number in numbers).encode()}


def settled_by(headers: Mapping[str, bytes]) -> list[int]:
    """The letters that a line settles; none, if it is a letter itself."""
    text = headers.get(_SETTLES, b"").decode()
    return [int(number) for number in text.split(",") if number]
