"""What a checkpoint is, and who may save which. A checkpoint is the next offset to consume.

A shard that is consumed in lanes is done beyond that in places. A checkpoint that says so is an offset like
any other, to whoever only wants to know where to go on, and carries the marks of the lanes along.

Invariant: only the owner's current epoch moves it, forwards, within what the shard keeps; going back is
forced, and starts a new epoch (`ownership.Rewind`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from shoal.core.checking import as_whole, is_instance_of
from shoal.core.errors import CheckpointBackwards, Fenced, InvalidInput, NotOwner, OffsetOutOfRange
from shoal.core.group import Claim
from shoal.core.limits import MARKS_KEPT
from shoal.core.model import Shard, ShardId, StreamName
from shoal.core.reading import check_offset, whole_offset

Marks = tuple[int, ...]
"""For each of so many lanes: all of its records below are done."""


class Checkpoint(int):
    """An offset below which everything is done, and what is done beyond it.

    Equal to the bare offset; `is_same` looks at the marks, too. `beyond` has a set of marks for each number
    of lanes that the shard was consumed in since.
    """

    beyond: tuple[Marks, ...]

    def __new__(cls, offset: int, beyond: Sequence[Marks] = ()) -> Self:
        """Marks that lie behind by now say nothing any more; of more sets than are kept, the oldest go.

        Sets for the same number of lanes are one: a lane is done up to the furthest that any of them says.
        """
        made = super().__new__(cls, offset)
        ahead: dict[int, Marks] = {}
        for marks in beyond:
            if max(marks, default=0) > offset:
                known = ahead.pop(len(marks), tuple(marks))
                ahead[len(marks)] = tuple(map(max, known, marks))
        made.beyond = tuple(ahead.values())[-MARKS_KEPT:]
        return made

    def text(self) -> str | None:
        """The marks, to be stored; None if there are none."""
        return ";".join(",".join(str(mark) for mark in marks) for marks in self.beyond) or None


def checkpoint_of(offset: int, text: str | None) -> int:
    """A checkpoint as it was stored."""
    if not text:
        return offset
    return Checkpoint(offset, [tuple(int(mark) for mark in marks.split(",")) for marks in text.split(";")])


def beyond(offset: int) -> tuple[Marks, ...]:
    """What is done beyond a checkpoint."""
    return offset.beyond if isinstance(offset, Checkpoint) else ()


def marks_text(offset: int) -> str | None:
    """What is to be stored beside a checkpoint."""
    return offset.text() if isinstance(offset, Checkpoint) else None


def is_same(one: int, other: int) -> bool:
    """Whether two checkpoints say the same, of what lies beyond them too."""
    return one == other and beyond(one) == beyond(other)


def onward(checkpoint: int, offset: int) -> int:
    """The checkpoint once it stands at this offset, with what it says beyond that."""
    marks = beyond(checkpoint)
    return Checkpoint(offset, marks) if marks else offset


def later(saved: int, offset: int) -> int:
    """The checkpoint that counts: the one that is further, and of two at one place the newer."""
    return offset if offset >= saved else saved


def whole_checkpoint(offset: object) -> int:
    """A checkpoint as a caller gave it: with its marks if it has some, otherwise an offset of Python's."""
    return offset if isinstance(offset, Checkpoint) else whole_offset(offset)


def whole_positions(given: Mapping[int, int]) -> dict[ShardId, int]:
    """Checkpoints by shard as a caller gave them, or an error that names what is none."""
    return {shard: whole_checkpoint(offset) for shard, offset in _by_shard(given).items()}


def last_positions(given: Mapping[int, int | None]) -> dict[ShardId, int | None]:
    """The same for shards that are let go of, where None stands for what was saved."""
    return {
        shard: None if offset is None else whole_checkpoint(offset)
        for shard, offset in _by_shard(given).items()
    }


def _by_shard(given: Mapping[int, object]) -> dict[ShardId, object]:
    if not is_instance_of(given, Mapping):
        raise InvalidInput("checkpoints", given, "give them by shard: {shard: offset}")
    found = {}
    for shard, offset in given.items():
        number = as_whole(shard)
        if number is None:
            raise InvalidInput("shard", shard, "a shard is an int, as in `leases`: {shard: offset}")
        found[ShardId(number)] = offset
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """An owner's checkpoint."""

    shard: ShardId
    epoch: int
    offset: int


def check_save(stream: StreamName, claim: Claim, shard: Shard, save: Save) -> None:
    """Refuse what does not come from the owner, or leads backwards or nowhere."""
    check_fence(claim, claim.shard, save.epoch)
    check_place(str(stream), shard, claim.checkpoint, save.offset)


def check_place(stream: str, shard: Shard, saved: int, offset: int) -> None:
    """A checkpoint that is saved lies within what the shard keeps, and goes forward. Where it is, it may
    stay, though retention may have gone past it."""
    if offset == saved:
        return
    check_offset(stream, shard, offset)
    if offset < saved:
        raise CheckpointBackwards(shard=shard.id, offset=offset, saved=saved)


def check_end(stream: str, shard: Shard, offset: int) -> None:
    """Refuse what was never an offset of this shard."""
    if not 0 <= offset <= shard.next_offset:
        raise OffsetOutOfRange(stream=stream, shard=shard.id, offset=offset, next_offset=shard.next_offset)


def check_forward(stream: str, shard: Shard, saved: int, offset: int) -> None:
    """A last checkpoint goes forward, and not past the end. What retention took may be passed over."""
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
