"""The calls of GroupService over HTTP, and the table of a leased group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from shoal.core.checkpoint import Save
from shoal.core.describing import Block, GroupInfo
from shoal.core.errors import ShoalError, StoreBusy, StoreUnavailable
from shoal.core.events import Letting
from shoal.core.group import Group, GroupSettings, Note
from shoal.core.holding import Assignment, View
from shoal.core.lease import Change, ChangeKind, InstanceRow, LeaseRow, Row, SequenceRow
from shoal.core.leasing import Outcome
from shoal.core.limits import STEP_TRIES_MAX
from shoal.core.membership import Beat
from shoal.core.model import ShardId, StreamName
from shoal.core.positions import Start
from shoal.forks import renew_in_child
from shoal.lease_port import Glance, LeaseNews, Tried
from shoal.native.forms import Attempted, Glimpse, LeasedPlace
from shoal.ports import Joined, LeasedGroup, MemberView, Newcomer, Place
from shoal.remote.calling import WAIT_S, Part
from shoal.remote.following import RemoteFollowing
from shoal.remote.transport import Transport


class RemoteGroups(Part):
    """See GroupService."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport, "groups")
        self._news = _News(transport)

    def create(self, name: StreamName, group: str, settings: GroupSettings, start: Start) -> GroupInfo:
        made: GroupInfo = self.ask("create", name=name, group=group, settings=settings, start=start)
        return made

    def delete(self, name: StreamName, group: str, *, force: bool) -> None:
        self.ask("delete", name=name, group=group, force=force)

    def list(self, name: StreamName) -> Sequence[Group]:
        found: Sequence[Group] = self.ask("list", name=name)
        return found

    def describe(self, name: StreamName, group: str) -> GroupInfo:
        found: GroupInfo = self.ask("describe", name=name, group=group)
        return found

    def update(
        self, name: StreamName, group: str, change: Callable[[GroupSettings], GroupSettings]
    ) -> GroupInfo:
        """See GroupService. A callable cannot be sent: the server compares what it was shown, and sets."""
        for _ in range(STEP_TRIES_MAX):
            old = self.find(name, group).settings
            changed: GroupInfo | None = self.ask(
                "update", name=name, group=group, expected=old, settings=change(old)
            )
            if changed is not None:
                return changed
        raise StoreBusy(f"settings of {group} change faster than we can follow", 0.0)

    def rewind(self, name: StreamName, group: str, start: Start, why: str) -> Sequence[ShardId]:
        return [*self.ask("rewind", name=name, group=group, start=start, why=why)]

    def history(self, name: StreamName, group: str, limit: int) -> Sequence[tuple[int, Note]]:
        found: Sequence[tuple[int, Note]] = self.ask("history", name=name, group=group, limit=limit)
        return found

    def find(self, name: StreamName, group: str) -> Group:
        found: Group = self.ask("find", name=name, group=group)
        return found

    def record(self, group_id: int, notes: Sequence[Note]) -> None:
        self.ask("record", group_id=group_id, notes=notes)

    def leased(self, group: Group) -> LeasedGroup:
        found: LeasedPlace = self.ask("leased", group_id=group.id)
        table = RemoteLeaseTable(self._transport, group.id)
        return LeasedGroup(table=table, key=found.key, starts=found.starts, is_beside=found.is_beside)

    def unbound(self, group_id: int) -> Collection[ShardId]:
        return frozenset(self.ask("unbound", group_id=group_id))

    def join(self, name: StreamName, group: str, newcomer: Newcomer) -> Joined:
        joined: Joined = self.ask("join", name=name, group=group, newcomer=newcomer)
        return joined

    def beat(self, name: StreamName, group_id: int, beat: Beat) -> Assignment:
        try:
            answer: Assignment = self.ask("beat", name=name, group_id=group_id, beat=beat)
        except ShoalError as error:
            if not error.retriable:  # It is no member any more, or its group is gone.
                self._news.forget(MemberView(group_id, beat.incarnation))
            raise
        return answer

    def wait(self, group_id: int, incarnation: str, seen: int, timeout_s: float) -> View | None:
        """See GroupService. One call to the server waits for all members of this hub, through many
        heartbeats."""
        if timeout_s > 0 and not self._news.wait(MemberView(group_id, incarnation), seen, timeout_s):
            return None
        view: View | None = self.ask(
            "wait", group_id=group_id, incarnation=incarnation, seen=seen, timeout_s=0.0
        )
        if view is None:  # It is gone, and told to be so: not at once again.
            time.sleep(min(timeout_s, _GONE_S))
        return view

    def save(self, name: StreamName, group_id: int, saves: Sequence[Save]) -> None:
        if saves:
            self.ask("save", name=name, group_id=group_id, saves=saves)

    def block(self, group_id: int, shard: ShardId, block: Block | None) -> None:
        self.ask("block", group_id=group_id, shard=shard, block=block)

    def retire(self, group_id: int, incarnation: str) -> None:
        self._news.forget(MemberView(group_id, incarnation))
        self.ask("retire", group_id=group_id, incarnation=incarnation)

    def release(self, group_id: int, incarnation: str, lettings: Sequence[Letting]) -> Sequence[ShardId]:
        return [*self.ask("release", group_id=group_id, incarnation=incarnation, lettings=lettings)]

    def leave(self, group_id: int, incarnation: str, lettings: Sequence[Letting]) -> None:
        self._news.forget(MemberView(group_id, incarnation))
        self.ask("leave", group_id=group_id, incarnation=incarnation, lettings=lettings)


