"""What one read returns: which stored batches, and where they are trimmed. Decides; fetches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.checking import as_whole, is_number, is_whole
from shoal.core.errors import InvalidInput, OffsetExpired, OffsetOutOfRange
from shoal.core.limits import (
    READ_BYTES_DEFAULT,
    READ_JOIN_BYTES,
    READ_RECORDS_DEFAULT,
    READ_WAIT_S_MAX,
    READS_TOGETHER_BYTES,
    READS_TOGETHER_MAX,
)
from shoal.core.model import Shard, StreamName


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """How much one read may return, and how long it waits if there is nothing."""

    max_records: int = READ_RECORDS_DEFAULT
    max_bytes: int = READ_BYTES_DEFAULT
    """Uncompressed. At least one record is returned, however large, so that a reader never stalls."""
    wait_s: float = 0.0

    def __post_init__(self) -> None:
        for field, value in (("max_records", self.max_records), ("max_bytes", self.max_bytes)):
            if not is_whole(value) or value < 1:
                raise InvalidInput(field, value, "a read returns at least 1")
        if not is_number(self.wait_s) or not 0 <= self.wait_s <= READ_WAIT_S_MAX:
            raise InvalidInput("wait", self.wait_s, f"seconds from 0 to {READ_WAIT_S_MAX:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMeta:
    """A stored batch without its payload."""

    base_offset: int
    records: int
    raw_bytes: int
    stored_bytes: int
    appended_ms: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.records


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """Fetch the batches with `first_base <= base_offset <= last_base` and keep `[offset, end)` of them."""

    first_base: int
    last_base: int
    offset: int
    end: int


def whole_offset(offset: object) -> int:
    """An offset, of any stream: a whole number, whether of Python or of NumPy."""
    whole = as_whole(offset)
    if whole is None:
        raise InvalidInput("offset", offset, "an offset is an int from 0 on")
    return whole


def check_offset(stream: StreamName | str, shard: Shard, offset: object) -> int:
    """An offset that can be read from: kept, and not past the end."""
    offset = whole_offset(offset)
    if not 0 <= offset <= shard.next_offset:
        raise OffsetOutOfRange(
            stream=str(stream), shard=shard.id, offset=offset, next_offset=shard.next_offset
        )
    if offset < shard.first_offset:
        raise OffsetExpired(
            stream=str(stream), shard=shard.id, offset=offset, first_offset=shard.first_offset
        )
    return offset


def has_moved(end: tuple[int, bool] | None, beyond: int) -> bool:
    """Whether one who waits at `beyond` has something to look at: records, or that the shard was closed.

    `end` is the shard's next offset and whether it is open, or None if it is gone.
    """
    return end is None or end[0] > beyond or not end[1]


def is_end_of_shard(shard: Shard, end: int) -> bool:
    """Nothing comes after `end`, and nothing ever will."""
    return not shard.is_open and end == shard.next_offset


def is_read_on(shard: Shard, end: int, reads: int, size: int) -> bool:
    """Whether the read that follows one which ended here goes with it: there is more, and what goes together
    is not large yet."""
    return end < shard.next_offset and reads < READS_TOGETHER_MAX and size < READS_TOGETHER_BYTES


def plan_read(metas: Sequence[BatchMeta], offset: int, limits: ReadLimits) -> ReadPlan | None:
    """Choose whole batches from `metas` (the one that holds `offset` first) until a limit is reached.

    Small batches are joined until they are worth a call; a large one is returned as it is, without a copy.
    The record limit trims the last batch. The byte limit ends between batches where it can; inside a
    single batch over the limit it trims by the batch's average record, at least one record.
    """
    first_base: int | None = None
    last_base = end = offset
    records = size = 0
    for meta in metas:
        if meta.next_offset <= offset:
            continue
        if meta.base_offset > end:
            break  # A batch is missing. The read that begins there will say so.
        begin = max(offset, meta.base_offset)
        count = meta.next_offset - begin
        weight = meta.raw_bytes * count // meta.records
        if first_base is not None and (size + weight > limits.max_bytes or size >= READ_JOIN_BYTES):
            break
        if weight > limits.max_bytes:
            count = max(1, limits.max_bytes * meta.records // meta.raw_bytes)
        count = min(count, limits.max_records - records)
        first_base = meta.base_offset if first_base is None else first_base
        last_base, end = meta.base_offset, begin + count
        records += count
        size += weight
        if records >= limits.max_records or size >= limits.max_bytes:
            break
    if first_base is None:
        return None
    return ReadPlan(first_base=first_base, last_base=last_base, offset=offset, end=end)
