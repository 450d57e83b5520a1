"""What a read returns: consecutive records of one shard, as Arrow columns or one by one.

A batch may be made of several stored ones; it joins their columns only when asked for.
Invariant: offsets are dense from `first_offset` to `next_offset`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa

from shoal.wire.layout import HEADERS, Layout
from shoal.wire.record import NO_HEADERS, Record


class Batch:
    """Consecutive records of a shard: `len()`, iteration over `Record`, `to_arrow()`."""

    __slots__ = (
        "_arrow",
        "_chunks",
        "_layout",
        "end_of_shard",
        "first_offset",
        "next_offset",
        "shard",
        "stream",
    )

    def __init__(
        self,
        *,
        stream: str,
        shard: int,
        first_offset: int,
        chunks: Sequence[pa.RecordBatch],
        layout: Layout,
        end_of_shard: bool,
    ) -> None:
        self.stream = stream
        self.shard = shard
        self.first_offset = first_offset
        self.next_offset: int = first_offset + sum(chunk.num_rows for chunk in chunks)
        self.end_of_shard = end_of_shard
        """True if the shard is closed and nothing comes after this batch."""
        self._chunks = chunks
        self._layout = layout
        self._arrow: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return self.next_offset - self.first_offset

    def __iter__(self) -> Iterator[Record]:
        # A chain of maps, with no generator between: the loop over records then never enters Python here.
        return chain.from_iterable(self._parts())

    def _parts(self) -> Iterator[Iterator[Record]]:
        """Records in parts of a size that stays in the processor's cache."""
        offset = self.first_offset
        for chunk in self._chunks:
            milliseconds = _milliseconds(chunk)
            for start in range(0, chunk.num_rows, _AT_ONCE):
                part = chunk.slice(start, _AT_ONCE)
                rows = zip(
                    range(offset, offset + part.num_rows),
                    milliseconds[start : start + _AT_ONCE].tolist(),
                    part.column("key").to_pylist(),
                    self._values(part),
                    _headers(part),
                    strict=False,
                )
                # What Record(...) does, without a call into Python for each record.
                yield map(tuple.__new__, repeat(Record), rows)
                offset += part.num_rows

    def __repr__(self) -> str:
        return f"<Batch {self.stream} shard {self.shard} offsets [{self.first_offset}, {self.next_offset})>"

    @property
    def nbytes(self) -> int:
        """Bytes held in memory, about."""
        size: int = sum(chunk.nbytes for chunk in self._chunks)
        return size

    def to_arrow(self) -> pa.RecordBatch:
        """All records as one record batch: offset, timestamp, key, headers, then value or typed columns."""
        if self._arrow is None:
            self._arrow = self._joined()
        return self._arrow

    def _joined(self) -> pa.RecordBatch:
        schema = self._layout.read_schema
        offset = self.first_offset
        parts = []
        for chunk in self._chunks:
            numbers = pa.array(np.arange(offset, offset + chunk.num_rows))
            headers = (
                chunk.column("headers") if "headers" in chunk.schema.names else _no_headers(chunk.num_rows)
            )
            columns = [numbers, chunk.column("timestamp"), chunk.column("key"), headers]
            columns += [chunk.column(name) for name in self._layout.columns.names]
            parts.append(pa.record_batch(columns, schema=schema))
            offset += chunk.num_rows
        if not parts:
            return _empty(schema)
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def _values(self, part: pa.RecordBatch) -> list[Any]:
        if not self._layout.is_typed:
            values: list[Any] = part.column("value").to_pylist()
            return values
        rows: list[Any] = part.select(self._layout.columns.names).to_pylist()
        return rows


def _no_headers(rows: int) -> pa.Array:
    """A column of nulls. Most batches have no headers, and all of them can share one."""
    return _NULLS.slice(0, rows) if rows <= len(_NULLS) else pa.nulls(rows, HEADERS.type)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.array([], field.type) for field in schema], schema=schema)


def _milliseconds(chunk: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    micros: np.ndarray[Any, np.dtype[np.int64]] = chunk.column("timestamp").cast(pa.int64()).to_numpy()
    return micros // 1000


def _headers(part: pa.RecordBatch) -> Iterator[Mapping[str, bytes]]:
    if "headers" not in part.schema.names:
        return repeat(NO_HEADERS)
    return (dict(pairs) if pairs else NO_HEADERS for pairs in part.column("headers").to_pylist())


_NULLS: Final = pa.nulls(65_536, HEADERS.type)
_AT_ONCE: Final = 1024
"""Records turned into objects at a time: large enough to be fast, small enough to stay in the cache."""
