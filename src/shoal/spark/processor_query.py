"""A query that gives shards to processors: a member of the group, which hands its leases to tasks.

The process that Spark keeps for the source holds the membership, and beats. Tasks work under its epochs, and
move the group's checkpoints themselves; so between two batches there is nothing to save, and what is asked
back is let go of as it stands.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from shoal.connect import Hub
from shoal.consumer.membership import boot_ms
from shoal.core.aside import retry_stream
from shoal.core.describing import GroupShard
from shoal.core.limits import OFFSET_MAX
from shoal.core.model import StreamInfo
from shoal.core.names import stream_name
from shoal.core.retry import FailureRules
from shoal.spark.member_query import MemberQuery, offset_key
from shoal.spark.memberships import tell_group
from shoal.spark.news import News
from shoal.spark.plan import stays
from shoal.spark.plan.limits import Limits
from shoal.spark.plan.offsets import Part
from shoal.spark.plan.spans import Span
from shoal.spark.plan.stays import Offer
from shoal.spark.source_options import SourceOptions

_ROUND: Final = "round"
"""In Spark's offsets: two batches may be made of the same parts, when nothing was declared done."""


class ProcessorQuery(MemberQuery):
    """See Query. Of the main stream, and of the retry stream if there is one."""

    def __init__(
        self, hub: Hub, options: SourceOptions, news: News, *, stream: str, rules: FailureRules
    ) -> None:
        super().__init__(hub, options, news, check=lambda _: None)
        self._rules = rules
        assert options.group is not None
        self._retry = str(retry_stream(stream_name(stream), options.group))
        self._seen: dict[str, dict[int, GroupShard]] = {}
        """The group as of the last boundary, by stream and shard."""
        self._offers: dict[str, dict[int, Offer]] = {}
        self._looked_at: dict[str, set[int]] = {}

    @property
    def member(self) -> str:
        """The name under which the group knows the query."""
        assert self._group is not None
        return self._group.name

    def latest(self, start: dict[str, Any], limits: Limits) -> tuple[dict[str, Any], int | None]:
        end, available = super().latest(start, limits)
        if end is start:
            return start, None
        spans = self._planned[offset_key(end)]
        for name in {span.stream for span in spans}:
            mine = [span for span in spans if span.stream == name]
            self._offers[name] = stays.offered(
                mine,
                self._offers.get(name, {}),
                self._rules.backoff,
                now_ms=boot_ms(),
                dice=random.random(),
            )
        end = {**end, _ROUND: int(start.get(_ROUND, 0)) + 1}
        self._planned = {offset_key(end): spans}
        return end, available

    def spans(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Span]:
        """What an earlier run began is not repeated as it was, but planned anew from where the group is."""
        del start
        self._at_work = self._planned.get(offset_key(end), [])
        return self._at_work

    def in_order(self) -> bool:
        return True  # A shard is one lane, whatever the group says of its ancestors.

    def available_now(self) -> None:
        super().available_now()
        assert self._until is not None
        # What waits for another attempt is not waited for; what comes of it meanwhile is tried.
        self._until.pop(self._retry, None)

    # --- Between two batches. ---

    def _close_batch(self, name: str, info: StreamInfo, parts: Sequence[Part]) -> None:
        """Let go of what is asked back, and see where the group stands."""
        del info, parts
        assert self._group is not None
        membership = self._group.of(name)
        described = self._group.see(name)
        epochs = stays.asked_back(self._group.leases(name))
        if epochs:
            tell_group(partial(membership.release, dict.fromkeys(epochs), epochs=epochs))
            described = self._group.see(name)
        self._seen[name] = {int(shard.id): shard for shard in described.shards}

    def _due(self, streams: Mapping[str, StreamInfo]) -> list[Span]:
        assert self._group is not None
        found = []
        for name, info in streams.items():
            membership = self._group.of(name)
            leases = {
                shard: lease
                for shard, lease in self._group.leases(name).items()
                if membership.may_act(shard, lease.epoch)
            }
            self._looked_at[name] = set(leases)
            until = None
            if self._until is not None and name != self._retry:
                until = self._until.get(name, {})
            found += stays.due(
                info,
                leases,
                self._seen[name],
                self._offers.get(name, {}),
                group_id=membership.group_id,
                is_leased=self._group.is_leased(name),
                # A query that ends when nothing is due must not take a shard that waits for one that is done.
                now_ms=OFFSET_MAX if self._until is not None else boot_ms(),
                until=until,
            )
        return found

    def _mine(self, name: str) -> set[int]:
        return self._looked_at[name]
