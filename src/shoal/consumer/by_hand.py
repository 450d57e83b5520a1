"""Shards that a user has chosen by hand: the face of a membership, with no group that gives or takes.

Nobody fences such a reader, and nobody keeps another from reading the same. Its positions are the user's to
keep, or are committed to a group that nobody else is in: one that is not in order, as every commit there
stands for itself.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from shoal.core.checkpoint import last_positions, whole_positions
from shoal.core.errors import GroupInUse, InvalidInput, NotOwner, ShoalError, UnknownGroup
from shoal.core.group import Delivery, check_delivery
from shoal.core.holding import Lease
from shoal.core.model import ShardId, StreamName
from shoal.core.positions import Start, StartKind
from shoal.ports import Fence, GroupSaves, HubService

_FOREVER_MS: Final = 1 << 60
_EPOCHS: Final = itertools.count(1)
"""Of shards that were chosen by hand, in this process: each choice is another tenure."""


class ByHand:
    """See Membership. Writer of the fields: any thread, under `_lock`."""

    group_id: Final = 0
    incarnation: Final = ""
    error: ShoalError | None = None

    def __init__(
        self, service: HubService, stream: StreamName, group: str | None, name: str, starts: Mapping[int, int]
    ) -> None:
        """`starts`: the shards, and where to begin. `group`: where `checkpoint` commits."""
        self.name, self.stream, self.group = name, stream, group or ""
        self._service = service
        self._lock = threading.Lock()
        self._leases = {
            ShardId(shard): Lease(
                shard=ShardId(shard), epoch=next(_EPOCHS), checkpoint=offset, deadline_ms=_FOREVER_MS
            )
            for shard, offset in starts.items()
        }
        self._saved = dict(starts)
        self.has_left = False

    @property
    def leases(self) -> Mapping[ShardId, Lease]:
        """See Membership."""
        with self._lock:
            return dict(self._leases)

    def may_act(self, shard: int, epoch: int) -> bool:
        """See Membership."""
        lease = self._leases.get(ShardId(shard))
        return lease is not None and lease.epoch == epoch

    def fence(self, shard: int) -> Fence | None:
        """See Membership. A fence is of a group, and this one reads beside it."""
        if ShardId(shard) not in self._leases:
            raise NotOwner(shard=shard, consumer=self.name, owner=None)
        return None

    def wait(self, seen: int, timeout: float) -> int:
        """See Membership. Nothing ever changes."""
        del timeout
        return seen

    def checkpoint(self, positions: Mapping[int, int], *, epochs: Mapping[int, int] | None = None) -> None:
        """See Membership. Refused if others are in the group, who would be moved about by it."""
        del epochs
        self._commit(whole_positions(positions))

    def saves(self, positions: Mapping[int, int], *, epochs: Mapping[int, int] | None = None) -> GroupSaves:
        """See Membership."""
        del positions, epochs
        raise self._unowned()

    def check_pledge(self) -> None:
        """See Membership."""
        raise self._unowned()

    def _unowned(self) -> InvalidInput:
        """What is read by hand is nobody's: there is no epoch to save it under."""
        return InvalidInput(
            "group", self.group, "a transaction takes checkpoints of a member; subscribe, do not assign"
        )

    def release(
        self, checkpoints: Mapping[int, int | None], *, epochs: Mapping[int, int] | None = None
    ) -> None:
        """See Membership."""
        del epochs
        given = last_positions(checkpoints)
        with self._lock:
            for shard in given:
                self._leases.pop(shard, None)
        self._commit({shard: offset for shard, offset in given.items() if offset is not None})

    def _commit(self, positions: Mapping[ShardId, int]) -> None:
        news = {int(shard): int(at) for shard, at in positions.items() if at != self._saved.get(shard)}
        if not news or not self.group:
            return
        # Without owners, a rewind would end holds, or move the positions of others.
        check_delivery(
            self._service.groups.find(self.stream, self.group), str(self.stream), Delivery.EXCLUSIVE
        )
        info = self._service.groups.describe(self.stream, self.group)
        if info.settings.in_order:
            raise InvalidInput(
                "group", self.group, "it is in order; commit what is assigned by hand to one that is not"
            )
        if info.members:
            raise GroupInUse(group=self.group, consumers=[member.name for member in info.members])
        start = Start(kind=StartKind.OFFSETS, offsets=news)
        self._service.groups.rewind(self.stream, self.group, start, "committed by hand")
        self._saved.update(news)

    def retire(self) -> None:
        """See Membership."""

    def leave(self, checkpoints: Mapping[int, int | None] | None = None) -> None:
        """See Membership."""
        self.release(checkpoints or {})
        self.abandon()

    def abandon(self) -> None:
        """See Membership."""
        with self._lock:
            self._leases.clear()
            self.has_left = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()


def committed_by_hand(service: HubService, stream: StreamName, group: str | None) -> Mapping[int, int] | None:
    """Where a group has come to, by shard; None: there is no such group."""
    if group is None:
        return None
    try:
        info = service.groups.describe(stream, group)
    except UnknownGroup:
        return None
    return {int(shard.id): int(shard.checkpoint) for shard in info.shards}
