"""What is appended, as the store takes it: checked, encoded, and stamped by its producer."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from shoal.core.appending import Offer, check_batch
from shoal.core.delaying import DELAYED, Delay, together
from shoal.core.errors import InvalidInput, ShoalError
from shoal.core.limits import RECORD_BYTES_MAX
from shoal.core.lineage import find_shard
from shoal.core.model import ProducerStamp, ShardId, StreamInfo
from shoal.delay_port import DelayedRow
from shoal.forks import meet_arrow, renew_in_child
from shoal.ports import AppendRequest, Submission
from shoal.wire.fitting import check_row_sizes
from shoal.wire.functions import pc
from shoal.wire.layout import MEMORY, Layout
from shoal.wire.sizes import in_memory
from shoal.wire.timestamps import top_timestamp

ENCODERS: Final = max(2, os.cpu_count() or 2)
"""Appends that are encoded at once. More than the machine has cores only makes memory come and go."""
_LAYOUTS: Final = 4096
"""Streams whose layouts are kept: some 5 kB each, and 14 with twenty columns. To make one anew takes 10 to
40 us."""


class Encoding:
    """Of one hub, in its callers' threads, so many at once."""

    def __init__(self) -> None:
        self._layouts: dict[int, Layout] = {}
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._encoders = threading.BoundedSemaphore(ENCODERS)

    def layout(self, stream: StreamInfo) -> Layout:
        """The stored form of a stream's batches."""
        layout = self._layouts.get(stream.id)
        if layout is None:
            meet_arrow()
            if len(self._layouts) >= _LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[stream.id] = Layout(stream.settings.schema)
        return layout

    def prepare(
        self, stream: StreamInfo, batches: Sequence[Submission]
    ) -> list[tuple[ShardId, AppendRequest | ShoalError]]:
        """For each batch its shard, and the encoded request, or why it, and no other, cannot be appended."""
        with self._encoders:
            return [(one.shard, self._prepare(stream, one)) for one in batches]

    def requests(
        self, appends: Sequence[tuple[StreamInfo, Submission]]
    ) -> list[tuple[StreamInfo, AppendRequest]]:
        """All of them encoded, or the first error: for batches that go together."""
        with self._encoders:
            return [(stream, self._request(stream, submission)) for stream, submission in appends]

    def requested(
        self,
        stream: StreamInfo,
        submission: Submission,
        number: int,
        payload: bytes,
        *,
        raw_bytes: int,
        delayed: Sequence[DelayedRow] | None = None,
    ) -> AppendRequest:
        """A batch that is encoded already, as the store takes it."""
        batch = submission.batch
        stamp = None
        if submission.producer is not None:
            stamp = ProducerStamp(
                producer=submission.producer,
                epoch=submission.epoch,
                sequence=submission.sequence,
                number=submission.number,
            )
        return AppendRequest(
            stream_id=stream.id,
            shard=DELAYED if delayed is not None else find_shard(stream, submission.shard).id,
            offer=Offer(
                records=batch.num_rows,
                stored_bytes=len(payload),
                top_timestamp_us=top_timestamp(batch),
                stamp=stamp,
            ),
            layout=number,
            raw_bytes=raw_bytes,
            payload=payload,
            delayed=delayed,
        )

    def _prepare(self, stream: StreamInfo, submission: Submission) -> AppendRequest | ShoalError:
        """The encoded request, or why this batch, and no other, cannot be appended."""
        try:
            return self._request(stream, submission)
        except InvalidInput as error:
            return error

    def _request(self, stream: StreamInfo, submission: Submission) -> AppendRequest:
        batch = submission.batch
        raw_bytes = in_memory(batch)
        check_batch(batch.num_rows, raw_bytes)
        if raw_bytes > RECORD_BYTES_MAX:
            check_row_sizes(batch)
        if submission.delays is not None:
            rows = self._delayed(stream, batch, submission.delays)
            return self.requested(stream, submission, 0, b"", raw_bytes=raw_bytes, delayed=rows)
        number, payload = self.layout(stream).encode(batch, stream.settings.compression)
        return self.requested(stream, submission, number, payload, raw_bytes=raw_bytes)

    def _delayed(
        self, stream: StreamInfo, batch: pa.RecordBatch, delays: Sequence[Delay]
    ) -> list[DelayedRow]:
        """What is due together, encoded together."""
        rows = []
        now_ms = time.time_ns() // 1_000_000
        for delay, some in together([delay.begun(now_ms) for delay in delays]).items():
            part = pc.take(batch, pa.array(some), memory_pool=MEMORY)
            number, payload = self.layout(stream).encode(part, stream.settings.compression)
            rows.append(
                DelayedRow(
                    due_ms=delay.due_ms,
                    wait_ms=delay.wait_ms,
                    place=delay.place,
                    records=len(some),
                    raw_bytes=part.nbytes,
                    layout=number,
                    payload=payload,
                )
            )
        return rows
