"""A column of keys on the ring is each key on the ring."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.model import KeyHash
from shoal.core.ring import place
from shoal.core.routing import ShardMap
from shoal.wire.hashing import column_hashes, column_shards, group_rows
from tests.unit.lineages import Shards, lineages
from tests.unit.test_routing import stream_of

MANY = 1500  # Above the number of rows from which a column is hashed by numpy.


def many_keys(seed: int, lengths: list[int], count: int = MANY) -> list[bytes]:
    """Many keys of the given lengths, in some order."""
    random = np.random.default_rng(seed)
    return [random.bytes(lengths[i % len(lengths)]) for i in random.permutation(count)]


@pytest.mark.parametrize("length", range(41))
def test_many_keys_of_one_length_hash_as_the_xxhash_library_does(length: int) -> None:
    keys = many_keys(length, [length])
    hashes = column_hashes(pa.array(keys, pa.binary()))
    assert hashes.tolist() == [xxhash.xxh64_intdigest(key, 42) for key in keys]


@settings(max_examples=25)
@given(
    st.integers(0, 2**32),
    st.lists(st.integers(0, 70), min_size=1, max_size=12),
    st.integers(0, 400),
    st.integers(0, 1400),
)
def test_any_slice_of_a_column_hashes_as_the_xxhash_library_does(
    seed: int, lengths: list[int], start: int, count: int
) -> None:
    keys = many_keys(seed, lengths, 1800)
    part = pa.array(keys, pa.binary()).slice(start, count)
    wanted = [xxhash.xxh64_intdigest(key, 42) for key in keys[start : start + count]]
    assert column_hashes(part).tolist() == wanted


@settings(max_examples=40)
@given(lineages(), st.integers(0, 2**32), st.sampled_from([5, MANY]), st.data())
def test_a_column_is_routed_as_its_keys_one_by_one(
    shards: Shards, seed: int, count: int, data: st.DataObject
) -> None:
    shard_map = ShardMap.of(stream_of(shards))
    unkeyed = data.draw(st.integers(0, len(shard_map.ids) - 1))
    random = np.random.default_rng(seed)
    keys = [None if random.random() < 0.2 else key for key in many_keys(seed, [0, 3, 8, 9, 40], count)]
    column = pa.array([b"before", *keys], pa.binary()).slice(1)
    for how in KeyHash:
        found = column_shards(column, how, shard_map, unkeyed)
        wanted = [
            shard_map.ids[unkeyed] if key is None else shard_map.shard_at(place(key, how)) for key in keys
        ]
        assert [shard_map.ids[i] for i in found] == wanted


@pytest.mark.parametrize("how", list(KeyHash))
def test_a_column_of_nulls_goes_where_records_without_a_key_go(how: KeyHash) -> None:
    shard_map = ShardMap(version=1, begins=(0, 2**127), ids=(4, 7))  # type: ignore[arg-type]
    for count in (3, MANY):
        assert column_shards(pa.nulls(count, pa.binary()), how, shard_map, 1).tolist() == [1] * count


@pytest.mark.parametrize("count", [2, 32, 33, 200])
def test_few_shards_and_many_are_found_by_the_same_rule(count: int) -> None:
    width = 2**128 // count
    shard_map = ShardMap(version=1, begins=tuple(i * width for i in range(count)), ids=tuple(range(count)))  # type: ignore[arg-type]
    keys = [b"key-%d" % number for number in range(MANY)]
    column = pa.array([*keys, None], pa.binary())
    wanted = [int(shard_map.shard_at(place(key, KeyHash.XXH64))) for key in keys]
    assert column_shards(column, KeyHash.XXH64, shard_map, count - 1).tolist() == [*wanted, count - 1]


@given(
    st.lists(st.integers(0, 5)) | st.just([i * i % 6 for i in range(5000)]),
    st.integers(6, 8),
    st.sampled_from([np.int64, np.uint8]),
)
def test_rows_are_grouped_by_shard_in_their_order(
    shard_of_row: list[int], count: int, kind: type[np.integer[Any]]
) -> None:
    groups = group_rows(np.array(shard_of_row, dtype=kind), count)
    wanted = [[row for row, shard in enumerate(shard_of_row) if shard == i] for i in range(count)]
    assert [group.tolist() for group in groups] == wanted
