"""The simulated hub: what the real one does for a coordinated group, over the simulated store.

Stateless, one per process that has it: a server, or a consumer with the hub built in. Load, step, save; the
rules are `shoal.core`'s. Heartbeats and checkpoints are one row each and do not touch the group's version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from shoal.core import balance, events, handover, holding, membership, ownership
from shoal.core.balance import Strategy
from shoal.core.checkpoint import Save, check_fence, check_save, is_same
from shoal.core.claims import is_at_end
from shoal.core.errors import NotOwner, StoreBusy, StoreUnavailable, UnknownConsumer, UnknownGroup
from shoal.core.group import Group, GroupSettings, Member, MemberStatus
from shoal.core.membership import Beat
from shoal.core.model import Shard, ShardId
from sim.loop import Future, Process, Steps
from sim.rows import GroupRows
from sim.seat import Fetched
from sim.stage import Stage
from sim.stream import NAME, Stream

STEP_TRIES: Final = 12


class Hub:
    """The calls of a coordinated group."""

    def __init__(self, stage: Stage, process: Process, *, knows_all: bool = True) -> None:
        self._stage, self._store, self._facts = stage, stage.store, stage.facts
        self.process = process
        self._seen: dict[tuple[int, int], int] = {}
        """The highest version of a group that this process has seen, since it last was started afresh."""
        # One of an older release does not know the strategy that the group names.
        self.strategies: Mapping[str, Strategy] = balance.STRATEGIES if knows_all else {}

    def find(self) -> Steps[tuple[int, GroupSettings]]:
        """The group that has the name now, and what a consumer has to count by in it."""

        def body() -> tuple[int, GroupSettings]:
            if self._store.group is None:
                raise UnknownGroup(stream=str(NAME), group="g")
            return self._store.group.id, self._store.group.settings

        return (yield from self._store.read(self.process, body))

    def join(self, group: int, newcomer: events.Join) -> Steps[object]:
        return (yield from self.step(group, newcomer))

    def beat(self, group: int, beat: Beat) -> Steps[holding.Assignment]:
        """One row, and the answer as of the same transaction; first of all, what the store forgot."""
        answer = yield from self._store.write(self.process, lambda: self._count(group, beat))
        if isinstance(answer, events.Forgotten):
            yield from self.step(group, answer)
            answer = yield from self._store.write(self.process, lambda: self._count(group, beat))
        if isinstance(answer, events.Forgotten):
            raise StoreBusy("it forgets faster than it is told", 0)
        if "absence is a release" in self._stage.switches:
            yield from self._release_absent(group, beat, answer)
        return answer

    def _count(self, group: int, beat: Beat) -> holding.Assignment | events.Forgotten:
        rows = self._rows(group)
        if max(beat.seen, self._highest(group)) > rows.version:
            if "forgetting is ignored" not in self._stage.switches:
                return events.Forgotten(seen=max(beat.seen, self._highest(group)))
            self._facts.holding.evident()
        before = rows.members.get(beat.incarnation)
        member = membership.beaten(rows.settings, before, beat)
        assert before is not None
        claims = None
        if beat.seen != member.assigned or membership.digest(beat.held) != member.held:
            claims = [claim for claim in rows.claims if claim.owner == beat.incarnation]
            membership.check_held(member, beat.held, {claim.shard: claim for claim in rows.claims})
            member = replace(member, held=membership.remembered(beat.held, claims))
        rows.members[beat.incarnation] = member
        self._facts.beaten(before, beat.number, beat.timeout_ms)
        return holding.assignment(rows.settings, member, claims, beat)

    def wait(self, group: int, incarnation: str, seen: int, for_us: int) -> Steps[tuple[holding.View | None]]:
        """Until what this member holds has changed since `seen`, or for so long. It renews nothing."""
        changed = Future(self._stage.loop)
        self._stage.waiting.setdefault(incarnation, []).append(changed)
        if (
            view := (yield from self._store.read(self.process, lambda: self._view(group, incarnation)))
        ) is None:
            raise UnknownConsumer(incarnation)
        if view.version <= seen:
            self._stage.loop.after(for_us, changed.resolve)
            yield changed
            view = yield from self._store.read(self.process, lambda: self._view(group, incarnation))
        return (view if view is not None and view.version > seen else None,)

    def _view(self, group: int, incarnation: str) -> holding.View | None:
        rows = self._rows(group)
        member = rows.members.get(incarnation)
        if member is None or member.status is MemberStatus.GONE:
            return None
        mine = [claim for claim in rows.claims if claim.owner == incarnation]
        return holding.View(version=member.assigned, granted=holding.granted(mine))

    def release(self, group: int, release: events.Release) -> Steps[object]:
        """The plain hand-over, decided on the rows that it touches, in one commit; otherwise a step."""
        is_done = yield from self._store.write(self.process, lambda: self._hand_over(group, release))
        if not is_done:
            return (yield from self.step(group, release))
        self._stage.history.counts["plain hand-overs"] += 1
        return None

    def _hand_over(self, group: int, release: events.Release) -> bool:
        rows, stream = self._rows(group), self._stream()
        if rows.version < self._highest(group):
            return False  # What the store has left is not to be decided on; see `step`.
        released = {letting.shard for letting in release.lettings}
        claims = {claim.shard: claim for claim in rows.claims if claim.shard in released}
        wanted = {release.incarnation, *(claim.next for claim in claims.values())}
        outcome = handover.handed_over(
            replace(rows.loaded(), members={}, claims=()),
            release,
            claims,
            {shard.id: shard for shard in stream.shards if shard.id in released},
            {key: member for key, member in rows.members.items() if key in wanted},
        )
        if outcome is None:
            return False
        rows.version, rows.epoch = outcome.group.version, outcome.group.epoch
        self._store.sequence = max(self._store.sequence, rows.epoch)
        epochs = {letting.shard: letting.epoch for letting in release.lettings}
        for claim in outcome.claims:
            rows.claims[claim.shard] = claim
            shown = epochs[claim.shard]
            self._facts.claim_written(claims[claim.shard], claim, "release", release.incarnation, shown)
        for member in outcome.members:
            rows.members[member.incarnation] = member
            self._stage.wake(member.incarnation)
        return True

    def _release_absent(self, group: int, beat: Beat, answer: holding.Assignment) -> Steps[None]:
        """A planted bug: what a heartbeat does not name is taken for released."""
        absent = [
            events.Letting(shard=grant.shard, epoch=grant.epoch)
            for grant in answer.granted or ()
            if grant.shard not in beat.held and beat.seen == answer.version
        ]
        if absent:
            yield from self.step(group, events.Release(incarnation=beat.incarnation, lettings=absent))

    def save(self, group: int, incarnation: str, save: Save) -> Steps[None]:
        """An owner's checkpoint: one row, if it is still the owner's."""

        def body() -> bool:
            rows, stream = self._rows(group), self._stream()
            if save.shard >= len(rows.claims):
                raise NotOwner(shard=save.shard, consumer=incarnation, owner=None)
            claim, row = rows.claims[save.shard], stream.shards[save.shard]
            if "checkpoints are not fenced" not in self._stage.switches:
                check_save(NAME, claim, row, save)
            if not is_same(save.offset, claim.checkpoint):
                rows.claims[save.shard] = after = replace(claim, checkpoint=save.offset)
                self._facts.claim_written(claim, after, "save", incarnation, save.epoch)
            return is_at_end(row, save.offset)

        is_end = yield from self._store.write(self.process, body)
        if is_end:
            yield from self.step(group, events.Sync())

    def read(self, group: int, shard: ShardId, epoch: int, offset: int) -> Steps[Fetched]:
        """A fenced read: refused unless the epoch shown is the current one."""

        def body() -> Fetched:
            rows, stream = self._rows(group), self._stream()
            if "reads are not fenced" not in self._stage.switches:
                check_fence(rows.claims[shard] if shard < len(rows.claims) else None, shard, epoch)
            row = stream.shards[shard]
            batches = stream.read(shard, offset, self._stage.swarm.ahead)
            self._facts.holding.answered_read(shard, epoch)
            return Fetched(
                batches=batches, end=None if row.is_open else row.next_offset, tail=row.next_offset
            )

        return (yield from self._store.read(self.process, body))

    def step(self, group: int, event: events.Event, version: int | None = None) -> Steps[ownership.Stepped]:
        """Load, think with no lock held, save by compare-and-set; all of it again if it was overtaken.

        With `version`: only if the group still is at that version, and not again otherwise.
        """
        for _ in range(STEP_TRIES):
            failovers = self._store.failovers
            loaded, shards = yield from self._store.read(self.process, lambda: self._load(group))
            if not isinstance(event, events.Forgotten) and loaded.version < self._highest(group):
                # This process has seen more itself: nothing is decided on what the store has left.
                yield from self.step(group, events.Forgotten(seen=self._highest(group)))
                continue
            if version is not None and loaded.version != version:
                return ownership.Stepped(group=loaded)
            stepped = ownership.step(loaded, event, shards, self.strategies)
            if stepped.group is loaded:
                return stepped
            saving = _Saving(self._stage, self._life(), loaded, stepped.group, event, failovers)
            if (yield from self._store.write(self.process, partial(self._saved, saving))):
                return stepped
            self._stage.history.counts["steps overtaken"] += 1
            if version is not None:
                return ownership.Stepped(group=loaded)
            yield self._stage.rng.randrange(500, 4000)
        raise StoreBusy("the group changes faster than it can be thought about", 0)

    def _saved(self, saving: _Saving) -> bool:
        """Whether nobody was faster. Who has seen a later version meanwhile knows that somebody was, even if
        the store has forgotten it."""
        if saving.who != self._life():
            return False  # It was started afresh, and what it had thought of is gone.
        is_overtaken = self._highest(saving.after.id) > saving.before.version
        return False if is_overtaken and not isinstance(saving.event, events.Forgotten) else saving.save()

    def _load(self, group: int) -> tuple[Group, tuple[Shard, ...]]:
        return self._rows(group).loaded(), self._stream().shards

    def _rows(self, group: int) -> GroupRows:
        rows = self._store.group
        if not isinstance(rows, GroupRows) or rows.id != group:
            raise UnknownGroup(stream=str(NAME), group=str(group))
        self._facts.holding.saw(self._life(), group, rows.version)
        switches = self._stage.switches
        if "forgetting is ignored" not in switches and "hubs remember nothing" not in switches:
            self._seen[self._stage.afresh, group] = max(rows.version, self._highest(group))
        return rows

    def _highest(self, group: int) -> int:
        return self._seen.get((self._stage.afresh, group), 0)

    def _life(self) -> str:
        """Of this process since it last was started afresh."""
        return f"{self.process.name}/{self._stage.afresh}"

    def _stream(self) -> Stream:
        assert self._store.stream is not None
        return self._store.stream


@dataclass(frozen=True, slots=True)
class _Saving:
    """The write of one step: what has changed between two values of a group, into the rows."""

    stage: Stage
    who: str
    before: Group
    after: Group
    event: events.Event
    failovers: int
    """Of the store, before the group was loaded."""

    def save(self) -> bool:
        """Whether nobody was faster."""
        store, after = self.stage.store, self.after
        rows = store.group
        if store.failovers != self.failovers:
            raise StoreUnavailable("the connection was lost")  # See `Nemesis._forget`.
        if not isinstance(rows, GroupRows) or rows.id != after.id:
            return False
        if rows.version != self.before.version and "steps without compare-and-set" not in self.stage.switches:
            return False
        if not self._members_stand(rows):
            return False
        if not isinstance(self.event, events.Forgotten):
            self.stage.facts.holding.decided(self.who, after.id, self.before.version)
        rows.version, rows.epoch, rows.distrust_ms = after.version, after.epoch, after.distrust_ms
        if rows.settings != after.settings:
            rows.settings = after.settings
            self.stage.facts.updated(after.settings)
        store.sequence = max(store.sequence, after.epoch)
        self._save_members(rows)
        self._save_claims(rows)
        if isinstance(self.event, events.Forgotten) and self.event.seen > self.before.version:
            # Otherwise a read was overtaken within the process: the store knows what was missed after all.
            self.stage.facts.holding.evident()
        self.stage.facts.holding.distrust(after.distrust_ms)
        return True

    def _members_stand(self, rows: GroupRows) -> bool:
        """Whoever was judged by its row must still be as it was seen."""
        if "expiry without the member's row" in self.stage.switches:
            return True
        if isinstance(self.event, events.Expire):
            key = self.event.incarnation
            seen, now = self.before.members.get(key), rows.members.get(key)
            return seen is not None and now is not None and _counter(seen) == _counter(now)
        return True

    def _save_members(self, rows: GroupRows) -> None:
        for key in [key for key in rows.members if key not in self.after.members]:
            del rows.members[key]
        for key, member in self.after.members.items():
            before, now = self.before.members.get(key), rows.members.get(key)
            if member is before:
                continue
            is_barred = member.status is MemberStatus.BARRED
            if (
                is_barred
                and isinstance(self.event, events.Join)
                and before
                and before.status != member.status
            ):
                self.stage.facts.holding.barred(key, self.event.incarnation)
            if now is None:
                rows.members[key] = member
                self.stage.facts.joined(member)
            else:
                # What heartbeats and watchers write is theirs: a step does not put it back.
                rows.members[key] = replace(now, status=member.status, assigned=member.assigned)
            if member.status is MemberStatus.GONE and (now is None or now.status is not MemberStatus.GONE):
                # Another's expiry may be the step after which a barred one holds nothing any more.
                is_expired = isinstance(self.event, events.Expire) and self.event.incarnation == key
                self.stage.facts.went(now or member, is_expired=is_expired)
            if before is None or member.assigned != before.assigned:
                self.stage.wake(key)

    def _save_claims(self, rows: GroupRows) -> None:
        event = self.event
        by = type(event).__name__.lower()
        who = getattr(event, "incarnation", None)
        lettings = {letting.shard: letting.epoch for letting in getattr(event, "lettings", ())}
        for place, claim in enumerate(self.after.claims):
            loaded = self.before.claims[place] if place < len(self.before.claims) else None
            if claim is loaded:
                continue
            now = rows.claims[place] if place < len(rows.claims) else None
            if now is not None and loaded is not None and is_same(claim.checkpoint, loaded.checkpoint):
                claim = replace(claim, checkpoint=now.checkpoint)  # noqa: PLW2901
            if now is None:
                rows.claims.append(claim)
            else:
                rows.claims[place] = claim
            if isinstance(event, events.Rewind) and claim.shard in event.positions:
                offset = event.positions[claim.shard]
                self.stage.facts.forced(now, claim, offset, self.before.epoch)
            self.stage.facts.claim_written(now, claim, by, who, lettings.get(claim.shard, 0))


def _counter(member: Member) -> tuple[int, int]:
    return member.beat, member.stood_ms
