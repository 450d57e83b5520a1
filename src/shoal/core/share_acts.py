"""What a consumer may ask of one shard in a shared group, and what it is answered. Values only.

`share.step` applies an act; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from shoal.core.spans import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive:
    """A consumer asks for records."""

    consumer: str
    max_records: int
    visibility_ms: int
    keys: tuple[int, Sequence[int]] = (0, ())
    """Where keys are kept one at a time: an offset, and the keys' hashes of the records from there on."""


class How(StrEnum):
    """What is to become of records in a hold."""

    ACK = "ack"
    DEAD = "dead"
    """They are in the dead stream."""
    RELEASE = "release"
    RETURN = "return"
    """Released, as if never handed out."""
    EXTEND = "extend"
    DOOM = "doom"
    """Held on to until they are in the dead stream; whatever happens, nobody receives them again."""


DOOMED: Final = 1000
"""Added to the attempts of a record that was rejected: more than any group allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """The holder says what becomes of some of its records."""

    consumer: str
    hold: int
    ranges: Sequence[Range]
    how: How
    for_ms: int = 0
    """Of a release, how long they are to wait; of an extension, how long they are held from now on."""
    is_whole: bool = False
    """All or nothing: if one of them is refused, none is touched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reopen:
    """Dead records are given back, as if never handed out. `keys`: their keys' hashes, in order."""

    ranges: Sequence[Range]
    keys: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """A reset or a forced checkpoint: everything from this offset on comes again; every hold ends."""

    offset: int


Act = Receive | Settle | Reopen | Restart

Left = Mapping[int, int]
"""What an observer knows to be left, at most, of waits that it has seen: by their numbers, in ms."""


class Given(NamedTuple):
    """Records that were handed out together."""

    low: int
    high: int
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """What was handed out, perhaps nothing."""

    hold: int = 0
    given: tuple[Given, ...] = ()
    doomed: tuple[Given, ...] = ()
    """Under the same hold: these have had all their attempts, and belong into the dead stream."""
    is_full: bool = False
    """Nothing new is handed out: too much before it is not settled."""
    wants_keys: bool = False
    """There is more, and the keys that were shown do not reach it."""


class Why(StrEnum):
    """Why a record could not be settled."""

    NEVER = "never received"
    SETTLED = "settled already"
    EXPIRED = "hold ended"
    OTHER = "another's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What became of it: how many records it was done for, and which not."""

    taken: int = 0
    refused: tuple[tuple[Range, Why], ...] = ()
    doomed: tuple[Given, ...] = ()
    """Released after the last attempt: still held, until they are in the dead stream."""


Answer = Granted | Settled