class _News:
    """Members that wait to hear of changes. Writer and reader of `_told`: any thread, under `_lock`. A forked
    child begins anew."""

    def __init__(self, transport: Transport) -> None:
        self._following = RemoteFollowing(transport, self._tell)
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._lock = threading.Lock()
        self._told: dict[MemberView, threading.Event] = {}

    def wait(self, place: MemberView, seen: int, timeout_s: float) -> bool:
        """Wait until the place may be past what was seen; False: it is not, so far."""
        with self._lock:
            told = self._told.setdefault(place, threading.Event())
        if not self._following.move(place, seen):
            self._following.add(place, seen)
        if not told.wait(timeout_s):
            return False
        told.clear()
        return True

    def forget(self, place: MemberView) -> None:
        """Its member goes: whoever waits is let go."""
        with self._lock:
            told = self._told.pop(place, None)
        self._following.drop(place)
        if told is not None:
            told.set()

    def _tell(self, place: Place) -> None:
        with self._lock:
            told = self._told.get(place) if isinstance(place, MemberView) else None
        if told is not None:
            told.set()


class RemoteLeaseTable(Part):
    """See LiveTable. Of one group. Writer of `_news`: whoever glances."""

    def __init__(self, transport: Transport, group_id: int) -> None:
        super().__init__(transport, "leases")
        self._group_id = group_id
        self._news = _NO_NEWS

    def list(self, group: str) -> Sequence[LeaseRow]:
        return self.glance(group).leases

    def load(self, group: str, shard: ShardId) -> LeaseRow | None:
        return next((row for row in self.list(group) if row.shard == shard), None)

    def instances(self, group: str) -> Sequence[InstanceRow]:
        return self.glance(group).instances

    def sequence(self, group: str) -> SequenceRow | None:
        return self.glance(group).sequence

    def begin(self, group: str) -> None:
        """See LeaseTable. The server does, when numbers are drawn."""

    def create(self, row: Row) -> bool:
        return self._alone(Change(kind=ChangeKind.CREATE, old=None, new=row))

    def swap(self, old: Row, new: Row) -> bool:
        return self._alone(Change(kind=ChangeKind.WATCH, old=old, new=new))

    def delete(self, row: Row) -> bool:
        return self._alone(Change(kind=ChangeKind.CLEAN, old=row, new=None))

    def _alone(self, change: Change) -> bool:
        (tried,) = self.attempt("", [change])
        if tried.outcome is Outcome.UNKNOWN:
            raise StoreUnavailable("no answer: the change may be in")
        return tried.outcome is Outcome.DONE

    def glance(self, group: str) -> Glance:
        """See LiveTable."""
        return self.glimpse(group)[0]

    def glimpse(self, _group: str) -> tuple[Glance, int]:
        """See LiveTable."""
        found: Glimpse = self.ask("glance", group_id=self._group_id)
        self._news = found.news
        return Glance(found.leases, found.instances, found.sequence), found.news

    def place(self, group: str) -> LeaseNews:
        """See LiveTable."""
        raise NotImplementedError("a server waits for us")

    def attempt(self, _group: str, changes: Sequence[Change], *, together: bool = False) -> Sequence[Tried]:
        """See LiveTable."""
        if not changes:
            return []
        try:
            answers: Sequence[Attempted] = self.ask(
                "attempt", group_id=self._group_id, changes=changes, together=together
            )
        except StoreUnavailable:
            return [Tried(change, Outcome.UNKNOWN) for change in changes]
        return [Tried(one.change, one.outcome, one.found) for one in answers]

    def listen(self) -> None:
        """See LiveTable. A glance says what it saw; what comes after is told to who waits."""

    def wait(self, _group: str, timeout_s: float) -> None:
        """See LiveTable."""
        began = time.monotonic()
        wait_s = min(timeout_s, WAIT_S)
        self.ask("wait", wait_s=wait_s, group_id=self._group_id, news=self._news, wait_for_s=wait_s)
        # After a change that is ours, or of a group that is gone, there is nothing to wait for: not at once
        # again.
        time.sleep(max(0.0, min(timeout_s, began + _BREATH_S - time.monotonic())))

    def ring(self, _group: str) -> None:
        """See LiveTable."""
        self.ask("ring", group_id=self._group_id)

    def close(self) -> None:
        """See LiveTable."""


_NO_NEWS: Final = -1
_BREATH_S: Final = 0.01
_GONE_S: Final = 0.1
