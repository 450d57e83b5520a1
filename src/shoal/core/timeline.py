"""Where a time lies in a shard, by bisection over its batches. Asks for batches; fetches nothing itself.

Each batch keeps the highest record timestamp up to its end. That rises along the shard whatever order records
carry, so the first batch that reaches a time holds the first record that does. The time at which a
batch was appended never goes down either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.core.model import Shard
from shoal.core.reading import BatchMeta

BatchAt = Callable[[int], tuple[BatchMeta, int] | None]


def find_offset(
    shard: Shard, timestamp_us: int, batch_at: BatchAt, timestamps: Callable[[int], Sequence[int]]
) -> int:
    """The least kept offset such that every kept record before it is earlier than the time.

    It is the shard's next offset if all are earlier. If records of that time were there and have
    expired, it is the first kept offset: nothing that is still there is skipped.
    """
    reached = _first_that(shard, batch_at, lambda _, top_us: top_us >= timestamp_us)
    if reached is None:
        return shard.next_offset
    for i, stamp in enumerate(timestamps(reached.base_offset)):
        if stamp >= timestamp_us:
            return reached.base_offset + i
    return reached.base_offset


def find_appended(shard: Shard, appended_ms: int, batch_at: BatchAt) -> int:
    """The least kept offset such that every kept record before it was appended before the time, whatever time
    it carries. It is the shard's next offset if all were."""
    reached = _first_that(shard, batch_at, lambda meta, _: meta.appended_ms >= appended_ms)
    return shard.next_offset if reached is None else reached.base_offset


def _first_that(
    shard: Shard, batch_at: BatchAt, reaches: Callable[[BatchMeta, int], bool]
) -> BatchMeta | None:
    """The first kept batch that does, if all that come after it do, too."""
    low, high = shard.first_offset, shard.next_offset
    reached: BatchMeta | None = None
    while low < high:
        found = batch_at((low + high) // 2)
        if found is None:  # Retention moved on meanwhile; what is left begins further up.
            low = (low + high) // 2 + 1
            continue
        meta, top_us = found
        if reaches(meta, top_us):
            reached, high = meta, meta.base_offset
        else:
            low = meta.next_offset
    return reached
