"""Some of a shard's records on their way: a label for JSON, and Arrow IPC (see `wire.crossing`)."""

from __future__ import annotations

import pyarrow as pa

from shoal.native.forms import PartLabel
from shoal.wire.batch import Batch
from shoal.wire.crossing import Label, pack, unpack


def part_of(batch: Batch) -> tuple[PartLabel, pa.Buffer]:
    """All of a batch."""
    label, payload = pack(batch, batch.offsets)
    made = PartLabel(
        stream=label.stream,
        shard=label.shard,
        first_offset=label.first_offset,
        run=(label.offsets.start, label.offsets.stop) if isinstance(label.offsets, range) else None,
        offsets=None if isinstance(label.offsets, range) else label.offsets,
        end_of_shard=label.end_of_shard,
        schema=label.schema,
    )
    return made, payload


def batch_of(part: PartLabel, payload: memoryview) -> Batch:
    """The batch that was sent."""
    label = Label(
        stream=part.stream,
        shard=part.shard,
        first_offset=part.first_offset,
        offsets=range(*part.run) if part.run is not None else part.offsets or b"",
        end_of_shard=part.end_of_shard,
        schema=part.schema,
    )
    return unpack(label, payload)
