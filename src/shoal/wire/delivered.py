"""A batch in the hands of user code: it knows how far it was iterated, and ends when the lease does.

Invariant: no record is given out by iteration after the deadline has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSequence, Sequence
from itertools import chain, repeat, takewhile
from operator import itemgetter, length_hint
from typing import Final

from shoal.wire.batch import Batch
from shoal.wire.record import Record

Guard = Callable[[], int]
"""Says until when, on the clock that it is asked by, records may be given out; raises if they may not."""


class Delivered(Batch):
    """See Batch. For one call of `process`."""

    __slots__ = ("_clock_ns", "_guard", "_left", "is_through")

    @classmethod
    def of(cls, batch: Batch, offsets: Sequence[int], guard: Guard, clock_ns: Callable[[], int]) -> Delivered:
        """Those records of a batch."""
        made = cls(**batch._part(offsets))
        made._guard, made._clock_ns = guard, clock_ns
        made._left = None
        made.is_through = False
        made.end_of_shard = batch.end_of_shard and bool(offsets) and offsets[-1] + 1 == batch.next_offset
        return made

    _guard: Guard
    _clock_ns: Callable[[], int]
    _left: Iterator[int] | None
    """The offsets that the loop has not come to."""
    is_through: bool
    """Iteration came to its end."""

    def __iter__(self) -> Iterator[Record]:
        self.is_through = False  # Whoever loops a second time is in its midst again.
        self._left = iter(self._offsets)
        return chain.from_iterable(self._stretches(super().__iter__(), self._left))

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
