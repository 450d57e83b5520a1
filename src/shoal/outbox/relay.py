"""Relays an outbox to the log, in order per key, each record once: one relay at a time, others wait.

A batch is noted, sent, and taken away. Its records are numbered by their place in the note, and sent under
the outbox's own name: whoever relays after a crash sends the noted batch again under the same numbers, and
what is stored is left out (`core/numbering`). That holds for two relays at once, too; the lease is only
there so that they do not do each other's work.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, Protocol, Self

from shoal.complaints import Complaints
from shoal.core.errors import ProducerClosed, ProducerFenced, ShoalError
from shoal.core.relaying import Watch
from shoal.outbox.journal import Claim, Journal, RelayLost
from shoal.outbox.options import RelayOptions
from shoal.outbox.outbox import Outbox, headers_of
from shoal.outbox.tables import JSON
from shoal.producer import Producer

_log: Final = logging.getLogger("shoal.outbox")


class ProducerMaker(Protocol):
    """As much of a hub as a relay needs."""

    def producer(self, stream: str, *, name: str | None = None) -> Producer: ...


class OutboxRelay:
    """Relays one outbox. `run()` here, or `start()` and `stop()` in a thread of its own."""

    def __init__(
        self,
        hub: ProducerMaker,
        database: str,
        outbox: Outbox | None = None,
        *,
        options: RelayOptions | None = None,
        name: str | None = None,
    ) -> None:
        """`database` is the URL of the user's own. `name` is for people to see."""
        self.options = options or RelayOptions()
        self.relayed = 0
        """Records that this relay has sent, or found to be stored."""
        self.is_relaying = False
        """Whether it is the one who relays, and not one who waits."""
        self._name = f"{name or f'{socket.gethostname()}:{os.getpid()}'}"[:48] + f".{uuid.uuid4().hex[:12]}"
        self._journal = Journal(database, outbox or Outbox())
        self._producers = _Producers(hub)
        self._watch = Watch()
        self._claim: Claim | None = None
        self._beaten_s = 0.0
        self._complaints = Complaints(_log)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def run(self, *, until_empty: bool = False) -> None:
        """Relay until `stop()`, or until nothing waits any more. What passes is waited for; it is logged.

        `until_empty`: what does not pass by itself, such as a stream that is not there, is raised.
        """
        try:
            while not self._stopping.is_set():
                with self._waited_for(raises=until_empty):
                    if self._claim is None and not self._take():
                        self._stopping.wait(min(self.options.poll_s, self.options.lease_s / 4))
                    elif self._claim is not None and not self._turn(self._claim):
                        if until_empty:
                            return
                        self._stopping.wait(self.options.poll_s)
        finally:
            self._let_go()

    def start(self) -> Self:
        """Relay in a thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_thread, name="shoal-relay", daemon=True)
            self._thread.start()
        return self

    def stop(self, timeout: float = 30.0) -> None:
        """Finish the batch that is on its way, let go of the lease, and end."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout)
            if self._error is not None:
                raise self._error

    def close(self) -> None:
        """Stop, and give the connections back."""
        self.stop()
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run_thread(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - a thread's top: `stop` raises it
            _log.exception("the relay ended")
            self._error = error

    def _take(self) -> bool:
        """Look who relays; if nobody does, we do."""
        now_ms = time.monotonic_ns() // 1_000_000
        self._watch = self._watch.looked(self._journal.look(), now_ms)
        if self._watch.seen is None or not self._watch.may_take(now_ms):
            return False
        lease_ms = round(self.options.lease_s * 1000)
        self._claim = self._journal.take(self._watch.seen, self._name, lease_ms)
        self.is_relaying = self._claim is not None
        return self.is_relaying

    def _turn(self, claim: Claim) -> bool:
        """Send the batch that is noted, and note the next; False if nothing waits."""
        if not claim.ids and not self._journal.has_more(0):
            self._beat()
            return False
        if claim.ids:
            self._send(claim)
        number = claim.number + len(claim.ids)
        ids = self._journal.advance(
            self._name, claim.ids, number, rows=self.options.batch_records, size=self.options.batch_bytes
        )
        self._beaten_s = time.monotonic()
        self.relayed += len(claim.ids)
        self._claim = Claim(producer=claim.producer, number=number, ids=ids)
        return True

    def _send(self, claim: Claim) -> None:
        """All of a batch, until it is durable."""
        used: dict[str, Producer] = {}
        failed: ShoalError | None = None
        blocked: set[str] = set()
        for place, (_, stream, *row) in self._journal.rows(claim.ids):
            if stream in blocked:
                continue
            try:
                producer = used.get(stream) or self._producer(stream, claim, used)
                _send_row(producer, row, claim.number + place)
            except ShoalError as error:
                # Nothing of this stream may overtake it; the others go on to the end of the batch.
                blocked.add(stream)
                failed = failed or error
        for producer in used.values():
            self._flush(producer)
        if failed is not None:
            raise failed

    def _producer(self, stream: str, claim: Claim, used: dict[str, Producer]) -> Producer:
        if self._producers.is_full:  # Each is a thread: the ones before are done with, for now.
            for producer in used.values():
                self._flush(producer)
            used.clear()
            self._producers.drop()
        used[stream] = self._producers.get(stream, claim.producer)
        return used[stream]

    def _flush(self, producer: Producer) -> None:
        while True:
            try:
                return producer.flush(self.options.lease_s / 4)
            except TimeoutError:  # It is still being tried; we are still here.
                self._beat()

    def _beat(self) -> None:
        if time.monotonic() - self._beaten_s >= self.options.lease_s / 4:
            self._journal.beat(self._name)
            self._beaten_s = time.monotonic()

    @contextmanager
    def _waited_for(self, *, raises: bool) -> Iterator[None]:
        """Whatever goes wrong, the batch that is noted is sent again, by producers that begin anew."""
        try:
            yield
        except (RelayLost, ProducerFenced):  # One who took over fences our producers before we hear of it.
            _log.warning("another relays by now; this one waits")
            self._begin_again()
        except ShoalError as error:
            self._producers.drop()
            if raises and not (error.retriable or isinstance(error, ProducerClosed)):
                raise
            self._complaints.warn(type(error).__name__, "relaying is held up: %s", error)
            self._stopping.wait(self.options.retry_s)

    def _begin_again(self) -> None:
        self._claim, self._watch, self.is_relaying = None, Watch(), False
        self._producers.drop()

    def _let_go(self) -> None:
        had_it = self._claim is not None
        self._begin_again()
        if had_it:
            with suppress(ShoalError):  # Then another waits for our lease to end.
                self._journal.release(self._name)


class _Producers:
    """One for each stream, under the outbox's name."""

    def __init__(self, hub: ProducerMaker) -> None:
        self._hub = hub
        self._open: dict[str, Producer] = {}

    def get(self, stream: str, name: str) -> Producer:
        found = self._open.get(stream)
        if found is None:
            found = self._open[stream] = self._hub.producer(stream, name=name)
        return found

    @property
    def is_full(self) -> bool:
        return len(self._open) >= _STREAMS_MAX

    def drop(self) -> None:
        """Close all. What they could not send is sent again by others."""
        while self._open:
            _, producer = self._open.popitem()
            with suppress(ShoalError, TimeoutError):
                producer.close(_CLOSE_S)


def _send_row(producer: Producer, row: Sequence[Any], number: int) -> None:
    """The columns after the stream, in the order of the table."""
    key, value, form, headers, timestamp, hash_key, deliver_at = row
    if value is not None and type(value) is not bytes:
        value = bytes(value)
    if key is not None and type(key) is not bytes:
        key = bytes(key)
    producer.send(
        json.loads(value) if form == JSON else value,
        key,
        timestamp=timestamp,
        headers=headers_of(headers),
        hash_key=hash_key,
        number=number,
        deliver_at=deliver_at,
    )


_STREAMS_MAX: Final = 64
"""Producers that are open at once: each has a thread."""
_CLOSE_S: Final = 1.0
