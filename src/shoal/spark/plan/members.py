"""A query as a member of a group: what it plans of the shards that it holds, saves, and lets go of.

A *tenure* is a shard under one epoch. It starts where the group's checkpoint stands, whatever Spark remembers
of an earlier one. What the last finished batch held of it is done; that alone is saved, and a shard is let go
of only between batches.

Invariants: nothing is planned of a shard that is to be handed back; a checkpoint is saved only under the
epoch under which its records were planned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.core.checkpoint import Checkpoint, Marks, beyond, onward
from shoal.core.describing import GroupInfo
from shoal.core.group import ShardState
from shoal.core.holding import Lease
from shoal.core.model import StreamInfo
from shoal.spark.plan.offsets import Part
from shoal.spark.plan.spans import Owner, Span, Turns, kept, span_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """A shard that is held: everything below `done` has been processed."""

    epoch: int
    done: int
    saved: int
    beyond: tuple[Marks, ...] = ()

    @property
    def checkpoint(self) -> int:
        """What is to be saved: with what others did beyond it, while that still says something."""
        return Checkpoint(self.done, self.beyond) if self.beyond else self.done


Tenures = Mapping[int, Tenure]
"""Of one stream, by shard."""


def held(tenures: Tenures, leases: Mapping[int, Lease]) -> dict[int, Tenure]:
    """The tenures as of now: those that go on, and new ones, which begin at the group's checkpoint."""
    return {
        shard: tenures[shard]
        if shard in tenures and tenures[shard].epoch == lease.epoch
        else Tenure(
            epoch=lease.epoch,
            done=int(lease.checkpoint),
            saved=int(lease.checkpoint),
            beyond=beyond(lease.checkpoint),
        )
        for shard, lease in leases.items()
    }


def to_leave(leases: Mapping[int, Lease]) -> dict[int, Lease]:
    """The leases of a member that is to leave: all are to be handed back."""
    return {shard: replace(lease, is_wanted=False) for shard, lease in leases.items()}


def finished(tenures: Tenures, stream_id: int, parts: Iterable[Part]) -> dict[int, Tenure]:
    """The tenures once a batch of these parts is done. Parts of other epochs say nothing about them."""
    after = dict(tenures)
    for part in parts:
        tenure = after.get(part.shard)
        if tenure is not None and part.stream_id == stream_id and tenure.epoch == part.epoch:
            after[part.shard] = replace(tenure, done=max(tenure.done, part.end))
    return after


def passed(tenures: Tenures, info: StreamInfo) -> dict[int, Tenure]:
    """The tenures once what retention took is passed over: nothing of it can come any more. One that is ahead
    of this look at the stream stays where it is."""
    return {
        number: replace(tenure, done=int(onward(tenure.done, info.shards[number].first_offset)))
        if number < len(info.shards) and tenure.done < info.shards[number].first_offset
        else tenure
        for number, tenure in tenures.items()
    }


def turns(tenures: Mapping[str, Tenures]) -> Turns:
    """Whose turn it is among the shards that are held."""
    return Turns(
        ring=[(name, shard) for name in sorted(tenures) for shard in sorted(tenures[name])],
        read=sum(tenure.done for held in tenures.values() for tenure in held.values()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """What is to be told to the group between two batches."""

    saves: Mapping[int, int]
    releases: Mapping[int, int]
    """With their last checkpoints: asked back, or read to their end."""


def boundary(tenures: Tenures, leases: Mapping[int, Lease], info: StreamInfo) -> Boundary:
    """Between two batches, when all that was planned is done."""
    saves, releases = {}, {}
    for number, tenure in tenures.items():
        shard = info.shards[number] if number < len(info.shards) else None
        has_ended = shard is not None and not shard.is_open and tenure.done >= shard.next_offset
        if not leases[number].is_wanted or has_ended:
            releases[number] = tenure.checkpoint
        elif tenure.done > tenure.saved:
            saves[number] = tenure.checkpoint
    return Boundary(saves=saves, releases=releases)


def is_ahead(info: StreamInfo, tenures: Tenures) -> bool:
    """Whether a shard came with a checkpoint behind the end that its stream had when it was looked at: its
    owner before has read what was appended since."""
    return any(
        number < len(info.shards) and tenure.done > info.shards[number].next_offset
        for number, tenure in tenures.items()
    )


def may_come(
    seen: GroupInfo, name: str, shards: Collection[int], until: Mapping[int, int] | None = None
) -> bool:
    """Whether one of these shards may still come to the member of this name, with something left to do.

    One that another holds stays with it. One that waits for its parents comes to whoever is alone with it.
    """
    is_alone = all(member.name == name for member in seen.members)
    return any(
        shard.id in shards
        and shard.state is not ShardState.OVER
        and (until is None or shard.checkpoint < until.get(shard.id, 0))
        and shard.owner in {None, name}
        and (is_alone or shard.state is not ShardState.WAIT)
        for shard in seen.shards
    )


def due(
    info: StreamInfo,
    tenures: Tenures,
    leases: Mapping[int, Lease],
    *,
    group_id: int,
    is_leased: bool,
    strict: bool,
    until: Mapping[int, int] | None = None,
) -> list[Span]:
    """What may be read now of the shards that are held and not asked back."""
    spans = []
    for number, tenure in sorted(tenures.items()):
        if number >= len(info.shards) or number not in leases or not leases[number].is_wanted:
            continue
        shard = info.shards[number]
        start = kept(str(info.full_name), shard, tenure.done, strict=strict)
        end = shard.next_offset if until is None else min(shard.next_offset, until.get(number, 0))
        if start < end:
            owner = Owner(group_id, tenure.epoch, is_leased)
            spans.append(replace(span_of(info, shard, start, end), owner=owner, beyond=tenure.beyond))
    return spans


def replaced(known: Mapping[str, int], streams: Mapping[str, StreamInfo]) -> list[str]:
    """Of the streams that are known by these ids, those that were deleted and made anew."""
    return sorted(name for name, info in streams.items() if known.get(name, info.id) != info.id)


def gone(known: Mapping[str, int], streams: Mapping[str, StreamInfo], wanted: Collection[str]) -> list[str]:
    """Those that are not there any more, though the query is still to read them. Where one stands that
    it is not to read any more, its group knows."""
    return sorted(name for name in known if name not in streams and name in wanted)


def replayed(
    parts: Sequence[Part], info: StreamInfo, tenures: Tenures, *, group_id: int, is_leased: bool
) -> list[Span]:
    """What is left of a batch that an earlier run of the query began: by the group's checkpoints, and only of
    shards that are held now. What another member has done since, or has in hand, is not read again; and a
    checkpoint that was set back is for the next batch to follow."""
    spans = []
    for part in parts:
        tenure = tenures.get(part.shard)
        if tenure is None or part.stream_id != info.id or not part.start <= tenure.done < part.end:
            continue
        shard = info.shards[part.shard]
        end = min(part.end, shard.next_offset)
        if tenure.done < end:
            owner = Owner(group_id, tenure.epoch, is_leased)
            spans.append(replace(span_of(info, shard, tenure.done, end), owner=owner, beyond=tenure.beyond))
    return spans
