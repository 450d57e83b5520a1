"""Groups in this process: load, step, save, ring. And the watch: who serves a member looks after the others.

Invariant: a group changes only by `core.ownership.step`, saved by compare-and-set on its version; nothing is
locked while it is thought out.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from shoal.complaints import Complaints
from shoal.core.balance import STRATEGIES, Strategy
from shoal.core.checkpoint import Save
from shoal.core.claims import born, unbound
from shoal.core.describing import Block, GroupInfo, described
from shoal.core.errors import HubClosed, InvalidInput, ShoalError, StoreBusy, StrategyRefused, UnknownGroup
from shoal.core.events import (
    Event,
    Expire,
    Forgotten,
    Join,
    Leave,
    Letting,
    Release,
    Retire,
    Rewind,
    Sync,
    Update,
    Watched,
)
from shoal.core.group import (
    Coordination,
    Delivery,
    Group,
    GroupSettings,
    Member,
    Note,
    ShardState,
    Timers,
    check_delivery,
    check_settings,
    default_interval_ms,
    fitting_interval_ms,
)
from shoal.core.handover import HandedOver
from shoal.core.holding import Assignment, View
from shoal.core.limits import STEP_TRIES_MAX
from shoal.core.membership import Beat, check_same, check_unused, is_dead, is_due, watched
from shoal.core.model import Shard, ShardId, StreamInfo, StreamName
from shoal.core.ownership import Stepped, step
from shoal.core.positions import Start, resolved
from shoal.forks import renew_in_child
from shoal.hub.committer import Committer
from shoal.hub.leased import LeasedGroups
from shoal.hub.ownerless import OwnerlessGroups
from shoal.ports import (
    ChangeSignal,
    Fence,
    GroupSaves,
    Joined,
    LeasedGroup,
    MemberView,
    Newcomer,
    Store,
    Touch,
    TouchAnswer,
)

_log: Final = logging.getLogger("shoal.hub.groups")

_SEEN: Final = 4096
"""Groups whose versions are remembered. More at once would make a store's forgetting harder to notice."""
_NO_STREAM: Final = StreamName("", "")
"""Where no error will name one."""
_LOCKS: Final = 64
"""Steps of one group take turns in this process; two groups that share a lock do so, too, now and then."""
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
    ) -> None:
        """`noted` is told what happened in groups through this process, for counting."""
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
        self._watch = _Watch(store, self._step)
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._kinds: dict[int, Group] = {}
        self._seen: dict[int, int] = {}
        """The highest version of each group that this process has seen: below it, the store forgot."""

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
        ended: set[ShardId] = set()
        claims = []
        for shard in stream.shards:
            claim = born(
                shard, positions.get(shard.id, shard.first_offset), is_bound=settings.in_order, ended=ended
            )
            if claim.state is ShardState.OVER and all(parent in ended for parent in shard.parents):
                ended.add(shard.id)
            claims.append(claim)
        made = self._store.create_group(
            stream,
            Group(id=0, stream_id=stream.id, name=group, settings=settings, claims=tuple(claims)),
            limit=self._limit,
            now_ms=_now_ms(),
        )
        return self._described(made, stream)

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
        loaded = self._store.load_group(self.find(name, group).id)
        if loaded is None:
            raise UnknownGroup(stream=str(name), group=group)
        return self._described(*loaded)

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
        self._step(found.id, lambda now: Update(settings=check_settings(change(now.settings))))
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
        return self._step(found.id, Rewind(positions=positions, why=why)).had_been_read

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
        """When each shard's checkpoint was last saved, in milliseconds; None: never."""
        return {shard: times[1] for shard, times in self._store.claim_times(group_id).items()}

    def force(self, group_id: int, event: Rewind) -> None:
        """Checkpoints that were thought out by a rule of `core`."""
        self._step(group_id, event)

    def record(self, group_id: int, notes: Sequence[Note]) -> None:
        """See GroupService."""
        self._store.add_notes(group_id, notes, _now_ms())
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

    def join(self, name: StreamName, group: str, newcomer: Newcomer) -> Joined:
        """See GroupService."""
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
        self._step(found.id, event)
        self._watch.serve(found.id, timeout_ms)
        return Joined(
            group_id=found.id, stream_id=found.stream_id, timeout_ms=timeout_ms, interval_ms=event.interval_ms
        )

    def beat(self, name: StreamName, group_id: int, beat: Beat) -> Assignment:
        """See GroupService."""
        self._watch.serve(group_id, beat.timeout_ms)
        touch = Touch(stream=name, group_id=group_id, act=beat, seen=self._seen.get(group_id, 0))
        answer = self._touch(touch)
        if isinstance(answer, Forgotten):
            self._step(group_id, answer)
            answer = self._touch(touch)
        assert isinstance(answer, Assignment)
        return answer

    def begin_beat(self, name: StreamName, group_id: int, beat: Beat) -> Touch:
        """The same for one who does not wait: what to `submit`. If the answer is Forgotten: `beat`."""
        self._watch.serve(group_id, beat.timeout_ms)
        return Touch(stream=name, group_id=group_id, act=beat, seen=self._seen.get(group_id, 0))

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
            self._step(group_id, Sync())

    def touches(self, several: Sequence[GroupSaves]) -> Sequence[Touch]:
        """Owners' checkpoints as a transaction of the log takes them: of groups whose rows are beside it."""
        for one in several:
            known = self._known(one.group_id)
            if known is not None and known.settings.coordination is Coordination.LEASED:
                raise InvalidInput(
                    "group",
                    known.name,
                    "its leases are in a table of their own: a transaction takes checkpoints of coordinated "
                    "groups",
                )
        return [
            Touch(
                stream=first.stream,
                group_id=group_id,
                act=[save for one in several if one.group_id == group_id for save in one.saves],
            )
            for group_id, first in {one.group_id: one for one in several}.items()
        ]

    def reached(self, group_ids: Sequence[int]) -> None:
        """Ends of closed shards were saved in these groups: their children may begin."""
        for group_id in group_ids:
            self._step(group_id, Sync())

    def block(self, group_id: int, shard: ShardId, block: Block | None) -> None:
        """See GroupService."""
        self._store.set_block(group_id, shard, block, _now_ms())

    def retire(self, group_id: int, incarnation: str) -> None:
        """See GroupService."""
        self._step(group_id, Retire(incarnation=incarnation))

    def release(self, group_id: int, incarnation: str, lettings: Sequence[Letting]) -> Sequence[ShardId]:
        """See GroupService."""
        release = Release(incarnation=incarnation, lettings=lettings)
        seen = self._seen.get(group_id, 0)
        answer = self._touch(Touch(stream=_NO_STREAM, group_id=group_id, act=release, seen=seen))
        if isinstance(answer, HandedOver):
            self._noted(answer.notes)
            self._see(answer.group)
            self._ring(answer.group.id, answer.group.version, answer.members)
            return [claim.shard for claim in answer.claims]
        return self._step(group_id, release).let_go

    def leave(self, group_id: int, incarnation: str, lettings: Sequence[Letting]) -> None:
        """See GroupService."""
        self._step(group_id, Leave(incarnation=incarnation, lettings=lettings))

    def follow(self, stream: StreamInfo) -> None:
        """The stream was split or merged: let its groups know."""
        for group in self._store.list_groups(stream.id):
            if group.settings.delivery is not Delivery.EXCLUSIVE:
                continue  # Their consumers follow the shards by themselves.
            try:
                if group.settings.coordination is Coordination.COORDINATED:
                    self._step(group.id, Sync())
                else:
                    self._leased.follow(group)
            except ShoalError as error:
                # Whoever watches the group lets it know; its consumers look by themselves.
                _log.warning("group %s of %s: %s", group.name, stream.full_name, error)

    def close(self) -> None:
        """End the watch."""
        self._watch.stop()

    # --- Steps. ---

    def _touch(self, touch: Touch) -> TouchAnswer:
        (answer,) = self._committer.commit([touch])
        if isinstance(answer, ShoalError):
            raise answer
        return answer

    def _step(self, group_id: int, happened: Event | Callable[[Group], Event]) -> Stepped:
        """Load, think, save; again if another process was faster. Steps of this process take turns."""
        with self._locks[group_id % _LOCKS]:
            for attempt in range(STEP_TRIES_MAX):
                seen = self._seen.get(group_id, 0)  # Before the load: others hand over meanwhile.
                loaded = self._store.load_group(group_id)
                if loaded is None:
                    raise UnknownGroup(stream="?", group=str(group_id))
                group, stream = loaded
                if group.version < seen:
                    self._distrust(group, stream, seen)
                    continue
                self._see(group)
                event = happened(group) if callable(happened) else happened
                stepped = step(group, event, stream.shards, self._strategies, stream=str(stream.full_name))
                if stepped.group is group:
                    return stepped
                # Who has seen a later version meanwhile was overtaken, even if the store has forgotten it.
                is_latest = group.version >= self._seen.get(group_id, 0)
                if is_latest and self._store.save_group(group, stepped.group, stepped.notes, _now_ms()):
                    self._noted(stepped.notes)
                    self._see(stepped.group)
                    self._ring(group_id, stepped.group.version, stepped.group.members.values())
                    return stepped
                time.sleep(random.uniform(0, 0.002 * min(attempt + 1, 10)))
        raise StoreBusy(f"group {group_id} changes faster than we can follow", 0.0)

    def _distrust(self, group: Group, stream: StreamInfo, seen: int) -> None:
        """The store has forgotten commits: nothing is decided on what it has left until it was told so."""
        stepped = step(group, Forgotten(seen=seen), stream.shards, self._strategies)
        if self._store.save_group(group, stepped.group, stepped.notes, _now_ms()):
            self._ring(group.id, stepped.group.version, stepped.group.members.values())

    def _see(self, group: Group) -> None:
        """Two threads at once may leave the lower one, which is true as well."""
        if group.version > self._seen.get(group.id, 0):
            if len(self._seen) >= _SEEN:
                self._seen.clear()
            self._seen[group.id] = group.version

    def _ring(self, group_id: int, version: int, members: Iterable[Member]) -> None:
        self._store.signal.ring(
            [
                (MemberView(group_id, member.incarnation), version)
                for member in members
                if member.assigned == version
            ]
        )

    def _described(self, group: Group, stream: StreamInfo) -> GroupInfo:
        if group.settings.delivery is not Delivery.EXCLUSIVE:
            return self._ownerless.described(group)
        since = {shard: times[0] for shard, times in self._store.claim_times(group.id).items()}
        if group.settings.coordination is Coordination.LEASED:
            group = self._leased.viewed(group, stream)
            since |= self._leased.since(group)
        lagging: dict[ShardId, int] = {}
        for claim in group.claims:
            shard = stream.shards[claim.shard]
            position = max(claim.start, shard.first_offset)
            if position < shard.next_offset:
                lagging[shard.id] = position
        found = self._store.batches_at(stream.id, lagging) if lagging else {}
        oldest = {shard: meta.appended_ms for shard, meta in found.items()}
        return described(
            group,
            stream,
            since_ms=since,
            oldest_ms=oldest,
            blocks=self._store.blocks(group.id),
            now_ms=_now_ms(),
        )


