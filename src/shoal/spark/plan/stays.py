"""Which shards a query with a processor gives to its tasks, from what the group says of them.

Nothing that Spark remembers counts here: where a shard stands is the group's checkpoint, which the tasks move
under the epoch that they are given. So a batch that is repeated, or cut short, is simply planned anew.

A stay that ended before all of it was handed out, with nothing declared done, leaves the group as it was: its
task says so, as what holds the shard up (`CUT_SHORT`), since nobody else knows.

Invariants: nothing is given out of a shard that is to be handed back; a shard that user code came back from
without declaring all of it done is not given out again before there is something new, or something moved; one
that it was not given all of is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from shoal.core.describing import Block, GroupInfo, GroupShard
from shoal.core.group import MemberStatus
from shoal.core.holding import Lease
from shoal.core.limits import CLOCK_MARGIN
from shoal.core.model import ShardId, StreamInfo
from shoal.core.retry import Backoff
from shoal.spark.plan.spans import Owner, Span, span_of

BLOCKED_S: Final = 2.0
"""So long a task tries to get past what fails; then the plan says when it is tried again. A batch is over
when all its tasks are, and other shards wait for that."""
CUT_SHORT: Final = "CutShort: its stay was over before all of it was handed out; it is given out again"
"""What a task says of such a shard. After no attempt: nothing has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What was last given out of a shard."""

    epoch: int
    done: int
    """The checkpoint at that time."""
    end: int
    times: int = 0
    """How often it has been given out while it was held up, at the same place."""
    due_ms: int = 0
    """Held up, it is not given out again before."""


def asked_back(leases: Mapping[int, Lease]) -> dict[int, int]:
    """Shards that are to be handed back, with their epochs."""
    return {shard: lease.epoch for shard, lease in leases.items() if not lease.is_wanted}


def borrowed(info: GroupInfo, name: str, epochs: Mapping[int, int], asked_ms: int) -> dict[ShardId, Lease]:
    """What a task may work on under these epochs, from a look at its member's group that was asked for then.

    A task has no heartbeat of its own: its deadline follows from the silence that the group has counted.
    """
    # A newer incarnation of the same name does not speak for the one that we work for.
    holders = [member for member in info.members if member.name == name]
    if not holders:
        return {}
    # An observer may add up to one heartbeat's interval to the silence right after this look; and the row
    # that counts for a leased group may be a heartbeat behind the one that is shown.
    left_ms = min(holder.timeout_ms // 2 - holder.silent_ms for holder in holders)
    is_staying = all(holder.status is MemberStatus.ACTIVE for holder in holders)
    return {
        shard.id: Lease(
            shard=shard.id,
            epoch=shard.epoch,
            checkpoint=shard.checkpoint,
            deadline_ms=asked_ms + round(left_ms * (1 - CLOCK_MARGIN)),
            is_wanted=shard.next is None and is_staying,
        )
        for shard in info.shards
        if shard.owner == name and epochs.get(shard.id) == shard.epoch
    }


def due(
    info: StreamInfo,
    leases: Mapping[int, Lease],
    seen: Mapping[int, GroupShard],
    offers: Mapping[int, Offer],
    *,
    group_id: int,
    is_leased: bool,
    now_ms: int,
    until: Mapping[int, int] | None = None,
) -> list[Span]:
    """What tasks are given now: from each shard's checkpoint to its end as of now.

    A shard that is held up is tried again by and by: others wait for the end of its batch. The end of a
    closed shard is given with one more than it holds: who comes there sees that it has ended. `until` bounds
    each shard, and leaves out those that it does not name.
    """
    spans = []
    for number, lease in sorted(leases.items()):
        known = seen.get(number)
        if not lease.is_wanted or known is None or known.epoch != lease.epoch or number >= len(info.shards):
            continue
        shard, done = info.shards[number], int(known.checkpoint)
        end = shard.next_offset if until is None else min(shard.next_offset, until.get(number, -1))
        if not shard.is_open and end == shard.next_offset:
            end += 1
        if done < end and _is_worth_it(offers.get(number), known, end, now_ms):
            owner = Owner(group_id, lease.epoch, is_leased)
            spans.append(replace(span_of(info, shard, done, end), owner=owner))
    return spans


def offered(
    spans: Sequence[Span], offers: Mapping[int, Offer], backoff: Backoff, *, now_ms: int, dice: float
) -> dict[int, Offer]:
    """The offers once these spans of the same stream have been given out."""
    after = dict(offers)
    for span in spans:
        assert span.owner is not None
        last, epoch = offers.get(span.shard), span.owner.epoch
        is_again = last is not None and last.epoch == epoch and last.done == span.start
        times = last.times + 1 if last is not None and is_again else 0
        after[span.shard] = Offer(
            epoch=epoch,
            done=span.start,
            end=span.end,
            times=times,
            due_ms=now_ms + backoff.delay_ms(times + 1, dice),
        )
    return after


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a stay is with one of its shards."""

    is_blocked: bool
    has_moved: bool
    """Something of it was declared done."""


def late(held: Callable[[], Mapping[ShardId, Standing]], *, seconds: float, batch_s: float) -> set[int]:
    """Of the shards that a stay has in hand for so long, those whose rest waits for the next one: they are
    held up, or something of them is done.

    One that user code has said nothing about goes on: it would begin anew where it began.
    """
    if seconds < min(batch_s, BLOCKED_S):
        return set()
    is_over_time = seconds >= batch_s
    return {int(shard) for shard, one in held().items() if one.is_blocked or (is_over_time and one.has_moved)}


def cut_short(
    seen: GroupInfo, info: StreamInfo, spans: Iterable[Span], finished: Collection[int]
) -> dict[ShardId, Block]:
    """After a stay, what its task is to say: of the shards that were not handed out to their end, and stand
    where they stood, so that nobody could see it.

    Of a closed shard there may be nothing left to hand out but its end.
    """
    found = {}
    shards = {shard.id: shard for shard in seen.shards}
    for span in spans:
        known = shards.get(ShardId(span.shard))
        if known is None or span.owner is None or span.shard in finished:
            continue
        is_ours = known.owner is not None and known.epoch == span.owner.epoch
        is_unseen = int(known.checkpoint) == span.start and known.blocked is None
        if is_ours and is_unseen and span.start < info.shards[span.shard].next_offset:
            found[known.id] = Block(epoch=known.epoch, attempts=0, error=CUT_SHORT)
    return found


def failures(seen: Mapping[ShardId, Block]) -> dict[ShardId, str]:
    """What user code has raised, of what holds shards up."""
    return {shard: block.error for shard, block in seen.items() if block.attempts}


def _is_worth_it(last: Offer | None, known: GroupShard, end: int, now_ms: int) -> bool:
    """Whether anything has changed since the shard was last given out, or is to be tried again."""
    if last is None or last.epoch != known.epoch or int(known.checkpoint) != last.done:
        return True
    if known.blocked is not None:
        return not known.blocked.attempts or now_ms >= last.due_ms
    return end > last.end
