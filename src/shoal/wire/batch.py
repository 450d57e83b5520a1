"""What a read returns: consecutive records of one shard, as Arrow columns or one by one.

A batch may be made of several stored ones; it joins their columns only when asked for. What a read returns is
dense from `first_offset` to `next_offset`; a lane's part of it has the offsets of its own records.
Invariant: offsets rise.
"""

from __future__ import annotations

from bisect import bisect_left
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
        "_offsets",
        "end_of_shard",
        "first_offset",
        "next_offset",
        "shard",
        "stream",
        "tail",
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
        offsets: Sequence[int] | None = None,
        tail: int | None = None,
    ) -> None:
        self.stream = stream
        self.shard = shard
        self._offsets: Sequence[int] = (
            range(first_offset, first_offset + sum(chunk.num_rows for chunk in chunks))
            if offsets is None
            else offsets
        )
        self.first_offset = first_offset
        self.next_offset: int = self._offsets[-1] + 1 if self._offsets else first_offset
        self.end_of_shard = end_of_shard
        """True if the shard is closed and nothing comes after this batch."""
        self.tail = self.next_offset if tail is None else tail
        """The offset that the shard's next record was going to get when this was read."""
        self._chunks = chunks
        self._layout = layout
        self._arrow: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def offsets(self) -> Sequence[int]:
        """Of its records, in order."""
        return self._offsets

    def __iter__(self) -> Iterator[Record]:
        # A chain of maps, with no generator between: the loop over records then never enters Python here.
        return chain.from_iterable(self._parts())

    def _parts(self) -> Iterator[Iterator[Record]]:
        """Records in parts of a size that stays in the processor's cache."""
        place = 0
        for chunk in self._chunks:
            milliseconds = _milliseconds(chunk)
            for start in range(0, chunk.num_rows, _AT_ONCE):
                part = chunk.slice(start, _AT_ONCE)
                rows = zip(
                    self._offsets[place : place + part.num_rows],
                    milliseconds[start : start + _AT_ONCE].tolist(),
                    part.column("key").to_pylist(),
                    self._values(part),
                    _headers(part),
                    strict=False,
                )
                # What Record(...) does, without a call into Python for each record.
                yield map(tuple.__new__, repeat(Record), rows)
                place += part.num_rows

    def __repr__(self) -> str:
        return f"<Batch {self.stream} shard {self.shard} offsets [{self.first_offset}, {self.next_offset})>"

    @property
    def nbytes(self) -> int:
        """Bytes held in memory, about."""
        size: int = sum(chunk.nbytes for chunk in self._chunks)
        return size

    def key_columns(self) -> list[pa.Array]:
        """The column of keys, in parts."""
        return [chunk.column("key") for chunk in self._chunks]

    def chunks(self) -> Iterator[tuple[Sequence[int], pa.RecordBatch]]:
        """The offsets and stored columns of each part that it is made of: as they are, not joined."""
        place = 0
        for chunk in self._chunks:
            yield self._offsets[place : place + chunk.num_rows], chunk
            place += chunk.num_rows

    def part(self, offsets: Sequence[int]) -> Batch:
        """Some of its records, which are in it, in order. It says nothing about the end of the shard."""
        return Batch(**self._part(offsets))

    @staticmethod
    def joined(parts: Sequence[Batch]) -> Batch:
        """Parts of one shard, at least one, in order, as one batch, without copying them."""
        first, last = parts[0], parts[-1]
        if len(parts) == 1:
            return first
        return Batch(
            stream=first.stream,
            shard=first.shard,
            first_offset=first.first_offset,
            chunks=[chunk for part in parts for chunk in part._chunks],
            layout=first._layout,
            end_of_shard=False,
            offsets=[offset for part in parts for offset in part.offsets],
            tail=last.tail,
        )

    def after(self) -> Batch:
        """No records, at the place where the next one would be."""
        return Batch(
            stream=self.stream,
            shard=self.shard,
            first_offset=self.next_offset,
            chunks=(),
            layout=self._layout,
            end_of_shard=False,
            tail=self.tail,
        )

    def _part(self, offsets: Sequence[int]) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "shard": self.shard,
            "first_offset": offsets[0] if offsets else self.first_offset,
            "chunks": self._chunks if offsets == self._offsets else self._chunks_of(offsets),
            "layout": self._layout,
            "end_of_shard": False,
            "offsets": offsets,
            "tail": self.tail,
        }

    def _chunks_of(self, offsets: Sequence[int]) -> Sequence[pa.RecordBatch]:
        chunks = []
        place = 0
        for chunk in self._chunks:
            mine = self._offsets[place : place + chunk.num_rows]
            low, high = bisect_left(offsets, mine[0]), bisect_left(offsets, mine[-1] + 1)
            chunks.append(_taken(chunk, mine, offsets[low:high]))
            place += chunk.num_rows
        return [chunk for chunk in chunks if chunk.num_rows]

    def to_arrow(self) -> pa.RecordBatch:
        """All records as one record batch: offset, timestamp, key, headers, then value or typed columns."""
        if self._arrow is None:
            self._arrow = self._joined()
        return self._arrow

    def _joined(self) -> pa.RecordBatch:
        schema = self._layout.read_schema
        place = 0
        parts = []
        for chunk in self._chunks:
            numbers = _numbers(self._offsets[place : place + chunk.num_rows])
            headers = (
                chunk.column("headers") if "headers" in chunk.schema.names else _no_headers(chunk.num_rows)
            )
            columns = [numbers, chunk.column("timestamp"), chunk.column("key"), headers]
            columns += [chunk.column(name) for name in self._layout.columns.names]
            parts.append(pa.record_batch(columns, schema=schema))
            place += chunk.num_rows
        if not parts:
            return _empty(schema)
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def _values(self, part: pa.RecordBatch) -> list[Any]:
        if not self._layout.is_typed:
            values: list[Any] = part.column("value").to_pylist()
            return values
        rows: list[Any] = part.select(self._layout.columns.names).to_pylist()
        return rows


