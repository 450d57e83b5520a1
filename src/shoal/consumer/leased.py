"""One consumer's membership of a leased group: a taker and a renewer over a table, and nobody who decides.

What is to be tried is decided by `core.leasing`; this reads the table, tries, and tells how it went. The
taker looks whenever the table may have changed; the renewer beats every interval. For the worker above it is
the same as `Membership`.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Final, Self

from shoal.consumer.membership import Listener, boot_ms, insist
from shoal.core.errors import (
    HubClosed,
    NameTaken,
    NotFound,
    NotOwner,
    ShoalError,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    UnknownConsumer,
)
from shoal.core.group import Group, default_interval_ms
from shoal.core.holding import Answered, Holding, Lease
from shoal.core.lease import Change, LeaseRow, SequenceRow, numbered
from shoal.core.lease_view import noted
from shoal.core.leasing import LeasedConsumer, Outcome, Told
from shoal.core.model import Shard, ShardId, StreamName
from shoal.core.taking import View
from shoal.forks import renew_in_child
from shoal.lease_port import draw, found_instead
from shoal.ports import Fence, HubService

_log: Final = logging.getLogger("shoal.consumer.leased")

_RETRY_S: Final = 0.2
_LEAVE_S: Final = 5.0
_JOIN_TRIES: Final = 64
_REST: Final = 4
"""How much longer than it looks the taker rests."""


class LeasedMembership:
    """A living member of a leased group. Use it from any thread; close it with `leave()`.

    Writer of the consumer's state: both threads and callers, under `_changed`. In a forked child it is void.
    """

    def __init__(
        self,
        service: HubService,
        stream: StreamName,
        group: Group,
        name: str,
        *,
        interval_ms: int | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.name, self.stream, self.group, self.group_id = name, stream, group.name, group.id
        self._service = service
        leased = service.groups.leased(group)
        self._table, self._key, self._starts = leased.table, leased.key, leased.starts
        self._listener = listener
        self._interval_ms = interval_ms or default_interval_ms(group.settings.timeout_ms)
        self._settings = group.settings
        self._void = False
        self._error: ShoalError | None = None
        self._is_retired = False
        self._consumer = self._newborn()
        self._begin()
        self._join(self._consumer)
        renew_in_child(self)
        for thread in self._threads:
            thread.start()

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._taking = threading.RLock()
        """Held while the taker looks and tries: who leaves waits for what it is about to get."""
        self._changes = 0
        self._threads = [
            threading.Thread(target=work, name=f"shoal-{what}-{self.name}", daemon=True)
            for what, work in (("renewer", self._run_renewer), ("taker", self._run_taker))
        ]

    def renew(self) -> None:
        """See Renewed. A child is not the consumer that its parent is."""
        self._begin()
        self._void = True

    # --- What it holds. ---

    @property
    def incarnation(self) -> str:
        """The random id of this life of the consumer."""
        return self._consumer.me.incarnation

    @property
    def leases(self) -> Mapping[ShardId, Lease]:
        """What this consumer holds, what it is to hand back included: all of it, once it has retired."""
        if self._void:
            return {}
        held = self._consumer.leases
        if self._is_retired:
            return {shard: replace(lease, is_wanted=False) for shard, lease in held.items()}
        return held

    @property
    def error(self) -> ShoalError | None:
        """Why the membership ended by itself."""
        return self._error or self._consumer.error

    @property
    def has_left(self) -> bool:
        """Whether it was closed."""
        return self._stop.is_set()

    def may_act(self, shard: int, epoch: int) -> bool:
        """Whether a batch of this shard may be handed to user code at this moment."""
        return not self._void and self._consumer.may_act(ShardId(shard), epoch, boot_ms())

    def fence(self, shard: int) -> Fence:
        """What a read shows."""
        return Fence(self.group_id, self._lease(shard).epoch, is_leased=True)

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until what is held has changed since `seen` (0 at first), or is lost; the new number."""
        with self._changed:
            self._changed.wait_for(lambda: self._changes > seen, timeout)
            return self._changes

    # --- What it does. ---

    def checkpoint(self, positions: Mapping[int, int]) -> None:
        """Save checkpoints, shard to offset. All are looked at before one is saved."""
        shards = self._shards()
        with self._changed:
            changes = [
                self._consumer.checkpoint(shards[number], self._lease(number).epoch, offset)
                for number, offset in positions.items()
            ]
        self._carry_out(changes, shards, must=True)

    def release(self, checkpoints: Mapping[int, int | None]) -> None:
        """Let go of shards, with their last checkpoints. From here on nothing is done under their epochs."""
        shards = self._shards()
        changes = []
        with self._changed:
            for number, offset in checkpoints.items():
                change = self._consumer.release(shards[number], self._lease(number).epoch, offset)
                if change is not None:
                    changes.append(change)
        self._carry_out(changes, shards)

    def retire(self) -> None:
        """Announce that this consumer will leave: it takes nothing more, and others count without it."""
        with self._changed:
            changes = self._consumer.retire(boot_ms())
            self._is_retired = True
            told = Told(closing=list(self.leases.values()))
        self._carry_out(changes, self._shards())
        self._hear(told)

    def leave(self, checkpoints: Mapping[int, int | None] | None = None) -> None:
        """Hand everything over at once, with last checkpoints where given, and end."""
        if self._void or self._stop.is_set():
            return
        self._stop.set()
        given = {s: at for s, at in (checkpoints or {}).items() if ShardId(s) in self._consumer.leases}
        try:
            if given:
                self.release(given)
            # What the taker gets at this moment must be among what is handed over, or nobody has it until the
            # timeout. It takes nothing after this.
            with self._taking:
                view, shards = self._view()
                with self._changed:
                    changes = self._consumer.leave(view, now_ms=boot_ms(), watch_ms=_watch_ms())
                    self._note_change()
                self._carry_out(changes, shards)
        except NotFound as error:
            _log.info("%s leaves %s, which is gone: %s", self.name, self.group, error)
        finally:
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join(_LEAVE_S)

    def abandon(self) -> None:
        """Fall silent without a word, as a crash would: what is held comes free after the timeout."""
        self._void = True
        self._stop.set()
        with self._changed:
            self._note_change()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def __repr__(self) -> str:
        return f"<LeasedMembership {self.name} of {self.group} on {self.stream}, {len(self.leases)} shards>"

    def _lease(self, shard: int) -> Lease:
        lease = self._consumer.leases.get(ShardId(shard))
        if lease is None:
            raise NotOwner(shard=shard, consumer=self.name, owner=None)
        return lease

    # --- The table. ---

    def _newborn(self) -> LeasedConsumer:
        return LeasedConsumer(
            group=self._key,
            name=self.name,
            incarnation=f"{self.name[:40]}.{secrets.token_hex(8)}",
            settings=self._settings,
            interval_ms=self._interval_ms,
        )

    def _come_back(self) -> None:
        """Expired while away: nothing is held any more. Join again, unless another has the name by now."""
        newborn = self._newborn()
        try:
            newborn.check_free(self._table.instances(self._key))
        except NameTaken as error:
            self._error = error
            return
        self._join(newborn)
        with self._changed:
            lost = list(self._consumer.leases.values())
            self._consumer = newborn
        self._hear(Told(lost=lost))

    def _join(self, consumer: LeasedConsumer) -> None:
        """Put this incarnation in its name's place."""
        for _ in range(_JOIN_TRIES):
            change = consumer.join(self._table.instances(self._key))
            (outcome,) = self._table.attempt([change])
            consumer.settle(change, outcome)
            if outcome is Outcome.DONE:
                self._record([change], [outcome])
                return
            if outcome is Outcome.UNKNOWN:
                time.sleep(_RETRY_S)
        raise StoreBusy(f"{self.name} could not join {self.group}: others were faster each time", 0.0)

    def _shards(self) -> Sequence[Shard]:
        return self._service.describe_stream(self.stream).shards

    def _view(self) -> tuple[View, Sequence[Shard]]:
        """One look: rows first, then the rest, so that every thief is known, and every row's shard."""
        rows = self._table.list(self._key)
        instances = self._table.instances(self._key)
        sequence = self._table.sequence(self._key) or SequenceRow(group=self._key)
        shards = self._shards()
        view = View(rows=rows, instances=instances, sequence=sequence, shards=shards, starts=self._starts)
        return view, shards

    def _carry_out(self, changes: Sequence[Change], shards: Sequence[Shard], *, must: bool = False) -> None:
        """Try the changes, and what follows from them. `must`: an answer that does not come is an error."""
        waiting = list(changes)
        while waiting:
            wanting = [change for change in waiting if change.wants_number]
            numbers = iter(draw(self._table, self._key, len(wanting)) if wanting else ())
            tried = [numbered(c, next(numbers)) if c.wants_number else c for c in waiting]
            # Busy means that nothing was changed: mostly a deadlock of the database's. A release that met one
            # would wait for the next look, and who leaves does not look again.
            outcomes = insist(partial(self._table.attempt, tried), StoreBusy, _LEAVE_S)
            waiting = []
            for change, outcome in zip(tried, outcomes, strict=True):
                waiting += self._settle(change, outcome, shards)
            self._record(tried, outcomes)
            if must and Outcome.UNKNOWN in outcomes:
                raise StoreUnavailable(f"no answer: {tried[0].kind} may or may not be stored")
        self._let_go_of_ended(shards)

    def _let_go_of_ended(self, shards: Sequence[Shard]) -> None:
        """What was consumed to its end is nobody's any more."""
        with self._changed:
            ended = [lease for lease in self._consumer.ended if lease.shard < len(shards)]
            changes = [self._consumer.release(shards[one.shard], one.epoch, None) for one in ended]
        if ended:
            self._hear(Told(lost=ended))
            self._carry_out([change for change in changes if change is not None], shards)

    def _record(self, changes: Sequence[Change], outcomes: Sequence[Outcome]) -> None:
        """The history, for people: what happened does not depend on it."""
        done = [c for c, outcome in zip(changes, outcomes, strict=True) if outcome is Outcome.DONE]
        notes = [note for change in done if (note := noted(change, self.name)) is not None]
        if notes:
            try:
                self._service.groups.record(self.group_id, notes)
            except StoreError as error:
                _log.warning("history of %s: %s", self.group, error)

    def _settle(self, change: Change, outcome: Outcome, shards: Sequence[Shard]) -> list[Change]:
        found = found_instead(self._table, change) if outcome is Outcome.REFUSED else None
        row = change.old or change.new
        about = shards[row.shard] if isinstance(row, LeaseRow) and row.shard < len(shards) else None
        with self._changed:
            told = self._consumer.settle(change, outcome, found, about)
        self._hear(told)
        return told.changes

    def _hear(self, told: Told) -> None:
        if not (told.opened or told.closing or told.lost):
            return
        with self._changed:
            self._note_change()
        if self._listener is not None:
            holding = Holding(incarnation=self.incarnation, timeout_ms=1, interval_ms=1)
            outcome = Answered(holding=holding, opened=told.opened, closing=told.closing, lost=told.lost)
            try:
                self._listener(outcome)
            except Exception:  # noqa: BLE001 - around user code: renewals go on
                _log.exception("the listener of %s raised", self.name)

    def _note_change(self) -> None:
        self._changes += 1
        self._changed.notify_all()

    # --- The threads. ---

    def _run(self, work: Callable[[], None]) -> None:
        while not self._stop.is_set():
            try:
                work()
            except (NotFound, HubClosed) as error:
                self._error = error
                self._void = True
                with self._changed:
                    self._note_change()
                return
            except ShoalError as error:
                # The table may be away. What is held is not acted on past its deadline.
                _log.warning("%s of %s: %s", self.name, self.group, error)
                self._stop.wait(_RETRY_S)
            except Exception:  # noqa: BLE001 - a thread's top: drivers, and tables of users, raise what they like
                # Without its taker a consumer would seem to live, and take nothing for ever.
                _log.exception("%s of %s", self.name, self.group)
                self._stop.wait(_RETRY_S)
            if self._error is not None:
                return
            if isinstance(self._consumer.error, NameTaken) and not self._consumer.leases:
                return

    def _run_renewer(self) -> None:
        self._run(self._renew)

    def _renew(self) -> None:
        """One round of renewals, and the wait for the next."""
        began = time.monotonic()
        if isinstance(self._consumer.error, UnknownConsumer):
            self._come_back()
            return
        self._settings = self._service.groups.find(self.stream, self.group).settings
        with self._changed:
            self._consumer.change_settings(self._settings)
            changes = self._consumer.beat(boot_ms(), is_taking=not self._is_retired)
        self._carry_out(changes, self._shards())
        self._stop.wait(max(0.0, self._consumer.me.interval_ms / 1000 - (time.monotonic() - began)))

    def _run_taker(self) -> None:
        try:
            self._run(self._take)
        finally:
            self._table.close()

    def _take(self) -> None:
        """One look, and the wait for the next: until the table changes, or a part of an interval."""
        began = time.monotonic()
        with self._taking:
            if self._stop.is_set():
                return
            view, shards = self._view()
            with self._changed:
                told = self._consumer.look(view, now_ms=boot_ms(), watch_ms=_watch_ms())
            self._hear(told)
            self._carry_out(told.changes, shards)
        # However much there is to see, looking takes a small part of a core: there may be many of us.
        self._stop.wait(min(1.0, (time.monotonic() - began) * _REST))
        if not self._stop.is_set():
            self._table.wait(self._key, min(1.0, self._consumer.me.interval_ms / 4000))


def _watch_ms() -> int:
    """Of the clock that stands still in suspend: what was slept through was not watched."""
    return time.monotonic_ns() // 1_000_000
