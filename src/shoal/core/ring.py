"""The ring: 128 bits of hash, and where a key lies on it. It knows nothing of streams or stores.

A key is placed by XXH64 with seed 42 in the upper 64 bits, which is what Spark's `xxhash64(key)`
computes, or by MD5 for parity with Kinesis. An explicit hash is taken as it is. The 1,024 logical
partitions are the first ten bits. Equal shards are cut at logical partitions for as long as there
are no more shards than partitions, so that a logical partition lies in one shard.

Invariant: `equal_cuts(n)` covers the ring, and `equal_cuts(a)` is part of `equal_cuts(b)` if a divides
b and both are on the same side of 1,024.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Final

import xxhash

from shoal.core.checking import is_whole
from shoal.core.errors import InvalidInput, InvalidKey
from shoal.core.limits import SHARDS_MAX
from shoal.core.model import KeyHash

RING_BITS: Final = 128
RING_SIZE: Final = 1 << RING_BITS
LOGICAL_PARTITIONS: Final = 1024
PARTITION_SIZE: Final = RING_SIZE // LOGICAL_PARTITIONS
_HEXADECIMAL: Final = re.compile(r"[0-9A-Fa-f]{1,32}")
SPARK_SEED: Final = 42
"""Spark's `xxhash64` starts from 42; any other seed would route differently from Spark."""


def key_bytes(key: object) -> bytes | None:
    """A key as it is stored and hashed: bytes as they are, text as UTF-8, None as no key."""
    if key is None or isinstance(key, bytes):
        return key
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise InvalidKey("key", key, f"text is kept as UTF-8 ({error.reason}); give bytes") from error
    if isinstance(key, bytearray | memoryview):
        return bytes(key)
    raise InvalidKey("key", key, f"a key is bytes or str, not {type(key).__name__}")


def place(key: bytes, how: KeyHash = KeyHash.XXH64) -> int:
    """Where a key lies on the ring."""
    match how:
        case KeyHash.XXH64:
            return xxhash.xxh64_intdigest(key, SPARK_SEED) << 64
        case KeyHash.MD5:
            return int.from_bytes(hashlib.md5(key, usedforsecurity=False).digest())


def placer(how: KeyHash) -> Callable[[bytes], int]:
    """`place` for one kind of hash: what is called for every record decides nothing again."""
    if how is KeyHash.XXH64:
        digest = xxhash.xxh64_intdigest
        return lambda key: digest(key, SPARK_SEED) << 64
    return lambda key: place(key, how)


def checked_hash(value: object, field: str = "hash_key") -> int:
    """An explicit hash key: an int, or up to 32 hexadecimal digits as LogHub and Kinesis users write it."""
    number: object = value
    if isinstance(value, str):
        number = int(value, 16) if _HEXADECIMAL.fullmatch(value) else None
    if not is_whole(number) or not 0 <= number < RING_SIZE:
        raise InvalidInput(field, value, "an int from 0 to 2**128-1, or up to 32 hexadecimal digits")
    return number


def logical_partition(place_: int) -> int:
    """Which of the 1,024 logical partitions a place lies in."""
    return place_ // PARTITION_SIZE


def checked_shard_count(count: object) -> int:
    """A number of shards that a stream may have."""
    if not is_whole(count) or not 1 <= count <= SHARDS_MAX:
        raise InvalidInput("shards", count, f"a stream has 1 to {SHARDS_MAX} shards")
    return count


def equal_cuts(count: int) -> list[int]:
    """The `count + 1` bounds of equal shards: 0, the cuts between them, and the end of the ring."""
    if count <= LOGICAL_PARTITIONS:
        return [i * LOGICAL_PARTITIONS // count * PARTITION_SIZE for i in range(count + 1)]
    return [i * RING_SIZE // count for i in range(count + 1)]
