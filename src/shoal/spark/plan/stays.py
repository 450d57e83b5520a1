"""Which shards a query with a processor gives to its tasks, from what the group says of them.

Nothing that Spark remembers counts here: where a shard stands is the group's checkpoint, which the tasks move
under the epoch that they are given. So a batch that is repeated, or cut short, is simply planned anew.

Invariants: nothing is given out of a shard that is to be handed back; a shard that user code came back from
without declaring all of it done is not given out again before there is something new, or something moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.core.describing import GroupShard
from shoal.core.holding import Lease
from shoal.core.model import StreamInfo
from shoal.core.retry import Backoff
from shoal.spark.plan.spans import Owner, Span, span_of


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


def _is_worth_it(last: Offer | None, known: GroupShard, end: int, now_ms: int) -> bool:
    """Whether anything has changed since the shard was last given out, or is to be tried again."""
    if last is None or last.epoch != known.epoch or int(known.checkpoint) != last.done:
        return True
    return now_ms >= last.due_ms if known.blocked is not None else end > last.end
