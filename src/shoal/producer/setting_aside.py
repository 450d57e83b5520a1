"""What was tried often enough goes into the user's outbox, which sends it later, in its own time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from shoal.core.delaying import Delay
from shoal.core.errors import ShoalError
from shoal.core.model import StreamInfo
from shoal.producer.pending import Pending, PendingRecords
from shoal.wire.batch import Batch
from shoal.wire.layout import Layout
from shoal.wire.record import Record

_log: Final = logging.getLogger("shoal.producer")


class AsideRecord(NamedTuple):
    """A record on its way to an outbox."""

    record: Record
    place: int | None
    """On the ring, if it was given one."""
    due_ms: int | None
    """When it is to come, if that is later."""


class Fallback(Protocol):
    """Where records go that could not be sent: durably, all or none."""

    def put(self, stream: str, records: Sequence[AsideRecord]) -> None: ...


def put_aside(outbox: Fallback | None, stream: StreamInfo, batch: Pending, error: ShoalError) -> bool:
    """Whether the outbox has it now."""
    if outbox is None:
        return False
    records = list(_records(stream, batch))
    try:
        outbox.put(str(stream.full_name), records)
    except Exception as failure:  # noqa: BLE001 - it may be the user's own: whatever it raises, the future fails
        _log.exception("the outbox did not take %d records for %s", len(records), stream.full_name)
        error.add_note(f"the outbox did not take it either: {failure}")
        return False
    _log.warning("%d records for %s went to the outbox: %s", len(records), stream.full_name, error)
    return True


def _records(stream: StreamInfo, batch: Pending) -> Iterator[AsideRecord]:
    if isinstance(batch, PendingRecords):
        for i, value in enumerate(batch.values):
            headers = (batch.headers[i] if batch.headers is not None else None) or {}
            delay: Delay | None = batch.delays[i] if batch.delays is not None else None
            place = batch.places.get(i) if batch.places else None
            record = Record(0, batch.timestamps[i], batch.keys[i], value, headers)
            yield AsideRecord(record, place, None if delay is None else delay.due_ms)
        return
    layout = Layout(stream.settings.schema)
    read = Batch(
        stream=str(stream.full_name),
        shard=batch.shard,
        first_offset=0,
        chunks=[batch.batch],
        layout=layout,
        end_of_shard=False,
    )
    for i, record in enumerate(read):
        yield AsideRecord(record, None if batch.places is None else batch.places[i], None)
