"""Runs of offsets that are not settled yet, in order: cut out, put back, joined. Values only.

A list of spans rises and does not overlap. Whatever lies between two of them is settled.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Range = tuple[int, int]
"""Offsets from the first on, up to and without the second."""


class Span(NamedTuple):
    """Consecutive records with the same fate. A tuple: there may be thousands, looked at in every step."""

    low: int
    high: int
    attempts: int = 0
    """How often they were handed out."""
    hold: int = 0
    """The number of the hold that they are under; 0: they are nobody's."""
    pledge: int = 0
    """The number of the wait that ends their hold, or their delay; 0: there is none."""
    key: int = 0
    """Of a single record, where keys are kept one at a time: its key's hash. 0: it has none."""


class Carved(NamedTuple):
    """A list of spans with some ranges cut out of it."""

    head: tuple[Span, ...]
    middle: list[Span]
    """What is left between the first and the last range."""
    tail: tuple[Span, ...]
    parts: list[Span]
    """What was cut out."""
    missing: list[Range]
    """What the ranges asked for and no span has."""


def ranges_of(offsets: Iterable[int]) -> tuple[Range, ...]:
    """Offsets in any order, each any number of times, as ranges that rise and do not touch."""
    if isinstance(offsets, range) and offsets.step == 1:
        return ((offsets.start, offsets.stop),) if offsets else ()
    ranges: list[Range] = []
    for offset in sorted(set(offsets)):
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return tuple(ranges)


def records(spans: Iterable[Span] | Iterable[Range]) -> int:
    """How many records they are."""
    return sum(span[1] - span[0] for span in spans)


def without(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """What of some ranges no other covers. Both rise, and do not overlap."""
    if not ranges or not others:
        return list(ranges)
    carved = carve(tuple(Span(low, high) for low, high in ranges), others)
    return [(span.low, span.high) for span in (*carved.head, *carved.middle, *carved.tail)]


def carve(spans: tuple[Span, ...], ranges: Sequence[Range]) -> Carved:
    """Cut ranges, which rise and do not overlap, out of spans. Only what they reach into is looked at."""
    first = bisect_right(spans, ranges[0][0], key=_high)
    last = max(first, bisect_left(spans, ranges[-1][1], key=_low))
    waiting = list(reversed(spans[first:last]))
    middle: list[Span] = []
    parts: list[Span] = []
    missing: list[Range] = []
    for begin, end in ranges:
        low = begin
        while low < end:
            while waiting and waiting[-1].high <= low:
                middle.append(waiting.pop())
            if not waiting or waiting[-1].low >= end:
                missing.append((low, end))
                break
            span = waiting.pop()
            if span.low > low:
                missing.append((low, span.low))
                low = span.low
            if span.low < low:
                middle.append(span._replace(high=low))
            cut = min(end, span.high)
            parts.append(span._replace(low=low, high=cut))
            if cut < span.high:
                waiting.append(span._replace(low=cut))
            low = cut
    middle += reversed(waiting)
    return Carved(spans[:first], middle, spans[last:], parts, missing)


def put_back(carved: Carved, parts: Iterable[Span]) -> tuple[Span, ...]:
    """The list again, with these parts, each of which lies where one was cut out."""
    middle = sorted((*carved.head[-1:], *carved.middle, *parts, *carved.tail[:1]))
    return (*carved.head[:-1], *joined(middle), *carved.tail[1:])


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same with neighbours of the same fate as one. A record with a key stays by itself."""
    made: list[Span] = []
    for span in spans:
        last = made[-1] if made else None
        if last is not None and last.high == span.low and last[2:] == span[2:] and not span.key:
            made[-1] = last._replace(high=span.high)
        else:
            made.append(span)
    return tuple(made)


def _low(span: Span) -> int:
    return span.low


def _high(span: Span) -> int:
    return span.high
