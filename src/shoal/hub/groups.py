"""Groups in this process: the calls of GroupService, each to the room that knows its kind of group.

A group changes by a step (`group_steps`), or by a touch of a few rows, which the store decides by a rule of
`core`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from shoal.core.balance import STRATEGIES, Strategy
from shoal.core.checkpoint import Save
from shoal.core.claims import first_claims, unbound
from shoal.core.describing import Block, GroupInfo
from shoal.core.errors import ShoalError, StrategyRefused, UnknownGroup
from shoal.core.events import Event, Forgotten, Join, Leave, Letting, Release, Retire, Rewind, Sync, Update
from shoal.core.group import (
    Coordination,
    Delivery,
    Group,
    GroupSettings,
    Note,
    check_delivery,
    check_settings,
    default_interval_ms,
    fitting_interval_ms,
)
from shoal.core.handover import HandedOver
from shoal.core.holding import Assignment, View
from shoal.core.lease_view import check_told
from shoal.core.membership import Beat, check_same, check_unused
from shoal.core.model import Shard, ShardId, StreamInfo, StreamName
from shoal.core.positions import Start, resolved
from shoal.forks import renew_in_child
from shoal.hub.committer import Committer
from shoal.hub.group_steps import GroupSteps, now_ms
from shoal.hub.group_view import GroupView
from shoal.hub.group_watch import GroupWatch
from shoal.hub.leased import LeasedGroups
from shoal.hub.ownerless import OwnerlessGroups
from shoal.ports import (
    ChangeSignal,
    Fence,
    GroupSaves,
    Joined,
    LeasedGroup,
    LeasedTouch,
    MemberView,
    Newcomer,
    Store,
    Touch,
    TouchAnswer,
)

_log: Final = logging.getLogger("shoal.hub.groups")

_NO_STREAM: Final = StreamName("", "")
"""Where no error will name one."""
_KNOWN: Final = 256
"""Groups whose kind is kept at hand."""
GATHER_S: Final = 0.001
"""Nobody waits for a heartbeat's answer to the millisecond, and a commit costs several."""


