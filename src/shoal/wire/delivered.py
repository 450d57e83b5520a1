"""A batch in the hands of user code: it knows how far it was iterated, and ends when the lease does.

Invariant: no record is given out by iteration after the deadline has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSequence, Sequence
from functools import partial
from itertools import chain, repeat, takewhile
from operator import itemgetter, length_hint
from typing import Any, Final

from shoal.core.errors import DeserializationFailed
from shoal.wire.batch import Batch
from shoal.wire.record import Record

Guard = Callable[[], int]
"""Says until when, on the clock that it is asked by, records may be given out; raises if they may not."""


class Decoding:
    """Functions of the user's that keys and values go through on their way out of a batch."""

    def __init__(self, key: Callable[[bytes], Any] | None, value: Callable[[bytes], Any] | None) -> None:
        self._key, self._value = key, value

    def decode(self, batch: Delivered, record: Record) -> Record:
        """The record as the user wants it. What is None stays so."""
        offset, timestamp, key, value, headers = record
        what = "key"
        try:
            if self._key is not None and key is not None:
                key = self._key(key)
            what = "value"
            if self._value is not None and value is not None:
                value = self._value(value)
        except Exception as error:  # Around user code.
            batch.unread = offset
            raise DeserializationFailed(
                stream=batch.stream, shard=batch.shard, offset=offset, what=what
            ) from error
        return Record(offset, timestamp, key, value, headers)


class Delivered(Batch):
    """See Batch. For one call of `process`, or from one poll to the next."""

    __slots__ = ("_clock_ns", "_decoding", "_guard", "_left", "is_through", "unread")

    @classmethod
    def of(
        cls,
        batch: Batch,
        offsets: Sequence[int],
        guard: Guard,
        clock_ns: Callable[[], int],
        decoding: Decoding | None = None,
    ) -> Delivered:
        """Those records of a batch. `decoding`: what iteration makes of them."""
        made = cls(**batch._part(offsets))
        made._guard, made._clock_ns, made._decoding = guard, clock_ns, decoding
        made._left = None
        made.is_through, made.unread = False, None
        made.end_of_shard = batch.end_of_shard and bool(offsets) and offsets[-1] + 1 == batch.next_offset
        return made

    _guard: Guard
    _clock_ns: Callable[[], int]
    _decoding: Decoding | None
    _left: Iterator[int] | None
    """The offsets that the loop has not come to."""
    is_through: bool
    """Iteration came to its end."""
    unread: int | None
    """The record that iteration ended at, as it could not be deserialized."""

    def __iter__(self) -> Iterator[Record]:
        self.is_through, self.unread = False, None  # Whoever loops a second time is in its midst again.
        self._left = iter(self._offsets)
        records = super().__iter__()
        if self._decoding is not None:
            records = map(partial(self._decoding.decode, self), records)
        return chain.from_iterable(self._stretches(records, self._left))

    def _stretches(self, records: Iterator[Record], left: Iterator[int]) -> Iterator[Iterator[Record]]:
        """Records until the lease is to be looked at anew, again and again.

        The clock is asked before each record, and no record is taken once it says no; all without a step of
        Python between two records, which would take longer than making them.
        """
        while True:
            until_ns = self._guard()
            times = takewhile(until_ns.__gt__, iter(self._clock_ns, None))
            yield map(_RECORD, zip(times, records, left, strict=False))
            if not length_hint(left):
                break
        self.is_through = True

    @property
    def reached(self) -> int | None:
        """The offset of the record that was given out last by iteration."""
        if self._left is None:
            return None
        given = len(self._offsets) - length_hint(self._left)
        return self._offsets[given - 1] if given else None

    @property
    def declared(self) -> int | None:
        """What a save without an offset means: all of it, or, in the midst of a loop, up to this record.

        None: nothing of it. It is empty, or a loop began and came to no record: the deadline had passed.
        Another thread may ask while the loop goes on.
        """
        left = self._left
        if left is None or self.is_through:
            return self.next_offset if self._offsets else None
        given = len(self._offsets) - length_hint(left)
        return self._offsets[given - 1] + 1 if given else None

    @property
    def suspect(self) -> int | None:
        """The record that a loop is at; None if none is: then all of them, or none, were looked at."""
        return None if self.is_through else self.reached


class Marked(Delivered):
    """A batch that also marks the record it is at where others can see it, should this process die there."""

    __slots__ = ("_mark",)

    _mark: MutableSequence[int]

    @classmethod
    def marking(
        cls,
        mark: MutableSequence[int],
        batch: Batch,
        offsets: Sequence[int],
        guard: Guard,
        clock_ns: Callable[[], int],
    ) -> Marked:
        """`mark` has one place, for the offset; NOWHERE while no loop is at any."""
        made = super().of(batch, offsets, guard, clock_ns)
        assert isinstance(made, Marked)
        made._mark = mark
        return made

    def __iter__(self) -> Iterator[Record]:
        marked = map(self._mark.__setitem__, repeat(0), self._offsets)
        # A record is taken first, and marked before it is given out; no step of Python here either.
        return chain(map(_FIRST, zip(super().__iter__(), marked, strict=False)), self._unmarked())

    def _unmarked(self) -> Iterator[Record]:
        """Nothing more; it is run when the loop has come to its end."""
        self._mark[0] = NOWHERE
        yield from ()


NOWHERE: Final = -1
_FIRST: Final[Callable[[tuple[Record, None]], Record]] = itemgetter(0)
_RECORD: Final[Callable[[tuple[int, Record, int]], Record]] = itemgetter(1)
