"""A streaming query that shares its group with others: it reads the shards that it holds, under their epochs.

Spark's offset is only the list of what the last batch was made of. Where a shard goes on, the group's
checkpoint says each time that it comes. Between two batches, and only there, progress is saved, and what is
asked back is let go of.
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from shoal.connect import Hub
from shoal.consumer.membership import insist
from shoal.core.errors import ShoalError, StoreError, StreamReplaced, UnknownStream
from shoal.core.model import StreamInfo
from shoal.core.names import stream_name
from shoal.spark.memberships import Memberships, groups_of, order_of, tell_group
from shoal.spark.news import News
from shoal.spark.plan import members
from shoal.spark.plan.limits import Limits
from shoal.spark.plan.members import Tenure, may_come
from shoal.spark.plan.offsets import (
    Manifest,
    Part,
    Positions,
    StreamPositions,
    manifest,
    manifest_of,
)
from shoal.spark.plan.parting import Parting, parting
from shoal.spark.plan.spans import Span, awaited, limited
from shoal.spark.plan.starting import check_streams
from shoal.spark.source_options import SourceOptions
from shoal.spark.streams import OUTAGE_S, Check, seen_again, streams_at_first, streams_now

_log: Final = logging.getLogger("shoal.spark")
_FIRST_S: Final = 2.0


class MemberQuery:
    """See Query."""

    def __init__(self, hub: Hub, options: SourceOptions, news: News, check: Check) -> None:
        self._hub, self._options, self._news, self._check = hub, options, news, check
        self._until: dict[str, dict[int, int]] | None = None
        self._group: Memberships | None = None
        self._tenures: dict[str, dict[int, Tenure]] = {}
        self._planned: dict[str, list[Span]] = {}
        """The batch that was planned last, by its offset: what its tasks read; a replay may be cut."""
        self._query: str | None = None
        self._ends: dict[str, StreamPositions] = {}
        self._at_work: Sequence[Span] = ()
        """What tasks may be at."""
        self._has_looked = False
        """A batch was planned, or there was nothing to plan: first shards are not waited for any more."""

    def initial(self) -> dict[str, Any]:
        streams = streams_at_first(self._hub, self._options.subscription)
        if self._options.start is not None:
            check_streams("startingOffsets", self._options.start, streams)
        groups_of(self._hub, streams, self._options, is_first=True)  # They begin now, if they are made.
        # Nobody joins yet: when a first batch is run again, its name is that of its end.
        return Manifest(query=secrets.token_hex(4)).to_json()

    def latest(self, start: dict[str, Any], limits: Limits) -> tuple[dict[str, Any], int | None]:
        self._at_work = ()
        before = manifest(start)
        streams: Mapping[str, StreamInfo] = self._look(before)
        if not self._has_looked:
            self._wait_for_first(streams)
            self._has_looked = True
        parts = self._parts(start, before)
        for name, info in streams.items():
            self._close_batch(name, info, parts)
        assert self._group is not None
        self._group.check_order()
        streams = self._no_older_than_tenures(streams)
        spans = self._due(streams)
        if not spans and self._until is not None:
            streams, spans = self._wait_for_due(streams)
        chosen = limited(
            spans,
            records_max=limits.records_max,
            bytes_max=limits.bytes_max,
            turns=members.turns(self._tenures),
        )
        if not chosen:
            self._news.seen(streams.values())
            return start, None
        end = manifest_of(before.query, chosen, _ids(streams)).to_json()
        self._planned = {offset_key(end): chosen}
        return end, awaited(spans, streams)

    def spans(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Span]:
        del start
        key = offset_key(end)
        if key not in self._planned:
            batch = manifest(end)
            streams = self._look(batch)
            self._wait_for(batch.parts, streams)
            self._planned = {key: self._replayed(batch.parts, streams)}
        self._at_work = self._planned[key]
        return self._at_work

    def ordered(self) -> Sequence[str]:
        """As its groups say, which it looks at between batches."""
        if self._group is not None:
            return self._group.ordered()
        options = self._options
        streams = streams_now(self._hub, options.subscription, strict=options.strict)
        return [name for name, is_ordered in order_of(self._hub, streams, options).items() if is_ordered]

    def ends(self) -> dict[str, Any] | None:
        if self._query is None:
            return None
        said = Positions(query=self._query, streams=self._ends).to_json()
        if self._group is not None:
            said |= {"group": self._group.group, "member": self._group.name}
            said |= {"host": socket.gethostname(), "process": self._group.process}
        return said

    def available_now(self) -> None:
        streams = streams_now(self._hub, self._options.subscription, strict=self._options.strict)
        self._until = {
            name: {shard.id: shard.next_offset for shard in info.shards} for name, info in streams.items()
        }

    def stop(self) -> None:
        """What the last finished batch brought is saved with it. In the midst of a batch nothing is handed
        over: its tasks may outlive the query, and who got their shards now could overtake them."""
        if self._group is None:
            return
        match parting(self._at_work):
            case Parting.FALL_SILENT:
                _log.warning(
                    "%s was stopped before it looked for more after its last batch: "
                    "its shards come free after the group's timeout; "
                    "shoal.spark.drain(query, hub) hands them over",
                    self._group.name,
                )
                self._group.abandon()
            case Parting.HAND_OVER:
                self._group.leave(
                    {
                        name: {shard: tenure.checkpoint for shard, tenure in tenures.items()}
                        for name, tenures in self._tenures.items()
                    }
                )

    # --- Between two batches. ---

    def _parts(self, start: dict[str, Any], before: Manifest) -> Sequence[Part]:
        """What the batch that is over was made of, as it was read."""
        planned = self._planned.get(offset_key(start))
        return before.parts if planned is None else manifest_of(before.query, planned, {}).parts

    def _close_batch(self, name: str, info: StreamInfo, parts: Sequence[Part]) -> None:
        """Save what it brought, and let go of what is asked back or has ended."""
        assert self._group is not None
        membership = self._group.of(name)
        self._group.see(name)
        leases = self._group.leases(name)
        tenures = members.held(self._tenures.get(name, {}), leases)
        tenures = members.finished(tenures, info.id, [part for part in parts if part.stream == name])
        if not self._options.strict:
            tenures = self._passed(name, tenures, info)
        told = members.boundary(tenures, leases, info)
        epochs = {shard: tenure.epoch for shard, tenure in tenures.items()}
        if told.saves:
            saved = tell_group(partial(membership.checkpoint, told.saves, epochs=epochs))
            for shard, offset in told.saves.items():
                one = {shard: offset}
                # All or none: if one of them is not ours any more, the others are saved one by one.
                if saved or tell_group(partial(membership.checkpoint, one, epochs=epochs)):
                    tenures[shard] = replace(tenures[shard], saved=int(offset))
                else:
                    del tenures[shard]
        if told.releases:
            tell_group(partial(membership.release, told.releases, epochs=epochs))
            for shard in told.releases:
                del tenures[shard]
        self._tenures[name] = tenures

    def _passed(self, name: str, tenures: members.Tenures, info: StreamInfo) -> dict[int, Tenure]:
        """Past what retention took: saved, and an end that is reached so, let go of."""
        after = members.passed(tenures, info)
        for shard, tenure in after.items():
            if tenure.done != tenures[shard].done:
                _log.warning(
                    "failOnDataLoss=false: %s, shard %s: from %s to %s",
                    name,
                    shard,
                    tenures[shard].done,
                    tenure.done,
                )
        return after

    def _due(self, streams: Mapping[str, StreamInfo]) -> list[Span]:
        assert self._group is not None
        found = []
        for name, info in streams.items():
            membership, tenures = self._group.of(name), self._tenures[name]
            leases = {
                shard: lease
                for shard, lease in self._group.leases(name).items()
                if shard in tenures
                and tenures[shard].epoch == lease.epoch
                and membership.may_act(shard, lease.epoch)
            }
            found += members.due(
                info,
                tenures,
                leases,
                group_id=membership.group_id,
                is_leased=self._group.is_leased(name),
                strict=self._options.strict,
                until=None if self._until is None else self._until.get(name, {}),
            )
        return found

    def _no_older_than_tenures(self, streams: Mapping[str, StreamInfo]) -> Mapping[str, StreamInfo]:
        """We looked at the streams before we waited for shards, and others may have read on meanwhile."""
        if not any(members.is_ahead(info, self._tenures.get(name, {})) for name, info in streams.items()):
            return streams
        return seen_again(self._hub, self._options.subscription, streams, strict=self._options.strict)

    # --- What an earlier run began. ---

    def _replayed(self, parts: Sequence[Part], streams: Mapping[str, StreamInfo]) -> list[Span]:
        assert self._group is not None
        found = []
        for name, info in streams.items():
            self._tenures[name] = members.held(self._tenures.get(name, {}), self._group.leases(name))
            found += members.replayed(
                [part for part in parts if part.stream == name],
                info,
                self._tenures[name],
                group_id=self._group.of(name).group_id,
                is_leased=self._group.is_leased(name),
            )
        return found

    def _wait_for(self, parts: Sequence[Part], streams: Mapping[str, StreamInfo]) -> None:
        """Until each shard is here or with another member: our own past life may still hold it."""
        assert self._group is not None
        wanted = {name: {part.shard for part in parts if part.stream == name} for name in streams}
        deadline = time.monotonic() + self._group.patience_s
        while time.monotonic() < deadline and any(
            self._may_come(name, shards, set(self._group.leases(name))) for name, shards in wanted.items()
        ):
            self._rest()

    def _wait_for_first(self, streams: Mapping[str, StreamInfo]) -> None:
        """A moment, for a new member's first shards: Spark would begin with a batch of nothing."""
        assert self._group is not None
        deadline = time.monotonic() + _FIRST_S
        while time.monotonic() < deadline and not any(self._group.of(name).leases for name in streams):
            self._rest()

    def _wait_for_due(self, streams: Mapping[str, StreamInfo]) -> tuple[Mapping[str, StreamInfo], list[Span]]:
        """An AvailableNow query ends when nothing is due: shards that are on their way are waited for. The
        streams are those by which it was found."""
        assert self._group is not None
        assert self._until is not None
        deadline = time.monotonic() + self._group.patience_s
        while time.monotonic() < deadline:
            for name, info in streams.items():
                self._close_batch(name, info, ())
            streams = self._no_older_than_tenures(streams)
            if spans := self._due(streams):
                return streams, spans
            if not any(
                self._may_come(name, set(until), self._mine(name), until)
                for name, until in self._until.items()
                if name in streams
            ):
                break
            self._rest()
        return streams, []

    def _mine(self, name: str) -> set[int]:
        """Shards that were looked at when it was decided what is due."""
        return set(self._tenures[name])

    def _may_come(
        self, name: str, shards: set[int], mine: set[int], until: Mapping[int, int] | None = None
    ) -> bool:
        """Whether one of these shards, with something left to do, is neither `mine` nor with a living one."""
        assert self._group is not None
        if shards <= mine:
            return False
        described = partial(self._hub.describe_group, name, self._group.group)
        seen = insist(described, StoreError, OUTAGE_S)
        return may_come(seen, self._group.name, shards - mine, until)

    def _rest(self) -> None:
        self._news.looking()
        self._news.wait()

    # --- The group. ---

    def _look(self, batch: Manifest) -> dict[str, StreamInfo]:
        """The streams as of now, with a membership on each."""
        strict = self._options.strict
        streams = streams_now(self._hub, self._options.subscription, strict=strict)
        known = {name: seen.id for name, seen in self._ends.items()} or batch.ids
        wanted = {name for name in known if self._options.subscription.wanted([stream_name(name)])}
        lost: list[ShoalError] = [StreamReplaced(name) for name in members.replaced(known, streams)]
        lost += [UnknownStream(name) for name in members.gone(known, streams, wanted)]
        for error in lost:
            if strict:
                raise error
            _log.warning("failOnDataLoss=false: %s", error)
        self._check(streams.values())
        self._join(batch.query, streams)
        for name in [name for name in self._tenures if name not in streams]:
            del self._tenures[name]
        self._ends = {
            name: StreamPositions(id=info.id, shards={shard.id: shard.next_offset for shard in info.shards})
            for name, info in streams.items()
        }
        return streams

    def _join(self, query: str, streams: Mapping[str, StreamInfo]) -> None:
        self._query = query
        if self._group is None:
            self._group = Memberships(self._hub, self._options, query, self._news.ring)
        self._group.join(streams)


def _ids(streams: Mapping[str, StreamInfo]) -> dict[str, int]:
    return {name: info.id for name, info in streams.items()}


def offset_key(offset: Mapping[str, Any]) -> str:
    """An offset of Spark's as a key."""
    return json.dumps(offset)
