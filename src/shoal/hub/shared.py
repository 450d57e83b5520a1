"""Shared groups for their consumers: look, ask the shard's machine under its lock, read what was handed out.

Acts of many consumers share commits. Who waits is woken by appends, by news (something was given back), or by
time. Records that had their last attempt are put into the dead stream here, in the commit that settles them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from shoal.core.errors import ShoalError, StoreBusy
from shoal.core.group import Delivery, check_delivery
from shoal.core.limits import KEYS_AHEAD
from shoal.core.model import Appended, Shard, ShardId, StreamName
from shoal.core.share import Outlook, ShareState, outlook
from shoal.core.share_acts import DOOMED, Act, Given, Granted, How, Receive, Reopen, Settle, Settled
from shoal.core.share_view import full_text, receivable, rules_of
from shoal.core.spans import Range, ranges_of, without
from shoal.forks import renew_in_child
from shoal.hub.burying import Log, closed, letters
from shoal.hub.committer import Committer
from shoal.hub.held_records import HeldRecords, Reading
from shoal.hub.ownerless import OwnerlessGroups
from shoal.hub.watches import Watches
from shoal.ports import Following, Place, ShardEnd, ShardGone, ShardShut, Store
from shoal.share_port import Received, Settling, ShareAnswer, ShareNews, ShareTouch, ShareView
from shoal.wire.batch import Batch

_log: Final = logging.getLogger("shoal.hub.shared")

BURY_MS: Final = 10_000
"""How long it may take to put records into the dead stream, before another hub does it, too."""
GATHER_S: Final = 0.001
GATHER_SHARE: Final = 0.25
"""Consumers that were answered together come back together, once each has read what it was given."""
_ROUNDS: Final = 64
"""Times that one receive looks further for keys that are free, or buries what is in its way."""
_KNOWN: Final = 1024
"""Groups whose last view is kept."""


class SharedLog(Log, Reading, Protocol):
    """As much of a hub as shared groups need."""


class LocalShares:
    """See ShareService."""

    def __init__(self, store: Store, log: SharedLog) -> None:
        self._store, self._log = store, log
        self._groups = OwnerlessGroups(store)
        self._watches = Watches()
        self._records = HeldRecords(log)
        self._committer: Committer[ShareTouch, ShareAnswer] = Committer(
            store.share, lambda _: 0, gather_s=GATHER_S, gather_share=GATHER_SHARE
        )
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._lock = threading.Lock()
        self._views: dict[int, _Known] = {}
        self._turn = 0

    # --- Receiving. ---

    def receive(
        self, name: StreamName, group_id: int, asked: Receive, *, wait_s: float, max_bytes: int
    ) -> Received:
        """See ShareService."""
        began = time.monotonic()
        deadline = began + wait_s
        waiting = _Waiting(self._store)
        try:
            while True:
                waited_s = time.monotonic() - began
                waiting.begin()
                found = self.receive_now(name, group_id, asked, max_bytes=max_bytes)
                if isinstance(found, Received):
                    return replace(found, waited_s=waited_s)
                left = deadline - time.monotonic()
                if left <= 0:
                    return Received(batch=None, waiting_for=found.waiting_for)
                waiting.wait(found.places, min(left, found.due_s))
        finally:
            waiting.close()

    def receive_now(
        self, name: StreamName, group_id: int, asked: Receive, *, max_bytes: int
    ) -> Received | Nothing:
        """What there is, or where to wait for some."""
        view = self._look(name, group_id)
        received, looks = self._receive(view, asked, max_bytes)
        if received is not None:
            return received
        return Nothing(_places(view, looks), _due_s(looks), _why_nothing(view, looks))

    def _look(self, name: StreamName, group_id: int) -> ShareView:
        view = self._groups.viewed(group_id)
        check_delivery(view.group, str(name), Delivery.SHARED)
        for shard, state in view.states.items():
            self._watches.see(group_id, shard, state)
        known = self._known(view)
        known.view = view
        known.see(view.states.items())
        return view

    def _known(self, view: ShareView) -> _Known:
        with self._lock:
            known = self._views.get(view.group.id)
            if known is None:
                if len(self._views) >= _KNOWN:
                    self._views.clear()
                known = self._views[view.group.id] = _Known(view, {}, {})
            return known

    def _receive(
        self, view: ShareView, asked: Receive, max_bytes: int
    ) -> tuple[Received | None, dict[ShardId, Outlook]]:
        """From the first shard that has something, each time from another one on."""
        rules = rules_of(view.group.settings)
        shards = receivable(view.stream.shards, view.states, rules)
        self._turn += 1
        first = self._turn % max(1, len(shards))
        looks = {}
        for shard in (*shards[first:], *shards[:first]):
            left = self._watches.left(view.group.id, shard.id)
            looks[shard.id] = look = outlook(view.states[shard.id], shard, left)
            if look.has_some:
                received = self._take(view, shard, asked, max_bytes)
                if received is not None:
                    return received, looks
        return None, looks

    def _take(self, view: ShareView, shard: Shard, asked: Receive, max_bytes: int) -> Received | None:
        is_by_key = view.group.settings.key_ordered
        following = view.states[shard.id].next
        for _ in range(_ROUNDS):
            if is_by_key:
                asked = replace(asked, keys=self._records.keys(view.stream, shard, following, KEYS_AHEAD))
            state, granted = self._commit(view, shard.id, asked)
            assert isinstance(granted, Granted)
            if granted.doomed:
                self._bury(view, shard.id, (asked.consumer, granted.hold), granted.doomed, _TOO_OFTEN)
            if granted.given:
                received = self._filled(view, shard, asked, granted, max_bytes)
                if received is not None:
                    return received
            elif not granted.doomed and (not granted.wants_keys or state.next == following):
                return None
            following = state.next
        return None

    def _filled(
        self, view: ShareView, shard: Shard, asked: Receive, granted: Granted, max_bytes: int
    ) -> Received | None:
        """The records that were handed out. What does not fit goes back, as if never handed out."""
        batch, left = self._records.read(view.stream, shard.id, granted.given, max_bytes)
        if left:
            act = Settle(consumer=asked.consumer, hold=granted.hold, ranges=left, how=How.RETURN)
            self._commit(view, shard.id, act)
        if batch is None:
            return None  # Retention was faster.
        given = _cut(granted.given, left[0][0]) if left else granted.given
        return Received(batch=batch, hold=granted.hold, given=given)

    # --- Settling. ---

    def settle(self, name: StreamName, group_id: int, settlings: Sequence[Settling]) -> list[Settled]:
        """See ShareService."""
        view = self._view(name, group_id)
        answers = self._commit_all(view, [(one.shard, one.act) for one in settlings])
        settled = []
        for one, (_, answer) in zip(settlings, answers, strict=True):
            assert isinstance(answer, Settled)
            if answer.doomed:
                self._bury(view, one.shard, (one.act.consumer, one.act.hold), answer.doomed, _TOO_OFTEN)
            settled.append(answer)
        return settled

    def reject(
        self, name: StreamName, group_id: int, settlings: Sequence[Settling], reason: str
    ) -> list[Settled]:
        """See ShareService. Doomed first: whatever becomes of us, none of them is handed out again."""
        view = self._view(name, group_id)
        held = self.settle(
            name,
            group_id,
            [replace(one, act=replace(one.act, how=How.DOOM, for_ms=BURY_MS)) for one in settlings],
        )
        settled = []
        for one, answer in zip(settlings, held, strict=True):
            mine = without(one.act.ranges, [part for part, _ in answer.refused])
            given = self._attempts(view, one.shard, mine)
            taken = self._bury(view, one.shard, (one.act.consumer, one.act.hold), given, reason)
            settled.append(Settled(taken=taken.taken, refused=(*answer.refused, *taken.refused)))
        return settled

    def reopen(self, name: StreamName, group_id: int, shard: ShardId, ranges: Sequence[Range]) -> int:
        """See ShareService."""
        view = self._look(name, group_id)
        keys: list[int] = []
        if view.group.settings.key_ordered:
            for low, high in ranges:
                keys += self._records.keys(view.stream, view.stream.shards[shard], low, high - low)[1]
        _, answer = self._commit(view, shard, Reopen(ranges=ranges, keys=keys))
        assert isinstance(answer, Settled)
        return answer.taken

    def _view(self, name: StreamName, group_id: int) -> ShareView:
        """The group as last seen: its kind and its stream do not change."""
        with self._lock:
            known = self._views.get(group_id)
        return known.view if known is not None else self._look(name, group_id)

    def _attempts(self, view: ShareView, shard: ShardId, ranges: Sequence[Range]) -> list[Given]:
        """How often records were handed out, as last seen."""
        with self._lock:
            known = self._views.get(view.group.id)
        state = None if known is None else known.states.get(shard)
        spans = () if state is None else state.open
        given = []
        for low, high in ranges:
            found = [span for span in spans if span.low < high and low < span.high]
            given += [Given(max(low, s.low), min(high, s.high), s.attempts % DOOMED) for s in found]
            if not found:
                given.append(Given(low, high, 1))
        return given

    def _bury(
        self, view: ShareView, shard: ShardId, held_by: tuple[str, int], given: Sequence[Given], reason: str
    ) -> Settled:
        """Into the dead stream, and settled in the same commit: whatever ends when, it is there once."""
        left: Sequence[Range] = [(one.low, one.high) for one in given]
        dead = Settle(consumer=held_by[0], hold=held_by[1], ranges=(), how=How.DEAD)
        done = Settled()
        while left:
            batch, later = self._records.read(view.stream, shard, [Given(*part, 0) for part in left], None)
            now, left = without(left, later), later
            kept: Sequence[Range] = ()
            if batch is not None:
                kept = ranges_of(batch.offsets)
                act = replace(dead, ranges=kept, is_whole=True)
                done = _added(done, self._bury_batch(view, act, batch, given=given, reason=reason))
            if gone := without(now, kept):  # Retention was faster.
                _, answer = self._commit(view, shard, replace(dead, ranges=gone))
                assert isinstance(answer, Settled)
                done = _added(done, answer)
        _log.warning(
            "group %s of %s: %s records of shard %s went to the dead stream: %s",
            view.group.name,
            view.stream.full_name,
            done.taken,
            shard,
            reason,
        )
        return done

    def _bury_batch(
        self,
        view: ShareView,
        act: Settle,
        batch: Batch,
        *,
        given: Sequence[Given],
        reason: str,
    ) -> Settled:
        """All that is still the holder's: what another has buried meanwhile is refused, and left out."""
        shard, refused = ShardId(batch.shard), Settled()
        for _ in range(_ROUNDS):
            request = letters(self._log, view.stream, view.group.name, batch, given=given, reason=reason)
            answer, written = self._store.bury(self._touch(view, shard, act), request, _now_ms())
            if isinstance(written, Appended):
                _, settled = self._answered(view, shard, answer)
                assert isinstance(settled, Settled)
                self._store.signal.ring([(ShardEnd(request.stream_id, request.shard), written.next_offset)])
                return _added(refused, settled)
            if isinstance(written, ShardGone):
                continue  # The dead stream was deleted since we looked; it is made again.
            if isinstance(written, ShardShut):
                raise closed(self._log, view.stream, view.group.name, written)
            if written is not None:
                raise written
            _, settled = self._answered(view, shard, answer)
            assert isinstance(settled, Settled)
            refused = _added(refused, settled)
            ranges = without(act.ranges, [part for part, _ in settled.refused])
            if not ranges:
                return refused
            act = replace(act, ranges=ranges)
            batch = batch.part([offset for low, high in ranges for offset in range(low, high)])
        raise StoreBusy(f"dead letters of group {view.group.name} find no place", 0.0)

    # --- Commits. ---

    def _commit(self, view: ShareView, shard: ShardId, act: Act) -> tuple[ShareState, Granted | Settled]:
        return self._commit_all(view, [(shard, act)])[0]

    def _commit_all(
        self, view: ShareView, acts: Sequence[tuple[ShardId, Act]]
    ) -> list[tuple[ShareState, Granted | Settled]]:
        """All in one commit, with those of others; the first error is raised after all were done."""
        if not acts:
            return []
        answers = self._committer.commit([self._touch(view, shard, act) for shard, act in acts])
        return [self._answered(view, shard, answer) for (shard, _), answer in zip(acts, answers, strict=True)]

    def _touch(self, view: ShareView, shard: ShardId, act: Act) -> ShareTouch:
        return ShareTouch(
            group_id=view.group.id,
            stream_id=view.stream.id,
            shard=shard,
            act=act,
            rules=rules_of(view.group.settings),
            left=self._watches.left(view.group.id, shard),
            seen=self._known(view).version(shard),
        )

    def _answered(
        self, view: ShareView, shard: ShardId, answer: ShareAnswer
    ) -> tuple[ShareState, Granted | Settled]:
        """Raise what the store refused; otherwise see the state, and let others know what is new in it."""
        if isinstance(answer, ShoalError):
            self._forget(view.group.id)
            raise answer
        known = self._known(view)
        self._watches.see(view.group.id, shard, answer[0])
        if known.see([(shard, answer[0])]):
            self._store.signal.ring([(ShareNews(view.group.id), known.news)])
        self._warn_of_losses(view, shard, answer[0])
        return answer

    def _forget(self, group_id: int) -> None:
        with self._lock:
            self._views.pop(group_id, None)

    def _warn_of_losses(self, view: ShareView, shard: ShardId, after: ShareState) -> None:
        before = view.states.get(shard)
        lost = 0 if before is None else after.lost - before.lost
        if lost > 0:
            _log.warning(
                "group %s of %s: retention took %s records of shard %s that nobody had settled",
                view.group.name,
                view.stream.full_name,
                lost,
                shard,
            )


