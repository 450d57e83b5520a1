"""A batch on its way to another process: a small label, and the bytes of its columns as they are in memory.

Nothing is done for each record: columns are written as Arrow IPC, offsets as one run or one array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa

from shoal.wire.batch import Batch
from shoal.wire.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What the bytes alone do not say."""

    stream: str
    shard: int
    first_offset: int
    offsets: range | bytes
    """One run, or an array of 64-bit numbers."""
    end_of_shard: bool
    schema: bytes | None
    """Of a stream with typed columns."""


def pack(batch: Batch, offsets: Sequence[int]) -> tuple[Label, pa.Buffer]:
    """Some of a batch's records."""
    part = batch.part(offsets)
    layout = part._layout
    label = Label(
        stream=part.stream,
        shard=part.shard,
        first_offset=part.first_offset,
        offsets=offsets if isinstance(offsets, range) else np.asarray(offsets, dtype=np.int64).tobytes(),
        end_of_shard=batch.end_of_shard and bool(offsets) and offsets[-1] + 1 == batch.next_offset,
        schema=bytes(layout.columns.serialize()) if layout.is_typed else None,
    )
    sink = pa.BufferOutputStream()
    # Batches with headers and batches without may follow one another: a stream for each run of a kind.
    for schema, chunks in groupby(part._chunks, key=lambda chunk: chunk.schema):
        with pa.ipc.new_stream(sink, schema, options=_WRITE) as writer:
            for chunk in chunks:
                writer.write_batch(_compact(chunk))
    return label, sink.getvalue()


def unpack(label: Label, payload: bytes | memoryview) -> Batch:
    """The records of these bytes."""
    offsets: Sequence[int]
    if isinstance(label.offsets, range):
        offsets = label.offsets
    else:
        offsets = np.frombuffer(label.offsets, dtype=np.int64).tolist()
    return Batch(
        stream=label.stream,
        shard=label.shard,
        first_offset=label.first_offset,
        chunks=list(_chunks(payload)),
        layout=_layout(label.schema),
        end_of_shard=label.end_of_shard,
        offsets=offsets,
    )


def _chunks(payload: bytes | memoryview) -> Iterator[pa.RecordBatch]:
    source = pa.BufferReader(payload)
    while source.tell() < len(payload):
        with pa.ipc.open_stream(source) as reader:
            yield from reader


def _compact(chunk: pa.RecordBatch) -> pa.RecordBatch:
    """Arrow writes a slice of some columns with all that they are a slice of: then copy it first."""
    if chunk.get_total_buffer_size() <= _SLACK * (chunk.nbytes + _SMALL):
        return chunk
    return chunk.take(pa.array(np.arange(chunk.num_rows)))


@lru_cache(maxsize=64)
def _layout(schema: bytes | None) -> Layout:
    return Layout(schema)


_WRITE: Final = pa.ipc.IpcWriteOptions(use_threads=False)
_SLACK: Final = 2
_SMALL: Final = 1024
