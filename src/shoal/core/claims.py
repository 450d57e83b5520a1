"""The machine of one shard in one group: five states, the founding document's nine transitions, two of ours.

`moved` is the only way from one state to another, and refuses what the table does not have. The diagram in
the docs is printed from the same table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from shoal.core.group import Claim, ShardState
from shoal.core.model import Shard, ShardId

WAIT, NOT_ALLOC = ShardState.WAIT, ShardState.NOT_ALLOC
ALREADY_ALLOC, TRANSFER, OVER = ShardState.ALREADY_ALLOC, ShardState.TRANSFER, ShardState.OVER

HELD: Final = frozenset({ALREADY_ALLOC, TRANSFER})
ASSIGNABLE: Final = frozenset({NOT_ALLOC, ALREADY_ALLOC, TRANSFER})
"""What is spread over the members. Who waits or is over is not counted."""


class By(StrEnum):
    """The transitions, by the document's numbers; letters are ours."""

    BIRTH = "1"
    ANCESTORS_ENDED = "2"
    ASSIGNED = "3"
    OWNER_GONE = "4"
    TAKEN_BACK = "5"
    HANDED_OVER = "6"
    FORCED_BACK = "7"
    ENDED = "8"
    OWNER_GONE_IN_TRANSFER = "9"
    BORN_OVER = "a"
    ANEW = "b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One arrow of the diagram."""

    by: By
    sources: tuple[ShardState | None, ...]
    targets: tuple[ShardState, ...]
    when: str


TRANSITIONS: Final = (
    Transition(
        by=By.BIRTH,
        sources=(None,),
        targets=(WAIT, NOT_ALLOC),
        when="the shard is born: it waits if an ancestor has not ended",
    ),
    Transition(
        by=By.ANCESTORS_ENDED,
        sources=(WAIT,),
        targets=(NOT_ALLOC,),
        when="all ancestors have ended, or the group is no longer in-order",
    ),
    Transition(
        by=By.ASSIGNED, sources=(NOT_ALLOC,), targets=(ALREADY_ALLOC,), when="it is given to a consumer"
    ),
    Transition(
        by=By.OWNER_GONE,
        sources=(ALREADY_ALLOC,),
        targets=(NOT_ALLOC,),
        when="its consumer was silent for the timeout, or let go of it",
    ),
    Transition(
        by=By.TAKEN_BACK,
        sources=(ALREADY_ALLOC,),
        targets=(TRANSFER,),
        when="another consumer is to have it, or it begins anew: its owner is asked to let go",
    ),
    Transition(
        by=By.HANDED_OVER,
        sources=(TRANSFER,),
        targets=(ALREADY_ALLOC,),
        when="the owner let go, and the next consumer has it; or there is no next one any more, and the "
        "owner keeps it",
    ),
    Transition(
        by=By.FORCED_BACK,
        sources=(OVER,),
        targets=(NOT_ALLOC,),
        when="a forced checkpoint before its end opens it again",
    ),
    Transition(
        by=By.ENDED,
        sources=(WAIT, NOT_ALLOC, ALREADY_ALLOC, TRANSFER),
        targets=(OVER,),
        when="it is closed, and consumed to its end",
    ),
    Transition(
        by=By.OWNER_GONE_IN_TRANSFER,
        sources=(TRANSFER,),
        targets=(NOT_ALLOC,),
        when="its owner was silent for the timeout, or let go and nobody is next, or it took too long",
    ),
    Transition(
        by=By.BORN_OVER,
        sources=(None,),
        targets=(OVER,),
        when="it is born closed, with nothing in it for this group",
    ),
    Transition(
        by=By.ANEW,
        sources=(WAIT, NOT_ALLOC, TRANSFER, OVER),
        targets=(WAIT, NOT_ALLOC),
        when="a reset or a forced checkpoint: it begins as if born, once its holder has let go",
    ),
)

_ALLOWED: Final = frozenset(
    (arrow.by, source, target)
    for arrow in TRANSITIONS
    for source in arrow.sources
    for target in arrow.targets
)


