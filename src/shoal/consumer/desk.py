"""The desk between the runtimes of a consumer and the one who polls: what waits there to be taken or heard.

A runtime lays a batch down and goes on; who polls takes it, and says with its next poll that it has come back
from it. Shards that come and go lie here too, for the user's listener, which is called by who polls.

Invariant: what lies here is only a hint. Whether it may still be had is the tenure's to say, at that moment.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from shoal.consumer.held import Held
from shoal.consumer.user_code import LOOK_NS, Came, Code, Ended, clock_ns
from shoal.core.errors import LeaseLost
from shoal.core.polling import StreamShard, fitting
from shoal.core.tasks import Initialize, Process, Reason, ShutDown, Task
from shoal.wire.batch import Batch
from shoal.wire.delivered import Decoding, Delivered

RETRY_S: Final = 0.05
"""How soon one looks again at what has no valid deadline: the store may be back."""


@dataclass(slots=True)
class Offer:
    """A batch that waits, or that the user has."""

    place: StreamShard
    held: Held
    task: Process
    ended: Ended
    batch: Delivered | None = None
    taken_ns: int = 0
    is_cut: bool = False
    """The deadline passed while the user iterated: the rest was not given, and is not done."""

    def open(self, decoding: Decoding | None) -> Delivered:
        """The batch for the user."""
        self.taken_ns = time.perf_counter_ns()
        source = self.task.piece.source
        assert isinstance(source, Batch)
        self.batch = Delivered.of(source, self.task.piece.offsets, self._guard, clock_ns, decoding)
        return self.batch

    def _guard(self) -> int:
        try:
            return self.held.guard()
        except LeaseLost:
            if self.held.is_persisted(self.task.piece.next):
                # Committed before it was processed, perhaps to the shard's end: nobody else is given it.
                return clock_ns() + LOOK_NS
            self.is_cut = True
            raise


@dataclass(frozen=True, slots=True)
class Notice:
    """A shard that comes or goes, for the listener."""

    place: StreamShard
    task: Initialize | ShutDown
    ended: Ended

    @property
    def kind(self) -> str:
        """What the listener calls it."""
        if isinstance(self.task, Initialize):
            return "on_assigned"
        return "on_lost" if self.task.reason is Reason.LOST else "on_revoked"


class Desk:
    """Of one consumer. Writer: any thread, under `_changed`."""

    def __init__(self, ring: Callable[[], None] | None = None) -> None:
        """`ring` is called, from any thread, when there is something new; without it, one waits in `rest`."""
        self.has_listener = False
        self._ring = ring
        self._changed = threading.Condition()
        self._is_changed = False
        self._offers: deque[Offer] = deque()
        self._notices: deque[Notice] = deque()

    def ring(self) -> None:
        """Something happened that who polls should look at."""
        with self._changed:
            self._is_changed = True
            self._changed.notify_all()
        if self._ring is not None:
            self._ring()

    def lay(self, laid: Offer | Notice) -> None:
        """Something new for who polls."""
        with self._changed:
            if isinstance(laid, Offer):
                self._offers.append(laid)
            else:
                self._notices.append(laid)
        self.ring()

    @property
    def has_changed(self) -> bool:
        """Something is new since the last look."""
        return self._is_changed

    def look(self) -> None:
        """Before a look at all: what comes from here on ends the next rest."""
        with self._changed:
            self._is_changed = False

    def rest(self, seconds: float) -> None:
        """Until there is something new, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_changed, min(seconds, threading.TIMEOUT_MAX))

    def take(self, most: int, *, is_one: bool = False) -> tuple[list[Offer], bool]:
        """What may be had now, at most so many records, and whether there is something that may not yet.

        `is_one`: only one batch.
        """
        with self._changed:
            offers, self._offers = list(self._offers), deque()
        waiting = [offer for offer in offers if offer.held.is_to_be_had(offer.task)]
        chosen = fitting((len(offer.task.piece.offsets) for offer in waiting), most)
        taken: list[Offer] = []
        left, refused = waiting[chosen:], []
        for place, offer in enumerate(waiting[:chosen]):
            if is_one and taken:
                left = waiting[place:]
                break
            if offer.held.take(offer.task):
                taken.append(offer)
            else:
                refused.append(offer)  # Withdrawn at this moment, or without a valid deadline.
        with self._changed:
            self._offers.extendleft(reversed([*left, *refused]))
        return taken, bool(refused)

    def notices(self) -> list[Notice]:
        """The next that are told together: of the same kind. Those that go come before those that come."""
        with self._changed:
            first = min(self._notices, key=lambda one: _TURN.index(one.kind), default=None)
            found = [one for one in self._notices if first is not None and one.kind == first.kind]
            self._notices = deque(one for one in self._notices if one not in found)
        return found


class DeskCode:
    """See Code: of one shard, taken over by the desk."""

    bereft: Final[Sequence[int]] = ()

    def __init__(self, desk: Desk, stream: str, held: Held) -> None:
        self._desk, self._held = desk, held
        self._place = StreamShard(stream, int(held.tenure.shard))

    def begin(self, task: Task, ended: Ended) -> bool:
        """See Code."""
        match task:
            case Process():
                self._desk.lay(Offer(self._place, self._held, task, ended))
            case Initialize() | ShutDown() if self._desk.has_listener:
                self._desk.lay(Notice(self._place, task, ended))
            case _:
                return False
        return True

    def run(self, task: Task, nothing: Batch | None) -> Came:
        """See Code. Nobody listens."""
        del task, nothing
        return Came(took_ns=0)


class AtDesk:
    """See Hosting."""

    def __init__(self, desk: Desk, stream: str) -> None:
        self._desk, self._stream = desk, stream

    def host(self, held: Held) -> Code:
        """See Hosting."""
        return DeskCode(self._desk, self._stream, held)


_TURN: Final = ("on_lost", "on_revoked", "on_assigned")
