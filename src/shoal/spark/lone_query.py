"""A streaming query that reads for itself: Spark's checkpoint says how far it is, and a group may look on.

With a group, the query is its only member: it holds the shards, and saves its progress as their checkpoints,
so that lag can be seen where any group's is. That is a mirror: what is read follows from Spark's offsets.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from shoal.connect import Hub
from shoal.core.errors import InvalidInput, ShoalError, StreamReplaced, UnknownStream
from shoal.core.model import StreamInfo
from shoal.core.names import stream_name
from shoal.spark.memberships import Memberships, groups_of, order_of, tell_group
from shoal.spark.news import News
from shoal.spark.plan.limits import Limits
from shoal.spark.plan.mirroring import behind, mirrored, set_back, taken, unheld
from shoal.spark.plan.offsets import Positions, StreamPositions, between, new_in, new_to, positions_of
from shoal.spark.plan.parting import Parting, parting
from shoal.spark.plan.spans import Span, awaited, begun_in, due, limited, reached, standing, turns
from shoal.spark.plan.starting import Kind, Place
from shoal.spark.plan.stays import asked_back
from shoal.spark.source_options import SourceOptions
from shoal.spark.starting_points import offsets_of
from shoal.spark.streams import OUTAGE_S, Check, seen_again, streams_at_first, streams_now

_log: Final = logging.getLogger("shoal.spark")
_STOP_S: Final = 3.0
"""How long a stop waits for a store that is away: the checkpoint is Spark's, and this only its mirror."""


