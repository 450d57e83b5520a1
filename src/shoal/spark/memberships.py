"""A query's memberships of a group: one on each stream that it reads, joined as any consumer joins.

They live in the one process that Spark keeps for the source as long as the query runs. A query is known to
its group by a name that lives in its checkpoint: one that is restarted takes the place of the one that died.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final

from shoal.connect import Hub
from shoal.consumer.joining import see_group
from shoal.consumer.membership import Membership, insist
from shoal.consumer.options import WorkerOptions
from shoal.core.describing import GroupInfo, MemberInfo
from shoal.core.errors import InvalidInput, ShoalError, StoreError, UnknownGroup
from shoal.core.group import Coordination, GroupSettings, MemberStatus
from shoal.core.holding import Lease
from shoal.core.limits import CLOCK_MARGIN
from shoal.core.model import StreamInfo
from shoal.core.names import stream_name
from shoal.spark.plan.members import to_leave
from shoal.spark.plan.mirroring import others_in
from shoal.spark.plan.ordering import check_asked, in_order
from shoal.spark.plan.starting import Kind, Place, group_place, group_start
from shoal.spark.source_options import SourceOptions
from shoal.spark.streams import OUTAGE_S

_log: Final = logging.getLogger("shoal.spark")

LEAVE: Final = signal.SIGUSR1
"""Tells the process of a query's source, on its own machine, to hand over at the end of its batch."""
_LOOK_S: Final = 0.2


