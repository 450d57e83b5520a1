"""One consumer's membership of a coordinated group: joins, beats, learns what it holds, and hands it back.

A thread of its own beats, and waits for changes in between, whatever user code does. What the consumer may do
is decided by `core.holding` on a clock that goes on in suspend. This room processes no records.

Invariant: nothing here acts under an epoch that was released, lost, or is past its deadline.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
    UnknownConsumer,
)
from shoal.core.events import Letting
from shoal.core.holding import (
    Answered,
    Assignment,
    Holding,
    Lease,
    View,
    answered,
    asked,
    let_go,
    may_act,
    viewed,
)
from shoal.core.model import ShardId, StreamName
from shoal.forks import renew_in_child
from shoal.ports import Fence, GroupSaves, HubService, Newcomer

_log: Final = logging.getLogger("shoal.consumer")

_RETRY_S: Final = 0.2
"""After a fault of the store. Short: the deadline runs meanwhile."""
_LEAVE_S: Final = 5.0


class CoordinatedMembership(Member):
    """A living member of a group. Use it from any thread; close it with `leave()`.

    Writer of the fields: the beating thread and callers, under `_changed`. In a forked child it is void.
    """

    def __init__(
        self,
        service: HubService,
        stream: StreamName,
        group: str,
        name: str,
        *,
        interval_ms: int | None = None,
        listener: Listener | None = None,
    ) -> None:
        self._groups = service.groups
        self._interval_ms = interval_ms
        self._group_id: int
        self._is_retired = False
        self._retired_as = ""
        """The incarnation that the hub knows to be leaving."""
        super().__init__(service, stream, group, name, listener)
        self._join(is_again=False)
        renew_in_child(self)
        self._thread.start()

    def _begin(self) -> None:
        super()._begin()
        self._unborn = ""
        self._owed: dict[ShardId, Letting] = {}
        self._let_go_of: dict[ShardId, Letting] = {}
        self._error: ShoalError | None = None
        self._thread = threading.Thread(target=self._run, name=f"shoal-member-{self.name}", daemon=True)

    def renew(self) -> None:
        """See Renewed. A child is not the consumer that its parent is."""
        self._begin()
        self._void = True
        self._holding = Holding(incarnation="", timeout_ms=1, interval_ms=1)
        self._error = UnknownConsumer("void in a forked child")

    # --- What it holds. ---

    @property
    def incarnation(self) -> str:
        """The random id of this life of the consumer."""
        return self._holding.incarnation

    @property
    def leases(self) -> Mapping[ShardId, Lease]:
        """What the hub has given to this consumer, those to be handed back included."""
        return self._holding.leases

    @property
    def group_id(self) -> int:
        return self._group_id

    @property
    def error(self) -> ShoalError | None:
        """Why the membership ended by itself: another process took its name, or the group is gone."""
        return self._error

    def may_act(self, shard: int, epoch: int) -> bool:
        """Whether a batch of this shard may be handed to user code at this moment."""
        return may_act(self._holding, ShardId(shard), epoch, boot_ms())

    def fence(self, shard: int) -> Fence:
        """What a read shows: only the current owner may read as one."""
        return Fence(self._group_id, self._lease(shard).epoch)

    # --- What it does. ---

    def checkpoint(self, positions: Mapping[int, int], *, epochs: Mapping[int, int] | None = None) -> None:
        """Save checkpoints, shard to offset: all of them, or none and an error."""
        self._groups.save(self.stream, self._group_id, self.saves(positions, epochs=epochs).saves)

    def saves(self, positions: Mapping[int, int], *, epochs: Mapping[int, int] | None = None) -> GroupSaves:
        """See Membership."""
        saves = [
            Save(shard=ShardId(shard), epoch=self._lease(shard, epochs).epoch, offset=offset)
            for shard, offset in whole_positions(positions).items()
        ]
        return GroupSaves(stream=self.stream, group_id=self._group_id, saves=saves)

    def check_pledge(self) -> None:
        """See Membership. They are beside the log."""

    def release(
        self, checkpoints: Mapping[int, int | None], *, epochs: Mapping[int, int] | None = None
    ) -> None:
        """Let go of shards, with their last checkpoints. From here on nothing is done under their epochs."""
        given = last_positions(checkpoints)
        with self._changed:
            lettings = [
                Letting(shard=lease.shard, epoch=lease.epoch, checkpoint=checkpoint)
                for lease, checkpoint in (
                    (self._lease(shard), at) for shard, at in self._still_held(given, epochs).items()
                )
            ]
            for letting in lettings:
                self._holding = let_go(self._holding, letting.shard, letting.epoch)
                self._owed[letting.shard] = self._let_go_of[letting.shard] = letting
        if lettings:
            self._send(lettings)

    def _send(self, lettings: Sequence[Letting]) -> None:
        """A release whose answer did not come is sent again with the next heartbeat, and is the same then."""

        def release(lettings: Sequence[Letting]) -> None:
            with self._changed:
                for letting in lettings:
                    owed = self._owed.get(letting.shard)
                    if owed is not None and owed.epoch == letting.epoch:  # Without its checkpoint, by now.
                        self._owed[letting.shard] = self._let_go_of[letting.shard] = letting
            self._groups.release(self._group_id, self.incarnation, lettings)
            with self._changed:
                for letting in lettings:
                    if self._owed.get(letting.shard) == letting:
                        del self._owed[letting.shard]

        _said_without_refused(release, lettings)

    def retire(self) -> None:
        """Announce that this consumer will leave: it is given nothing more, and asked for what it has.

        If that is not heard it is said again with the next heartbeat, and so it is if it has to join again:
        whoever does not take what it is given would be given it again and again.
        """
        if self._void:
            raise self.error or UnknownConsumer(self.incarnation)
        self._is_retired = True
        self._announce()

    def _announce(self) -> None:
        incarnation = self.incarnation
        if self._is_retired and self._retired_as != incarnation:
            self._groups.retire(self._group_id, incarnation)
            self._retired_as = incarnation

    def leave(self, checkpoints: Mapping[int, int | None] | None = None) -> None:
        """Hand everything over at once, with last checkpoints where given, and end."""
        if self._void or self._stop.is_set():
            return
        given = self._to_leave_with(checkpoints)
        self._stop.set()
        with self._changed:
            lettings = [
                Letting(shard=lease.shard, epoch=lease.epoch, checkpoint=given.get(lease.shard))
                for lease in self._holding.leases.values()
            ]
            # Those that were let go of, and nobody heard it, keep the checkpoints that they had.
            lettings += self._owed.values()
            for lease in list(self._holding.leases.values()):
                self._holding = let_go(self._holding, lease.shard, lease.epoch)
            self._note_change()
        try:
            if self._error is None:
                # Not said, it would cost the others the timeout, and the records since the last checkpoint.
                _said_without_refused(self._say_that_it_leaves, lettings)
        except NotFound as error:
            _log.info("%s leaves %s, which is gone: %s", self.name, self.group, error)
        finally:
            if self._thread is not threading.current_thread():
                self._thread.join(_LEAVE_S)

    def _say_that_it_leaves(self, lettings: Sequence[Letting]) -> None:
        insist(lambda: self._groups.leave(self._group_id, self.incarnation, lettings), ShoalError, _LEAVE_S)

    def abandon(self) -> None:
        """Fall silent without a word, as a crash would: what is held comes free after the timeout."""
        self._stop.set()
        self._void = True
        with self._changed:
            self._holding = replace(self._holding, leases={})
            self._note_change()

    # --- The thread. ---

    def _join(self, *, is_again: bool) -> None:
        """Under a new incarnation, always: the old one may still be spoken of.

        The same one until an answer comes: a first try may have arrived.
        """
        incarnation = self._unborn = self._unborn or f"{self.name[:40]}.{secrets.token_hex(8)}"
        newcomer = Newcomer(
            name=self.name,
            incarnation=incarnation,
            interval_ms=self._interval_ms,
            is_again=is_again,
            group_id=self._group_id if is_again else None,
        )
        joined = self._groups.join(self.stream, self.group, newcomer)
        with self._changed:
            self._unborn = ""
            self._owed.clear()
            self._let_go_of.clear()
            self._group_id = joined.group_id
            self._holding = Holding(
                incarnation=incarnation,
                timeout_ms=joined.timeout_ms,
                interval_ms=joined.interval_ms,
                wished_ms=self._interval_ms or joined.interval_ms,
            )

    def _run(self) -> None:
        unforeseen = 0
        while not self._stop.is_set():
            try:
                self._beat_and_wait()
                unforeseen = 0
            except UnknownConsumer:
                self._lose_all()
                self._come_back()
            except (NameTaken, NotFound, HubClosed) as error:
                self._end(error)
                return
            except ShoalError as error:
                # The store may be away. Nothing is lost yet: what is held is not acted on past its deadline.
                self._complaints.warn(type(error).__name__, "%s of %s: %s", self.name, self.group, error)
                self._stop.wait(_RETRY_S)
            except Exception as error:  # noqa: BLE001 - a thread's top: without it, a consumer would only seem to live
                unforeseen += 1
                if (failed := self._is_hopeless(unforeseen, error)) is not None:
                    self._end(failed)
                    return
                self._stop.wait(_RETRY_S)

    def _beat_and_wait(self) -> None:
        began = time.monotonic()
        with self._changed:
            self._holding, beat = asked(self._holding, boot_ms())
        answer = self._groups.beat(self.stream, self._group_id, beat)
        self._apply(answer)
        self._announce()
        if self._holding.group_timeout_ms is not None:
            return  # The group counts by another timeout now: state it at once.
        left_s = self._holding.interval_ms / 1000 - (time.monotonic() - began)
        while left_s > 0 and not self._stop.is_set():
            view = self._groups.wait(self._group_id, self._holding.incarnation, self._holding.seen, left_s)
            if view is not None:
                self._apply(view)
            left_s = self._holding.interval_ms / 1000 - (time.monotonic() - began)

    def _apply(self, told: Assignment | View) -> None:
        with self._changed:
            if isinstance(told, Assignment):
                outcome = answered(self._holding, told)
            else:
                outcome = viewed(self._holding, told)
            self._holding = outcome.holding
            if self._stop.is_set():
                return
            if outcome.opened or outcome.closing or outcome.lost:
                self._note_change()
        self._tell(outcome)
        with self._changed:
            for shard, epoch in outcome.release_again:
                known = self._let_go_of.get(shard)
                is_same = known is not None and known.epoch == epoch
                self._owed[shard] = known if known and is_same else Letting(shard=shard, epoch=epoch)
            owed = list(self._owed.values())
        if owed:
            self._send(owed)

    def _come_back(self) -> None:
        """Expired while away: nothing is held any more. Join again, unless another has the name by now."""
        try:
            if not self._stop.is_set():
                self._join(is_again=True)
        except (NameTaken, NotFound, HubClosed) as error:
            self._end(error)
            self._stop.set()
        except ShoalError as error:
            self._complaints.warn("join", "%s cannot join %s again yet: %s", self.name, self.group, error)
            self._stop.wait(_RETRY_S)

    def _lose_all(self) -> None:
        with self._changed:
            lost = list(self._holding.leases.values())
            for lease in lost:
                self._holding = let_go(self._holding, lease.shard, lease.epoch)
            self._note_change()
        if lost:
            self._tell(Answered(holding=self._holding, lost=lost))

    def _end(self, error: ShoalError) -> None:
        self._error = error = self._gone() if isinstance(error, NotFound) else error
        self._lose_all()
        _log.warning("%s is no longer a member of %s: %s", self.name, self.group, error)


def _said_without_refused(say: Callable[[Sequence[Letting]], None], lettings: Sequence[Letting]) -> None:
    """Let go of all of these, without the checkpoints that are refused; the first refusal, in the end.

    The hub takes all or nothing, and names one fault at a time. To let go is never refused: a shard whose
    checkpoint was goes on from the last one that was saved.
    """
    refusal: CheckpointBackwards | OffsetOutOfRange | None = None
    for _ in range(len(lettings) + 1):
        try:
            say(lettings)
            break
        except (CheckpointBackwards, OffsetOutOfRange) as error:
            refusal = refusal or error
            lettings = [
                replace(letting, checkpoint=None) if letting.shard == error.shard else letting
                for letting in lettings
            ]
    if refusal is not None:
        raise refusal