def _taken(chunk: pa.RecordBatch, offsets: Sequence[int], wanted: Sequence[int]) -> pa.RecordBatch:
    """The rows of a chunk that are wanted: without a copy, if they are in one run."""
    if not wanted:
        return chunk.slice(0, 0)
    first = bisect_left(offsets, wanted[0])
    if first + len(wanted) <= len(offsets) and offsets[first + len(wanted) - 1] == wanted[-1]:
        return chunk if len(wanted) == chunk.num_rows else chunk.slice(first, len(wanted))
    return chunk.take(pa.array(np.searchsorted(np.asarray(offsets), np.asarray(wanted))))


def _numbers(offsets: Sequence[int]) -> pa.Array:
    if isinstance(offsets, range):
        return pa.array(np.arange(offsets.start, offsets.stop))
    return pa.array(offsets, pa.int64())


def _no_headers(rows: int) -> pa.Array:
    """A column of nulls. Most batches have no headers, and all of them can share one."""
    return _NULLS.slice(0, rows) if rows <= len(_NULLS) else pa.nulls(rows, HEADERS.type)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.array([], field.type) for field in schema], schema=schema)


def _milliseconds(chunk: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    micros: np.ndarray[Any, np.dtype[np.int64]] = chunk.column("timestamp").view(pa.int64()).to_numpy()
    return micros // 1000


def _headers(part: pa.RecordBatch) -> Iterator[Mapping[str, bytes]]:
    if "headers" not in part.schema.names:
        return repeat(NO_HEADERS)
    return (dict(pairs) if pairs else NO_HEADERS for pairs in part.column("headers").to_pylist())


_NULLS: Final = pa.nulls(65_536, HEADERS.type)
_AT_ONCE: Final = 1024
"""Records turned into objects at a time: large enough to be fast, small enough to stay in the cache."""
