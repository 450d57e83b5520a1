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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from shoal.consumer.member import Member
from shoal.consumer.membership import Listener, boot_ms, insist
from shoal.core.checkpoint import Save, last_positions, whole_positions
from shoal.core.errors import (
    CheckpointBackwards,
    HubClosed,
    NameTaken,
    NotFound,
    OffsetOutOfRange,
    ShoalError,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    UnknownConsumer,
)
from shoal.core.group import Group, check_beside, default_interval_ms
from shoal.core.holding import Answered, Holding, Lease
from shoal.core.lease import Change, LeaseRow, Row
from shoal.core.lease_view import known_names, noted
from shoal.core.leasing import LeasedConsumer, Outcome, Told
from shoal.core.limits import STEP_TRIES_MAX
from shoal.core.membership import check_same
from shoal.core.model import Shard, ShardId, StreamName
from shoal.core.taking import View
from shoal.forks import renew_in_child
from shoal.lease_port import Tried
from shoal.ports import Fence, GroupSaves, HubService

_log: Final = logging.getLogger("shoal.consumer.leased")

_RETRY_S: Final = 0.2
_LEAVE_S: Final = 5.0
_JOIN_TRIES: Final = 64
_REST: Final = 4
"""How much longer than it works the taker rests."""


class LeasedMembership(Member):
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
        self.group_id = group.id
        self._stream = service.describe_stream(stream)
        leased = service.groups.leased(group)
        self._table, self._key, self._starts = leased.table, leased.key, leased.starts
        self._is_beside = leased.is_beside
        self._interval_ms = interval_ms or default_interval_ms(group.settings.timeout_ms)
        self._settings, self._version = group.settings, group.version
        self._unbound = service.groups.unbound(group.id)
        self._names: dict[str, str] = {}
        self._error: ShoalError | None = None
        self._is_retired = False
        super().__init__(service, stream, group.name, name, listener)
        self._consumer = self._newborn()
        self._join(self._consumer)
        renew_in_child(self)
        for thread in self._threads:
            thread.start()

    def _begin(self) -> None:
        super()._begin()
        self._taking, self._renewing = threading.RLock(), threading.RLock()
        self._threads = [
            threading.Thread(target=work, name=f"shoal-{what}-{self.name}", daemon=True)
            for what, work in (("renewer", self._run_renewer), ("taker", self._run_taker))
        ]

    def renew(self) -> None:
        """See Renewed. A child is not the consumer that its parent is."""
        self._begin()
        self._void = True
        self._consumer = self._with_incarnation("")
        self._error = UnknownConsumer("void in a forked child")

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
        """Why the membership ended by itself. One that was expired has not: it joins again."""
        ended = self._consumer.error
        return self._error or (ended if isinstance(ended, NameTaken) else None)

    def may_act(self, shard: int, epoch: int) -> bool:
        """Whether a batch of this shard may be handed to user code at this moment."""
        return not self._void and self._consumer.may_act(ShardId(shard), epoch, boot_ms())

    def fence(self, shard: int) -> Fence:
        """What a read shows."""
        return Fence(self.group_id, self._lease(shard).epoch, is_leased=True)

    # --- What it does. ---

    def checkpoint(self, positions: Mapping[int, int], *, epochs: Mapping[int, int] | None = None) -> None:
        """Save checkpoints, shard to offset: all of them, or none and an error."""
        given = whole_positions(positions)
        shards = self._shards_now(given)
        with self._changed:
            consumer = self._consumer
            changes = [
                consumer.checkpoint(shards[number], self._lease(number, epochs).epoch, offset)
                for number, offset in given.items()
            ]
        self._carry_out(consumer, changes, shards, together=True)

    def saves(self, positions: Mapping[int, int], *, epochs: Mapping[int, int] | None = None) -> GroupSaves:
        """See Membership. What becomes of the rows is seen by the next look, as what others write is."""
        self.check_pledge()
        saves = [
            Save(shard=shard, epoch=self._lease(shard, epochs).epoch, offset=offset)
            for shard, offset in whole_positions(positions).items()
        ]
        return GroupSaves(
            stream=self.stream, group_id=self.group_id, saves=saves, holder=self._consumer.me.incarnation
        )

    def check_pledge(self) -> None:
        """See Membership."""
        check_beside(self.group, is_beside=self._is_beside)

    def release(
        self, checkpoints: Mapping[int, int | None], *, epochs: Mapping[int, int] | None = None
    ) -> None:
        """Let go of shards, with their last checkpoints. From here on nothing is done under their epochs."""
        given = self._still_held(last_positions(checkpoints), epochs)
        shards = self._shards_to_leave(given)
        with self._changed:
            consumer = self._consumer
            still = self._still_held(given, epochs)
            leases = [(self._lease(number), offset) for number, offset in still.items()]
            changes, refusal = _let_go(consumer, leases, shards)
        self._carry_out(consumer, changes, shards)
        if refusal is not None:
            raise refusal

    def retire(self) -> None:
        """Announce that this consumer will leave: it takes nothing more, and others count without it."""
        if self._void:
            raise self.error or UnknownConsumer(self.incarnation)
        with self._changed:
            consumer = self._consumer
            changes = consumer.retire(boot_ms())
            self._is_retired = True
            told = Told(closing=list(self.leases.values()))
        self._carry_out(consumer, changes, self._shards_now())
        self._hear(told)

    def leave(self, checkpoints: Mapping[int, int | None] | None = None) -> None:
        """Hand everything over at once, with last checkpoints where given, and end."""
        if self._void or self._stop.is_set():
            return
        given = self._to_leave_with(checkpoints)
        self._stop.set()
        try:
            # A take that is under way would come in after everything was let go of, and a round that has not
            # begun does not begin any more.
            with self._taking, self._renewing:
                self._leave(given)
        except NotFound as error:
            _log.info("%s leaves %s, which is gone: %s", self.name, self.group, error)
        finally:
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join(_LEAVE_S)

    def _leave(self, given: Mapping[ShardId, int | None]) -> None:
        """Not said, it would cost the others the timeout, and the records since the last checkpoint."""
        refusals: list[ShoalError] = []
        insist(partial(self._part, given, refusals), StoreUnavailable, _LEAVE_S)
        if refusals:
            raise refusals[0]

    def _part(self, given: Mapping[ShardId, int | None], refusals: list[ShoalError]) -> None:
        """Let go of all that the table says is ours, and of our own row. Without an answer it raises, and may
        be called again: what was let go of before keeps the checkpoint that it came with."""
        mine = [shard for shard in given if shard in self._consumer.leases]
        if mine:
            shards = self._shards_now(mine)
            with self._changed:
                consumer = self._consumer
                held = consumer.leases
                leases = [(held[shard], given[shard]) for shard in mine if shard in held]
                last, refusal = _let_go(consumer, leases, shards)
                refusals += [refusal] if refusal is not None else []
            self._carry_out(consumer, last, shards)
        view = self._view()
        with self._changed:
            consumer = self._consumer
            changes = consumer.leave(view, now_ms=boot_ms(), watch_ms=_watch_ms())
            self._note_change()
        if not self._carry_out(consumer, changes, view.shards):
            raise StoreUnavailable(f"no answer: whether {self.name} has left is not known")

    def abandon(self) -> None:
        """Fall silent without a word, as a crash would: what is held comes free after the timeout."""
        self._void = True
        self._stop.set()
        with self._changed:
            self._note_change()

    # --- The table. ---

    def _newborn(self, *, is_again: bool = False) -> LeasedConsumer:
        return self._with_incarnation(f"{self.name[:40]}.{secrets.token_hex(8)}", is_again=is_again)

    def _with_incarnation(self, incarnation: str, *, is_again: bool = False) -> LeasedConsumer:
        return LeasedConsumer(
            group=self._key,
            name=self.name,
            incarnation=incarnation,
            settings=self._settings,
            interval_ms=self._interval_ms,
            stream=str(self.stream),
            is_again=is_again,
        )

    def _come_back(self) -> None:
        """Expired while away: nothing is held any more. Join again, unless another has the name by now."""
        newborn = self._newborn(is_again=True)
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
            (tried,) = self._table.attempt(self._key, [change])
            consumer.settle(tried.change, tried.outcome, tried.found)
            if tried.outcome is Outcome.DONE:
                self._record([tried])
                return
            if tried.outcome is Outcome.UNKNOWN:
                time.sleep(_RETRY_S)
        raise StoreBusy(f"{self.name} could not join {self.group}: others were faster each time", 0.0)

    def _shards_now(self, concerned: Collection[int] = ()) -> Sequence[Shard]:
        """The stream's shards: these as of now, the others as of the last split or merge."""
        wanted = [self._lease(number).shard for number in concerned]
        self._stream = self._service.refresh_stream(self._stream, wanted)
        return self._stream.shards

    def _shards_to_leave(self, given: Mapping[ShardId, int | None]) -> Sequence[Shard]:
        """The same for shards that are let go of. If the store is away, they are let go of all the same: the
        next look that succeeds says it again, and knows where they end."""
        try:
            return self._shards_now(given)
        except StoreError as error:
            _log.info("%s lets go of %s unseen: %s", self.name, sorted(given), error)
        return tuple(
            replace(shard, next_offset=max(shard.next_offset, given.get(shard.id) or 0))
            for shard in self._stream.shards
        )

    def _view(self) -> View:
        """One look: rows first, then the stream, so that every row's shard is known."""
        rows, instances, sequence = self._table.glance(self._key)
        self._names = known_names(self._names, rows, instances)
        shards = self._shards_now()
        return View(
            rows=rows,
            instances=instances,
            sequence=sequence,
            shards=shards,
            starts=self._starts,
            unbound=self._unbound,
            stream_id=self._stream.id,
        )

    def _carry_out(
        self,
        consumer: LeasedConsumer,
        changes: Sequence[Change],
        shards: Sequence[Shard],
        *,
        together: bool = False,
    ) -> bool:
        """Try the changes, and what follows from them; whether all were answered.

        `together`: all or none, and an answer is a must.
        They are the consumer's that they were thought out for: when that one was expired meanwhile, what it
        takes is not held by the one that came back in its place.
        """
        waiting = list(changes)
        is_answered = True
        for _ in range(STEP_TRIES_MAX):
            # Busy means that nothing was changed: mostly a deadlock of the database's. A release that met one
            # would wait for the next look, and who leaves does not look again.
            attempt = partial(self._table.attempt, self._key, waiting, together=together)
            tried = insist(attempt, StoreBusy, _LEAVE_S)
            told = [self._settle(consumer, one, shards) for one in tried]
            waiting = [again for one in told for again in one.changes]
            self._record(tried)
            for one in told:
                if one.error is not None:
                    raise one.error
            is_answered = is_answered and all(one.outcome is not Outcome.UNKNOWN for one in tried)
            if together and not is_answered:
                raise StoreUnavailable("no answer: the checkpoints may or may not be stored")
            if not waiting:
                break
        else:
            raise StoreBusy(f"rows of {self.group} change faster than we can follow", 0.0)
        self._let_go_of_ended(consumer, shards)
        return is_answered

    def _let_go_of_ended(self, consumer: LeasedConsumer, shards: Sequence[Shard]) -> None:
        """What was consumed to its end is nobody's any more."""
        with self._changed:
            ended = [lease for lease in consumer.ended if lease.shard < len(shards)]
            changes = [consumer.release(shards[one.shard], one.epoch, None) for one in ended]
        if ended:
            self._hear(Told(lost=ended))
            self._carry_out(consumer, [change for change in changes if change is not None], shards)

    def _record(self, tried: Sequence[Tried]) -> None:
        """The history, for people: what happened does not depend on it."""
        done = [one.change for one in tried if one.outcome is Outcome.DONE]
        notes = [note for change in done if (note := noted(change, self.name, self._names)) is not None]
        if notes:
            try:
                self._service.groups.record(self.group_id, notes)
            except ShoalError as error:  # An older server may not know what a newer consumer does.
                self._complaints.warn("history", "history of %s: %s", self.group, error)

    def _settle(self, consumer: LeasedConsumer, tried: Tried, shards: Sequence[Shard]) -> Told:
        row = tried.change.row
        about = shards[row.shard] if isinstance(row, LeaseRow) and row.shard < len(shards) else None
        with self._changed:
            told = consumer.settle(tried.change, tried.outcome, tried.found, about)
        self._hear(told)
        return told

    def _hear(self, told: Told) -> None:
        if told.opened or told.closing or told.lost:
            with self._changed:
                self._note_change()
            holding = Holding(incarnation=self.incarnation, timeout_ms=1, interval_ms=1)
            self._tell(Answered(holding=holding, opened=told.opened, closing=told.closing, lost=told.lost))

    # --- The threads. ---

    def _run(
        self, one_round: Callable[[], float], under: threading.RLock, rest: Callable[[float], object]
    ) -> None:
        """Rounds, each under the thread's lock, and the rests between them, until it is over."""
        unforeseen = 0
        while not self._stop.is_set() and not self._is_over:
            try:
                with under:
                    if self._stop.is_set() or self._is_over:
                        return
                    rest_s = one_round()
                rest(rest_s)
                unforeseen = 0
            except NotFound:
                self._end(self._gone())
                self._clear_up()
            except HubClosed as error:
                self._end(error)
            except ShoalError as error:
                # The table may be away. What is held is not acted on past its deadline.
                self._complaints.warn(type(error).__name__, "%s of %s: %s", self.name, self.group, error)
                self._stop.wait(_RETRY_S)
            except Exception as error:  # noqa: BLE001 - a thread's top: drivers, and tables of users, raise what they like
                unforeseen += 1
                if (failed := self._is_hopeless(unforeseen, error)) is not None:
                    self._end(failed)
                else:
                    self._stop.wait(_RETRY_S)

    def _end(self, error: ShoalError) -> None:
        with self._changed:
            lost = list(self.leases.values())
            self._error, self._void = error, True
            self._note_change()
        self._hear(Told(lost=lost))

    def _clear_up(self) -> None:
        """The group is deleted, and its key never comes again. Who joined while it was, and made rows after
        everything had been removed, takes them along; if that fails they are in nobody's way."""
        try:
            with self._taking, self._renewing:  # No round is under way, and none begins any more.
                rows: list[Row] = [*self._table.instances(self._key), *self._table.list(self._key)]
                for row in rows:
                    self._table.delete(row)
        except (StoreError, HubClosed) as error:
            _log.info("rows of %s, which is deleted, are left: %s", self.group, error)

    @property
    def _is_over(self) -> bool:
        """No member any more, and nothing is left to let go of."""
        consumer = self._consumer
        is_barred = isinstance(consumer.error, NameTaken) and not consumer.leases
        return self._error is not None or (is_barred and not consumer.is_owing)

    def _run_renewer(self) -> None:
        self._run(self._renew, self._renewing, self._stop.wait)

    def _renew(self) -> float:
        """One round of renewals; how long until the next."""
        began = time.monotonic()
        group = self._service.groups.find(self.stream, self.group)
        check_same(group, self.group_id, str(self.stream))
        if group.version != self._version:
            # Before the settings count: in order, with nothing released, shards would wait that need not.
            self._unbound, self._version = self._service.groups.unbound(group.id), group.version
        self._settings = group.settings
        if isinstance(self._consumer.error, UnknownConsumer):
            self._come_back()
            return 0.0
        with self._changed:
            consumer = self._consumer
            consumer.change_settings(group.settings)
            changes = consumer.beat(boot_ms(), is_taking=not self._is_retired)
        self._carry_out(consumer, changes, self._stream.shards)
        return max(0.0, consumer.me.interval_ms / 1000 - (time.monotonic() - began))

    def _run_taker(self) -> None:
        try:
            self._run(self._take, self._taking, self._rest_and_wait)
        finally:
            self._table.close()

    def _take(self) -> float:
        """One look; how long to rest after it.

        However much there is to see, looking takes a small part of a core: there may be many of us. Only work
        counts: waiting for another's commit is rest enough.
        """
        began = time.thread_time()
        self._table.listen()
        view = self._view()
        with self._changed:
            consumer = self._consumer
            told = consumer.look(view, now_ms=boot_ms(), watch_ms=_watch_ms())
        self._hear(told)
        self._carry_out(consumer, told.changes, view.shards)
        return min(1.0, (time.thread_time() - began) * _REST)

    def _rest_and_wait(self, rest_s: float) -> None:
        """Until the table changes, or a part of an interval has passed."""
        if not self._stop.wait(rest_s):
            self._table.wait(self._key, min(1.0, self._consumer.me.interval_ms / 4000))


def _let_go(
    consumer: LeasedConsumer, leases: Sequence[tuple[Lease, int | None]], shards: Sequence[Shard]
) -> tuple[list[Change], ShoalError | None]:
    """Under the lock. A checkpoint may be refused, the first of which is returned; to let go never is."""
    refusal: ShoalError | None = None
    changes = []
    for lease, offset in leases:
        try:
            change = consumer.release(shards[lease.shard], lease.epoch, offset)
        except (CheckpointBackwards, OffsetOutOfRange) as error:
            refusal = refusal or error
            change = consumer.release(shards[lease.shard], lease.epoch, None)
        if change is not None:
            changes.append(change)
    return changes, refusal


def _watch_ms() -> int:
    """Of the clock that stands still in suspend: what was slept through was not watched."""
    return time.monotonic_ns() // 1_000_000
