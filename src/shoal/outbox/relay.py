"""Relays an outbox to the log, in order per key, each record once: one relay at a time, others wait.

A batch is noted, sent, and taken away. Its records are numbered by their place in the note, and sent under
the outbox's own name: whoever relays after a crash sends the noted batch again under the same numbers, and
what is stored is left out (`core/numbering`). That holds for two relays at once, too; the lease is only
there so that they do not do each other's work.

A stream that is not there, or refuses a record, stalls (`core/relaying`): it is tried again by and by, the
others go on.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from shoal.complaints import Complaints
from shoal.core.errors import ProducerClosed, ProducerFenced, ShoalError
from shoal.core.relaying import STALLED_MAX, Stalled, Watch, retry_after_s
from shoal.outbox.journal import Claim, Journal, NextBatch, RelayLost
from shoal.outbox.options import RelayOptions
from shoal.outbox.outbox import Outbox
from shoal.outbox.sending import ProducerMaker, Refused, Sending, StoppedError

_log: Final = logging.getLogger("shoal.outbox")


@dataclass(slots=True)
class _Stall:
    """A stream that is held up, as this relay knows it."""

    due_s: float = 0.0
    """When it is tried again."""
    tries: int = 0
    error: ShoalError | None = None


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
        self._outbox = outbox or Outbox()
        self._journal = Journal(database, self._outbox)
        self._stopping = threading.Event()
        self._sending = Sending(
            hub,
            look_s=min(_LOOK_S, self.options.lease_s / 4),
            beat=self._beat,
            stopping=self._stopping,
        )
        self._watch = Watch()
        self._claim: Claim | None = None
        self._stalls: dict[str, _Stall] = {}
        """By stream. Writer: the thread that relays."""
        self._beaten_s = 0.0
        self._rest_s = self.options.poll_s
        self._raises = False
        """What streams refuse is raised in the end, and not said before."""
        self._complaints = Complaints(_log)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def run(self, *, until_empty: bool = False) -> None:
        """Relay until `stop()`, or until nothing waits any more. What passes is waited for; it is logged.

        `until_empty`: what does not pass by itself, such as a stream that is not there, is raised, once all
        that is meant for other streams is sent.
        """
        self._raises = until_empty
        try:
            while not self._stopping.is_set():
                with self._waited_for():
                    if self._claim is None and not self._take():
                        self._stopping.wait(min(self.options.poll_s, self.options.lease_s / 4))
                    elif self._claim is not None and not self._turn(self._claim):
                        if until_empty:
                            return self._check_stalled()
                        self._stopping.wait(self._rest_s)
        except StoppedError:
            _log.info("the hub does not answer: what is on its way is sent again by the next relay")
        finally:
            self._let_go()

    def start(self) -> Self:
        """Relay in a thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_thread, name="shoal-relay", daemon=True)
            self._thread.start()
        return self

    def stop(self, timeout: float = 30.0) -> None:
        """Finish the batch that is on its way, let go of the lease, and end. If the hub does not answer, the
        batch is left as it is noted: whoever relays next sends it again, and nothing of it comes twice."""
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
        self._stalls = {} if self._claim is None else {stream: _Stall() for stream in self._claim.stalled}
        self.is_relaying = self._claim is not None
        return self.is_relaying

    @property
    def stalled(self) -> Mapping[str, str]:
        """Streams that are held up, and why: of one that was found so and not tried yet, nothing."""
        return {stream: str(stall.error or "") for stream, stall in list(self._stalls.items())}

    def _check_stalled(self) -> None:
        for stall in self._stalls.values():
            if stall.error is not None:
                raise stall.error

    def _turn(self, claim: Claim) -> bool:
        """Send the batch that is noted, and note the next; False if nothing waits that could be sent."""
        for stream in [stream for stream, stall in self._stalls.items() if time.monotonic() >= stall.due_s]:
            if self._stopping.is_set():
                break
            self._try_again(claim, stream)
        began_s = time.monotonic()
        if not claim.ids and not self._journal.has_more(0, self._stalls):
            # However many rows are held up, passing over them takes a small part of the time.
            looked_s = time.monotonic() - began_s
            self._rest_s = max(self.options.poll_s, min(_REST * looked_s, self.options.lease_s / 4))
            self._beat()
            return False
        refused = self._send(claim)
        if len(self._stalls) + len(refused) > STALLED_MAX:
            raise next(iter(refused.values())).error
        stalled = [one.as_stalled(stream) for stream, one in refused.items()]
        held_up = {one for each in stalled for one, _ in each.rows}
        done = {one for one in claim.ids if one not in held_up}
        number = claim.number + len(claim.ids)
        options = self.options
        batch = NextBatch(
            rows=options.batch_records,
            size=options.batch_bytes,
            besides={*self._stalls, *refused},
            stalled=stalled,
        )
        ids = self._journal.advance(self._name, done, number, batch)
        self._beaten_s = time.monotonic()
        self.relayed += len(done)
        self._claim = Claim(producer=claim.producer, number=number, ids=ids)
        for one in stalled:
            self._stalls[one.stream] = _Stall()
            self._stall(one, refused[one.stream])
        return True

    def _send(self, claim: Claim) -> dict[str, Refused]:
        """All of a batch, until it is durable, but for what streams refuse."""
        if not claim.ids:
            return {}
        rows = [(claim.number + place, row) for place, row in self._journal.rows(claim.ids)]
        return self._sending.send(rows, claim.producer)

    def _try_again(self, claim: Claim, stream: str) -> None:
        """Send what a stream that stalls has noted, under the numbers of its note.

        A row that its owner has given to another stream since is not of the note any more: it waits for a
        number of its own, for those of the other stream have gone on.
        """
        self._beat()
        noted = self._journal.stalled(stream)
        if noted is None:  # Its owner has cleared it.
            del self._stalls[stream]
            return
        there = [(place, row) for place, row in self._journal.rows(noted.ids) if row.stream == stream]
        refused = self._sending.send([(noted.rows[place][1], row) for place, row in there], claim.producer)
        found = {row.id for _, row in there}
        if not refused:
            self._journal.unstall(self._name, stream, found)
            del self._stalls[stream]
            _log.info("records for %s are relayed again", stream)
            self.relayed += len(found)
            return
        after = refused[stream].as_stalled(stream)
        done = found - set(after.ids)
        if after != noted:
            self._journal.stall_again(self._name, after, done)
        self.relayed += len(done)
        self._stall(after, refused[stream])

    def _stall(self, stalled: Stalled, refused: Refused) -> None:
        stall = self._stalls[stalled.stream]
        stall.error = refused.error
        stall.due_s = time.monotonic() + retry_after_s(self.options.retry_s, stall.tries)
        stall.tries += 1
        if self._raises:
            return
        self._complaints.warn(
            stalled.stream,
            "records for %s are held up from row %d of %s on: %s (or mend or delete the row); others go on",
            stalled.stream,
            stalled.row,
            self._outbox.tables.waiting.name,
            refused.error,
        )

    def _beat(self) -> None:
        if time.monotonic() - self._beaten_s >= self.options.lease_s / 4:
            self._journal.beat(self._name)
            self._beaten_s = time.monotonic()

    @contextmanager
    def _waited_for(self) -> Iterator[None]:
        """Whatever goes wrong, the batch that is noted is sent again, by producers that begin anew."""
        try:
            yield
        except (RelayLost, ProducerFenced):  # One who took over fences our producers before we hear of it.
            _log.warning("another relays by now; this one waits")
            self._begin_again()
        except ShoalError as error:
            self._sending.drop()
            if self._raises and not (error.retriable or isinstance(error, ProducerClosed)):
                raise
            self._complaints.warn(type(error).__name__, "relaying is held up: %s", error)
            self._stopping.wait(self.options.retry_s)

    def _begin_again(self) -> None:
        self._claim, self._watch, self.is_relaying, self._stalls = None, Watch(), False, {}
        self._sending.drop()

    def _let_go(self) -> None:
        had_it = self._claim is not None
        self._begin_again()
        if had_it:
            with suppress(ShoalError):  # Then another waits for our lease to end.
                self._journal.release(self._name)


_LOOK_S: Final = 0.5
"""How soon one who waits for the hub sees that it is to stop."""
_REST: Final = 4
"""How much longer than it looks a relay rests that finds nothing."""