@dataclass(slots=True)
class _Known:
    """A group as this process saw it last. Of two threads at once, the one that saw less may be later."""

    view: ShareView
    states: dict[ShardId, ShareState]
    told: dict[ShardId, int]
    """The news of each shard."""

    def see(self, states: Iterable[tuple[ShardId, ShareState]]) -> bool:
        """Whether there was news."""
        is_news = False
        for shard, state in states:
            known = self.states.get(shard)
            if known is None or state.version > known.version:
                self.states[shard] = state
            if state.news > self.told.get(shard, -1):
                self.told[shard] = state.news
                is_news = True
        return is_news

    def version(self, shard: ShardId) -> int:
        known = self.states.get(shard)
        return 0 if known is None else known.version

    @property
    def news(self) -> int:
        return sum(list(self.told.values()))


class Nothing(NamedTuple):
    """There is nothing to receive now."""

    places: Sequence[tuple[Place, int]]
    """Where something may move that brings some."""
    due_s: float
    """How long until time brings some."""
    waiting_for: str


class _Waiting:
    """One consumer that waits at several places. Writer of the event: whoever moves one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._woken = threading.Event()
        self._following: Following | None = None
        self._places: set[Place] = set()

    def begin(self) -> None:
        """Before the look: what moves after it is not missed."""
        self._woken.clear()

    def wait(self, places: Sequence[tuple[Place, int]], timeout_s: float) -> None:
        if self._following is None:
            self._following = self._store.signal.follow(lambda _: self._woken.set())
        for place in self._places - {place for place, _ in places}:
            self._following.drop(place)  # A shard that was closed would wake us with every commit.
        self._places = {place for place, _ in places}
        for place, beyond in places:
            if not self._following.move(place, beyond):
                self._following.add(place, beyond)
        self._woken.wait(timeout_s)

    def close(self) -> None:
        if self._following is not None:
            self._following.close()


def _places(view: ShareView, looks: dict[ShardId, Outlook]) -> list[tuple[Place, int]]:
    """The ends of the shards that may grow, and the group's news."""
    ends: list[tuple[Place, int]] = [
        (ShardEnd(view.stream.id, shard.id), shard.next_offset)
        for shard in view.stream.shards
        if shard.is_open and shard.id in looks
    ]
    news = sum(state.news for state in view.states.values())
    return [*ends, (ShareNews(view.group.id), news)]


def _due_s(looks: dict[ShardId, Outlook]) -> float:
    """How long until time brings something; a little more, so that it has."""
    return (
        min((look.due_ms for look in looks.values() if look.due_ms is not None), default=1 << 40) / 1000
        + 0.001
    )


def _why_nothing(view: ShareView, looks: dict[ShardId, Outlook]) -> str:
    full = [shard for shard, look in looks.items() if look.is_full]
    return "; ".join(
        f"shard {one} waits for {full_text(view.states[one], view.stream.shards[one])}" for one in full
    )


def _added(one: Settled, other: Settled) -> Settled:
    return Settled(taken=one.taken + other.taken, refused=(*one.refused, *other.refused))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _cut(given: Sequence[Given], end: int) -> list[Given]:
    """What lies below an offset."""
    return [one._replace(high=min(one.high, end)) for one in given if one.low < end]


_TOO_OFTEN: Final = "handed out as often as the group allows, or rejected, and never acknowledged"
