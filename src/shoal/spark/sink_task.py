"""One task of a sink: the rows of one partition of one batch, into the log. Knows nothing of Spark.

Rows are gathered into rounds of bounded size, always cut at the same rows, and written by a thread of their
own while the next round is gathered: at most two rounds are in memory, and the wait for the store's disk
costs nothing as long as rows come slower than that.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from shoal.core.errors import InvalidInput
from shoal.core.names import stream_name
from shoal.ports import HubService
from shoal.spark.ledger import Beginning, Contents, Identity, Ledger, NotRepeated, patiently
from shoal.spark.repeating import RepeatableWriter
from shoal.spark.sink_columns import by_stream, contents, fit
from shoal.spark.sink_options import SinkSettings
from shoal.wire.layout import Layout

STREAMS_MAX = 256
"""Streams that one task writes to. A column of keys taken for names would otherwise open one for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What became of a task's rows."""

    rows: int = 0
    claims: dict[str, int] = field(default_factory=dict)
    """For each stream that it wrote to, where the batch's claim is in the ledger."""


class SinkTask:
    """Writes one partition."""

    def __init__(self, service: HubService, settings: SinkSettings, who: Identity) -> None:
        self._service = service
        self._settings = settings
        self._who = who
        self._targets: dict[str, _Target] = {}

    def write(self, batches: Iterable[pa.RecordBatch]) -> Written:
        """All rows; returns when they are stored."""
        rows = 0
        with ThreadPoolExecutor(1, thread_name_prefix="shoal-sink") as sender:
            sending: Future[None] | None = None
            for gathered in self._rounds(batches):
                rows += gathered.num_rows
                if sending is not None:
                    sending.result()
                sending = sender.submit(self._write_round, gathered)
            if sending is not None:
                sending.result()
        for target in self._targets.values():
            target.finish()
        return Written(rows=rows, claims={name: target.claim for name, target in self._targets.items()})

    def _rounds(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches joined until they have reached the size of a round.

        Where a round ends depends on the rows before it and the option alone.
        """
        waiting: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            if batch.num_rows == 0:
                continue
            waiting.append(batch)
            size += batch.nbytes
            if size >= self._settings.buffer_bytes:
                yield _joined(waiting)
                waiting, size = [], 0
        if waiting:
            yield _joined(waiting)

    def _write_round(self, gathered: pa.RecordBatch) -> None:
        for name, rows in by_stream(self._settings, gathered):
            target = self._targets.get(name)
            if target is None:
                if len(self._targets) == STREAMS_MAX:
                    raise InvalidInput("stream", name, f"one task writes to at most {STREAMS_MAX} streams")
                target = self._targets[name] = _Target(self._service, self._settings, self._who, name)
            target.write(rows)


class _Target:
    """One stream that a task writes to."""

    def __init__(self, service: HubService, settings: SinkSettings, who: Identity, name: str) -> None:
        self._settings = settings
        self._who = who
        stream = patiently(lambda: service.describe_stream(stream_name(name)))
        self._name = str(stream.full_name)
        self._layout = Layout(stream.settings.schema)
        self._service = service
        self._stream = stream
        self._ledger = Ledger(service, stream) if settings.is_exactly_once else None
        self._begun = self._begin()
        self._writer: RepeatableWriter | None = None
        self._contents = Contents()

    @property
    def claim(self) -> int:
        return self._begun.claim

    def _begin(self) -> Beginning:
        size = self._settings.buffer_bytes
        if self._ledger is None:
            return Beginning(
                born=len(self._stream.shards), buffer_bytes=size, is_first=True, done=None, claim=-1
            )
        begun = self._ledger.begin(self._who, size)
        if begun.buffer_bytes != size and begun.done is None and not begun.is_first:
            raise NotRepeated(
                where=str(self._who), detail=f"maxBufferBytes was {begun.buffer_bytes}, and is {size} now"
            )
        return begun

    def write(self, rows: pa.RecordBatch) -> None:
        fitted = fit(self._settings, self._layout, rows, time.time_ns() // 1_000_000)
        self._contents += contents(fitted)
        if self._begun.done is not None:
            return  # It is all there; what is left is to see that it is the same.
        if self._writer is None:
            self._writer = RepeatableWriter(
                self._service,
                self._stream,
                self._who,
                born=self._begun.born,
                is_first=self._begun.is_first,
                has_timestamps="timestamp" in rows.schema.names,
            )
        self._writer.write(fitted)

    def finish(self) -> None:
        done = self._begun.done
        if done is not None and done != self._contents:
            raise NotRepeated(
                where=f"{self._who}, for {self._name},",
                detail=f"it had {done.rows} rows and {done.key_bytes} bytes of keys, "
                f"and has {self._contents.rows} and {self._contents.key_bytes} now",
            )
        if done is None and self._ledger is not None:
            self._ledger.finish(self._who, self._contents)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches)