class LocalGroups:
    """See GroupService."""

    def __init__(
        self,
        store: Store,
        offset_at: Callable[[StreamInfo, Shard, int], int],
        *,
        strategies: Mapping[str, Strategy] | None = None,
        groups_per_stream: int,
        leases: Store | None = None,
        noted: Callable[[Sequence[Note]], None] | None = None,
        looks_first: bool = False,
    ) -> None:
        """`noted` is told what happened in groups through this process, for counting; for `looks_first` see
        GroupWatch."""
        self._store = store
        self._noted = noted or (lambda _: None)
        self._leased = LeasedGroups(store, leases or store)
        self._ownerless = OwnerlessGroups(store)
        self._offset_at = offset_at
        self._strategies: dict[str, Strategy] = {**STRATEGIES, **(strategies or {})}
        self._limit = groups_per_stream
        self._committer: Committer[Touch, TouchAnswer] = Committer(
            store.touch, lambda _: 0, gather_s=GATHER_S
        )
        self._steps = GroupSteps(store, self._strategies, self._noted)
        self._watch = GroupWatch(store, self._steps.step, looks_first=looks_first)
        self._view = GroupView(store, self._leased, self._ownerless)
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._kinds: dict[int, Group] = {}

    # --- Groups. ---

    def create(self, name: StreamName, group: str, settings: GroupSettings, start: Start) -> GroupInfo:
        """See GroupService."""
        check_settings(settings)
        if settings.strategy not in self._strategies:
            raise StrategyRefused(
                settings.strategy,
                f"not known; one of {', '.join(sorted(self._strategies))}, or name it in connect()",
            )
        stream = self._store.load_stream(name)
        if settings.coordination is Coordination.LEASED:
            settings = self._leased.placed(settings)
        positions = resolved(stream, start, lambda shard, ms: self._offset_at(stream, shard, ms))
        claims = first_claims(stream.shards, positions, is_bound=settings.in_order, is_told=start.is_named)
        made = self._store.create_group(
            stream,
            Group(id=0, stream_id=stream.id, name=group, settings=settings, claims=claims),
            limit=self._limit,
            now_ms=now_ms(),
        )
        return self._view.described(made, stream)

    def delete(self, name: StreamName, group: str, *, force: bool) -> None:
        """See GroupService."""
        found = self.find(name, group)
        if found.settings.coordination is Coordination.LEASED:
            self._leased.delete(found, force=force)
            return
        if found.settings.delivery is not Delivery.EXCLUSIVE:
            self._ownerless.delete(found, force=force)
            return
        self._store.delete_group(found.id, None if force else partial(check_unused, group))

    def clear(self, groups: Iterable[Group]) -> None:
        """These went with their stream: what leased ones had in tables goes too, where we can reach it."""
        for group in groups:
            try:
                if group.settings.coordination is Coordination.LEASED:
                    self._leased.clear(group)
            except ShoalError as error:
                _log.warning("rows of group %s, which is deleted, are left: %s", group.name, error)

    def list(self, name: StreamName) -> Sequence[Group]:
        """See GroupService."""
        return self._store.list_groups(self._store.load_stream(name).id)

    def describe(self, name: StreamName, group: str) -> GroupInfo:
        """See GroupService."""
        return self._view.described(*self.whole(name, group))

    def update(
        self, name: StreamName, group: str, change: Callable[[GroupSettings], GroupSettings]
    ) -> GroupInfo:
        """See GroupService."""
        found = self.find(name, group)
        if found.settings.coordination is Coordination.LEASED:
            self._leased.opened(found)  # Refused here, if its rows are elsewhere: nothing is changed yet.
        if found.settings.delivery is not Delivery.EXCLUSIVE:
            self._ownerless.update(found.id, change)
            return self.describe(name, group)
        # On the settings that the step finds: those looked at before may be another's to change by then.
        self._steps.step(found.id, lambda now: Update(settings=check_settings(change(now.settings))))
        return self.describe(name, group)

    def rewind(self, name: StreamName, group: str, start: Start, why: str) -> Sequence[ShardId]:
        """See GroupService."""
        found = self.find(name, group)
        stream = self._store.load_stream(name)
        positions = resolved(stream, start, lambda shard, ms: self._offset_at(stream, shard, ms))
        if found.settings.coordination is Coordination.LEASED:
            return self._leased.rewind(found, stream, positions, why)
        if found.settings.delivery is not Delivery.EXCLUSIVE:
            return self._ownerless.rewind(found, stream, positions, why)
        return self._steps.step(found.id, Rewind(positions=positions, why=why)).had_been_read

    def history(self, name: StreamName, group: str, limit: int) -> Sequence[tuple[int, Note]]:
        """See GroupService."""
        return self._store.history(self.find(name, group).id, limit)

    def find(self, name: StreamName, group: str) -> Group:
        """See GroupService."""
        found = self._store.find_group(name, group)
        if found is None:
            self._store.load_stream(name)  # It may be the stream that is not there.
            raise UnknownGroup(stream=str(name), group=group)
        self._remember(found)
        return found

    def _remember(self, group: Group) -> None:
        if len(self._kinds) >= _KNOWN:
            self._kinds.clear()
        self._kinds[group.id] = group

    def _known(self, group_id: int) -> Group | None:
        """The group as it was when we last asked for it: of what kind it is, and where, does not change."""
        known = self._kinds.get(group_id)
        if known is None and (loaded := self._store.load_group(group_id)) is not None:
            known = replace(loaded[0], members={}, claims=())
            self._remember(known)
        return known

    def whole(self, name: StreamName, group: str) -> tuple[Group, StreamInfo]:
        """The group with its members and claims, and its stream, as of one moment."""
        loaded = self._store.load_group(self.find(name, group).id)
        if loaded is None:
            raise UnknownGroup(stream=str(name), group=group)
        return loaded

    def saved_times(self, group_id: int) -> Mapping[ShardId, int | None]:
        """When each shard's checkpoint was last set, in milliseconds; None: it is where the group began."""
        return {shard: times[1] for shard, times in self._store.claim_times(group_id).items()}

    def force(self, group_id: int, rule: Callable[[Group], Rewind]) -> None:
        """Checkpoints that a rule of `core` thinks out from the group that the step finds."""
        self._steps.step(group_id, rule)

    def record(self, group_id: int, notes: Sequence[Note]) -> None:
        """See GroupService."""
        group = self._known(group_id)
        if group is None:
            return  # It was deleted, and its history with it.
        check_told(group, notes)
        self._store.add_notes(group_id, notes, now_ms)
        self._noted(notes)

    def leased(self, group: Group) -> LeasedGroup:
        """See GroupService."""
        return self._leased.joined(group)

    def table_of(self, group_id: int) -> LeasedGroup | None:
        """The table of a leased group, for one who changes it for others; None: there is no such group."""
        group = self._known(group_id)
        return None if group is None else self._leased.opened(group)

    def clear_if_gone(self, group_id: int) -> None:
        """After rows were made for others: a group that was deleted meanwhile leaves none behind."""
        if self._store.load_group(group_id) is None:
            known = self._kinds.pop(group_id, None)
            if known is not None:
                self._leased.clear(known)

    @property
    def lease_signal(self) -> ChangeSignal:
        """Where news of leased groups is heard."""
        return self._leased.signal

    def unbound(self, group_id: int) -> frozenset[ShardId]:
        """See GroupService."""
        loaded = self._store.load_group(group_id)
        return frozenset() if loaded is None else unbound(loaded[0].claims)

    def check_read(self, name: StreamName, shard: ShardId, fence: Fence) -> None:
        """Refuse a read of a leased group's shard under an epoch that is not current."""
        group = self._known(fence.group_id)
        if group is None:
            raise UnknownGroup(stream=str(name), group=str(fence.group_id))
        self._leased.check_read(group, shard, fence.epoch)

    # --- Members. ---

    def join(
        self,
        name: StreamName,
        group: str,
        newcomer: Newcomer,
        rule: Callable[[Group, Join], Event] = lambda _, join: join,
    ) -> Joined:
        """See GroupService; `rule` says what becomes of it in the group that the step finds."""
        found = check_delivery(self.find(name, group), str(name), Delivery.EXCLUSIVE)
        check_same(found, newcomer.group_id, str(name))
        timeout_ms = found.settings.timeout_ms
        event = Join(
            name=newcomer.name,
            incarnation=newcomer.incarnation,
            timeout_ms=timeout_ms,
            interval_ms=_interval_ms(newcomer, timeout_ms),
            is_again=newcomer.is_again,
        )
        self._steps.step(found.id, lambda now: rule(now, event))
        self._watch.serve(found.id, timeout_ms)
        return Joined(
            group_id=found.id, stream_id=found.stream_id, timeout_ms=timeout_ms, interval_ms=event.interval_ms
        )

    def beat(self, name: StreamName, group_id: int, beat: Beat) -> Assignment:
        """See GroupService."""
        touch = self.begin_beat(name, group_id, beat)
        answer = self._touch(touch)
        if isinstance(answer, Forgotten):
            self._steps.step(group_id, answer)
            answer = self._touch(touch)
        assert isinstance(answer, Assignment)
        self.was_heard(group_id, beat)
        return answer

    def begin_beat(self, name: StreamName, group_id: int, beat: Beat) -> Touch:
        """The same for one who does not wait: what to `submit`. If the answer is an Assignment: `was_heard`;
        if it is Forgotten: `beat`."""
        return Touch(stream=name, group_id=group_id, act=beat, seen=self._steps.seen(group_id))

    def was_heard(self, group_id: int, beat: Beat) -> None:
        """A heartbeat was accepted. What is refused makes us watch no group."""
        self._watch.serve(group_id, beat.timeout_ms)

    def submit(
        self,
        touches: Sequence[Touch],
        done: Callable[[Sequence[TouchAnswer] | BaseException], None],
        callers: int = 1,
    ) -> None:
        """`done` hears the store's answers."""
        self._committer.submit(touches, done, callers)

    def wait(self, group_id: int, incarnation: str, seen: int, timeout_s: float) -> View | None:
        """See GroupService."""
        self._store.signal.wait(MemberView(group_id, incarnation), seen, timeout_s)
        return self.view(group_id, incarnation, seen)

    def view(self, group_id: int, incarnation: str, seen: int) -> View | None:
        """What the member holds now, if that is newer than `seen`."""
        view = self._store.load_view(group_id, incarnation)
        return view if view is not None and view.version > seen else None

    def save(self, name: StreamName, group_id: int, saves: Sequence[Save]) -> None:
        """See GroupService."""
        if not saves:
            return
        known = self._known(group_id)
        if known is not None and known.settings.coordination is Coordination.LEASED:
            self._leased.save(known, self._store.load_stream(name), saves)
            return
        if self._touch(Touch(stream=name, group_id=group_id, act=saves)):
            self._steps.step(group_id, Sync())

    def touches(self, several: Sequence[GroupSaves]) -> Sequence[Touch | LeasedTouch]:
        """Owners' checkpoints as a transaction of the log takes them: of groups whose rows are beside it."""
        by_group: dict[int, list[GroupSaves]] = {}
        for one in several:
            by_group.setdefault(one.group_id, []).append(one)
        return [self._touches_of(group_id, some) for group_id, some in by_group.items()]

    def _touches_of(self, group_id: int, several: Sequence[GroupSaves]) -> Touch | LeasedTouch:
        known = self._known(group_id)
        if known is not None and known.settings.coordination is Coordination.LEASED:
            return self._leased.touch(known, several)
        saves = [save for one in several for save in one.saves]
        return Touch(stream=several[0].stream, group_id=group_id, act=saves)

    def reached(self, group_ids: Sequence[int]) -> None:
        """Ends of closed shards were saved in these groups: their children may begin."""
        for group_id in group_ids:
            self._steps.step(group_id, Sync())

    def block(self, group_id: int, shard: ShardId, block: Block | None) -> None:
        """See GroupService."""
        self._store.set_block(group_id, shard, block, now_ms())

    def retire(self, group_id: int, incarnation: str) -> None:
        """See GroupService."""
        self._steps.step(group_id, Retire(incarnation=incarnation))

    def release(self, group_id: int, incarnation: str, lettings: Sequence[Letting]) -> Sequence[ShardId]:
        """See GroupService."""
        release = Release(incarnation=incarnation, lettings=lettings)
        seen = self._steps.seen(group_id)
        answer = self._touch(Touch(stream=_NO_STREAM, group_id=group_id, act=release, seen=seen))
        if isinstance(answer, HandedOver):
            self._steps.handed_over(answer)
            return [claim.shard for claim in answer.claims]
        return self._steps.step(group_id, release).let_go

    def leave(self, group_id: int, incarnation: str, lettings: Sequence[Letting]) -> None:
        """See GroupService."""
        self._steps.step(group_id, Leave(incarnation=incarnation, lettings=lettings))

    def follow(self, stream: StreamInfo) -> None:
        """The stream was split or merged: let its groups know."""
        for group in self._store.list_groups(stream.id):
            if group.settings.delivery is not Delivery.EXCLUSIVE:
                continue  # Their consumers follow the shards by themselves.
            try:
                if group.settings.coordination is Coordination.COORDINATED:
                    self._steps.step(group.id, Sync())
                else:
                    self._leased.follow(group)
            except ShoalError as error:
                # Whoever watches the group lets it know; its consumers look by themselves.
                _log.warning("group %s of %s: %s", group.name, stream.full_name, error)

    def close(self) -> None:
        """End the watch."""
        self._watch.stop()

    def _touch(self, touch: Touch) -> TouchAnswer:
        (answer,) = self._committer.commit([touch])
        if isinstance(answer, ShoalError):
            raise answer
        return answer


def _interval_ms(newcomer: Newcomer, timeout_ms: int) -> int:
    """One that comes back said how often it beats when the timeout was another."""
    wished = newcomer.interval_ms or default_interval_ms(timeout_ms)
    return fitting_interval_ms(wished, timeout_ms) if newcomer.is_again else wished
