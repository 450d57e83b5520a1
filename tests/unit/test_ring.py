"""Keys on the ring, and equal shards over it."""

import hashlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidInput, InvalidKey
from shoal.core.model import KeyHash
from shoal.core.ring import (
    LOGICAL_PARTITIONS,
    PARTITION_SIZE,
    RING_SIZE,
    checked_hash,
    checked_shard_count,
    equal_cuts,
    key_bytes,
    logical_partition,
    place,
    placer,
)

# What Spark's `SELECT xxhash64('')` prints.
SPARK_EMPTY = -7444071767201028348
# Not printed by Spark but computed with the xxhash library and Spark's seed 42, as a signed number; the
# vector above shows that this is the same function.
SPARK_SPARK = -4294468057691064905


def test_a_key_lies_where_sparks_xxhash64_puts_it() -> None:
    assert place(b"") == (SPARK_EMPTY % 2**64) << 64
    assert place(b"Spark") == (SPARK_SPARK % 2**64) << 64


@given(st.binary(max_size=100))
def test_the_placer_of_a_hash_is_place_itself(key: bytes) -> None:
    for how in KeyHash:
        assert placer(how)(key) == place(key, how)
    assert place(key, KeyHash.MD5) == int(hashlib.md5(key, usedforsecurity=False).hexdigest(), 16)
    assert 0 <= place(key) < RING_SIZE


@given(st.one_of(st.none(), st.binary(), st.text(st.characters(exclude_categories=["Cs"]))))
def test_a_key_is_stored_as_bytes_and_text_as_utf8(key: bytes | str | None) -> None:
    assert key_bytes(key) == (key.encode("utf-8") if isinstance(key, str) else key)


@pytest.mark.parametrize("key", [1, 1.5, True, [b"a"], object(), "\ud800"])
def test_what_is_no_key_is_refused_by_name(key: object) -> None:
    with pytest.raises(InvalidKey, match="key="):
        key_bytes(key)


@given(st.integers(0, RING_SIZE - 1))
def test_an_explicit_hash_is_taken_as_it_is_as_number_or_hexadecimal(value: int) -> None:
    assert checked_hash(value) == value
    assert checked_hash(f"{value:x}") == value
    assert checked_hash(f"{value:032X}") == value


@pytest.mark.parametrize(
    "value", [-1, RING_SIZE, "", "g", " 1", "1_0", "0x1", "1" * 33, True, 1.0, None, b"1"]
)
def test_what_is_no_hash_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="hexadecimal"):
        checked_hash(value)


@given(st.integers(0, RING_SIZE - 1))
def test_a_logical_partition_is_the_first_ten_bits(value: int) -> None:
    assert logical_partition(value) == int(f"{value:0128b}"[:10], 2)


def test_equal_shards_cover_the_ring_and_differ_by_at_most_one_logical_partition() -> None:
    for count in [*range(1, 1100), *range(1100, 4096, 61), 4096]:
        cuts = equal_cuts(count)
        assert (cuts[0], cuts[-1], len(cuts)) == (0, RING_SIZE, count + 1)
        sizes = [high - low for low, high in pairwise(cuts)]
        assert min(sizes) > 0
        if count <= LOGICAL_PARTITIONS:
            assert all(cut % PARTITION_SIZE == 0 for cut in cuts)
            assert max(sizes) - min(sizes) <= PARTITION_SIZE
        else:
            assert max(sizes) - min(sizes) <= 1


def test_equal_shards_nest_when_one_number_divides_the_other() -> None:
    cuts = {count: set(equal_cuts(count)) for count in range(1, 1025)}
    for many in range(1, 1025):
        for few in range(1, many // 2 + 1):
            if many % few == 0:
                assert cuts[few] <= cuts[many]
    for few in (1025, 1300, 2047):
        assert set(equal_cuts(few)) <= set(equal_cuts(few * 2))


@pytest.mark.parametrize("count", [0, -1, 4097, True, 1.0, "1", None])
def test_a_number_of_shards_out_of_range_is_refused(count: Any) -> None:
    with pytest.raises(InvalidInput, match="1 to 4096"):
        checked_shard_count(count)
