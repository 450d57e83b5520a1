"""The calls of HubService over HTTP. Batches are encoded and decoded here; the server only keeps them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from shoal.core.appending import check_batch
from shoal.core.delaying import Delay
from shoal.core.errors import InvalidInput, ShoalError
from shoal.core.limits import RECORD_BYTES_MAX
from shoal.core.model import (
    Appended,
    ProducerOpening,
    Scaling,
    SendStrategy,
    ShardId,
    StreamInfo,
    StreamName,
    StreamSettings,
    StreamStats,
    Trimmed,
)
from shoal.core.reading import ReadLimits, whole_offset
from shoal.core.scaling import check_scaling
from shoal.forks import meet_arrow
from shoal.native.calls import CALLS, UNPACKED_BYTES_MAX, arguments_to
from shoal.native.forms import (
    AppendLabel,
    FurtherRead,
    KeptBatch,
    ReadLabel,
    Refreshed,
    SentBatch,
    SentDelay,
    TransactLabel,
)
from shoal.ports import Fence, Following, GroupSaves, Place, ProducerLife, Submission
from shoal.remote.ahead import Came, Coming, ReadAhead, Wanted
from shoal.remote.bodies import BODIES
from shoal.remote.calling import WAIT_S, Part
from shoal.remote.following import RemoteFollowing
from shoal.remote.groups import RemoteGroups
from shoal.remote.ownerless import RemotePositions, RemoteShares
from shoal.remote.transport import Transport
from shoal.wire.accepting import claimed_bytes
from shoal.wire.batch import Batch
from shoal.wire.fitting import check_row_sizes
from shoal.wire.frame import CONTENT_TYPE, cut, packed
from shoal.wire.layout import Layout
from shoal.wire.sizes import in_memory
from shoal.wire.values import RingHash, from_json

_REQUEST_BYTES: Final = 20_000_000
"""Of stored batches in one request: below what a server takes."""
_LAYOUTS: Final = 256
_ONE: Final = ReadLimits(max_records=1, max_bytes=1)


class RemoteHub(Part):
    """See HubService."""

    def __init__(self, url: str) -> None:
        super().__init__(Transport(url), "hub")
        self.groups = RemoteGroups(self._transport)
        self.shares = RemoteShares(self._transport)
        self.positions = RemotePositions(self._transport)
        self._ahead = ReadAhead(self._reads, self._renewed, BODIES.drop)
        self._layouts: dict[int, Layout] = {}
        self._ids: dict[StreamName, int] = {}
        """Of streams that were read: the server need not send their columns again."""
        try:
            self.list_projects()  # Who connects hears at once if there is nobody, or is not let in.
        except BaseException:
            self._transport.close()
            raise

    @property
    def description(self) -> str:
        """The servers, for people."""
        return self._transport.description

    # --- Streams and shards. ---

    def create_stream(self, name: StreamName, settings: StreamSettings, shards: int) -> StreamInfo:
        made: StreamInfo = self.ask("create_stream", name=name, settings=settings, shards=shards)
        return made

    def describe_stream(self, name: StreamName) -> StreamInfo:
        found: StreamInfo = self.ask("describe_stream", name=name)
        return found

    def refresh_stream(self, known: StreamInfo, shards: Collection[ShardId] = ()) -> StreamInfo:
        """See HubService."""
        fresh: Refreshed = self.ask(
            "refresh_stream", name=known.full_name, stream_id=known.id, version=known.version, shards=shards
        )
        if fresh.stream is not None:
            return fresh.stream
        now = {shard.id: shard for shard in fresh.shards}
        return replace(known, shards=tuple(now.get(shard.id, shard) for shard in known.shards))

    def list_streams(self, project: str | None) -> list[StreamInfo]:
        found: list[StreamInfo] = self.ask("list_streams", project=project)
        return found

    def list_projects(self) -> list[str]:
        found: list[str] = self.ask("list_projects")
        return found

    def delete_project(self, project: str) -> None:
        self.ask("delete_project", project=project)

    def delete_stream(self, name: StreamName) -> None:
        self.ask("delete_stream", name=name)
        self._ahead.forget()

    def set_retention(
        self, name: StreamName, retention_ms: int | None, retention_bytes: int | None
    ) -> StreamInfo:
        changed: StreamInfo = self.ask(
            "set_retention", name=name, retention_ms=retention_ms, retention_bytes=retention_bytes
        )
        return changed

    def split_shard(self, name: StreamName, shard: int, at: int | None = None) -> StreamInfo:
        changed: StreamInfo = self.ask("split_shard", name=name, shard=shard, at=at)
        return changed

    def merge_shards(self, name: StreamName, left: int, right: int | None) -> StreamInfo:
        changed: StreamInfo = self.ask("merge_shards", name=name, left=left, right=right)
        return changed

    def reshard(self, name: StreamName, count: int) -> StreamInfo:
        changed: StreamInfo = self.ask("reshard", name=name, count=count)
        return changed

    def set_scaling(self, name: StreamName, scaling: Scaling | None) -> None:
        """See HubService. What is no number has no form in JSON: it is refused here, in the same words."""
        if scaling is not None:
            check_scaling(scaling)
        self.ask("set_scaling", name=name, scaling=scaling)

    def set_strategy(self, name: StreamName, strategy: SendStrategy | None) -> None:
        self.ask("set_strategy", name=name, strategy=strategy)

    def strategy(self, name: StreamName) -> SendStrategy | None:
        found: SendStrategy | None = self.ask("strategy", name=name)
        return found

    def scaling(self, name: StreamName) -> Scaling | None:
        found: Scaling | None = self.ask("scaling", name=name)
        return found

    # --- Records. ---

    def append(self, stream: StreamInfo, batches: Sequence[Submission]) -> list[Appended | ShoalError]:
        """See HubService. What no server would take is not sent."""
        prepared = [self._prepare(stream, one) for one in batches]
        sendable = [one for one in prepared if not isinstance(one, ShoalError)]
        given: list[Appended | ShoalError] = []
        try:
            for some in _requests(sendable):
                given += self._append(stream, some)
        except ShoalError as error:
            error.untouched &= not given  # What was sent before is stored.
            raise
        answers = iter(given)
        return [one if isinstance(one, ShoalError) else next(answers) for one in prepared]

    def _prepare(self, stream: StreamInfo, submission: Submission) -> tuple[SentBatch, bytes] | ShoalError:
        batch = submission.batch
        try:
            size = in_memory(batch)
            check_batch(batch.num_rows, size)
            if size > RECORD_BYTES_MAX:
                check_row_sizes(batch)
        except InvalidInput as error:
            return error
        layout, payload = self._layout(stream.id, stream.settings.schema).encode(
            batch, stream.settings.compression
        )
        delays = submission.delays
        sent = SentBatch(
            shard=submission.shard,
            layout=layout,
            bytes=len(payload),
            producer=submission.producer,
            epoch=submission.epoch,
            sequence=submission.sequence,
            number=submission.number,
            delays=None if delays is None else [_sent_delay(delay) for delay in delays],
        )
        return sent, payload

    def _append(
        self, stream: StreamInfo, some: Sequence[tuple[SentBatch, bytes]]
    ) -> list[Appended | ShoalError]:
        """Repeated only if every batch is numbered: a repeat of such a one is stored once."""
        call = CALLS["hub", "append"]
        label = AppendLabel(name=stream.full_name, stream_id=stream.id, batches=[sent for sent, _ in some])
        body = self._transport.call(
            call.path,
            packed(AppendLabel, label, [payload for _, payload in some]),
            content_type=CONTENT_TYPE,
            is_repeatable=all(sent.producer is not None for sent, _ in some),
        )
        answers: list[Appended | ShoalError] = from_json(call.answer, body, is_strict=False)
        return answers

    def transact(
        self,
        life: ProducerLife,
        appends: Sequence[tuple[StreamInfo, Submission]],
        saves: Sequence[GroupSaves] = (),
    ) -> list[Appended]:
        """See HubService. In one request: what may be in a transaction is less than what a server takes."""
        labels, payloads = [], []
        for stream, submission in appends:
            prepared = self._prepare(stream, submission)
            if isinstance(prepared, ShoalError):
                raise prepared
            sent, payload = prepared
            labels.append(AppendLabel(name=stream.full_name, stream_id=stream.id, batches=[sent]))
            payloads.append(payload)
        call = CALLS["hub", "transact"]
        label = TransactLabel(life=life, appends=labels, saves=saves)
        body = self._transport.call(
            call.path,
            packed(TransactLabel, label, payloads),
            content_type=CONTENT_TYPE,
            is_repeatable=call.is_repeatable,
        )
        answers: list[Appended] = from_json(call.answer, body, is_strict=False)
        return answers

    def open_producer(self, stream: StreamInfo, producer: str, held: int | None = None) -> ProducerOpening:
        """See HubService. One who goes on from an epoch is not repeated: the first try has given another."""
        call = CALLS["hub", "open_producer"]
        asked = {"name": stream.full_name, "stream_id": stream.id, "producer": producer, "held": held}
        body = self._transport.call(call.path, [arguments_to(call, asked)], is_repeatable=held is None)
        opening: ProducerOpening = from_json(call.answer, body, is_strict=False)
        return opening

    def count_delayed(self, name: StreamName) -> int:
        found: int = self.ask("count_delayed", name=name)
        return found

    def read(
        self, name: StreamName, shard: int, offset: int, limits: ReadLimits, fence: Fence | None = None
    ) -> Batch:
        """See HubService. The server waits, a while at a time."""
        deadline = time.monotonic() + limits.wait_s
        offset = whole_offset(offset)
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            wait_s = min(left_s, WAIT_S)
            if fence is None and not wait_s and type(shard) is int:
                batch = self._ahead.read(Wanted(name, shard, offset, limits))
            else:
                wanted = Wanted(name, shard, offset, replace(limits, wait_s=wait_s))
                batch = next(self._reads(wanted, fence=fence))
                BODIES.tidy()  # No thread that reads ahead does, when it rests.
            if len(batch) or batch.end_of_shard or left_s <= wait_s:
                return batch

    def _reads(
        self, wanted: Wanted, came: Came | None = None, further: int = 0, *, fence: Fence | None = None
    ) -> Iterator[Batch]:
        """One read, and up to so many that follow it."""
        name, shard, offset, limits = wanted

        def labelled(label: ReadLabel) -> None:
            if came is not None:
                came(_coming(label))

        known_id = self._ids.get(name)
        known = None if known_id is None else self._layouts.get(known_id)
        label: ReadLabel
        label, payloads = self.ask_for_batches(
            "read",
            labelled=labelled,
            wait_s=limits.wait_s,
            name=name,
            shard=shard,
            offset=offset,
            limits=limits,
            fence=fence,
            known_id=None if known is None else known_id,
            **({"further": further} if further else {}),
        )
        if known is not None and label.stream_id == known_id:
            layout = known
        else:
            layout = self._layout(label.stream_id, label.schema)
            self._ids[name] = label.stream_id
        begin = label.first_offset
        reads: list[ReadLabel | FurtherRead] = [label, *label.further]
        parts = cut(payloads, [kept.bytes for read in reads for kept in read.batches])
        for read in reads:
            yield Batch(
                stream=str(name),
                shard=shard,
                first_offset=begin,
                chunks=[_chunk(layout, kept, next(parts), begin, read.end) for kept in read.batches],
                layout=layout,
                end_of_shard=read.end_of_shard,
                tail=read.tail,
            )
            begin = read.end

    def _renewed(self, wanted: Wanted, batch: Batch) -> Batch:
        """See ReadAhead. What the last one says of what comes after it is asked anew: that costs less."""
        if not batch.end_of_shard and batch.next_offset >= batch.tail:
            after = next(self._reads(Wanted(wanted.name, wanted.shard, batch.next_offset, _ONE)))
            batch.tail, batch.end_of_shard = after.tail, after.end_of_shard and not len(after)
        return batch

    def follow(self, moved: Callable[[Place], None]) -> Following:
        """See HubService."""
        return RemoteFollowing(self._transport, moved)

    def offset_at(self, name: StreamName, shard: int, timestamp_ms: int) -> int:
        found: int = self.ask("offset_at", name=name, shard=shard, timestamp_ms=timestamp_ms)
        return found

    # --- Keeping. ---

    def stats(self, name: StreamName) -> StreamStats:
        found: StreamStats = self.ask("stats", name=name)
        return found

    def enforce_retention(self, name: StreamName | None) -> list[Trimmed]:
        trimmed: list[Trimmed] = self.ask("enforce_retention", name=name)
        self._ahead.forget()
        return trimmed

    def close(self) -> None:
        """See HubService."""
        self._transport.close()
        BODIES.drop()

    def _layout(self, stream_id: int, schema: bytes | None) -> Layout:
        layout = self._layouts.get(stream_id)
        if layout is None:
            if len(self._layouts) >= _LAYOUTS:
                self._layouts.clear()
            meet_arrow()
            layout = self._layouts[stream_id] = Layout(schema)
        return layout


def _sent_delay(delay: Delay) -> SentDelay:
    place = None if delay.place is None else RingHash(delay.place)
    return SentDelay(due_ms=delay.due_ms, place=place, wait_ms=delay.wait_ms)


def _requests(
    batches: Sequence[tuple[SentBatch, bytes]],
) -> Iterator[list[tuple[SentBatch, bytes]]]:
    """In as few requests as they fit, in order."""
    some: list[tuple[SentBatch, bytes]] = []
    size = unpacked = 0
    for sent, payload in batches:
        claimed = claimed_bytes(payload)
        if some and (size + len(payload) > _REQUEST_BYTES or unpacked + claimed > UNPACKED_BYTES_MAX):
            yield some
            some, size, unpacked = [], 0, 0
        some.append((sent, payload))
        size += len(payload)
        unpacked += claimed
    if some:
        yield some


def _coming(label: ReadLabel) -> Coming:
    ends = [label.end, *(read.end for read in label.further)]
    tail = label.further[-1].tail if label.further else label.tail
    has_more = label.first_offset < ends[-1] < tail
    size = sum(kept.bytes for kept in label.batches)
    return Coming(within=ends[:-1], following=ends[-1] if has_more else None, size=size)


def _chunk(layout: Layout, kept: KeptBatch, payload: memoryview, begin: int, end: int) -> Any:
    chunk = layout.decode(kept.layout, payload)
    low = max(0, begin - kept.base_offset)
    high = min(kept.records, end - kept.base_offset)
    return chunk if high - low == chunk.num_rows else chunk.slice(low, high - low)
