"""Which tasks read the spans: large ones cut where order does not matter, small ones put together.

A task costs tens of milliseconds whatever it reads, and a machine has few cores: about as many tasks as there
is room for, of about the same size. Invariant: the spans of a shard are in the order of their offsets, and
in order (`cuts=False`) a shard is in one task, whole; so are those that `kin` makes one, as they were given.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from shoal.spark.plan.spans import Span

Task = tuple[Span, ...]


class Division(NamedTuple):
    """How a batch is spread over tasks. A streaming query keeps it with its offsets: a batch that is run
    again must be divided as it was, whatever the options, or the cores of another driver, say by then. A
    sink that is exactly once knows rows by their partition."""

    wanted: int
    records_max: int | None
    cuts: bool

    def to_json(self) -> list[Any]:
        """As it is kept."""
        return list(self)


DIVISION: Final = "tasks"
"""What it is called in an offset."""


def division_of(offset: Mapping[str, Any]) -> Division | None:
    """How the batch was divided that ends at this offset; None of one that a query began with."""
    return Division(*offset[DIVISION]) if DIVISION in offset else None


def without_division(offset: Mapping[str, Any]) -> dict[str, Any]:
    """The offset alone."""
    return {key: value for key, value in offset.items() if key != DIVISION}


TASK_RECORDS: Final = 1_000_000
"""About so many records are a task of their own, when there are more than the cores would make of them: a
cluster has more cores than the machine that plans, and a task that fails is repeated whole."""
TASKS_MAX: Final = 10_000
"""Of one batch: beyond, the driver is busy with tasks alone."""


def tasks(
    spans: Sequence[Span],
    *,
    wanted: int,
    records_max: int | None = None,
    cuts: bool = True,
    kin: Callable[[Span], Hashable] = id,
) -> list[Task]:
    """Spread the spans over tasks: about `wanted`, more if there is much, none with more than `records_max`
    records if it may be cut. Spans of the same `kin` go to the same task."""
    spans = [span for span in spans if span.records > 0]
    total = sum(span.records for span in spans)
    if not total:
        return []
    count = min(TASKS_MAX, max(wanted, -(-total // TASK_RECORDS)))
    if records_max is not None:
        count = max(count, min(TASKS_MAX, -(-total // records_max)))
    if cuts:
        size = -(-total // count)
        if records_max is not None:
            size = max(min(size, records_max), -(-total // TASKS_MAX))
        spans = [piece for span in spans for piece in _cut(span, size)]
    together: dict[Hashable, list[Span]] = {}
    for span in spans:
        together.setdefault(kin(span), []).append(span)
    return _spread(list(together.values()), min(count, len(together)), records_max)


def _cut(span: Span, size: int) -> list[Span]:
    """Equal pieces of about `size` records."""
    pieces = -(-span.records // size)
    edges = [span.start + span.records * number // pieces for number in range(pieces + 1)]
    return [span.part(low, high) for low, high in pairwise(edges)]


def _spread(kins: Sequence[Sequence[Span]], count: int, records_max: int | None) -> list[Task]:
    """The largest first, each to the task that has least; within a task in the order that they were given.

    One that would make a task too large gets a task of its own.
    """
    sizes = [sum(span.records for span in one) for one in kins]
    loads = [(0, number) for number in range(count)]
    found: list[list[int]] = [[] for _ in range(count)]
    for place in sorted(range(len(kins)), key=lambda place: -sizes[place]):
        load, number = loads[0]
        if records_max is not None and load and load + sizes[place] > records_max:
            found.append([place])
            continue
        heapq.heapreplace(loads, (load + sizes[place], number))
        found[number].append(place)
    return [tuple(span for place in sorted(task) for span in kins[place]) for task in found if task]
