"""Which lane of a shard a record belongs to: by its key, so that a key's records stay in one lane.

Invariant: a record's lane depends on its key (or, without one, its offset) and the number of lanes alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from shoal.wire.batch import Batch
from shoal.wire.hashing import column_hashes


def lanes_of(batch: Batch, lanes: int) -> list[Sequence[int]]:
    """For each lane the offsets of its records, in order."""
    if lanes == 1:
        return [batch.offsets]
    if not len(batch):
        return [()] * lanes
    offsets = np.asarray(batch.offsets)
    place = 0
    lane = np.empty(len(offsets), dtype=np.int64)
    for keys in batch.key_columns():
        mine = slice(place, place + len(keys))
        lane[mine] = _lane_of(keys, offsets[mine], lanes)
        place += len(keys)
    return [offsets[lane == number].tolist() for number in range(lanes)]


def done_before(batch: Batch, beyond: Sequence[Sequence[int]]) -> frozenset[int]:
    """Offsets that earlier owners have done, by the marks of their lanes."""
    done: set[int] = set()
    for marks in beyond:
        if max(marks, default=0) > batch.first_offset:
            for offsets, mark in zip(lanes_of(batch, len(marks)), marks, strict=True):
                done.update(offsets[: bisect_left(offsets, mark)])
    return frozenset(done)


def _lane_of(keys: pa.Array, offsets: np.ndarray, lanes: int) -> np.ndarray:
    # The upper bits of the hash chose the shard; the lower ones are still free.
    by_key = (column_hashes(keys) % np.uint64(lanes)).astype(np.int64)
    if not keys.null_count:
        return by_key
    return np.where(keys.is_null().to_numpy(zero_copy_only=False), offsets % lanes, by_key)
