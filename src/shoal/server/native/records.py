"""Calls about records: appends that share commits, reads as they are stored, and waiting for both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final, NamedTuple

from shoal.core.errors import InvalidInput, ShoalError, UnknownStream
from shoal.core.limits import PLACES_MAX
from shoal.core.model import Appended, ShardId, StreamInfo, StreamName
from shoal.core.reading import ReadLimits, has_moved, is_end_of_shard, is_read_on, whole_offset
from shoal.hub.answering import told
from shoal.hub.local import LocalHub
from shoal.native.calls import CALLS
from shoal.native.forms import AppendLabel, FurtherRead, KeptBatch, Moved, ReadLabel, Refreshed
from shoal.ports import (
    AppendAnswer,
    AppendRequest,
    Fence,
    Fetched,
    MemberView,
    Place,
    ShardEnd,
    ShardShut,
    StreamRoutes,
)
from shoal.server.access import Access
from shoal.server.checks import ITEMS_MAX
from shoal.server.gathering import Gathered
from shoal.server.keys import Caller
from shoal.server.metrics import Counters
from shoal.server.native.sent import check_unpacked, requested, stored_now
from shoal.server.native.special import BATCHES, PARSED_HERE, Run, Special
from shoal.server.options import ServerOptions
from shoal.server.requests import Answer, Incoming
from shoal.server.waiting import Waiting
from shoal.share_port import ShareNews
from shoal.wire.frame import cut, divided, label_from, packed
from shoal.wire.layout import Layout
from shoal.wire.values import to_json

_WASTE: Final = 65_536
"""A stored batch of which a read wants less than half is cut first, if it is larger than this."""
_UNPACKED_HERE: Final = 262_144
"""What a small body may unpack to on the event loop, where all others wait for it."""
_LABEL_BYTES: Final = 512
_LABELS: Final = 1_000
"""Labels that are remembered: those of single records differ in little, and to read one takes longer than to
check its batch."""
_PLACE_BYTES: Final = 800
"""What a place takes while it is waited at: several times its text in the request."""
_WATCHED: Final = (ShardEnd, MemberView, ShareNews, StreamRoutes)


class RecordCalls:
    """Appending, reading, watching."""

    def __init__(
        self,
        hub: LocalHub,
        *,
        run: Run,
        waiting: Waiting,
        options: ServerOptions,
        access: Access,
        counters: Counters,
    ) -> None:
        self._hub, self._run, self._waiting, self._options = hub, run, waiting, options
        self._access, self._counters = access, counters
        self._appends: Gathered[AppendRequest, AppendAnswer] = Gathered(
            hub.submit, lambda request: len(request.payload)
        )
        self.special: Special = {
            ("hub", "read"): self._read,
            ("hub", "refresh_stream"): self._refresh,
            ("hub", "watch"): self._watch,
        }

    async def append(self, body: bytes, caller: Caller) -> Answer:
        """Store the batches of a body."""
        if len(body) <= PARSED_HERE:
            return await self._append_here(body, caller)
        return await self._run(self._append, body, caller)  # type: ignore[no-any-return]

    async def _append_here(self, body: bytes, caller: Caller) -> Answer:
        """A small append without a thread of its own: it waits for its commit on the event loop."""
        label, payloads = self._labelled(body, caller)
        shards = [sent.shard for sent in label.batches]
        stream = self._hub.seen_stream(label.name, label.stream_id, shards)
        if (
            stream is None
            or any(sent.delays is not None for sent in label.batches)
            or check_unpacked(payloads) > _UNPACKED_HERE
        ):
            return await self._run(self._append, body, caller)  # type: ignore[no-any-return]
        requests = self._requests(stream, label, payloads)
        stored = await self._appends.commit(
            [request for _, request in requests if isinstance(request, AppendRequest)]
        )
        if any(isinstance(answer, ShardShut) for answer in stored):
            answers = await self._run(self._hub.append_answered, stream, requests, stored)
        else:
            answers = self._hub.append_answered(stream, requests, stored)
        return self._appended(label, answers)

    def _append(self, body: bytes, caller: Caller) -> Answer:
        label, payloads = self._labelled(body, caller)
        check_unpacked(payloads)
        answers: list[Appended | ShoalError]
        try:
            shards = [sent.shard for sent in label.batches]
            stream = self._hub.known_stream(label.name, label.stream_id, shards)
        except UnknownStream as error:
            answers = [error] * len(label.batches)
        else:
            answers = self._hub.append_prepared(stream, self._requests(stream, label, payloads))
        return self._appended(label, answers)

    def _labelled(self, body: bytes, caller: Caller) -> tuple[AppendLabel, list[memoryview]]:
        text, rest = divided(body)
        label = (_label if len(text) > _LABEL_BYTES else _label_again)(bytes(text))
        if not 0 < len(label.batches) <= ITEMS_MAX:
            raise InvalidInput("batches", f"{len(label.batches)} batches", f"1 to {ITEMS_MAX} in a request")
        self._access.check_append(caller, label.name)
        return label, list(cut(rest, [sent.bytes for sent in label.batches]))

    def _requests(
        self, stream: StreamInfo, label: AppendLabel, payloads: Sequence[memoryview]
    ) -> list[tuple[ShardId, AppendRequest | ShoalError]]:
        requests: list[tuple[ShardId, AppendRequest | ShoalError]] = []
        for sent, payload in zip(label.batches, payloads, strict=True):
            try:
                request = requested(self._hub, stream, sent, payload)
            except InvalidInput as error:
                request = error
            requests.append((sent.shard, request))
        return requests

    def _appended(self, label: AppendLabel, answers: Sequence[Appended | ShoalError]) -> Answer:
        self._counters.appended(stored_now(label.batches, answers))
        answered = [answer for answer in answers if isinstance(answer, Appended)]
        if len(answered) == len(answers):
            return Answer([appended_text(answered)])
        for answer in answers:
            if isinstance(answer, ShoalError):
                self._counters.error(answer)
        return Answer([to_json(CALLS["hub", "append"].answer, [told(answer) for answer in answers])])

    async def _read(
        self,
        request: Incoming,
        *,
        name: StreamName,
        shard: int,
        offset: int,
        limits: ReadLimits,
        fence: Fence | None = None,
        known_id: int | None = None,
        further: int = 0,
    ) -> Answer:
        deadline = time.monotonic() + min(limits.wait_s, self._options.wait_s_max)
        offset = whole_offset(offset)
        asked = _Read(name, shard, offset, limits, fence)
        now = partial(self._read_now, asked, known_id, further)
        while True:
            place, answer, is_idle = await self._run(now)
            left_s = deadline - time.monotonic()
            if not is_idle or left_s <= 0:
                return answer  # type: ignore[no-any-return]
            has_moved = await self._waiting.until_moved(self._hub.signal, [(place, offset)], left_s, request)
            if not has_moved and fence is None:
                return answer  # type: ignore[no-any-return]  # Nothing has come since.

    def _read_now(self, asked: _Read, known_id: int | None, further: int) -> tuple[Place, Answer, bool]:
        """What there is; and whether that is nothing, and more may come."""
        stream, fetched = self._hub.fetch(*asked)
        offset = asked.offset
        kept, payloads = _cut_to(self._hub.layout(stream), fetched, offset)
        behind, behind_payloads = self._read_on(stream, asked, fetched, further) if further else ([], [])
        label = ReadLabel(
            stream_id=stream.id,
            first_offset=offset,
            end=max(offset, fetched.end),
            tail=fetched.shard.next_offset,
            end_of_shard=is_end_of_shard(fetched.shard, fetched.end),
            batches=kept,
            schema=None if known_id == stream.id else stream.settings.schema,
            further=behind,
        )
        end = behind[-1].end if behind else fetched.end
        size = sum(map(len, payloads)) + sum(map(len, behind_payloads))
        self._counters.read(size, max(0, end - offset) if kept else 0)
        answer = Answer(packed(ReadLabel, label, [*payloads, *behind_payloads]), BATCHES)
        is_idle = not fetched.batches and fetched.shard.is_open
        return ShardEnd(stream.id, fetched.shard.id), answer, is_idle

    def _read_on(
        self, stream: StreamInfo, asked: _Read, fetched: Fetched, further: int
    ) -> tuple[list[FurtherRead], list[bytes]]:
        """The reads behind one, as far as they go with it. What is wrong with one, who makes it is told."""
        reads: list[FurtherRead] = []
        payloads: list[bytes] = []
        size = sum(len(stored.payload) for stored in fetched.batches)
        while len(reads) < further and is_read_on(fetched.shard, fetched.end, len(reads) + 1, size):
            begin = fetched.end
            try:
                found, fetched = self._hub.fetch(*asked._replace(offset=begin))
            except ShoalError:
                break
            if found.id != stream.id or not fetched.batches:
                break
            kept, some = _cut_to(self._hub.layout(stream), fetched, begin)
            reads.append(
                FurtherRead(
                    end=fetched.end,
                    tail=fetched.shard.next_offset,
                    end_of_shard=is_end_of_shard(fetched.shard, fetched.end),
                    batches=kept,
                )
            )
            payloads += some
            size += sum(map(len, some))
        return reads, payloads

    async def _refresh(
        self,
        request: Incoming,  # noqa: ARG002 - as all of them
        name: StreamName,
        stream_id: int,
        version: int,
        shards: Sequence[ShardId],
    ) -> Refreshed:
        # Each is answered once, in the order in which they were first named.
        different = list(dict.fromkeys(shards))
        if len(different) > PLACES_MAX:
            raise InvalidInput(
                "shards", f"{len(different)} shards", f"ask about {PLACES_MAX} in one request at most"
            )
        return await self._run(self._refreshed, name, stream_id, version, different)  # type: ignore[no-any-return]

    def _refreshed(
        self, name: StreamName, stream_id: int, version: int, shards: Sequence[ShardId]
    ) -> Refreshed:
        known = self._hub.known_stream(name, stream_id, shards)
        wanted = [shard for shard in shards if 0 <= shard < len(known.shards)]
        fresh = self._hub.refresh_stream(known, wanted)
        if fresh.version != version:
            return Refreshed(stream=self._hub.describe_stream(name), shards=())
        return Refreshed(stream=None, shards=[fresh.shards[shard] for shard in wanted])

    async def _watch(
        self, request: Incoming, places: Sequence[tuple[Place, int]], wait_for_s: float
    ) -> list[Moved]:
        if not places:
            raise InvalidInput("places", "none", "name at least one place to wait at")
        if any(not isinstance(place, _WATCHED) for place, _ in places):
            raise InvalidInput("places", "a place of a leased group", "wait for its table instead")
        # A place that is named twice is told when it is past the lower of its numbers.
        lowest: dict[Place, int] = {}
        for place, beyond in places:
            lowest[place] = min(beyond, lowest.get(place, beyond))
        if len(lowest) > PLACES_MAX:
            raise InvalidInput(
                "places", f"{len(lowest)} places", f"wait at {PLACES_MAX} in one request at most"
            )
        request.hold_more(_PLACE_BYTES * len(lowest))
        return await self._moved(request, list(lowest.items()), min(wait_for_s, self._options.wait_s_max))

    async def _moved(
        self, request: Incoming, places: Sequence[tuple[Place, int]], wait_s: float
    ) -> list[Moved]:
        heard = await self._waiting.until_heard(self._hub.signal, places, wait_s, request)
        if heard is None:
            return []
        if heard:
            return [Moved(place=place, number=number, is_over=False) for place, number in heard.items()]
        now = await self._run(self._hub.signal.look, [place for place, _ in places])
        moved = []
        for place, beyond in places:
            end = now.get(place)
            if has_moved(end, beyond):
                is_over = end is None or not end[1]
                moved.append(Moved(place=place, number=beyond if end is None else end[0], is_over=is_over))
        return moved


class _Read(NamedTuple):
    """What is asked for."""

    name: StreamName
    shard: int
    offset: int
    limits: ReadLimits
    fence: Fence | None


def _label(text: bytes) -> AppendLabel:
    label: AppendLabel = label_from(AppendLabel, text, is_strict=True)
    return label


_label_again: Final = lru_cache(_LABELS)(_label)


def appended_text(answers: Sequence[Appended]) -> bytes:
    """What nearly every append is answered, as the codec would write it."""
    text = ",".join(
        f'{{"type":"Appended","shard":{shard},"first_offset":{first},"next_offset":{following}}}'
        for shard, first, following in answers
    )
    return f"[{text}]".encode()


def _cut_to(layout: Layout, fetched: Fetched, offset: int) -> tuple[list[KeptBatch], list[bytes]]:
    """The stored batches as they are, but those of which most was not asked for, which are cut first."""
    kept, payloads = [], []
    for stored in fetched.batches:
        low = max(0, offset - stored.base_offset)
        high = min(stored.records, fetched.end - stored.base_offset)
        base, number, payload, records = stored.base_offset, stored.layout, stored.payload, stored.records
        if len(payload) > _WASTE and (high - low) * 2 < records:
            part = layout.decode(number, payload).slice(low, high - low)
            number, payload = layout.encode_part(part)
            base, records = base + low, high - low
        kept.append(KeptBatch(base_offset=base, records=records, layout=number, bytes=len(payload)))
        payloads.append(payload)
    return kept, payloads
