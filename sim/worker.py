"""A simulated worker: the real crew and its tenures, in a shell of virtual time.

As in the real shell one task decides, and whatever takes time runs beside it: reads, user code, saves,
releases. The crew is shown leases, lineage and the time of the process, and its orders are carried out in
turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shoal.core import orders
from shoal.core.crew import Crew
from shoal.core.delivery import Tenure
from shoal.core.errors import Fenced, LeaseLost, NotOwner, ShoalError, UnknownGroup
from shoal.core.holding import Lease
from shoal.core.model import Shard, ShardId
from shoal.core.orders import Order, What
from shoal.core.tasks import (
    Failure,
    Fetch,
    Initialize,
    Phase,
    Process,
    ProcessNothing,
    Reason,
    SetAside,
    ShutDown,
    Task,
)
from sim.checks_records import Hand
from sim.held import Held
from sim.loop import MS, Future, Steps
from sim.loop import Process as Life
from sim.places import Places
from sim.seat import Seat
from sim.stage import Stage
from sim.stream import NAME
from sim.user_code import Raised, UserCode
from sim.worker_swarm import RECORD_BYTES, WorkerSwarm


class Worker:
    """One process of one consumer. See Lessee for what its seat tells it."""

    def __init__(
        self,
        stage: Stage,
        process: Life,
        seat: Seat,
        name: str,
        *,
        swarm: WorkerSwarm,
        code: UserCode,
        places: Places,
        ended: Callable[[str], None],
    ) -> None:
        """`ended` is told when it ends because of a failure."""
        self._stage, self._seat, self._swarm = stage, seat, swarm
        self.process, self.name = process, name
        self._code, self._places, self._ended = code, places, ended
        self._lanes = stage.rng.choice(swarm.lanes)
        self._crew = Crew(swarm.crew_rules(self._lanes), process.boot_ms())
        self._shards: Sequence[Shard] = ()
        self._held: dict[Tenure, Held] = {}
        self._granted: dict[tuple[ShardId, int], tuple[int, str]] = {}
        """(Shard, epoch) to the group and the incarnation that it was given to."""
        self._wake = Future(stage.loop)
        self._is_changed = True
        self._touched: dict[Tenure, None] = {}
        self._error: ShoalError | None = None
        self._group = 0
        """The group that it joined first."""

    @property
    def incarnation(self) -> str:
        return self._seat.incarnation

    @property
    def is_working(self) -> bool:
        """Whether it means to stay."""
        return self.process.is_up and not self._crew.is_stopping

    def start(self) -> None:
        self._seat.start(self)
        self.process.spawn(self._decide())

    def wake(self) -> None:
        """A notification: something has changed for this incarnation."""
        self._seat.wake()

    def stir(self, tenure: Tenure | None = None) -> None:
        """Something has happened, to this tenure alone or to more: look again."""
        if tenure is None:
            self._is_changed = True
        else:
            self._touched[tenure] = None
        self._wake.resolve()

    def hear_news(self) -> None:
        """Something has happened to the stream."""
        for shard, tenure in self._crew.held.items():
            row = self._held[tenure].stream.shards[shard]
            if row.next_offset > tenure.fetched or not row.is_open:
                self._crew.moved(shard)
                self.stir(tenure)

    def stop(self) -> None:
        """A clean stop: get nothing more, hand everything over, leave."""
        if self.is_working:
            self.process.spawn(self._stop())

    def _stop(self) -> Steps[None]:
        yield 1
        self._carry_out(self._crew.stop(self._now_ms()))
        self.stir()

    def fork(self, child: Life) -> None:
        """A child has none of its threads: nothing of the worker goes on in it."""

    # --- Lessee. -------------------------------------------------------------------------------------

    def opened(self, lease: Lease) -> None:
        self._granted[lease.shard, lease.epoch] = (self._seat.group, self._seat.incarnation)
        self.stir()

    def closing(self, shard: ShardId, epoch: int) -> None:
        del shard, epoch
        self.stir()

    def lost(self, shard: ShardId, epoch: int) -> None:
        del shard, epoch
        self.stir()

    def barred(self) -> None:
        self._carry_out(self._crew.stop(self._now_ms()))
        self.stir()

    # --- The one that decides. -----------------------------------------------------------------------

    def _decide(self) -> Steps[None]:
        """Turns: one looks at everything when it is time to, or when more has changed than single tenures."""
        due_us = 0
        while not self._crew.is_finished:
            self._wake = wake = Future(self._stage.loop)
            touched, self._touched = self._touched, {}
            if self._is_changed or self._stage.loop.now >= due_us:
                self._is_changed = False
                yield from self._decide_on_all()
                due_us = self._in_us(self._crew.rest_ms(self._now_ms()))
            else:
                self._carry_out(self._crew.go_on(touched, self._now_ms()))
                rest_ms = self._crew.rest_of(touched, self._now_ms())
                due_us = due_us if rest_ms is None else min(due_us, self._in_us(rest_ms))
            if not self._crew.is_finished:
                self._stage.loop.after(max(0, due_us - self._stage.loop.now), wake.resolve)
                yield wake
        yield from self._end()

    def _in_us(self, rest_ms: int) -> int:
        return self._stage.loop.now + max(1, rest_ms) * MS

    def _decide_on_all(self) -> Steps[None]:
        leases = self._leases()
        if self._crew.wants_lineage(leases, self._shards):
            yield from self._see_shards()
        self._save_at_last()
        self._carry_out(self._crew.advance(self._now_ms(), leases, self._shards))

    def _leases(self) -> Mapping[ShardId, Lease]:
        """What it holds of the group that it joined. One that is gone ends the worker."""
        self._group = self._group or self._seat.group
        if self._seat.group == self._group:
            return dict(self._seat.leases)
        self._error = self._error or UnknownGroup(stream=str(NAME), group=str(self._group))
        self._carry_out(self._crew.stop(self._now_ms()))
        return {}

    def _see_shards(self) -> Steps[None]:
        stream = self._stage.store.stream
        assert stream is not None
        try:
            self._shards = yield from self._stage.store.read(self.process, lambda: stream.shards)
        except ShoalError:
            yield 20 * MS

    def _save_at_last(self) -> None:
        """Once the world has healed, nothing that was processed stays unsaved: another thread sees to it."""
        if self._stage.is_healed:
            for tenure in self._crew.held.values():
                for lane in tenure.lanes:
                    if tenure.phase is Phase.PROCESSING and lane.finished > lane.done:
                        self.declare(self._held[tenure], lane.number, None)

    def _end(self) -> Steps[None]:
        yield from self._seat.leave()
        self._stage.history.say(self.process.name, "has stopped")
        if any(work.tenure.is_running for work in self._held.values()):
            yield 300 * MS  # The program goes on for a while, and in it user code that was given up.
        self.process.crash()
        if self._error is not None:
            self._ended(self.name)

    def _carry_out(self, wanted: Sequence[Order]) -> None:
        for order in wanted:
            match order:
                case orders.Open(tenure=tenure):
                    self._open(tenure)
                case orders.Run(tenure=tenure, task=task):
                    self.process.spawn(self._perform(self._held[tenure], task))
                case orders.Read(tenure=tenure, wanted=fetch, bytes_max=bytes_max):
                    self.process.spawn(self._read(self._held[tenure], fetch, bytes_max))
                case orders.LetGo(due=due):
                    for tenure, _ in due:
                        self._stage.facts.records.over(self._held[tenure].hand)
                    self.process.spawn(self._let_go(due))
                case orders.Tell(what=what, tenure=tenure):
                    self._tell(what, tenure)
                case orders.PersistAll():
                    self.process.spawn(self._persist_all())
                case orders.Retire():
                    self.process.spawn(self._seat.retire())
                case orders.Fail(error=error):
                    self._error = self._error or error
                case _:
                    self._stage.history.counts[type(order).__name__] += 1

    def _open(self, tenure: Tenure) -> None:
        group, incarnation = self._granted[tenure.shard, tenure.epoch]
        hand = Hand(group, self.process.name, incarnation, tenure.shard, tenure.epoch, self._lanes)
        assert self._stage.store.stream is not None
        self._held[tenure] = Held(tenure, hand, self._stage.store.stream)

    def _tell(self, what: What, tenure: Tenure) -> None:
        hand = self._held[tenure].hand
        self._stage.history.counts[f"tenures {what}"] += 1
        if self._stage.history.is_traced:
            self._stage.history.say(hand.incarnation, f"{what} shard {hand.shard} at {hand.epoch}")
        if what is What.LOST:
            self._stage.facts.records.over(hand, is_given_up=tenure.is_given_up)

    # --- Records. ------------------------------------------------------------------------------------

    def _read(self, held: Held, wanted: Fetch, bytes_max: int) -> Steps[None]:
        tenure = held.tenure
        try:
            fetched = yield from self._seat.read(tenure.shard, tenure.epoch, wanted.offset)
        except ShoalError as error:
            self._carry_out(self._crew.not_found(tenure, wanted, error, self._now_ms()))
            self.stir(held.tenure)
            return
        until = wanted.offset
        for _, end in fetched.batches:
            if until > wanted.offset and (end - wanted.offset) * RECORD_BYTES > bytes_max:
                break
            until = end
        until = until if wanted.until is None else min(until, wanted.until)
        self._crew.found(
            tenure,
            wanted,
            held.pieces(wanted, until, self._swarm.piece_records),
            next_offset=until,
            is_end=fetched.end is not None and until >= fetched.end,
            is_tail=wanted.lane is None and until >= fetched.tail and fetched.end is None,
            now_ms=self._now_ms(),
        )
        self.stir(held.tenure)

    # --- User code. ----------------------------------------------------------------------------------

    def _perform(self, held: Held, task: Task) -> Steps[None]:
        """In a thread of its own, soon."""
        yield self._stage.rng.randrange(1, 300)
        if isinstance(task, SetAside):
            yield from self._set_aside(held, task)
            return
        if (
            self._swarm.is_polled
            and isinstance(task, Process)
            and not (yield from self._is_taken(held, task))
        ):
            return
        records, tenure = self._stage.facts.records, held.tenure
        records.begins(held.hand, task.lane, is_first=isinstance(task, Initialize))
        back_to, failure, is_postponed = None, None, False
        try:
            back_to = yield from self._run(held, task)
        except LeaseLost as error:
            is_postponed = isinstance(task, Process | ProcessNothing)
            failure = Failure(kind="LeaseLost", text=str(error))
        except Raised as error:
            failure = Failure(kind=error.kind, text="", reached=error.reached, is_outage=error.is_outage)
        except ShoalError as error:
            failure = Failure(kind=type(error).__name__, text=str(error), is_outage=error.retriable)
        records.ends(held.hand, task.lane, is_raised=failure is not None)
        self._stage.facts.wrote(held.hand.group, held.hand.incarnation, tenure.shard, tenure.epoch)
        if back_to is not None:
            self._stage.history.counts["went back"] += 1
            records.went_back(held.hand, task.lane, back_to)
        if failure is None and isinstance(task, ShutDown) and task.reason is Reason.ENDED:
            records.shut_down(held.hand, task.lane)
        # Between the end of user code and the one that decides, time passes too.
        yield self._stage.rng.randrange(1, 200)
        if is_postponed:
            self._crew.postponed(tenure, task, self._now_ms())
        elif failure is None:
            self._crew.returned(tenure, task, back_to)
        else:
            self._raised(held, task, failure)
        self.stir(held.tenure)

    def _is_taken(self, held: Held, task: Process) -> Steps[bool]:
        """Who polls comes after a while, unless it was withdrawn; sometimes it pauses or seeks first."""
        tenure, rng = held.tenure, self._stage.rng
        yield rng.randrange(1, 40 * MS)
        mood = 0.5 if self._stage.is_healed else rng.random()
        if mood < 0.05:
            tenure.pause()
            self.stir(tenure)
            yield rng.randrange(1, 60 * MS)
            tenure.resume()
            self.stir(tenure)
        elif mood > 0.96:
            self._seek_back(held, task.lane)
        while tenure.lanes[task.lane].task is task and not self._seat.may_act(tenure.shard, tenure.epoch):
            yield 20 * MS  # It looks again, as long as there is no valid deadline.
        is_taken = tenure.take(task, self._now_ms())
        self._stage.history.counts["polled" if is_taken else "withdrawn"] += 1
        return is_taken

    def _seek_back(self, held: Held, lane: int) -> None:
        """To something that it was given: what waits for it is withdrawn by that."""
        before = [offset for offset in held.recent[lane] if offset < held.tenure.position]
        if not before:
            return
        offset = self._stage.rng.choice(before)
        try:
            held.tenure.seek(offset)
        except LeaseLost:
            return
        self._stage.history.counts["sought"] += 1
        self._stage.facts.records.went_back(held.hand, lane, offset)
        self.stir(held.tenure)

    def _run(self, held: Held, task: Task) -> Steps[int | None]:
        lane = Lane(self, held, task.lane)
        match task:
            case Initialize():
                yield from self._code.initialize()
            case Process(piece=piece):
                return (yield from self._code.process(held.tenure.shard, piece, lane))
            case ProcessNothing():
                lane.give([])
                return self._code.told_nothing(lane)
            case ShutDown(reason=reason):
                yield from self._code.shut_down(reason, lane)
            case SetAside():
                raise AssertionError("not user code")
        return None

    def _raised(self, held: Held, task: Task, failure: Failure) -> None:
        self._stage.history.counts["failures"] += 1
        if self._stage.history.is_traced:
            about = task.piece.offsets if isinstance(task, Process) else ""
            text = f"{type(task).__name__} of shard {held.tenure.shard} at {held.tenure.epoch} {about} raised"
            self._stage.history.say(held.hand.incarnation, f"{text} {failure.kind} at {failure.reached}")
        dice = self._stage.rng.random()
        self._carry_out(self._crew.raised(held.tenure, task, failure, self._now_ms(), dice))

    def _set_aside(self, held: Held, task: SetAside) -> Steps[None]:
        def aside() -> None:
            self._stage.facts.records.set_aside(held.hand, task.offset)

        try:
            yield from self._places.put(self.process, aside, held.tenure.shard, task.offset)
        except ShoalError as error:
            self._raised(held, task, Failure(kind=type(error).__name__, text="", is_outage=True))
        else:
            self._crew.returned(held.tenure, task)
        self.stir(held.tenure)

    def give(self, held: Held, lane: int, offsets: list[int], *, is_begun: bool) -> None:
        """See Checkpointer."""
        tenure = held.tenure
        is_checked = not is_begun or "deadline is not checked within a batch" not in self._stage.switches
        if is_checked and not self._seat.may_act(tenure.shard, tenure.epoch):
            raise LeaseLost(shard=tenure.shard, epoch=tenure.epoch)
        held.recent[lane].extend(offsets)
        if offsets:
            self._stage.facts.reached(held.hand, lane, offsets)

    def declare(self, held: Held, lane: int, offset: int | None) -> None:
        """See Checkpointer."""
        upto = held.tenure.save(lane, offset)
        if self._stage.history.is_traced:
            text = f"is done with shard {held.tenure.shard} at {held.tenure.epoch}, lane {lane}, up to {upto}"
            self._stage.history.say(held.hand.incarnation, text)
        self._stage.facts.records.declared_done(held.hand, lane, upto)

    # --- Saves and releases. -------------------------------------------------------------------------

    def persist(self, held: Held) -> Steps[None]:
        """One at a time: of two that pass each other, the hub would refuse the one that comes late."""
        tenure = held.tenure
        tenure.saving += 1
        try:
            while held.persisting is not None:
                yield held.persisting
            held.persisting = Future(self._stage.loop)
            try:
                yield from self._persist(held)
            finally:
                done, held.persisting = held.persisting, None
                done.resolve()
        finally:
            tenure.saving -= 1
            self.stir()

    def _persist(self, held: Held) -> Steps[None]:
        tenure = held.tenure
        checkpoint = tenure.unsaved
        if checkpoint is None:
            return
        if not self._is_mine(tenure):
            raise LeaseLost(shard=tenure.shard, epoch=tenure.epoch)
        try:
            yield from self._seat.save(tenure.shard, tenure.epoch, checkpoint)
        except (NotOwner, Fenced) as error:
            raise LeaseLost(shard=tenure.shard, epoch=tenure.epoch) from error
        tenure.saved(checkpoint)

    def _persist_all(self) -> Steps[None]:
        for tenure in list(self._crew.held.values()):
            try:
                yield from self.persist(self._held[tenure])
            except ShoalError:
                self._stage.history.counts["saves that failed"] += 1

    def _let_go(self, due: Sequence[tuple[Tenure, int | None]]) -> Steps[None]:
        for tenure, checkpoint in due:
            if self._is_mine(tenure):
                yield from self._seat.release(tenure.shard, tenure.epoch, checkpoint)
        yield 1
        self._crew.let_go_of([tenure for tenure, _ in due])
        self.stir()

    def _is_mine(self, tenure: Tenure) -> bool:
        lease = self._seat.leases.get(tenure.shard)
        return lease is not None and lease.epoch == tenure.epoch and self._seat.group == self._group

    def _now_ms(self) -> int:
        return self.process.boot_ms()


class Lane:
    """See Checkpointer: one lane of one tenure, as its user code sees it."""

    def __init__(self, worker: Worker, held: Held, lane: int) -> None:
        self._worker, self._held, self._lane = worker, held, lane
        self._is_begun = False
        """Records were given in this call already."""

    def give(self, offsets: list[int]) -> None:
        self._worker.give(self._held, self._lane, offsets, is_begun=self._is_begun)
        self._is_begun = True

    @property
    def recent(self) -> Sequence[int]:
        return self._held.recent[self._lane]

    def save(self, offset: int | None, *, persist: bool) -> Steps[None]:
        yield 1
        self._worker.declare(self._held, self._lane, offset)
        if persist:
            yield from self._worker.persist(self._held)
