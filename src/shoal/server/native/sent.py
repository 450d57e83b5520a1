"""Batches that strangers have made, as ours; and which of them were stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from shoal.core.appending import check_batch, check_stamp
from shoal.core.delaying import Delay
from shoal.core.errors import InvalidInput, ShoalError, TooLarge
from shoal.core.limits import DURATION_S_MAX, RECORD_BYTES_MAX, TIMESTAMP_MS_MAX
from shoal.core.model import Appended, ProducerStamp, StreamInfo
from shoal.core.ring import checked_hash
from shoal.hub.local import LocalHub
from shoal.native.calls import UNPACKED_BYTES_MAX
from shoal.native.forms import SentBatch, SentDelay
from shoal.ports import AppendRequest, Repeated, Submission
from shoal.wire.accepting import accepted, claimed_bytes
from shoal.wire.fitting import check_row_sizes
from shoal.wire.layout import Layout
from shoal.wire.sizes import in_memory


def check_unpacked(payloads: Iterable[memoryview]) -> int:
    """What the batches of a request unpack to, together, before any is; or TooLarge."""
    size = sum(map(claimed_bytes, payloads))
    if size > UNPACKED_BYTES_MAX:
        raise TooLarge("batches", size=size, limit=UNPACKED_BYTES_MAX, remedy="send them in several requests")
    return size


def requested(
    hub: LocalHub, stream: StreamInfo, sent: SentBatch, payload: memoryview
) -> AppendRequest | ShoalError:
    """What a batch asks of the store, which keeps it as it came; or InvalidInput."""
    submission, raw_bytes = _submitted(hub.layout(stream), sent, payload)
    if submission.delays is not None:
        return hub.prepare(stream, submission)  # What is due together is encoded together.
    return hub.requested(stream, submission, sent.layout, bytes(payload), raw_bytes=raw_bytes)


def stored_now(
    batches: Sequence[SentBatch], answers: Sequence[Appended | ShoalError]
) -> list[tuple[int, int]]:
    """Bytes and records of the batches that were stored: not of those that were there already. Records that
    come later are stored, too, though they have no offset yet."""
    return [
        (sent.bytes, answer.next_offset - answer.first_offset if sent.delays is None else len(sent.delays))
        for sent, answer in zip(batches, answers, strict=True)
        if isinstance(answer, Appended) and not isinstance(answer, Repeated)
    ]


def _submitted(layout: Layout, sent: SentBatch, payload: memoryview) -> tuple[Submission, int]:
    """A batch, and its bytes in memory."""
    if sent.producer is not None:
        check_stamp(
            ProducerStamp(
                producer=sent.producer, epoch=sent.epoch, sequence=sent.sequence, number=sent.number
            )
        )
    batch = accepted(layout, sent.layout, payload)
    raw_bytes = in_memory(batch)
    check_batch(batch.num_rows, raw_bytes)
    if raw_bytes > RECORD_BYTES_MAX:
        check_row_sizes(batch)
    submission = Submission(
        shard=sent.shard,
        batch=batch,
        producer=sent.producer,
        epoch=sent.epoch,
        sequence=sent.sequence,
        number=sent.number,
        delays=None if sent.delays is None else _delays(sent.delays, batch.num_rows),
    )
    return submission, raw_bytes


def _delays(sent: Sequence[SentDelay], records: int) -> list[Delay]:
    if len(sent) != records:
        raise InvalidInput("delays", f"{len(sent)} of them", f"one for each of the {records} records")
    for delay in sent:
        if not 0 <= delay.due_ms <= TIMESTAMP_MS_MAX:
            raise InvalidInput("due_ms", delay.due_ms, f"from 0 to {TIMESTAMP_MS_MAX}")
        if delay.wait_ms is not None and not 0 <= delay.wait_ms <= _WAIT_MS_MAX:
            raise InvalidInput("wait_ms", delay.wait_ms, f"from 0 to {_WAIT_MS_MAX}")
    return [
        Delay(
            delay.due_ms,
            None if delay.place is None else checked_hash(delay.place, "place"),
            delay.wait_ms,
        )
        for delay in sent
    ]


_WAIT_MS_MAX: Final = int(DURATION_S_MAX * 1000)
