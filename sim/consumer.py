"""A simulated consumer: one lane per lease, user code that takes time, checkpoints, drains and releases.

Whatever a lane has fetched belongs to its (shard, epoch) and goes with it. A batch is handed out only if
the seat says so at that instant. User code runs for a while and then writes to a sink that checks fences.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from typing import Final

from shoal.core.errors import Fenced, NotOwner, OffsetExpired, ShoalError
from shoal.core.holding import Lease
from shoal.core.model import ShardId
from sim.loop import MS, Future, Process, Steps
from sim.seat import Seat
from sim.stage import Stage

IDLE_US: Final = 90 * MS


class Lane:
    """One lease at work."""

    __slots__ = (
        "done",
        "epoch",
        "is_closing",
        "is_fenced",
        "is_lost",
        "next",
        "queue",
        "saved",
        "shard",
        "wake",
    )

    def __init__(self, lease: Lease) -> None:
        self.shard, self.epoch = lease.shard, lease.epoch
        self.next = self.done = self.saved = lease.checkpoint
        self.queue: deque[tuple[int, int]] = deque()
        self.is_closing = self.is_lost = self.is_fenced = False
        self.wake: Future | None = None

    def stir(self) -> None:
        if self.wake is not None:
            self.wake.resolve()


class Consumer:
    """One process of one consumer. See Lessee for what its seat tells it."""

    def __init__(self, stage: Stage, process: Process, seat: Seat, name: str) -> None:
        self._stage, self._seat = stage, seat
        self.process, self.name = process, name
        self.lanes: dict[ShardId, Lane] = {}
        self.is_stopping = False
        self._is_barred = False
        self._drains = stage.rng.random() < 0.5
        self._left: dict[ShardId, tuple[deque[tuple[int, int]], int]] = {}

    @property
    def incarnation(self) -> str:
        return self._seat.incarnation

    @property
    def is_working(self) -> bool:
        """Whether it means to stay."""
        return self.process.is_up and not self.is_stopping and not self._is_barred

    def start(self) -> None:
        self._seat.start(self)

    def wake(self) -> None:
        """A notification: something has changed for this incarnation."""
        self._seat.wake()

    def stop(self) -> None:
        """A clean stop: get nothing more, drain and release each shard, leave."""
        if not self.is_stopping and not self._is_barred:
            self.is_stopping = True
            self.process.spawn(self._stop())

    def fork(self, child: Process) -> None:
        """The child finds itself in the middle of this consumer's work, and goes on as far as it may."""
        other = Consumer(self._stage, child, self._seat.forked(child), self.name)
        for shard, lane in self.lanes.items():
            other.lanes[shard] = twin = copy(lane)
            twin.queue, twin.wake = deque(lane.queue), None
            child.spawn(other._work(twin))

    def _stop(self) -> Steps[None]:
        yield from self._seat.retire()
        self._close_all()
        while self.lanes:
            yield 20 * MS
            self._close_all()
        yield from self._seat.leave()
        self._stage.history.say(self.process.name, "has stopped")
        self.process.crash()

    # --- Lessee. -------------------------------------------------------------------------------------

    def opened(self, lease: Lease) -> None:
        lane = Lane(lease)
        if "what was fetched outlives its epoch" in self._stage.switches and lease.shard in self._left:
            lane.queue, lane.next = self._left[lease.shard]
        lane.is_closing = self.is_stopping or self._is_barred
        self.lanes[lease.shard] = lane
        self.process.spawn(self._work(lane))

    def closing(self, shard: ShardId, epoch: int) -> None:
        lane = self.lanes.get(shard)
        if lane is not None and lane.epoch == epoch:
            lane.is_closing = True
            lane.stir()

    def lost(self, shard: ShardId, epoch: int) -> None:
        lane = self.lanes.get(shard)
        if lane is not None and lane.epoch == epoch:
            lane.is_lost = True
            del self.lanes[shard]
            lane.stir()
            if "what was fetched outlives its epoch" in self._stage.switches:
                self._left[shard] = (lane.queue, lane.next)

    def barred(self) -> None:
        self._is_barred = True
        self._close_all()
        self.process.spawn(self._fade())

    def _fade(self) -> Steps[None]:
        while self.lanes:
            yield 50 * MS
        self._stage.history.say(self.process.name, "stays away")
        self.process.crash()

    def _close_all(self) -> None:
        for lane in self.lanes.values():
            lane.is_closing = True
            lane.stir()

    # --- A lane. -------------------------------------------------------------------------------------

    def _work(self, lane: Lane) -> Steps[None]:
        while not lane.is_lost and not lane.is_closing:
            if lane.is_fenced:
                # The next answer says what became of it; if it still is ours, the store may have forgotten.
                yield from self._rest(lane, 2 * IDLE_US)
                lane.is_fenced = False
            elif not lane.queue:
                yield from self._fetch(lane)
            elif self._seat.may_act(lane.shard, lane.epoch):
                yield from self._hand_out(lane)
            else:
                yield from self._rest(lane, 30 * MS)
        # To drain is to finish what is running; some finish what they have fetched, while they may.
        while self._drains and lane.queue and not lane.is_lost and self._seat.may_act(lane.shard, lane.epoch):
            yield from self._hand_out(lane)
        if not lane.is_lost:
            yield from self._let_go(lane)

    def _fetch(self, lane: Lane) -> Steps[None]:
        try:
            fetched = yield from self._seat.read(lane.shard, lane.epoch, lane.next)
        except (Fenced, NotOwner):
            lane.is_fenced = True
            return
        except OffsetExpired as error:
            # Policy of this world: go on with the first that is kept. It is counted, and never silent.
            self._stage.history.counts["jumps"] += 1
            if not lane.is_lost:
                lane.next = error.first_offset
            return
        except ShoalError:
            yield from self._rest(lane, 60 * MS)
            return
        if lane.is_lost:
            return
        lane.queue.extend(fetched.batches)
        if fetched.batches:
            lane.next = fetched.batches[-1][1]
            return
        if fetched.end is not None and lane.next >= fetched.end and lane.done < lane.next:
            self._declare(lane, lane.next)  # Retention took the rest of a closed shard.
        if lane.saved < lane.done or fetched.end is not None:
            yield from self._save(lane)
        yield from self._rest(lane, IDLE_US)

    def _hand_out(self, lane: Lane) -> Steps[None]:
        batch = lane.queue.popleft()
        group, mine = self._seat.group, self.incarnation
        self._stage.facts.handed(group, mine, lane.shard, lane.epoch, batch)
        yield self._duration()
        # Code that is already running cannot be stopped; the sink's fence is what holds it.
        self._stage.facts.wrote(group, mine, lane.shard, lane.epoch)
        if lane.is_lost:
            return
        self._declare(lane, batch[1])
        if not self._stage.is_so("lazy save") and self._stage.rng.random() < 0.4:
            yield from self._save(lane)

    def _declare(self, lane: Lane, offset: int) -> None:
        lane.done = offset
        self._stage.facts.declared(self._seat.group, self.incarnation, lane.shard, lane.epoch, offset)

    def _save(self, lane: Lane) -> Steps[None]:
        if lane.is_lost:
            return
        offset = lane.done
        try:
            yield from self._seat.save(lane.shard, lane.epoch, offset)
        except (Fenced, NotOwner):
            lane.is_fenced = True
        except ShoalError:
            return
        else:
            lane.saved = offset

    def _let_go(self, lane: Lane) -> Steps[None]:
        """Drained: save and release in one call. From now on nothing is done under this epoch."""
        if self.lanes.get(lane.shard) is not lane:
            return
        if "acts after its release" in self._stage.switches:
            self.process.spawn(self._seat.release(lane.shard, lane.epoch, lane.done))
            yield 1
            while lane.queue and not lane.is_lost:
                yield from self._hand_out(lane)
        else:
            yield from self._seat.release(lane.shard, lane.epoch, lane.done)
        if self.lanes.get(lane.shard) is lane:
            del self.lanes[lane.shard]

    def _rest(self, lane: Lane, for_us: int) -> Steps[None]:
        lane.wake = wake = Future(self._stage.loop)
        self._stage.loop.after(for_us, wake.resolve)
        yield wake
        lane.wake = None

    def _duration(self) -> int:
        rng = self._stage.rng
        if self._stage.is_so("slow code"):
            return rng.randrange(100, 1200) * MS
        return rng.randrange(MS, (5 if self._stage.is_healed else self._stage.swarm.code_ms) * MS)
