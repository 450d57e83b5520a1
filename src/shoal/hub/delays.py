"""Delivers delayed records when they are due: reads them, routes them by the map as of now, appends them.

Any process that has a hub open may do so; whoever takes a row away first has delivered it, in the same commit
that appends it. The thread is there while something waits: after an append that brought some, or once a look
has found some of others. Due is what the wall clock of who delivers says; a steady clock beside it shows when
that one was set back.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import pyarrow as pa

from shoal.complaints import Complaints
from shoal.core.delaying import Clocks, Lookout, is_set_back
from shoal.core.errors import HubClosed, ShoalError
from shoal.core.limits import BATCH_BYTES_MAX
from shoal.core.model import Appended, ShardId, StreamInfo
from shoal.core.ring import LOGICAL_PARTITIONS, PARTITION_SIZE
from shoal.core.routing import ShardMap
from shoal.delay_port import DueRow
from shoal.forks import renew_in_child
from shoal.ports import AppendRequest, ShardEnd, Store, Submission
from shoal.wire.functions import pc
from shoal.wire.hashing import column_shards, group_rows
from shoal.wire.layout import MEMORY, Layout

_log: Final = logging.getLogger("shoal.hub.delays")


class Log(Protocol):
    """As much of a hub as this needs."""

    def layout(self, stream: StreamInfo) -> Layout: ...
    def prepare(self, stream: StreamInfo, submission: Submission) -> AppendRequest | ShoalError: ...


class Delays:
    """Of one hub. Writer and reader of the fields: any thread, under `_changed`."""

    def __init__(self, store: Store, log: Log) -> None:
        self._store, self._log = store, log
        self._complaints = Complaints(_log)
        self._is_closed = False
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._changed = threading.Condition()
        self._is_news = False
        self._lookout = Lookout()
        self._seen: Clocks | None = None
        """The clocks, as the thread last saw them."""
        self._thread: threading.Thread | None = None

    def wake(self, due_ms: Sequence[int] = ()) -> None:
        """Something waits. `due_ms`: what was added here, which may be due before all else."""
        with self._changed:
            if self._is_closed:
                return
            for each in due_ms:
                self._lookout.add(each)
            self._is_news = True
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="shoal-delays", daemon=True)
                self._thread.start()

    def look(self) -> None:
        """Whether others have left something that waits."""
        if self._thread is None and self._store.next_due() is not None:
            self.wake()

    def close(self) -> None:
        """End the thread; what waits, waits for others."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_news = False
            try:
                rest_ms = self._deliver_due()
            except HubClosed:
                return
            except ShoalError as error:
                self._complaints.warn(type(error).__name__, "delayed records: %s", error)
                rest_ms = _LOOK_MS
            except Exception:  # noqa: BLE001 - a thread's top: one fault must not keep all others waiting
                _log.exception("delayed records could not be delivered")
                rest_ms = _LOOK_MS
            with self._changed:
                if rest_ms is None and not self._is_news:
                    self._thread = self._seen = None
                    return
                if not self._is_news and not self._is_closed:
                    self._changed.wait((rest_ms or 0) / 1000)
                if self._is_closed:
                    return

    def _deliver_due(self) -> int | None:
        """All that is due; then milliseconds until more is, at most until the next look. None: none waits."""
        self._look_at_clocks()
        with self._changed:
            upto_ms = self._lookout.upto_ms(_now_ms())
        stuck: set[int] = set()
        while not self._is_closed and (
            rows := self._store.due(upto_ms, rows=_ROWS, size=_BYTES, besides=stuck)
        ):
            if not self._delivered(rows):
                stuck.add(rows[0].stream_id)
        if stuck:
            return _LOOK_MS
        due_ms = self._store.next_due()
        with self._changed:
            return None if due_ms is None else self._lookout.rest_ms(due_ms, _now_ms(), _LOOK_MS)

    def _look_at_clocks(self) -> None:
        """Nothing that was to wait for so long waits longer because the wall clock was set back."""
        seen = Clocks(wall_ms=_now_ms(), steady_ms=time.monotonic_ns() // 1_000_000)
        if self._seen is None or is_set_back(self._seen, seen):  # Set back before we looked, nobody knows.
            while self._store.bring_forward(seen.wall_ms):
                pass
        self._seen = seen

    def _delivered(self, rows: Sequence[DueRow]) -> bool:
        """False: what is wrong is wrong with these, and those of other streams need not wait for it."""
        try:
            self._deliver(rows)
        except ShoalError as error:
            if error.retriable or isinstance(error, HubClosed):
                raise
            stream_id = rows[0].stream_id
            self._complaints.warn(f"stream {stream_id}", "delayed records of stream %d: %s", stream_id, error)
            return False
        return True

    def _deliver(self, rows: Sequence[DueRow]) -> None:
        stream = self._store.load_stream_by_id(rows[0].stream_id)
        if stream is None:
            return  # It is being deleted, and these with it.
        requests = []
        for submission in _routed(stream, self._log.layout(stream), rows):
            prepared = self._log.prepare(stream, submission)
            if isinstance(prepared, ShoalError):
                raise prepared
            requests.append(prepared)
        answers = self._store.deliver([row.id for row in rows], requests, _now_ms())
        stored = [answer for answer in answers or () if isinstance(answer, Appended)]
        if len(stored) == len(requests):  # Otherwise another was first, or the map is a new one: look again.
            self._store.signal.ring(
                [
                    (ShardEnd(stream.id, request.shard), answer.next_offset)
                    for request, answer in zip(requests, stored, strict=True)
                ]
            )


def _routed(stream: StreamInfo, layout: Layout, rows: Sequence[DueRow]) -> Iterator[Submission]:
    """Batches for each shard, of rows in their order."""
    shards = ShardMap.of(stream)
    parts: dict[ShardId, list[pa.RecordBatch]] = {}
    for row in rows:
        batch = layout.decode(row.layout, row.payload)
        if row.place is not None:
            parts.setdefault(shards.shard_at(row.place), []).append(batch)
            continue
        unkeyed = shards.shard_at(random.randrange(LOGICAL_PARTITIONS) * PARTITION_SIZE)
        places = column_shards(batch.column("key"), stream.settings.hash, shards, shards.ids.index(unkeyed))
        for shard, some in zip(shards.ids, group_rows(places, len(shards.ids)), strict=True):
            if len(some):
                parts.setdefault(shard, []).append(pc.take(batch, pa.array(some), memory_pool=MEMORY))
    for shard, batches in parts.items():
        for piece in _cut(batches):
            yield Submission(shard=shard, batch=_joined(piece))


def _cut(batches: Sequence[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """What goes into one batch, in order; each of them was small enough for one. Some have headers, and some
    have no room for any: those are batches of their own."""
    some: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if some and (size + batch.nbytes > _BYTES or batch.schema != some[0].schema):
            yield some
            some, size = [], 0
        some.append(batch)
        size += batch.nbytes
    yield some


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks(memory_pool=MEMORY).to_batches()
    return joined


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_ROWS: Final = 500
_BYTES: Final = BATCH_BYTES_MAX // 2
"""What is delivered in one commit, and in one batch of it."""
_LOOK_MS: Final = 1_000
"""The longest sleep: other processes may add what is due sooner, and the wall clock may jump."""
_CLOSE_S: Final = 10.0
