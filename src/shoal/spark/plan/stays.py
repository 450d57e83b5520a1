"""Which shards a query with a processor gives to its tasks, from what the group says of them.

Nothing that Spark remembers counts here: where a shard stands is the group's checkpoint, which the tasks move
under the epoch that they are given. So a batch that is repeated, or cut short, is simply planned anew.

Invariants: nothing is given out of a shard that is to be handed back; a shard that user code came back from
without declaring all of it done is not given out again before there is something new, or something moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shoal.core.describing import GroupShard
from shoal.core.holding import Lease
from shoal.core.model import StreamInfo
from shoal.spark.plan.spans import Owner, Span, span_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What was last given out of a shard."""

    epoch: int
    done: int
    """The checkpoint at that time."""
    end: int


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
    until: Mapping[int, int] | None = None,
) -> list[Span]:
    """What tasks are given now: from each shard's checkpoint to its end as of now.

    The end of a closed shard is given with one more than it holds: who comes there sees that it has ended.
    `until` bounds each shard, and leaves out those that it does not name.
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
        if done < end and _is_worth_it(offers.get(number), known, end):
            owner = Owner(group_id, lease.epoch, is_leased)
            spans.append(replace(span_of(info, shard, done, end), owner=owner))
    return spans


def offered(spans: list[Span], offers: Mapping[int, Offer]) -> dict[int, Offer]:
    """The offers once these spans of the same stream have been given out."""
    after = dict(offers)
    for span in spans:
        assert span.owner is not None
        after[span.shard] = Offer(epoch=span.owner.epoch, done=span.start, end=span.end)
    return after


def _is_worth_it(last: Offer | None, known: GroupShard, end: int) -> bool:
    """Whether anything has changed since the shard was last given out, or is to be tried again."""
    if last is None or last.epoch != known.epoch:
        return True
    return end > last.end or int(known.checkpoint) != last.done or known.blocked is not None
