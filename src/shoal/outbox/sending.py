"""Sends rows of an outbox under their numbers, each stream by a producer of its own, until they are durable.

What one stream refuses does not keep the others from theirs; what all of them would meet (a hub that is away)
is raised.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from shoal.core.errors import InvalidInput, ProducerClosed, ShoalError
from shoal.core.relaying import Numbered, Stalled, is_streams_own
from shoal.outbox.outbox import headers_of
from shoal.outbox.tables import JSON
from shoal.producer import Producer


class ProducerMaker(Protocol):
    """As much of a hub as a relay needs."""

    def producer(self, stream: str, *, name: str | None = None) -> Producer: ...


class StoppedError(Exception):
    """It was asked to stop, and the hub does not answer. Does not leave this package."""


@dataclass(slots=True)
class Refused:
    """What one stream did not take, and why: from the row on that was refused, in order."""

    error: ShoalError
    rows: list[Numbered]

    def as_stalled(self, stream: str) -> Stalled:
        """To be noted."""
        return Stalled(stream=stream, rows=tuple(self.rows), row=self.rows[0][0], why=str(self.error))


@dataclass(slots=True)
class _Lane:
    """A stream's part of what is sent."""

    producer: Producer | None = None
    sent: list[Numbered] = field(default_factory=list)
    refused: Refused | None = None


class Sending:
    """Of one relay. `beat` is called while it waits; `stopping` ends that, soon."""

    def __init__(
        self, hub: ProducerMaker, *, look_s: float, beat: Callable[[], None], stopping: threading.Event
    ) -> None:
        self._hub, self._look_s, self._beat, self._stopping = hub, look_s, beat, stopping
        self._open: dict[str, Producer] = {}
        self._give_up_s: float | None = None

    def send(self, rows: Iterable[tuple[int, Any]], name: str) -> dict[str, Refused]:
        """All of them, until they are durable; what streams refuse. A row comes with its number, as a tuple.

        A stream that refuses one gets nothing after it: that would overtake. What it got before is durable,
        or is among what is refused.
        """
        lanes: dict[str, _Lane] = {}
        for number, (one, stream, *row) in rows:
            lane = lanes.setdefault(stream, _Lane())
            if lane.refused is None:
                try:
                    _send_row(self._producer(stream, name, lanes), row, number)
                    lane.sent.append((one, number))
                    continue
                except ShoalError as error:
                    lane.refused = Refused(_streams_own(error), [])
            lane.refused.rows.append((one, number))
        for stream, lane in lanes.items():
            self._settle(stream, lane)
        return {stream: lane.refused for stream, lane in lanes.items() if lane.refused is not None}

    def _settle(self, stream: str, lane: _Lane) -> None:
        """See that what was sent is stored. If it is not known how much is, all of it is refused."""
        if lane.producer is None:
            return
        producer, lane.producer = lane.producer, None
        try:
            self._flush(producer)
            lane.sent.clear()
        except ShoalError as error:
            after = [] if lane.refused is None else lane.refused.rows
            lane.refused = Refused(_streams_own(error), [*lane.sent, *after])
        if lane.refused is not None:
            self._close([self._open.pop(stream)])  # Numbers that are sent again want a new life.

    def _producer(self, stream: str, name: str, lanes: dict[str, _Lane]) -> Producer:
        lane = lanes[stream]
        if lane.producer is not None:
            if not lane.producer.has_room:  # Sending would wait, and not for us.
                self._flush(lane.producer)
            return lane.producer
        found = self._open.get(stream)
        if found is None:
            if len(self._open) >= _STREAMS_MAX:  # Each is a thread: the ones before are done with, for now.
                for other, each in lanes.items():
                    self._settle(other, each)
                self.drop()
            found = self._open[stream] = self._hub.producer(stream, name=name)
        lane.producer = found
        return found

    def _flush(self, producer: Producer) -> None:
        while True:
            try:
                producer.flush(self._look_s)
            except TimeoutError:  # It is still being tried; we are still here.
                self._beat()
                if self._stopping.is_set():
                    self._give_up_s = self._give_up_s or time.monotonic() + _STOP_S
                    if time.monotonic() >= self._give_up_s:
                        raise StoppedError from None
            else:
                return

    def drop(self) -> None:
        """Close all. What they could not send is sent again by others."""
        producers = list(self._open.values())
        self._open.clear()
        self._close(producers)

    @staticmethod
    def _close(producers: Sequence[Producer]) -> None:
        deadline_s = time.monotonic() + _CLOSE_S
        for producer in producers:
            with suppress(ShoalError, TimeoutError):
                producer.close(max(0.0, deadline_s - time.monotonic()))


def _streams_own(error: ShoalError) -> ShoalError:
    """Why a stream refuses; what is not its own is raised."""
    cause = error.__cause__ if isinstance(error, ProducerClosed) else None
    found = cause if isinstance(cause, ShoalError) else error
    if not is_streams_own(found):
        raise found
    return found


def _send_row(producer: Producer, row: Sequence[Any], number: int) -> None:
    """The columns after the stream, in the order of the table."""
    key, value, form, headers, timestamp, hash_key, deliver_at = row
    if value is not None and type(value) is not bytes:
        value = bytes(value)
    if key is not None and type(key) is not bytes:
        key = bytes(key)
    try:
        value = json.loads(value) if form == JSON else value
        kept_headers = headers_of(headers)
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidInput("row", number, f"not as Outbox.add writes it ({error})") from error
    producer.send(
        value,
        key,
        timestamp=timestamp,
        headers=kept_headers,
        hash_key=hash_key,
        number=number,
        deliver_at=deliver_at,
    )


_STREAMS_MAX: Final = 64
"""Producers that are open at once: each has a thread."""
_CLOSE_S: Final = 1.0
"""For all that are closed together."""
_STOP_S: Final = 2.0
"""How long one who is to stop waits for what is on its way."""
