"""Who may save which checkpoint. A checkpoint is the next offset to consume.

Invariant: only the owner's current epoch moves it, forwards, within what the shard keeps; going back is
forced, and starts a new epoch (`ownership.Rewind`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shoal.core.errors import CheckpointBackwards, Fenced, NotOwner, OffsetOutOfRange
from shoal.core.group import Claim
from shoal.core.model import Shard, ShardId, StreamName
from shoal.core.reading import check_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """An owner's checkpoint."""

    shard: ShardId
    epoch: int
    offset: int


def check_save(stream: StreamName, claim: Claim, shard: Shard, save: Save) -> None:
    """Refuse what does not come from the owner, or leads backwards or nowhere."""
    check_fence(claim, claim.shard, save.epoch)
    offset = check_offset(stream, shard, save.offset)
    if offset < claim.checkpoint:
        raise CheckpointBackwards(shard=shard.id, offset=offset, saved=claim.checkpoint)


def check_forward(stream: str, shard: Shard, saved: int, offset: int) -> None:
    """A checkpoint goes forward, and not past the end. What retention took may be passed over."""
    if offset < saved:
        raise CheckpointBackwards(shard=shard.id, offset=offset, saved=saved)
    if offset > shard.next_offset:
        raise OffsetOutOfRange(stream=stream, shard=shard.id, offset=offset, next_offset=shard.next_offset)


class Held(Protocol):
    """As much of a claim as a fence looks at."""

    @property
    def epoch(self) -> int: ...
    @property
    def owner(self) -> str | None: ...
    @property
    def owner_epoch(self) -> int: ...


def check_fence(claim: Held | None, shard: ShardId, epoch: int) -> None:
    """Refuse an epoch that is not the current one, or that nobody holds any more."""
    if claim is None or epoch != claim.epoch:
        raise Fenced(shard=shard, epoch=epoch, current=0 if claim is None else claim.epoch)
    if claim.owner is None or claim.owner_epoch != epoch:
        raise NotOwner(shard=shard, consumer=f"epoch {epoch}", owner=claim.owner)