class LoneQuery:
    """See Query."""

    def __init__(self, hub: Hub, options: SourceOptions, news: News, check: Check) -> None:
        self._hub, self._options, self._news, self._check = hub, options, news, check
        self._until: dict[str, dict[int, int]] | None = None
        self._group: Memberships | None = None
        self._first: Positions | None = None
        """Where a query begins that has no checkpoint yet."""
        self._positions: Positions | None = None
        """All below is done, as Spark last said."""
        self._saved: dict[tuple[int, int, int], int] = {}
        """By stream's id, shard and epoch: a group that was reset has forgotten it."""
        self._order: dict[str, bool] = {}
        """By stream, as its group said when it last looked: that may be changed."""
        self._at_work: Sequence[Span] = ()
        """What tasks may be at."""

    def initial(self) -> dict[str, Any]:
        options = self._options
        streams = streams_at_first(self._hub, options.subscription)
        if options.group is not None:
            groups_of(self._hub, streams, options, is_first=True)
        place = options.start or Place(kind=Kind.LATEST if options.group is None else Kind.GROUP)
        starts = offsets_of(
            self._hub,
            streams,
            place,
            option="startingOffsets",
            group=options.group,
            otherwise=Kind.EARLIEST,
            strict=options.strict,
        )
        # Nobody joins yet: when a first batch is run again, its name is that of its end.
        self._first = Positions(
            query=secrets.token_hex(4),
            streams={
                name: StreamPositions(id=info.id, shards=starts[name]) for name, info in streams.items()
            },
        )
        return self._first.to_json()

    def latest(self, start: dict[str, Any], limits: Limits) -> tuple[dict[str, Any], int | None]:
        self._at_work = ()
        positions = positions_of(start)
        streams: Mapping[str, StreamInfo] = self._streams(positions)
        self._positions = positions
        if self._options.group is not None:
            self._join(positions.query, streams)
            self._mirror(streams)
        self._order = order_of(self._hub, streams, self._options)
        if new := new_to(positions, streams):
            # Its others may have read on between our look at the streams and the time that we joined.
            streams = seen_again(self._hub, self._options.subscription, streams, strict=self._options.strict)
        begun = self._come_to({name: streams[name] for name in new})
        at = {
            name: self._at(info, begun[name] if name in begun else positions.streams[name].shards)
            for name, info in streams.items()
        }
        spans = [
            span
            for name, info in streams.items()
            for span in due(
                info,
                at[name],
                in_order=self._order[name],
                until=None if self._until is None else self._until.get(name, {}),
            )
        ]
        self._refuse_taken(spans)
        available = awaited(spans, streams)
        chosen = limited(
            spans, records_max=limits.records_max, bytes_max=limits.bytes_max, turns=turns(streams, at)
        )
        end = Positions(
            query=positions.query,
            streams={
                name: StreamPositions(
                    id=info.id, shards=reached(at[name], (one for one in chosen if one.stream == name))
                )
                for name, info in streams.items()
            },
        )
        if end == replace(positions, first=None):
            if self._until is not None:
                self._wait_for_mirror(streams)
            self._news.seen(streams.values())
            return start, available
        begins = positions.streams if positions == self._first else {}
        first = {**begins, **new_in(end, positions, at)}  # Some may have come before its first batch.
        return replace(end, first=first or None).to_json(), available

    def spans(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Span]:
        began, ended = positions_of(start), positions_of(end)
        if self._options.group is not None and self._group is None:  # An earlier run's batch, run again.
            self._join(ended.query, self._streams(ended))
        self._at_work = between(began, ended)
        return self._at_work

    def ordered(self) -> Sequence[str]:
        if self._positions is None:
            options = self._options
            streams = streams_now(self._hub, options.subscription, strict=options.strict)
            self._order = order_of(self._hub, streams, options)
        return [name for name, is_ordered in self._order.items() if is_ordered]

    def ends(self) -> dict[str, Any] | None:
        if self._positions is None:
            return None
        return Positions(query=self._positions.query, streams=self._ends).to_json()

    def available_now(self) -> None:
        streams = streams_now(self._hub, self._options.subscription, strict=self._options.strict)
        self._until = {
            name: {shard.id: shard.next_offset for shard in info.shards} for name, info in streams.items()
        }

    def stop(self) -> None:
        """In the midst of a batch nothing is handed over: its tasks may outlive the query, no fence stops
        them, and who got their shards now could overtake them. The same query, begun again, need not wait."""
        if self._group is None:
            return
        match parting(self._at_work):
            case Parting.FALL_SILENT:
                _log.warning(
                    "%s was stopped before it looked for more after its last batch: "
                    "its shards come free after the group's timeout",
                    self._group.name,
                )
                self._group.abandon()
            case Parting.HAND_OVER:
                self._mirror_last()
                self._group.leave({})

    # --- Streams. ---

    def _streams(self, positions: Positions) -> dict[str, StreamInfo]:
        strict = self._options.strict
        streams = streams_now(self._hub, self._options.subscription, strict=strict)
        for name, known in positions.streams.items():
            info = streams.get(name)
            if info is not None and info.id == known.id:
                continue
            gone = self._gone(name) if info is None else StreamReplaced(name)
            if strict:
                raise gone
            _log.warning("failOnDataLoss=false: %s", gone)
        self._check(streams.values())
        self._ends = {
            name: StreamPositions(id=info.id, shards={shard.id: shard.next_offset for shard in info.shards})
            for name, info in streams.items()
        }
        return streams

    def _gone(self, name: str) -> ShoalError:
        """Why a stream is not among those that are read any more: it is not there, or not asked for."""
        full = stream_name(name)
        if full not in self._options.subscription.wanted([full]):
            return InvalidInput(
                "stream",
                name,
                "the query has read it until now, and is not to read it any more; give it another "
                "checkpointLocation, or failOnDataLoss=false",
            )
        return UnknownStream(name)

    def _come_to(self, new: Mapping[str, StreamInfo]) -> dict[str, dict[int, int]]:
        """Where the query stands in streams that are new to it: where its group does, which has nobody else
        by now; without a group before the first record that is there."""
        if self._options.group is None:
            return {name: begun_in(info) for name, info in new.items()}
        return offsets_of(
            self._hub,
            new,
            Place(kind=Kind.GROUP),
            option="startingOffsets",
            group=self._options.group,
            otherwise=Kind.EARLIEST,
            strict=self._options.strict,
        )

    def _at(self, info: StreamInfo, before: Mapping[int, int]) -> dict[int, int]:
        at = standing(info, before, strict=self._options.strict)
        for shard, there in at.items():
            if there != before.get(shard, 0):
                _log.warning(
                    "failOnDataLoss=false: %s, shard %s: from %s to %s",
                    info.full_name,
                    shard,
                    before.get(shard, 0),
                    there,
                )
        return at

    # --- The group that looks on. ---

    def _join(self, query: str, streams: Mapping[str, StreamInfo]) -> None:
        if self._group is None:
            self._group = Memberships(self._hub, self._options, query, self._news.ring)
        self._group.join(streams)

    def _mirror(self, streams: Mapping[str, StreamInfo], within_s: float = OUTAGE_S) -> None:
        """Save what Spark has done as the group's checkpoints, of all that is held by now."""
        if self._group is None or self._positions is None:
            return
        for name in self._group.streams:
            known, info = self._positions.streams.get(name), streams.get(name)
            if known is None or info is None or known.id != info.id:
                continue
            leases = self._group.leases(name)
            asked = asked_back(leases)
            back = set_back(asked, self._group.name, self._group.see(name)) if asked else []
            saved = {
                number: self._saved.get((info.id, number, lease.epoch), int(lease.checkpoint))
                for number, lease in leases.items()
                if number not in back
            }
            said = mirrored(info, known.shards, saved)
            membership, epochs = self._group.of(name), {number: leases[number].epoch for number in said.saves}
            if said.saves and tell_group(partial(membership.checkpoint, said.saves, epochs=epochs), within_s):
                self._saved.update(
                    {(info.id, number, epochs[number]): offset for number, offset in said.saves.items()}
                )
            if releases := {**dict.fromkeys(back), **said.releases}:
                tell_group(partial(membership.release, releases), within_s)

    def _refuse_taken(self, spans: Sequence[Span]) -> None:
        """What the group has given to another meanwhile is not read beside it."""
        if self._group is None:
            return
        group = self._group
        for stream in unheld(spans, {name: group.leases(name).keys() for name in group.streams}):
            if others := taken(spans, stream, group.name, group.see(stream), group.silent):
                whose = ", ".join(f"shard {shard} is {owner}'s" for shard, owner in list(others.items())[:5])
                raise InvalidInput(
                    "group",
                    group.group,
                    f"it has given to others what this query reads ({whose}), and without member=true a "
                    "query takes all of it; stop them and begin again, or share it with member=true",
                )

    def _mirror_last(self) -> None:
        try:
            if self._positions is not None:
                streams = streams_now(self._hub, self._options.subscription, strict=False, within_s=_STOP_S)
                self._mirror(streams, within_s=_STOP_S)
        except ShoalError as error:
            _log.warning("the last progress is not mirrored: %s", error)

    def _wait_for_mirror(self, streams: Mapping[str, StreamInfo]) -> None:
        """An AvailableNow query is over when nothing is new. After a crash its shards may still be its dead
        self's, and come when the group has noticed: so long their progress waits to be saved."""
        if self._group is None or self._positions is None:
            return
        deadline = time.monotonic() + self._group.patience_s
        while late := self._not_mirrored(streams):
            if time.monotonic() > deadline:
                _log.warning("the last progress is not mirrored: shards %s are not held", late)
                return
            self._news.looking()
            self._news.wait()
            self._mirror(streams)

    def _not_mirrored(self, streams: Mapping[str, StreamInfo]) -> list[tuple[str, int]]:
        assert self._group is not None
        assert self._positions is not None
        found = []
        for name in self._group.streams:
            known, info = self._positions.streams.get(name), streams.get(name)
            if known is not None and info is not None and known.id == info.id:
                saved = {int(shard.id): int(shard.checkpoint) for shard in self._group.see(name).shards}
                found += [(name, shard) for shard in behind(saved, known.shards)]
        return found
