"""Calls of producers with a name: their lives, and their transactions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from shoal.core.appending import check_stamp
from shoal.core.errors import InvalidInput, ShoalError
from shoal.core.model import ProducerOpening, ProducerStamp, StreamInfo, StreamName
from shoal.hub.local import LocalHub
from shoal.native.forms import SentBatch, TransactLabel
from shoal.ports import AppendRequest
from shoal.server.access import Access
from shoal.server.checks import ITEMS_MAX
from shoal.server.keys import Caller
from shoal.server.metrics import Counters
from shoal.server.native.records import appended_text
from shoal.server.native.sent import check_unpacked, requested, stored_now
from shoal.server.native.special import Run, Special
from shoal.server.requests import Answer, Incoming
from shoal.wire.frame import cut, unpacked


class ProducerCalls:
    """Opening, transacting."""

    def __init__(self, hub: LocalHub, *, run: Run, access: Access, counters: Counters) -> None:
        self._hub, self._run, self._access, self._counters = hub, run, access, counters
        self.special: Special = {("hub", "open_producer"): self._open}

    async def transact(self, body: bytes, caller: Caller) -> Answer:
        """Append the batches of a body, and save its checkpoints: all of it or nothing."""
        label: TransactLabel
        label, rest = await self._run(partial(unpacked, TransactLabel, body, is_strict=True))
        batches = [sent for append in label.appends for sent in append.batches]
        saves = sum(len(one.saves) for one in label.saves)
        if len(batches) + saves > ITEMS_MAX or len(label.appends) > ITEMS_MAX:
            raise InvalidInput("label", f"{len(batches)} batches", f"at most {ITEMS_MAX}, with checkpoints")
        check_stamp(ProducerStamp(producer=label.life.producer, epoch=label.life.epoch, sequence=0))
        await self._access.check_call(caller, "hub", "transact", {"label": label}, self._run)
        return await self._run(self._transacted, label, batches, rest)  # type: ignore[no-any-return]

    def _transacted(self, label: TransactLabel, batches: Sequence[SentBatch], rest: memoryview) -> Answer:
        parts = list(cut(rest, [sent.bytes for sent in batches]))
        check_unpacked(parts)
        payloads = iter(parts)
        requests: list[tuple[StreamInfo, AppendRequest]] = []
        for append in label.appends:
            shards = [sent.shard for sent in append.batches]
            stream = self._hub.known_stream(append.name, append.stream_id, shards)
            for sent, payload in zip(append.batches, payloads, strict=False):
                if sent.producer is None:
                    raise InvalidInput("producer", None, "batches of a transaction are numbered")
                request = requested(self._hub, stream, sent, payload)
                if isinstance(request, ShoalError):
                    raise request
                requests.append((stream, request))
        answers = self._hub.transact_prepared(label.life, requests, label.saves)
        self._counters.appended(stored_now(batches, answers))
        return Answer([appended_text(answers)])

    async def _open(
        self,
        request: Incoming,  # noqa: ARG002 - as all of them
        name: StreamName,
        stream_id: int,
        producer: str,
        held: int | None = None,
    ) -> ProducerOpening:
        def opened() -> ProducerOpening:
            return self._hub.open_producer(self._hub.known_stream(name, stream_id, ()), producer, held)

        return await self._run(opened)  # type: ignore[no-any-return]