def _interval_ms(newcomer: Newcomer, timeout_ms: int) -> int:
    """One that comes back said how often it beats when the timeout was another."""
    wished = newcomer.interval_ms or default_interval_ms(timeout_ms)
    return fitting_interval_ms(wished, timeout_ms) if newcomer.is_again else wished


@dataclass(slots=True)
class _Served:
    """A group that someone in this process is a member of, as the watch saw it last."""

    used_s: float
    timeout_s: float
    seen: Mapping[str, tuple[Member, float]] = field(default_factory=dict)
    """Members by their incarnation, and since when their rows are as they are."""
    timers: Timers | None = None
    """What waits for time to pass."""
    version: int = -1
    """Of the group, when it was last looked at whether there is something to decide."""
    read_s: float = 0.0
    pause_s: float = field(default=0.5)


class _Watch:
    """Looks after the members of the groups that this process serves, while it serves any.

    Times are of the clock that stands still in suspend: what this process slept through, it did not watch.
    Writer of the fields: any thread, under `_lock`; what is in a `_Served`, only the thread.
    """

    def __init__(self, store: Store, step_group: Callable[[int, Event], Stepped]) -> None:
        self._store = store
        self._step = step_group
        self._complaints = Complaints(_log)
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._lock = threading.Lock()
        self._served: dict[int, _Served] = {}
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self._wake = threading.Event()

    def serve(self, group_id: int, timeout_ms: int) -> None:
        """A member of this group has spoken through us."""
        with self._lock:
            served = self._served.get(group_id)
            if served is None:
                self._served[group_id] = _Served(time.monotonic(), timeout_ms / 1000)
                self._wake.set()
            else:
                served.used_s, served.timeout_s = time.monotonic(), timeout_ms / 1000
            if self._thread is None and not self._is_stopped:
                self._thread = threading.Thread(target=self._run, name="shoal-group-watch", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Let the thread end."""
        self._is_stopped = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)

    def _run(self) -> None:
        while True:
            with self._lock:
                now = time.monotonic()
                for group_id in [
                    key for key, one in self._served.items() if now - one.used_s > one.timeout_s * 2
                ]:
                    del self._served[group_id]
                if not self._served or self._is_stopped:
                    self._thread = None
                    return
                served = list(self._served.items())
            for group_id, one in served:
                try:
                    self._look(group_id, one)
                except HubClosed:
                    return
                except ShoalError as error:
                    # The store may be away. What was not watched counts for nothing: begin anew.
                    one.seen, one.timers = {}, None
                    self._complaints.warn(group_id, "watching group %s: %s", group_id, error)
                except Exception:  # noqa: BLE001 - a thread's top: watching must not end with one fault
                    one.seen, one.timers = {}, None
                    _log.exception("watching group %s failed", group_id)
            self._wake.wait(min(one.pause_s for _, one in served))
            self._wake.clear()

    def _look(self, group_id: int, one: _Served) -> None:
        """Add the time that was watched to whoever has not moved; then look again, and bury the dead."""
        now_s = time.monotonic()
        watches = []
        for member, since_s in one.seen.values():
            stood_ms = int((now_s - since_s) * 1000)
            if stood_ms > 0 and is_due(member, stood_ms, int(one.pause_s * 1000)):
                watches.append((member, watched(member, stood_ms)))
        if watches:
            self._store.add_watches(group_id, watches)
        one.timers = self._pass_time(group_id, one.timers, int((now_s - one.read_s) * 1000))
        members = self._store.load_members(group_id)
        one.read_s = time.monotonic()
        one.seen = {member.incarnation: (member, _since_s(one, member)) for member in members}
        one.pause_s = max(0.02, min([2000, *(member.interval_ms for member in members)]) / 2000)
        for member in members:
            if is_dead(member):
                self._step(group_id, Expire(incarnation=member.incarnation, beat=member.beat))
        if self._store.is_unsettled(group_id, one.version):
            # Whoever made the last step may not know the group's rules or its strategy, and have left open
            # what we can decide; and a strategy that failed may have been mended.
            one.version = self._step(group_id, Sync()).group.version

    def _pass_time(self, group_id: int, seen: Timers | None, elapsed_ms: int) -> Timers | None:
        """Where time itself moves something (a bounded hand-over, a store's forgetting), let it pass.

        `seen` is what the last look found; the answer is what this one did.
        """
        if not self._store.has_timers(group_id):
            return None
        if seen is not None and elapsed_ms > 0:
            return self._step(group_id, Watched(elapsed_ms=elapsed_ms, seen=seen)).group.timers
        loaded = self._store.load_group(group_id)
        return None if loaded is None else loaded[0].timers


def _since_s(one: _Served, member: Member) -> float:
    """Since when a member's row is as it was just read."""
    before = one.seen.get(member.incarnation)
    if before is None or (before[0].beat, before[0].stood_ms) != (member.beat, member.stood_ms):
        return one.read_s
    return before[1]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