def moved(claim: Claim, by: By, to: ShardState) -> Claim:
    """The claim after one transition of the table."""
    assert (by, claim.state, to) in _ALLOWED, f"{by.name} does not lead from {claim.state} to {to}"
    return replace(claim, state=to)


def vacated(claim: Claim) -> Claim:
    """The claim without a holder. What was asked of the holder goes with it."""
    return replace(claim, owner=None, owner_epoch=0, next=None, handover_ms=0, lapse_ms=0)


def kept(claim: Claim) -> Claim:
    """The claim of an owner that need not let go after all."""
    return replace(moved(claim, By.HANDED_OVER, ALREADY_ALLOC), next=None, handover_ms=0)


def born(
    shard: Shard, checkpoint: int, *, is_bound: bool, is_told: bool, ended: Collection[ShardId]
) -> Claim:
    """A shard that the group sees for the first time."""
    if is_at_end(shard, checkpoint):
        return Claim(shard=shard.id, state=OVER, checkpoint=checkpoint, is_bound=is_bound, is_told=is_told)
    waits = is_bound and any(parent not in ended for parent in shard.parents)
    return Claim(
        shard=shard.id,
        state=WAIT if waits else NOT_ALLOC,
        checkpoint=checkpoint,
        is_bound=is_bound,
        is_told=is_told,
    )


def first_claims(
    shards: Sequence[Shard], positions: Mapping[ShardId, int], *, is_bound: bool, is_told: bool
) -> tuple[Claim, ...]:
    """All shards of a stream, for a new group that begins at these positions, or else where a shard does.

    `is_told`: someone has named these positions.
    """
    ended: set[ShardId] = set()
    claims = []
    for shard in shards:
        claim = born(
            shard,
            positions.get(shard.id, shard.first_offset),
            is_bound=is_bound,
            is_told=is_told and shard.id in positions,
            ended=ended,
        )
        if claim.state is OVER and all(parent in ended for parent in shard.parents):
            ended.add(shard.id)
        claims.append(claim)
    return tuple(claims)


def is_at_end(shard: Shard, checkpoint: int) -> bool:
    """Nothing is left in it for this group, and nothing will come."""
    return not shard.is_open and (shard.is_empty or checkpoint >= shard.next_offset)


def unbound(claims: Iterable[Claim]) -> frozenset[ShardId]:
    """Shards that wait for no ancestor, though their group is in order: they were there before it was."""
    return frozenset(claim.shard for claim in claims if not claim.is_bound)


def ended_shards(shards: Sequence[Shard], claims: Sequence[Claim]) -> set[ShardId]:
    """Shards that are over, and all their ancestors with them. Parents come before children: one pass."""
    ended: set[ShardId] = set()
    for shard, claim in zip(shards, claims, strict=False):
        if claim.state is OVER and all(parent in ended for parent in shard.parents):
            ended.add(shard.id)
    return ended


def diagram() -> str:
    """The machine as a Mermaid state diagram and a table, for the docs."""
    lines = ["```mermaid", "stateDiagram-v2"]
    for arrow in TRANSITIONS:
        for source in arrow.sources:
            lines += [f"    {source or '[*]'} --> {target}: {arrow.by}" for target in arrow.targets]
    lines += ["```", "", "| | from | to | when |", "|---|---|---|---|"]
    for arrow in TRANSITIONS:
        sources = ", ".join(f"`{source}`" if source else "birth" for source in arrow.sources)
        targets = ", ".join(f"`{target}`" for target in arrow.targets)
        lines.append(f"| {arrow.by} | {sources} | {targets} | {arrow.when} |")
    return "\n".join(lines) + "\n"


def lineage_of(shards: Sequence[Shard], roots: Collection[ShardId]) -> set[ShardId]:
    """These shards and all their descendants."""
    family = set(roots)
    for shard in shards:
        if any(parent in family for parent in shard.parents):
            family.add(shard.id)
    return family
