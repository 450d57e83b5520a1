"""The interface between a consumer and its group: what a worker sees of ownership, of whichever kind it is.

A `Seat` keeps a consumer's membership alive in the background and tells its `Lessee` what it gets and
loses. The consumer above cannot tell a group that a hub decides for from one whose consumers settle it
among themselves through a table of leases: both are a seat, and the worlds drive both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from shoal.core.errors import NotOwner
from shoal.core.holding import Lease
from shoal.core.model import ShardId
from sim.loop import Process, Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The answer to a read."""

    batches: list[tuple[int, int]]
    end: int | None
    """Of a closed shard: where it ends."""
    tail: int
    """Up to where there were records at that time."""


class Lessee(Protocol):
    """The consumer, as its seat sees it. Called at once, at the instant at which the seat knows."""

    def opened(self, lease: Lease) -> None:
        """A shard is ours, from `lease.checkpoint` on."""

    def closing(self, shard: ShardId, epoch: int) -> None:
        """To be drained and released. It may be told several times."""

    def lost(self, shard: ShardId, epoch: int) -> None:
        """Not ours any more: nothing may be saved."""

    def barred(self) -> None:
        """A newer process has our name. Let go of everything, and stay away."""


class Seat(Protocol):
    """One consumer's place in its group."""

    @property
    def incarnation(self) -> str: ...

    @property
    def group(self) -> int:
        """The id of the group that it has joined; for the checkers, which follow groups, not names."""

    @property
    def leases(self) -> Mapping[ShardId, Lease]:
        """What it holds, what it is to hand back included."""

    def start(self, lessee: Lessee) -> None:
        """Join, and stay a member until `leave`."""

    def wake(self) -> None:
        """Something has changed for this consumer."""

    def may_act(self, shard: ShardId, epoch: int) -> bool:
        """Whether a batch may be handed to user code at this instant."""

    def read(self, shard: ShardId, epoch: int, offset: int) -> Steps[Fetched]: ...

    def save(self, shard: ShardId, epoch: int, offset: int) -> Steps[None]: ...

    def release(self, shard: ShardId, epoch: int, checkpoint: int | None) -> Steps[None]:
        """Let go of a drained shard with its last checkpoint. Returns when the group knows, or never will."""

    def retire(self) -> Steps[None]:
        """Get nothing more."""

    def leave(self) -> Steps[None]:
        """Everything is released: be a member no more."""

    def forked(self, process: Process) -> Seat:
        """What a forked child has of it."""


class VoidSeat:
    """See Seat. A child is not the consumer that its parent is: it holds nothing, and may do nothing."""

    incarnation = "void"
    group = 0
    leases: Mapping[ShardId, Lease] = MappingProxyType({})

    def start(self, lessee: Lessee) -> None:
        """Nothing begins here."""

    def wake(self) -> None:
        """Nobody waits."""

    def may_act(self, shard: ShardId, epoch: int) -> bool:
        del shard, epoch
        return False

    def read(self, shard: ShardId, epoch: int, offset: int) -> Steps[Fetched]:
        del epoch, offset
        yield 1
        raise NotOwner(shard=shard, consumer=self.incarnation, owner=None)

    def save(self, shard: ShardId, epoch: int, offset: int) -> Steps[None]:
        yield from self.read(shard, epoch, offset)

    def release(self, shard: ShardId, epoch: int, checkpoint: int | None) -> Steps[None]:
        del shard, epoch, checkpoint
        yield 1

    def retire(self) -> Steps[None]:
        yield 1

    def leave(self) -> Steps[None]:
        yield 1

    def forked(self, process: Process) -> VoidSeat:
        del process
        return self
