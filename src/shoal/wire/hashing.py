"""A whole column of keys onto the ring, as XXH64 would place each one, without a Python loop per key.

The steps are those of the XXH64 specification for inputs under 32 bytes, done for all keys of one length
at once; longer keys, and small columns, go through the xxhash library one by one.

Invariant: `column_hashes(keys)[i] << 64 == ring.place(keys[i])`, for every key that is not null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from shoal.core.model import KeyHash
from shoal.core.ring import SPARK_SEED, place
from shoal.core.routing import ShardMap

Hashes = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.integer[Any]]


def column_shards(keys: pa.Array, how: KeyHash, shards: ShardMap, unkeyed: int) -> Indices:
    """For each key the index of its shard in the map; records without a key go to the index `unkeyed`."""
    if len(shards.ids) == 1:
        return np.zeros(len(keys), dtype=np.int64)
    found: Indices
    if how is KeyHash.XXH64:
        bounds = np.array([bound for bound in shards.upper_begins() if bound < 1 << 64], dtype=np.uint64)
        found = _last_reached(bounds, column_hashes(keys))
    else:
        index = {shard: i for i, shard in enumerate(shards.ids)}
        encoded = keys.dictionary_encode()
        of_each = [index[shards.shard_at(place(key, how))] for key in encoded.dictionary.to_pylist()]
        found = np.array([*of_each, unkeyed])[encoded.indices.fill_null(len(of_each)).to_numpy()]
    if keys.null_count:
        found = np.where(keys.is_null().to_numpy(zero_copy_only=False), unkeyed, found)
    return found


def _last_reached(bounds: Hashes, hashes: Hashes) -> Indices:
    """For each hash the index of the last bound that is not above it. Bounds rise, and begin with 0."""
    if len(bounds) > _FEW:
        return np.searchsorted(bounds, hashes, side="right") - 1
    # A comparison of all with one bound is so quick that a few of them are quicker than a search for each.
    reached = np.zeros(len(hashes), dtype=np.uint8)
    for bound in bounds[1:]:
        reached += hashes >= bound
    return reached


def column_hashes(keys: pa.Array) -> Hashes:
    """XXH64 with Spark's seed of each key of a binary array. What stands for a null key is undefined."""
    if len(keys) < _SMALL:
        return np.fromiter((_hash_one(key) for key in keys.to_pylist()), dtype=np.uint64, count=len(keys))
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[keys.offset : keys.offset + len(keys) + 1]
    first, end, lengths = int(offsets[0]), int(offsets[-1]), np.diff(offsets)
    shortest, longest = int(lengths.min()), int(lengths.max())
    if 0 < shortest == longest < _SHORT:
        # The usual case, at a third of the cost: keys of one length lie at even steps and need no gathering.
        return _hash_short(_Steps(np.frombuffer(data_buffer, dtype=np.uint8, count=end), first, longest))
    # Eight bytes of padding, so that an eight-byte window may begin at any byte of the data.
    padded = np.zeros(end + 8, dtype=np.uint8)
    padded[:end] = np.frombuffer(data_buffer, dtype=np.uint8, count=end) if data_buffer is not None else 0
    starts = offsets[:-1].astype(np.int64)
    hashes = np.empty(len(keys), dtype=np.uint64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        if length < _SHORT and len(rows) >= _SMALL // 8:
            hashes[rows] = _hash_short(_Gathered(padded, starts[rows], length))
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


class _Words(Protocol):
    """Keys of one length. A column of them is fresh: whoever asks may write to it."""

    count: int
    length: int

    def at(self, place: int, size: int) -> Hashes:
        """Of each key the `size` bytes from this place on, as a number."""


class _Steps:
    """Keys that lie one behind the other."""

    def __init__(self, data: npt.NDArray[np.uint8], first: int, length: int) -> None:
        self._data, self._first = data, first
        self.count, self.length = (len(data) - first) // length, length

    def at(self, place: int, size: int) -> Hashes:
        words: npt.NDArray[Any] = np.ndarray(
            shape=(self.count,),
            dtype=f"<u{size}",
            buffer=self._data,
            offset=self._first + place,
            strides=(self.length,),
        )
        return words.astype(np.uint64)


class _Gathered:
    """Keys that lie anywhere, in data with eight bytes of padding."""

    def __init__(self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], length: int) -> None:
        self._data, self._starts = data, starts
        self.count, self.length = len(starts), length

    def at(self, place: int, size: int) -> Hashes:
        words: npt.NDArray[Any] = np.ndarray(
            shape=(len(self._data) - size + 1,), dtype=f"<u{size}", buffer=self._data, strides=(1,)
        )
        return words[self._starts + place].astype(np.uint64, copy=False)


def _hash_short(keys: _Words) -> Hashes:
    """XXH64 of keys under 32 bytes: eight bytes at a time, then four, then one. In place, for the cache."""
    # Multiplication modulo 2**64 is what the specification means; numpy wraps arrays silently.
    seed = (SPARK_SEED + int(_P5) + keys.length) & _MASK
    state = np.full(keys.count, seed, dtype=np.uint64)
    done = 0
    while keys.length - done >= 8:
        lane = keys.at(done, 8)
        lane *= _P2
        _rotate(lane, 31)
        lane *= _P1
        state ^= lane
        _rotate(state, 27)
        state *= _P1
        state += _P4
        done += 8
    if keys.length - done >= 4:
        lane = keys.at(done, 4)
        lane *= _P1
        state ^= lane
        _rotate(state, 23)
        state *= _P2
        state += _P3
        done += 4
    for at in range(done, keys.length):
        lane = keys.at(at, 1)
        lane *= _P5
        state ^= lane
        _rotate(state, 11)
        state *= _P1
    state ^= state >> np.uint64(33)
    state *= _P2
    state ^= state >> np.uint64(29)
    state *= _P3
    state ^= state >> np.uint64(32)
    return state


def _rotate(value: Hashes, bits: int) -> None:
    low = value >> np.uint64(64 - bits)
    value <<= np.uint64(bits)
    value |= low


def group_rows(shard_of_row: Indices, count: int) -> Sequence[npt.NDArray[np.int64]]:
    """For each shard index the rows that go there, in the order given: order within a key is kept."""
    # numpy sorts numbers of two bytes, or of one, by their digits, in a third of the time.
    is_narrow = shard_of_row.itemsize == 1 or count > 1 << 16
    narrow = shard_of_row if is_narrow else shard_of_row.astype(np.uint16)
    order = np.argsort(narrow, kind="stable")
    edges = np.concatenate(([0], np.cumsum(np.bincount(shard_of_row, minlength=count))))
    return [order[edges[i] : edges[i + 1]] for i in range(count)]


_P1: Final = np.uint64(0x9E3779B185EBCA87)
_P2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_P3: Final = np.uint64(0x165667B19E3779F9)
_P4: Final = np.uint64(0x85EBCA77C2B2AE63)
_P5: Final = np.uint64(0x27D4EB2F165667C5)
_MASK: Final = (1 << 64) - 1
_FEW: Final = 32
_SHORT: Final = 32
_SMALL: Final = 1024
"""Below this, numpy's cost per call is more than a loop's."""
