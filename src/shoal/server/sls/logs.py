"""Logs in and out: what is put becomes batches of a stream, what is pulled groups of logs; and cursors, which
say from where."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import pyarrow as pa

from shoal.core.access import group_resource
from shoal.core.errors import OffsetExpired, ShardClosed, ShoalError, UnknownStream
from shoal.core.model import Appended, Shard, StreamInfo, StreamName
from shoal.core.reading import ReadLimits
from shoal.core.ring import RING_SIZE, checked_hash
from shoal.core.routing import ShardMap
from shoal.hub.local import LocalHub
from shoal.ports import Submission
from shoal.server.metrics import Counters
from shoal.server.requests import Answer
from shoal.server.sls.agents import is_consumer
from shoal.server.sls.asked import Asked
from shoal.server.sls.cursors import cursor_at, is_idle, kept_from
from shoal.server.sls.errors import SlsError
from shoal.server.sls.foreign import WRITTEN_BYTES
from shoal.server.sls.forms import OK, json_answer, offset_at_cursor, packing_of, packing_wanted, raw_size
from shoal.server.sls.groups import SlsGroups
from shoal.server.sls.needs import SAVE
from shoal.server.sls.packing import Malformed, Packing, TooMuch, packed, unpacked
from shoal.server.sls.records import STORED, batches_of, groups_of, records_bytes
from shoal.server.sls.wire import LogGroup, parsed

UNSUPPORTED: Final = "this server keeps and hands out logs; it has no search, no index and no SPL"
_GROUPS_MAX: Final = 1000
_APPEND_TRIES: Final = 5
_SEEN_MAX: Final = 1000
_UNCOUNTED: Final = 1_000_000
"""Records that take so much more than their body are stored at once: to count them takes another turn."""


class Unstored(NamedTuple):
    """A put that was read, and whose records take so many bytes more than its body: to be stored once these
    are counted, where all requests are."""

    bytes: int
    store: Callable[[], Answer]


class SlsLogs:
    """The logs of one hub."""

    def __init__(self, hub: LocalHub, counters: Counters, groups: SlsGroups) -> None:
        self._hub, self._counters, self._groups = hub, counters, groups
        self._seen: dict[StreamName, StreamInfo] = {}
        """Streams for logs, as they were when last looked up. Any thread may write it."""
        self._skipped = 0
        counters.watch(
            "sls_skipped_records", "Records that retention took before a client came.", lambda: self._skipped
        )

    def put(self, asked: Asked, body: bytes, name: StreamName, how: str) -> Answer | Unstored:
        """Store a group, by chance or where its key belongs; or say how much it will take first."""
        stream = self._seen.get(name) or self._looked_up(name)
        if asked.query.get("processor"):
            raise SlsError(400, "ParameterInvalid", UNSUPPORTED)
        place = checked_hash(asked.argument("key"), "key") if how == "route" else random.randrange(RING_SIZE)
        try:
            raw = unpacked(body, packing_of(asked.headers.get("x-log-compresstype", "")), raw_size(asked))
            group = parsed(raw)
            more = records_bytes(group) - len(raw)
        except Malformed as error:
            raise SlsError(400, "PostBodyInvalid", str(error)) from error
        except TooMuch as error:
            raise SlsError(400, "InvalidLogSize", str(error)) from error
        store = partial(self._store, stream, place, group, len(body))
        return Unstored(more, store) if more > _UNCOUNTED else store()

    def _store(self, stream: StreamInfo, place: int, group: LogGroup, size: int) -> Answer:
        if not len(group.times):
            return OK
        try:
            batches = batches_of(group, time.time_ns() // 1000)
        except Malformed as error:
            raise SlsError(400, "PostBodyInvalid", str(error)) from error
        self._append(stream, place, batches, size)
        return OK

    def _looked_up(self, name: StreamName) -> StreamInfo:
        """A stream for logs, as of now. Puts go by it until the store says that it is another, or gone."""
        stream = self._hub.describe_stream(name)
        if stream.settings.schema != STORED:
            raise SlsError(
                400,
                "ParameterInvalid",
                f"stream {stream.name} has columns of its own; make a logstore for logs",
            )
        if len(self._seen) >= _SEEN_MAX:
            self._seen.clear()
        self._seen[name] = stream
        return stream

    def _append(self, stream: StreamInfo, place: int, batches: Sequence[pa.RecordBatch], size: int) -> None:
        """All of them, in one commit; or none, if one cannot be stored."""
        for _ in range(_APPEND_TRIES):
            shard = ShardMap.of(stream).shard_at(place)
            prepared = [
                (shard, self._hub.prepare(stream, Submission(shard=shard, batch=batch))) for batch in batches
            ]
            for _, request in prepared:
                if isinstance(request, ShoalError):
                    raise request
            answers = self._hub.append_prepared(stream, prepared)
            for answer in answers:
                if isinstance(answer, ShoalError) and not isinstance(answer, (ShardClosed, UnknownStream)):
                    raise answer
            stored = [a.next_offset - a.first_offset for a in answers if isinstance(a, Appended)]
            if stored:
                self._counters.appended([(0 if i else size, records) for i, records in enumerate(stored)])
                return
            self._seen.pop(stream.full_name, None)
            stream = self._looked_up(stream.full_name)
        raise SlsError(503, "ServerBusy", "shards are split faster than logs are stored")

    def read_shard(self, asked: Asked, stream: StreamInfo, found: Shard) -> Answer:
        """A cursor, the time of one, or logs from one on."""
        kind = asked.query.get("type")
        if kind == "cursor":
            offset = self._cursor(stream, found, asked.argument("from"))
            idle = offset >= found.next_offset and is_consumer(asked.agent)
            return json_answer({"cursor": cursor_at(found, offset, is_idle=idle)})
        if kind == "cursor_time":
            return json_answer({"cursor_time": self._cursor_time(stream, found, asked.argument("cursor"))})
        if kind in ("log", "logs"):
            return self._pull(asked, stream, found)
        raise SlsError(400, "ParameterInvalid", "type is cursor, cursor_time or log")

    def _cursor(self, stream: StreamInfo, shard: Shard, start: str) -> int:
        if start == "begin":
            return shard.first_offset
        if start == "end":
            return shard.next_offset
        if not (start.isascii() and start.isdigit() and len(start) < 12):
            raise SlsError(400, "ParameterInvalid", "from is begin, end, or a time in Unix seconds")
        return self._hub.offset_appended(stream, shard, int(start) * 1000)

    def _cursor_time(self, stream: StreamInfo, shard: Shard, cursor: str) -> int:
        offset = offset_at_cursor(shard, cursor)
        if offset < shard.first_offset:
            raise SlsError(400, "InvalidCursor", f"{cursor[:64]!r} lies before what is kept")
        if offset >= shard.next_offset:
            return int(time.time())
        appended_ms = self._hub.appended_at(stream, shard.id, offset)
        return int(time.time()) if appended_ms is None else appended_ms // 1000

    def _pull(self, asked: Asked, stream: StreamInfo, shard: Shard) -> Answer:
        if asked.query.get("query") or asked.query.get("processor"):
            raise SlsError(400, "ParameterInvalid", UNSUPPORTED)
        count = asked.query.get("count", str(_GROUPS_MAX))
        if not (count.isascii() and count.isdigit() and len(count) < 8 and int(count) > 0):
            raise SlsError(400, "ParameterInvalid", "count is a number of groups, from 1 on")
        cursor = asked.argument("cursor")
        given = offset_at_cursor(shard, cursor)
        end_cursor = asked.query.get("end_cursor", "").strip()
        stop = offset_at_cursor(shard, end_cursor) if end_cursor else None
        # Clients jump to the end when told that a cursor is not good: what is kept would be lost on them.
        offset = kept_from(shard, given, stop)
        self._skipped += offset - max(0, given) if offset > given else 0
        idle = is_idle(cursor)
        if idle and not shard.is_open and offset >= shard.next_offset:
            self._groups.passed_over(
                stream,
                shard,
                asked.agent,
                may_save=lambda group: asked.caller.may(SAVE, group_resource(stream.full_name, group)),
            )
        groups, reached = self._read(stream, shard, offset, min(int(count), _GROUPS_MAX), stop)
        if reached == stop and not is_consumer(asked.agent):
            following = end_cursor  # Letter by letter: `pull_log` goes on until it is given that.
        else:
            # The end of a consumer has a nought itself, which says nothing of what it was given before.
            following = cursor_at(shard, reached, is_idle=idle and not groups)
        raw = b"".join(groups)
        packing = packing_wanted(asked.headers.get("accept-encoding", ""))
        sent = packed(raw, packing) if raw else b""
        headers = [
            (b"x-log-count", str(len(groups)).encode()),
            (b"x-log-bodyrawsize", str(len(raw)).encode()),
            (b"x-log-cursor", following.encode()),
        ]
        if packing is not Packing.PLAIN and raw:
            headers.append((b"x-log-compresstype", packing.value.encode()))
        if not groups:
            headers.append((b"x-log-end-of-cursor", b"1"))
        self._counters.read(len(sent), reached - offset)
        return Answer([sent], b"application/x-protobuf", headers=headers)

    def _read(
        self, stream: StreamInfo, shard: Shard, offset: int, count: int, stop: int | None
    ) -> tuple[list[bytes], int]:
        """Groups from an offset on, and where they end."""
        groups: list[bytes] = []
        if stop is not None and offset >= stop:
            return groups, offset
        limits = ReadLimits() if stop is None else ReadLimits(max_records=min(stop - offset, 1_000_000))
        try:
            _, fetched = self._hub.fetch(stream.full_name, shard.id, offset, limits)
        except OffsetExpired as error:
            return groups, kept_from(replace(shard, first_offset=error.first_offset), offset, stop)
        layout = self._hub.layout(stream)
        batches = []
        for stored in fetched.batches[:count]:  # In each there is a group at least.
            low = max(0, offset - stored.base_offset)
            high = min(stored.records, fetched.end - stored.base_offset)
            batches.append(layout.decode(stored.layout, stored.payload).slice(low, high - low))
        size = 0
        for logs, group in islice(groups_of(batches), count):
            groups.append(group)
            offset += logs
            size += len(group)
            if size >= WRITTEN_BYTES:  # Columns of others may take far more as text than as they are stored.
                break
        return groups, offset
