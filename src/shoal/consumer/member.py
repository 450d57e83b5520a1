"""What both kinds of membership are made of: who waits for changes, who listens, how it is left.

Not here: how a consumer comes by its shards. That is all in which the two differ.

Invariant: everything that is opened, asked for or lost wakes those who wait, and is told to the listener
outside the lock, so that user code may call the membership from there.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from shoal.complaints import Complaints
from shoal.consumer.membership import Listener
from shoal.core.checking import is_number, is_whole
from shoal.core.checkpoint import check_end, last_positions
from shoal.core.errors import InvalidInput, MembershipFailed, NotOwner, ShoalError, UnknownGroup
from shoal.core.holding import Answered, Lease
from shoal.core.model import ShardId, StreamName
from shoal.ports import HubService

_log: Final = logging.getLogger("shoal.consumer")


class Member(ABC):
    """The common half of a Membership.

    `_changed` is the lock of all that a membership knows. A forked child begins anew.
    """

    def __init__(
        self, service: HubService, stream: StreamName, group: str, name: str, listener: Listener | None
    ) -> None:
        self.name, self.stream, self.group = name, stream, group
        self._service = service
        self._listener = listener
        self._void = False
        self._complaints = Complaints(_log)
        self._begin()

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._changes = 0

    @property
    @abstractmethod
    def leases(self) -> Mapping[ShardId, Lease]:
        """See Membership."""

    @abstractmethod
    def leave(self, checkpoints: Mapping[int, int | None] | None = None) -> None:
        """See Membership."""

    @property
    def has_left(self) -> bool:
        """Whether it was closed."""
        return self._stop.is_set()

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until what is held has changed since `seen` (0 at first), or is lost; the new number."""
        if not is_whole(seen):
            raise InvalidInput("seen", seen, "the int that the last wait() returned, 0 at first")
        if not is_number(timeout):
            raise InvalidInput("timeout", timeout, "seconds to wait at most")
        with self._changed:
            self._changed.wait_for(lambda: self._changes > seen, min(timeout, threading.TIMEOUT_MAX))
            return self._changes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def __repr__(self) -> str:
        held = len(self.leases)
        return f"<{type(self).__name__} {self.name} of {self.group} on {self.stream}, {held} shards>"

    def _lease(self, shard: int, epochs: Mapping[int, int] | None = None) -> Lease:
        lease = self.leases.get(ShardId(shard))
        if lease is None or (epochs is not None and epochs.get(shard) != lease.epoch):
            raise NotOwner(shard=shard, consumer=self.name, owner=None)
        return lease

    def _still_held(
        self, given: Mapping[ShardId, int | None], epochs: Mapping[int, int] | None
    ) -> dict[ShardId, int | None]:
        """What of it is held under these epochs; all, if none are named."""
        if epochs is None:
            return dict(given)
        held = {shard: lease.epoch for shard, lease in self.leases.items()}
        return {
            shard: offset
            for shard, offset in given.items()
            if shard in held and held[shard] == epochs.get(shard)
        }

    def _to_leave_with(self, checkpoints: Mapping[int, int | None] | None) -> dict[ShardId, int | None]:
        """The last checkpoints of what is held, checked while nothing has been ended yet."""
        given = last_positions(checkpoints or {})
        mine = {shard: offset for shard, offset in given.items() if shard in self.leases}
        if any(offset is not None for offset in mine.values()):
            try:
                shards = self._service.describe_stream(self.stream).shards
            except ShoalError as error:
                # Whether it is gone or only away, to leave is never refused for it.
                _log.info("%s leaves %s unchecked: %s", self.name, self.group, error)
                return mine
            for shard, offset in mine.items():
                if offset is not None and shard < len(shards):
                    check_end(str(self.stream), shards[shard], offset)
        return mine

    def _is_hopeless(self, times: int, error: Exception) -> MembershipFailed | None:
        """What to do about something that nobody foresaw, so many times in a row: None to try again.

        Drivers raise what they like while a database restarts. What comes again and again is a fault that
        stays, and a consumer that seems to live and does nothing is worse than one that has ended.
        """
        if times < _UNFORESEEN_MAX:
            _log.warning("%s of %s", self.name, self.group, exc_info=error)
            return None
        _log.error("%s of %s ends", self.name, self.group, exc_info=error)
        return MembershipFailed(consumer=self.name, detail=f"{type(error).__name__}: {error}")

    def _gone(self) -> UnknownGroup:
        """Whatever was not found, the group or its stream: the group that this was a member of is no more."""
        return UnknownGroup(stream=str(self.stream), group=self.group)

    def _note_change(self) -> None:
        """Wake those who wait. Under the lock."""
        self._changes += 1
        self._changed.notify_all()

    def _tell(self, outcome: Answered) -> None:
        """Tell the listener. Not under the lock."""
        if self._listener is not None and (outcome.opened or outcome.closing or outcome.lost):
            try:
                self._listener(outcome)
            except Exception:  # noqa: BLE001 - around user code: heartbeats and renewals go on
                _log.exception("the listener of %s raised", self.name)


_UNFORESEEN_MAX: Final = 5
"""In a row, each after a short rest: a second or so."""