class Memberships:
    """Of one query. Used from one thread, Spark's own."""

    def __init__(self, hub: Hub, options: SourceOptions, query: str, changed: Callable[..., None]) -> None:
        assert options.group is not None
        self._hub, self._options, self._changed = hub, options, changed
        self.group = options.group
        self.name = options.member_name or f"spark-{query}"
        self._joined: dict[str, Membership] = {}
        self._ids: dict[str, int] = {}
        self._leaving: dict[str, bool] = {}
        self._settings: dict[str, GroupSettings] = {}
        self._retired: set[str] = set()
        self.silent: dict[str, int] = {}
        """Members of leased groups of which nothing was heard: their counters, by incarnation."""
        self._is_told = False
        """Writer: the handler of a signal. Readers: Spark's thread, which is the same."""
        self.process = 0
        """Where LEAVE is heard, if it is: who does not listen for a signal is ended by it."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(LEAVE, self._leave_soon)
            self.process = os.getpid()

    def join(self, streams: Mapping[str, StreamInfo]) -> None:
        """Become a member on each stream that is new, and leave those that are gone, or were made anew.

        A membership that ended by itself (another process has the query's name, the group is gone) ends the
        query: it would go on for nobody.
        """
        for name in list(self._joined):
            if name not in streams or streams[name].id != self._ids[name]:
                self._joined.pop(name).abandon()
                del self._settings[name]
        for membership in self._joined.values():
            if membership.error is not None:
                raise membership.error
        new = [name for name in streams if name not in self._joined]
        if not new:
            return
        self._settings |= groups_of(self._hub, new, self._options, beside=self._joined)
        if not self._options.is_member:
            insist(partial(self._refuse_others, new), StoreError, OUTAGE_S)
        for name in new:
            self._joined[name] = insist(partial(self._join, name), StoreError, OUTAGE_S)
            self._ids[name] = streams[name].id

    def of(self, stream: str) -> Membership:
        return self._joined[stream]

    def see(self, stream: str) -> GroupInfo:
        """The group as of now. Who drains the query announces there that it will leave."""
        if self._is_told and stream not in self._retired:  # Or it would take what it lets go of.
            insist(self._joined[stream].retire, StoreError, OUTAGE_S)
            self._retired.add(stream)
        describe = partial(self._hub.service.groups.describe, stream_name(stream), self.group)
        info = insist(describe, StoreError, OUTAGE_S)
        self._settings[stream] = info.settings
        mine = self._joined[stream].incarnation
        self._leaving[stream] = self._is_told or any(
            member.incarnation == mine and member.status is MemberStatus.LEAVING for member in info.members
        )
        return info

    def _leave_soon(self, *_: object) -> None:
        """Only a note: it may come while this very thread holds the lock of whatever would be rung. The next
        look at the streams, a second away at most, sees it."""
        self._is_told = True

    def leases(self, stream: str) -> dict[int, Lease]:
        """What is held, by plain numbers. If the query is to leave, all of it is asked back: a group of which
        it is the only member asks for nothing."""
        held = {int(shard): lease for shard, lease in self._joined[stream].leases.items()}
        return to_leave(held) if self._leaving.get(stream) else held

    @property
    def streams(self) -> list[str]:
        return list(self._joined)

    def ordered(self) -> list[str]:
        """The streams whose groups are in order, as they were last seen."""
        return [name for name, settings in self._settings.items() if settings.in_order]

    def check_order(self) -> None:
        """Refuse groups that were changed to what the query was told not to be."""
        for name, settings in self._settings.items():
            check_asked(self._options.in_order, settings.in_order, self.group, name)

    def is_leased(self, stream: str) -> bool:
        return self._settings[stream].coordination is Coordination.LEASED

    @property
    def patience_s(self) -> float:
        """How long shards of one that died may be away: the group's timeout, and time to hand them out."""
        longest = max((settings.timeout_ms for settings in self._settings.values()), default=20_000)
        return longest / 1000 * 1.25 + 2.0

    def leave(self, checkpoints: Mapping[str, Mapping[int, int | None]]) -> None:
        """Hand over what is held, with these last checkpoints."""
        for name, membership in self._joined.items():
            try:
                membership.leave(checkpoints.get(name, {}))
            except ShoalError as error:
                _log.warning("%s leaves %s: %s", self.name, self.group, error)
        self._joined.clear()

    def abandon(self) -> None:
        """Fall silent: tasks may still run, and what is held must not come to others before they are over."""
        for membership in self._joined.values():
            membership.abandon()
        self._joined.clear()

    def _join(self, stream: str) -> Membership:
        membership = self._hub.join_group(stream, self.group, self.name, listener=self._changed)
        if not self._options.is_member:
            try:
                self._refuse_others([stream])  # Two may have found nobody at the same time.
            except InvalidInput:
                membership.leave()
                raise
        return membership

    def _refuse_others(self, streams: Iterable[str]) -> None:
        found = {name: others for name in streams if (others := self._others(name))}
        watched = [name for name in found if not self.is_leased(name)]
        others = found[watched[0]] if watched else self._heard_of(found)
        if others:
            names = ", ".join(f"{one.name}, silent for {one.silent_ms / 1000:.0f} s" for one in others[:5])
            longest_s = max(one.timeout_ms for one in others) / 1000
            raise InvalidInput(
                "group",
                self.group,
                f"{len(others)} consumers use it ({names}), and without member=true a query takes all of it; "
                "stop them, or share it with member=true. One that has died is gone after "
                f"{longest_s:g} s of silence: begin again then",
            )

    def _others(self, stream: str) -> list[MemberInfo]:
        describe = partial(self._hub.describe_group, stream, self.group)
        return others_in(insist(describe, StoreError, OUTAGE_S), self.name, self.silent)

    def _heard_of(self, found: Mapping[str, list[MemberInfo]]) -> list[MemberInfo]:
        """Those of whom something is heard within the time that they said they would act for, on one of these
        streams; all are listened to at once. Nobody but its consumers watches a leased group: the last one,
        if it died, would be its member for ever. An outage of the store counts for nothing."""
        others = [member for those in found.values() for member in those]
        if not others:
            return []
        _log.warning(
            "group %s has other members (%s): waiting to hear whether they are alive",
            self.group,
            ", ".join(member.name for member in others[:5]),
        )
        before = dict(self.silent)
        left_s = max(member.timeout_ms for member in others) / 1000 * (1 + CLOCK_MARGIN)
        self.silent.update({member.incarnation: member.beat for member in others})
        while left_s > 0:
            time.sleep(_LOOK_S)
            left_s -= _LOOK_S
            for stream in found:
                if heard := self._others(stream):
                    self.silent = before
                    return heard
        return []


def groups_of(
    hub: Hub,
    streams: Iterable[str],
    options: SourceOptions,
    *,
    beside: Iterable[str] = (),
    is_first: bool = False,
) -> dict[str, GroupSettings]:
    """The settings of the streams' groups; one that is not there is made, as those are that are, `beside`
    them too. `is_first`: the query begins now, on these streams."""
    assert options.group is not None
    names, found = list(streams), {}
    order = order_of(hub, {*names, *beside}, options)
    for name in names:
        how = WorkerOptions(
            start=_start(hub, name, group_place(options.start, is_first=is_first)),
            timeout=options.group_timeout,
            in_order=order[name],
        )
        found[name] = insist(partial(see_group, hub, name, options.group, how), StoreError, OUTAGE_S)
        check_asked(options.in_order, found[name].in_order, options.group, name)
    return found


def order_of(hub: Hub, streams: Iterable[str], options: SourceOptions) -> dict[str, bool]:
    """By stream, whether it is read in order."""
    if options.in_order is not None or options.group is None:  # No group is asked.
        return in_order(options.in_order is not False, dict.fromkeys(streams))
    return in_order(None, {name: _said(hub, name, options.group) for name in streams})


def _said(hub: Hub, stream: str, group: str) -> bool | None:
    try:
        found = insist(partial(hub.service.groups.find, stream_name(stream), group), StoreError, OUTAGE_S)
    except UnknownGroup:
        return None
    return found.settings.in_order


def _start(hub: Hub, stream: str, place: Place) -> str | datetime | dict[int, int]:
    if place.kind is Kind.EARLIEST:
        return "earliest"
    if place.kind is Kind.LATEST:
        return "latest"
    if place.kind is Kind.TIME:
        return datetime.fromtimestamp(place.time_ms / 1000, UTC)
    described = partial(hub.service.describe_stream, stream_name(stream))
    return group_start(insist(described, StoreError, OUTAGE_S), place)


def tell_group(call: Callable[[], None], within_s: float = OUTAGE_S) -> bool:
    """Tell the group something, waiting for a store that is away; False if the group refused to hear it."""
    try:
        insist(call, StoreError, within_s)
    except StoreError:
        raise
    except ShoalError as error:
        _log.info("not heard: %s", error)
        return False
    return True
