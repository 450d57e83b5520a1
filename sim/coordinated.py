"""A seat in a coordinated group: heartbeats, their answers, looks, releases, as `shoal.core.holding` rules.

Heartbeats are sent on time whether or not the last was answered, so that several are in flight. Once the last
is answered, it waits at the hub for changes, and what it is shown counts until the next heartbeat is sent: an
answer and a look never cross, as in the real shell, where one thread does both. A consumer that is told it is
unknown drops everything and joins again under a new incarnation; one that is barred stays away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import Final

from shoal.core import holding as rules
from shoal.core.checkpoint import Save
from shoal.core.errors import NameTaken, ShoalError, UnknownConsumer, UnknownGroup
from shoal.core.events import Join, Leave, Letting, Release, Retire
from shoal.core.holding import Holding, Lease
from shoal.core.membership import Beat
from shoal.core.model import ShardId
from sim.hub import Hub
from sim.loop import MS, Future, Process, Steps
from sim.network import Network
from sim.seat import Fetched, Lessee, Seat, VoidSeat
from sim.stage import Stage

LEAVE_TRIES: Final = 20
WAIT_US: Final = 300 * MS
"""How long one call waits for a change: shorter than the time after which an answer is given up."""


class CoordinatedSeat:
    """See Seat."""

    def __init__(self, stage: Stage, process: Process, network: Network, name: str) -> None:
        self._stage, self._process, self._network, self._name = stage, process, network, name
        self._lessee: Lessee | None = None
        self._lives = 0
        self._holding = Holding(incarnation="", timeout_ms=1, interval_ms=1)
        self._heard = 0
        """The last heartbeat that was answered."""
        self._wake = Future(stage.loop)
        self._is_over = False
        self._is_barred = False
        self._was_member = False
        self._is_retired, self._retired_as = False, ""
        self._lettings: dict[tuple[str, ShardId, int], Letting] = {}
        self.group = 0

    @property
    def incarnation(self) -> str:
        return self._holding.incarnation

    @property
    def leases(self) -> Mapping[ShardId, Lease]:
        return self._holding.leases

    def start(self, lessee: Lessee) -> None:
        self._lessee = lessee
        self._process.spawn(self._live())

    def wake(self) -> None:
        """Nothing to do: it is the hub that waits for changes, on its behalf."""

    def may_act(self, shard: ShardId, epoch: int) -> bool:
        if "deadline is not checked" in self._stage.switches:
            return shard in self._holding.leases
        return rules.may_act(self._holding, shard, epoch, self._deadline_clock())

    def read(self, shard: ShardId, epoch: int, offset: int) -> Steps[Fetched]:
        group = self.group
        return (yield from self._network.call(lambda hub: hub.read(group, shard, epoch, offset)))

    def save(self, shard: ShardId, epoch: int, offset: int) -> Steps[None]:
        yield from self._save_as(self.incarnation, Save(shard=shard, epoch=epoch, offset=offset))

    def release(self, shard: ShardId, epoch: int, checkpoint: int | None) -> Steps[None]:
        mine = self.incarnation
        self._holding = rules.let_go(self._holding, shard, epoch)
        self._stage.facts.release_sent(mine, shard, epoch)
        if "release before the checkpoint" in self._stage.switches:
            yield from self._send_release(mine, Letting(shard=shard, epoch=epoch))
            if checkpoint is not None:
                save = Save(shard=shard, epoch=epoch, offset=checkpoint)
                yield from self._tried(lambda: self._save_as(mine, save))
            return
        letting = Letting(shard=shard, epoch=epoch, checkpoint=checkpoint)
        if "a repeated release forgets the checkpoint" not in self._stage.switches:
            self._lettings[mine, shard, epoch] = letting
        yield from self._send_release(mine, letting)

    def retire(self) -> Steps[None]:
        self._is_retired = True
        yield from self._tried(self._announce)

    def _announce(self) -> Steps[None]:
        """Said again with every heartbeat until it is heard, as in the real shell."""
        mine, group = self.incarnation, self.group
        yield from self._network.call(lambda hub: hub.step(group, Retire(incarnation=mine)))
        self._retired_as = mine

    def leave(self) -> Steps[None]:
        mine = self.incarnation
        group = self.group
        self._is_over = True
        for _ in range(LEAVE_TRIES):
            try:
                yield from self._network.call(lambda hub: hub.step(group, Leave(incarnation=mine)))
            except ShoalError as error:
                if not error.retriable:
                    return
                yield 60 * MS
            else:
                return

    def forked(self, process: Process) -> Seat:
        """Void: only a planted bug goes on as the parent did."""
        if "a forked child goes on" not in self._stage.switches:
            return VoidSeat()
        child = copy(self)
        child._process = process
        return child

    # --- Life. ---------------------------------------------------------------------------------------

    def _live(self) -> Steps[None]:
        while not self._is_over and not self._is_barred:
            yield from self._join()
            yield from self._beat_on()

    def _join(self) -> Steps[None]:
        """A new incarnation, which nobody has had before. A join whose answer is lost is repeated as it was.

        One that was a member before takes nobody's name: who has it by now is the newer one.
        """
        while not self._is_over and not self._is_barred:
            self._lives += 1
            mine = f"{self._process.name}#{self._lives}"
            try:
                group, settings = yield from self._network.call(lambda hub: hub.find())
                timeout = settings.timeout_ms
                newcomer = Join(
                    name=self._name,
                    incarnation=mine,
                    timeout_ms=timeout,
                    interval_ms=max(1, timeout // self._stage.swarm.intervals),
                    is_again=self._was_member,
                )
                yield from self._join_as(group, newcomer)
            except NameTaken:
                self._bar()
            except UnknownConsumer:
                self._was_member = True  # Its join had come in, and it was gone before it heard of it.
            except ShoalError:
                yield self._stage.rng.randrange(20, 120) * MS
            else:
                self._was_member = True
                self.group = group
                self._holding = Holding(
                    incarnation=mine, timeout_ms=timeout, interval_ms=newcomer.interval_ms
                )
                return

    def _join_as(self, group: int, newcomer: Join) -> Steps[None]:
        while True:
            try:
                yield from self._network.call(lambda hub: hub.join(group, newcomer))
            except ShoalError as error:
                if not error.retriable:
                    raise
                yield self._stage.rng.randrange(20, 120) * MS
            else:
                return

    def _beat_on(self) -> Steps[None]:
        mine = self.incarnation
        while not self._is_over and not self._is_barred and self.incarnation == mine:
            self._holding, beat = rules.asked(self._holding, self._deadline_clock())
            self._stage.facts.deadlines.asked(beat.incarnation, beat.number)
            self._process.spawn(self._send(beat))
            self._wake = wake = Future(self._stage.loop)
            rest = self._holding.interval_ms * MS
            # A busy process comes late to its heartbeat, and a little early is no harm.
            self._stage.loop.after(rest * self._stage.rng.randrange(80, 105) // 100, wake.resolve)
            yield wake
            if self._stage.is_so("deaf"):
                self._stage.history.fault("misses a beat", self._process.name)
                yield self._stage.rng.randrange(rest, 4 * rest)

    def _send(self, beat: Beat) -> Steps[None]:
        group = self.group
        try:
            answer = yield from self._network.call(lambda hub: hub.beat(group, beat))
        except (UnknownConsumer, UnknownGroup):
            if self.incarnation == beat.incarnation:
                self._drop()
        except NameTaken:
            if self.incarnation == beat.incarnation:
                self._bar()
        except ShoalError:
            pass
        else:
            if self.incarnation == beat.incarnation and not self._is_over:
                if self._is_retired and self._retired_as != beat.incarnation:
                    self._process.spawn(self._tried(self._announce))
                self._take(answer)
                yield from self._look_on(beat)

    def _look_on(self, beat: Beat) -> Steps[None]:
        """Wait for changes at the hub, again and again, until the next heartbeat."""
        group = self.group

        def wait(hub: Hub) -> Steps[tuple[rules.View | None]]:
            return (yield from hub.wait(group, beat.incarnation, self._holding.seen, WAIT_US))

        while self._is_last(beat):
            try:
                (view,) = yield from self._network.call(wait)
            except ShoalError:
                yield 50 * MS
                continue
            if not self._is_last(beat):
                return
            self._renew_by_looking()
            if view is not None:
                self._see(view)
                if self._stage.is_so("duplicate"):
                    self._process.spawn(self._see_again(beat.incarnation, view))

    def _is_last(self, beat: Beat) -> bool:
        """Nothing was asked since, and nothing has ended."""
        mine = self._holding
        is_same = (mine.incarnation, mine.number) == (beat.incarnation, beat.number)
        return is_same and not self._is_over and not self._is_barred

    def _see_again(self, mine: str, view: rules.View) -> Steps[None]:
        """The same answer once more, long after; it finds the consumer with nothing asked and unanswered."""
        yield self._stage.rng.randrange(3 * self._holding.interval_ms) * MS
        while self._heard != self._holding.number:
            yield 5 * MS
        if self.incarnation == mine and not self._is_over and not self._is_barred:
            self._see(view)

    def _renew_by_looking(self) -> None:
        if "a look renews the deadline" in self._stage.switches:
            until = self._deadline_clock() + self._holding.timeout_ms
            leases = {key: replace(one, deadline_ms=until) for key, one in self._holding.leases.items()}
            self._holding = replace(self._holding, leases=leases)

    def _see(self, view: rules.View) -> None:
        self._stage.history.counts["looks that showed something"] += 1
        self._apply(rules.viewed(self._holding, view), f"sees version {view.version}")

    def _take(self, answer: rules.Assignment) -> None:
        if "deadline from the answer" in self._stage.switches:
            self._holding = replace(self._holding, asked_ms=self._deadline_clock())
        if "answers of older heartbeats" in self._stage.switches:
            answer = replace(answer, number=self._holding.number)
        self._heard = answer.number
        self._apply(rules.answered(self._holding, answer), f"takes answer {answer.number}")

    def _apply(self, answered: rules.Answered, what: str) -> None:
        assert self._lessee is not None
        self._holding = answered.holding
        if self._stage.history.is_traced:
            held = ", ".join(
                f"{lease.shard} at {lease.epoch}{'' if lease.is_wanted else ' closing'}"
                for lease in self._holding.leases.values()
            )
            self._stage.history.say(self.incarnation, f"{what}: holds {held or 'none'}")
        for lease in answered.lost:
            self._lessee.lost(lease.shard, lease.epoch)
        for lease in answered.opened:
            self._lessee.opened(lease)
        for lease in answered.closing:
            self._lessee.closing(lease.shard, lease.epoch)
        for shard, epoch in answered.release_again:
            # As it was sent: without its checkpoint it could overtake the first one, and lose what was done.
            known = self._lettings.get((self.incarnation, shard, epoch))
            letting = known or Letting(shard=shard, epoch=epoch)
            self._stage.facts.release_sent(self.incarnation, shard, epoch)
            self._process.spawn(self._send_release(self.incarnation, letting))

    def _drop(self) -> None:
        """Unknown: whatever we hold is not ours. The old incarnation never comes back."""
        self._lose_all()
        self._holding = Holding(incarnation="", timeout_ms=1, interval_ms=1)
        self._wake.resolve()

    def _bar(self) -> None:
        assert self._lessee is not None
        if "barred ones join again" in self._stage.switches:
            self._drop()
            return
        if not self._is_barred:
            self._is_barred = True
            self._stage.history.say(self.incarnation, "is barred")
            self._lessee.barred()
            self._wake.resolve()

    def _lose_all(self) -> None:
        assert self._lessee is not None
        for lease in self._holding.leases.values():
            self._lessee.lost(lease.shard, lease.epoch)

    # --- Calls that are repeated. --------------------------------------------------------------------

    def _send_release(self, mine: str, letting: Letting) -> Steps[None]:
        """Until it is known: a release that nobody heard of would leave the shard with nobody."""
        group = self.group
        while True:
            release = Release(incarnation=mine, lettings=[letting])

            def send(hub: Hub, release: Release = release) -> Steps[object]:
                return (yield from hub.release(group, release))

            try:
                yield from self._network.call(send)
            except ShoalError as error:
                if not error.retriable:
                    if letting.checkpoint is None:
                        return
                    letting = replace(letting, checkpoint=None)
                yield self._stage.rng.randrange(20, 80) * MS
            else:
                return

    def _save_as(self, mine: str, save: Save) -> Steps[None]:
        group = self.group
        yield from self._network.call(lambda hub: hub.save(group, mine, save))

    def _tried(self, call: Callable[[], Steps[object]]) -> Steps[None]:
        """A call that may fail without harm."""
        try:
            yield from call()
        except ShoalError:
            return

    def _deadline_clock(self) -> int:
        return self._stage.deadline_clock_ms(self._process)
