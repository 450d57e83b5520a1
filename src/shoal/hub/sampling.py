"""A look at a shard's newest records, for their keys. Reads as any reader does, and changes nothing."""

from __future__ import annotations

from collections import Counter
from typing import Final

from shoal.core.errors import OffsetExpired
from shoal.core.model import Shard, StreamInfo
from shoal.core.reading import ReadLimits
from shoal.ports import HubService
from shoal.wire.functions import pc

SAMPLE: Final = 10_000
"""Newest records that are looked at: a key that is a tenth of the load shows within a percent or so."""


def newest_keys(
    service: HubService, stream: StreamInfo, shard: Shard, records: int = SAMPLE
) -> Counter[bytes | None]:
    """How often each key is among the newest records of a shard."""
    found: Counter[bytes | None] = Counter()
    offset = max(shard.first_offset, shard.next_offset - records)
    while offset < shard.next_offset:
        limits = ReadLimits(max_records=shard.next_offset - offset)
        try:
            batch = service.read(stream.full_name, shard.id, offset, limits)
        except OffsetExpired:
            break  # Retention was faster; what is left to see is newer than what was asked for.
        if not len(batch):
            break
        for keys in batch.key_columns():
            counts = pc.value_counts(keys)
            found.update(
                dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))
            )
        offset = batch.next_offset
    return found
