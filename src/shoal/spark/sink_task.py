"""One task of a sink: the rows of one partition of one batch, into the log. Knows nothing of Spark.

Rows are gathered into rounds of bounded size, always cut at the same rows, and written by a thread of their
own while the next round is gathered: the wait for the store's disk costs nothing as long as rows come
slower than that. A round is written when a row has come after it: only then is it known that it is not the
last one, which is noted before it is sent (see `ledger`). So at most three rounds are in memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

import pyarrow as pa

from shoal.core.errors import InvalidInput, NotRepeated
from shoal.core.model import DEFAULT_PROJECT, StreamName
from shoal.ports import HubService
from shoal.spark.ledger import Beginning, Contents, Identity, Ledger, patiently
from shoal.spark.repeating import RepeatableWriter
from shoal.spark.sink_columns import by_stream, contents, fit
from shoal.spark.sink_options import SinkSettings, target
from shoal.wire.layout import MEMORY, Layout

STREAMS_MAX: Final = 256
"""Streams that one task writes to. A column of keys taken for names would otherwise open one for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What became of a task's rows."""

    contents: Contents
    claim: int | None = None
    """Where the notes of the batch begin in the ledger, if there are any."""


def project_of(settings: SinkSettings) -> str:
    """Where a sink's ledger is: in its stream's project, or in the default one if rows name their streams."""
    return DEFAULT_PROJECT if settings.stream is None else target(settings.stream).project


def ledger_of(service: HubService, settings: SinkSettings) -> Ledger:
    """The ledger of a sink."""
    return Ledger(service, project_of(settings))


class SinkTask:
    """Writes one partition, once."""

    def __init__(self, service: HubService, settings: SinkSettings, who: Identity) -> None:
        self._service = service
        self._settings = settings
        self._who = who
        self._ledger: Ledger | None = None
        self._targets: dict[StreamName, _Target] = {}
        self._contents = Contents()

    def write(self, batches: Iterable[pa.RecordBatch]) -> Written:
        """All rows; returns when they are stored."""
        filled = (batch for batch in batches if batch.num_rows)
        gathered, is_all = _gathered(filled, self._settings.buffer_bytes)
        if not gathered:
            return Written(contents=self._contents)
        begun = self._begin(self._held(gathered) if is_all else None)
        with ThreadPoolExecutor(1, thread_name_prefix="shoal-sink") as sender:
            sending: Future[None] | None = None
            for cut in _rounds(chain(gathered, filled), begun.buffer_bytes, sorted(begun.ends)):
                if sending is not None:
                    sending.result()
                sending = sender.submit(self._write_round, begun, cut, has_noted=is_all and begun.is_first)
            if sending is not None:
                sending.result()
        if begun.done is not None:
            self._check_same(begun.done.get(self._who.partition, Contents()))
        return Written(contents=self._contents, claim=begun.claim if self._ledger else None)

    def _held(self, batches: Iterable[pa.RecordBatch]) -> Contents:
        return sum((contents(self._settings, batch) for batch in batches), Contents())

    def _begin(self, held: Contents | None) -> Beginning:
        if not self._settings.is_exactly_once:
            return Beginning(claim=-1, buffer_bytes=self._settings.buffer_bytes, is_first=True)
        self._ledger = ledger_of(self._service, self._settings)
        return self._ledger.begin(self._who, self._settings.buffer_bytes, held)

    def _write_round(self, begun: Beginning, cut: _Round, *, has_noted: bool) -> None:
        self._contents += contents(self._settings, cut.rows)
        now_ms = time.time_ns() // 1_000_000
        parts = []
        for name, rows in by_stream(self._settings, cut.rows):
            target = self._targets.get(name)
            if target is None:
                target = self._targets[name] = self._open(name)
            parts.append((target.writer, fit(self._settings, target.layout, rows, now_ms)))
        if begun.done is not None:
            return  # It is all there; what is left is to see that it is the same.
        if cut.end in begun.ends:
            self._check_same(begun.ends[cut.end])
        if cut.is_last and self._ledger is not None and not has_noted:
            self._note_end(self._ledger, begun, parts)
        if not begun.is_first:
            for writer, fitted in parts:  # All of them before any is sent: what differs must store nothing.
                writer.check(fitted, now_ms)
        for writer, fitted in parts:
            writer.write(fitted)

    def _note_end(
        self, ledger: Ledger, begun: Beginning, parts: list[tuple[RepeatableWriter, pa.RecordBatch]]
    ) -> None:
        """Before the last round is sent. An attempt that ended later than this one knew more of the rows."""
        end = self._contents.rows
        if begun.ends and max(begun.ends) > end:
            raise NotRepeated(
                where=str(self._who), detail=f"it had {max(begun.ends)} rows or more, and has {end} now"
            )
        if end in begun.ends or (
            not begun.is_first and any(writer.has_sent(fitted) for writer, fitted in parts)
        ):
            return  # An earlier attempt sent this very round, or one that went on; `check` tells which.
        ledger.note_end(self._who, begun.next_note, self._contents)

    def _open(self, name: StreamName) -> _Target:
        if len(self._targets) == STREAMS_MAX:
            raise InvalidInput("stream", str(name), f"one task writes to at most {STREAMS_MAX} streams")
        stream = patiently(lambda: self._service.describe_stream(name))
        born = len(stream.shards) if self._ledger is None else self._ledger.claim_stream(self._who, stream)
        writer = RepeatableWriter(
            self._service,
            stream,
            self._who,
            born=born,
        )
        return _Target(Layout(stream.settings.schema), writer)

    def _check_same(self, before: Contents) -> None:
        if before != self._contents:
            now = self._contents
            detail = (
                f"its first {now.rows} rows had other keys"
                if before.rows == now.rows
                else f"it had {before.rows} rows and {before.key_bytes} bytes of keys, "
                f"and has {now.rows} and {now.key_bytes} now"
            )
            raise NotRepeated(where=str(self._who), detail=detail)


class _Target(NamedTuple):
    layout: Layout
    writer: RepeatableWriter


class _Round(NamedTuple):
    rows: pa.RecordBatch
    end: int
    """How many rows of the partition have come up to its end."""
    is_last: bool


def _gathered(batches: Iterator[pa.RecordBatch], size: int) -> tuple[list[pa.RecordBatch], bool]:
    """The first batches, up to a size; and whether that is all."""
    found: list[pa.RecordBatch] = []
    while sum(batch.nbytes for batch in found) < size:
        batch = next(batches, None)
        if batch is None:
            return found, True
        found.append(batch)
    return found, False


def _rounds(batches: Iterable[pa.RecordBatch], size: int, ends: list[int]) -> Iterator[_Round]:
    """Batches joined until they have reached a size, and cut where attempts have ended before.

    Where a round ends depends on the rows before it, on how Spark has cut them into batches, and on these two
    alone.
    """
    waiting: list[pa.RecordBatch] = []
    held: _Round | None = None
    place = 0
    for batch in batches:
        left = batch
        while left.num_rows:
            if held is not None:
                yield held
                held = None
            cut = next((end for end in ends if end > place), None)
            part = left if cut is None else left.slice(0, cut - place)
            left = left.slice(part.num_rows)
            waiting.append(part)
            place += part.num_rows
            if place == cut or sum(each.nbytes for each in waiting) >= size:
                held = _Round(_joined(waiting), place, False)
                waiting = []
    if waiting:
        held = _Round(_joined(waiting), place, False)
    if held is not None:
        yield held._replace(is_last=True)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches, memory_pool=MEMORY)
