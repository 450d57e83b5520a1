"""A whole column of keys onto the ring, as XXH64 would place each one, without a Python loop per key.

The steps are those of the XXH64 specification for inputs under 32 bytes, done for all keys of one length
at once; longer keys, and small columns, go through the xxhash library one by one.

Invariant: `column_hashes(keys)[i] << 64 == ring.place(keys[i])`, for every key that is not null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from shoal.core.model import KeyHash
from shoal.core.ring import SPARK_SEED, place
from shoal.core.routing import ShardMap

Hashes = npt.NDArray[np.uint64]


def column_shards(keys: pa.Array, how: KeyHash, shards: ShardMap, unkeyed: int) -> npt.NDArray[np.int64]:
    """For each key the index of its shard in the map; records without a key go to the index `unkeyed`."""
    if len(shards.ids) == 1:
        return np.zeros(len(keys), dtype=np.int64)
    if how is KeyHash.XXH64:
        bounds = [bound for bound in shards.upper_begins() if bound < 1 << 64]
        found = np.searchsorted(np.array(bounds, dtype=np.uint64), column_hashes(keys), side="right") - 1
    else:
        index = {shard: i for i, shard in enumerate(shards.ids)}
        encoded = keys.dictionary_encode()
        of_each = [index[shards.shard_at(place(key, how))] for key in encoded.dictionary.to_pylist()]
        found = np.array([*of_each, unkeyed])[encoded.indices.fill_null(len(of_each)).to_numpy()]
    if keys.null_count:
        found = np.where(keys.is_null().to_numpy(zero_copy_only=False), unkeyed, found)
    return found


def column_hashes(keys: pa.Array) -> Hashes:
    """XXH64 with Spark's seed of each key of a binary array. What stands for a null key is undefined."""
    if len(keys) < _SMALL:
        return np.fromiter((_hash_one(key) for key in keys.to_pylist()), dtype=np.uint64, count=len(keys))
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[keys.offset : keys.offset + len(keys) + 1]
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    # Eight bytes of padding, so that an eight-byte window may begin at any byte of the data.
    end = int(offsets[-1])
    padded = np.zeros(end + 8, dtype=np.uint8)
    padded[:end] = np.frombuffer(data_buffer, dtype=np.uint8, count=end) if data_buffer is not None else 0
    hashes = np.empty(len(keys), dtype=np.uint64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        if length < _SHORT and len(rows) >= _SMALL // 8:
            hashes[rows] = _hash_short(padded, starts[rows], length)
        else:
            view = padded.data
            hashes[rows] = [
                xxhash.xxh64_intdigest(view[start : start + length], SPARK_SEED)
                for start in starts[rows].tolist()
            ]
    return hashes


def key_hashes(columns: Sequence[pa.Array]) -> list[int]:
    """XXH64 of each key of a column in parts, and 0 where there is no key."""
    found: list[int] = []
    for keys in columns:
        hashes = column_hashes(keys)
        if keys.null_count:
            hashes = np.where(keys.is_null().to_numpy(zero_copy_only=False), np.uint64(0), hashes)
        found += hashes.tolist()
    return found


def _hash_one(key: bytes | None) -> int:
    return 0 if key is None else xxhash.xxh64_intdigest(key, SPARK_SEED)


def _hash_short(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], length: int) -> Hashes:
    """XXH64 of `length` < 32 bytes from each start: eight bytes at a time, then four, then one."""
    eights = np.ndarray(shape=(len(data) - 7,), dtype="<u8", buffer=data, strides=(1,))
    fours = np.ndarray(shape=(len(data) - 3,), dtype="<u4", buffer=data, strides=(1,))
    # Multiplication modulo 2**64 is what the specification means; numpy wraps arrays silently.
    seed = (SPARK_SEED + int(_P5) + length) & _MASK
    state = np.full(len(starts), seed, dtype=np.uint64)
    done = 0
    while length - done >= 8:
        lane = eights[starts + done] * _P2
        state ^= _rotate(lane, 31) * _P1
        state = _rotate(state, 27) * _P1 + _P4
        done += 8
    if length - done >= 4:
        state ^= fours[starts + done].astype(np.uint64) * _P1
        state = _rotate(state, 23) * _P2 + _P3
        done += 4
    for at in range(done, length):
        state ^= data[starts + at].astype(np.uint64) * _P5
        state = _rotate(state, 11) * _P1
    state ^= state >> np.uint64(33)
    state *= _P2
    state ^= state >> np.uint64(29)
    state *= _P3
    state ^= state >> np.uint64(32)
    return state


def _rotate(value: Hashes, bits: int) -> Hashes:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


def group_rows(shard_of_row: npt.NDArray[np.int64], count: int) -> Sequence[npt.NDArray[np.int64]]:
    """For each shard index the rows that go there, in the order given: order within a key is kept."""
    order = np.argsort(shard_of_row, kind="stable")
    edges = np.searchsorted(shard_of_row[order], np.arange(count + 1))
    return [order[edges[i] : edges[i + 1]] for i in range(count)]


_P1: Final = np.uint64(0x9E3779B185EBCA87)
_P2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_P3: Final = np.uint64(0x165667B19E3779F9)
_P4: Final = np.uint64(0x85EBCA77C2B2AE63)
_P5: Final = np.uint64(0x27D4EB2F165667C5)
_MASK: Final = (1 << 64) - 1
_SHORT: Final = 32
_SMALL: Final = 1024
"""Below this, numpy's cost per call is more than a loop's."""
