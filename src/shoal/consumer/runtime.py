"""A worker at work: it hears what happened, asks the crew, and has it done.

What is to be done is `core.crew`'s to say. Reads and user code run in a pool that grows, and whoever comes
back decides what follows (`deciding`); nothing that waits for either holds up the deciding. A few reads run
at once; errands to the hub have threads of their own.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Final, Protocol, assert_never

from shoal.complaints import Complaints
from shoal.consumer.aside import Aside
from shoal.consumer.deciding import Deciding, Event, Job
from shoal.consumer.fetching import Fetcher, Found
from shoal.consumer.held import Held, Hosting
from shoal.consumer.membership import Membership, boot_ms
from shoal.consumer.options import OnExpired, OnStuck, WorkerOptions
from shoal.consumer.statistics import WorkerStats
from shoal.consumer.threads import Threads
from shoal.consumer.user_code import Came
from shoal.core import orders
from shoal.core.budget import Budget
from shoal.core.crew import Crew, CrewRules
from shoal.core.delivery import Tenure
from shoal.core.describing import Block
from shoal.core.draining import Drained
from shoal.core.errors import HubClosed, OffsetExpired, ShoalError
from shoal.core.holding import Lease
from shoal.core.model import Shard, ShardId, StreamName
from shoal.core.orders import Order, What
from shoal.core.retry import FailureRules
from shoal.core.tasks import Failure, Fetch, Process, SetAside, Task
from shoal.ports import HubService
from shoal.wire.batch import Batch

ShardListener = Callable[[str, int, int], None]
"""Is told `(what, shard, epoch)`: opened; moved, stopped, ended or lost; gone: lost code has returned."""
AskIfDrained = Callable[[Collection[ShardId]], Drained]
"""Whether all that was to be consumed has been; given the shards that are done with here."""

_log: Final = logging.getLogger("shoal.worker")

_ERRANDS: Final = 2
"""Releases, saves and the like that are under way at once."""
_THREADS_MAX: Final = 1024
"""Of user code. One that blocks keeps its thread; the others must not run out of them."""


class Poller(Protocol):
    """User code that comes for its records, instead of being called with them."""

    def why_gone(self) -> BaseException | None:
        """Why it will not come any more; None: it will."""

    def could_not_read(self, stream: StreamName, shard: ShardId, error: ShoalError) -> None:
        """A read failed. It is tried again."""


class Runtime:
    """One member's. Writer of all fields: whoever decides; of the crew and its tenures, under `_lock`."""

    def __init__(
        self,
        service: HubService,
        member: Membership,
        hosting: Hosting,
        options: WorkerOptions,
        rules: FailureRules,
        *,
        stats: WorkerStats,
        executor: Executor | None = None,
        listener: ShardListener | None = None,
        aside: Aside | None = None,
        targets: Mapping[ShardId, int] | None = None,
        drained: AskIfDrained | None = None,
        shown: Mapping[ShardId, str] | None = None,
        over: Callable[[], None] = lambda: None,
        poller: Poller | None = None,
    ) -> None:
        """`aside`: where records are set aside. `targets`: where each shard is to stop; others at once.

        `drained`: it stops when this says so. `shown`: what people see to hold shards up already. `over` is
        called when it has ended. `poller`: who comes for what is to be processed.
        """
        self.error: BaseException | None = None
        """Why it stopped by itself."""
        self.is_over = threading.Event()
        self._service, self._member, self._hosting, self._options = service, member, hosting, options
        self.stats = stats
        self._listener = listener
        self._complaints = Complaints(_log)
        self._aside = aside
        self._drained, self._over = drained, over
        self._poller = poller
        self._lock = threading.RLock()
        stream = service.describe_stream(member.stream)
        self._shards: Sequence[Shard] = stream.shards
        self._executor = executor
        self._threads = Threads("shoal-process", _THREADS_MAX, self._failed)
        self._deciding = Deciding(self._threads, self._decide)
        self._jobs: list[Job] = []
        """What follows from the decisions of this turn."""
        self._touched: dict[Tenure, None] = {}
        """Those to which something happened in this turn."""
        self._is_changed = True
        """More than that happened: everything is to be looked at."""
        self._reading = 0
        self._unread: deque[Job] = deque()
        """Reads that wait for others to end."""
        self._in_user_code = threading.local()
        self._fetcher = Fetcher(
            service,
            member,
            stream.id,
            records=options.fetch_records,
            piece_records=options.batch_records,
            moved=lambda shard: self._deciding.call(partial(self._moved, shard)),
        )
        self._errands = Threads("shoal-errand", _ERRANDS, self._failed)
        crew_rules = _crew_rules(options, rules, targets, shown or {}, is_on_demand=poller is not None)
        self._crew = Crew(crew_rules, boot_ms())
        self._hands: dict[Tenure, Held] = {}
        """Processors and records of all tenures that have not ended."""
        self._thread = threading.Thread(target=self._run, name=f"shoal-worker-{member.name}", daemon=False)

    @property
    def held(self) -> dict[ShardId, Held]:
        """What is held, and not yet released."""
        with self._lock:
            return {
                tenure.shard: self._hands[tenure]
                for tenure in self._crew.held.values()
                if tenure in self._hands
            }

    def start(self) -> None:
        """Begin."""
        self._thread.start()
        self.leases_changed()

    def look(self) -> None:
        """Decide here and now on what is held."""
        self._deciding.take_turn()

    def leases_changed(self) -> None:
        """The membership holds something else now: the next turn sees it."""
        self._deciding.post(lambda: None)

    def stop(self, timeout_s: float) -> None:
        """Hand everything over and leave; `is_over` says when that is done."""
        self._deciding.post(partial(self._begin_stop, round(timeout_s * 1000)))

    @property
    def is_in_user_code(self) -> bool:
        """Whether this is called by a processor or listener of its own, which must not wait for itself."""
        return getattr(self._in_user_code, "is_so", False)

    # --- The thread by the clock. --------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._crew.is_finished:
                self._deciding.sleep()
                self._deciding.take_turn()
        except BaseException as error:  # noqa: BLE001 - a thread's top: the worker raises it
            self.error = error
            _log.exception("worker %s ends", self._member.name)
        finally:
            self._end()

    def _decide(self, is_due: bool) -> tuple[Sequence[Job], float | None]:
        """Ask what can begin now, and have it done; see Deciding."""
        touched, self._touched = self._touched, {}
        rest_ms: int | None
        if is_due or self._has_changed() or self._options.until is not None:
            rest_ms = self._decide_on_all()
            self._is_changed = False
        else:
            with self._lock:
                wanted = self._crew.go_on(touched, boot_ms())
                rest_ms = self._crew.rest_of(touched, boot_ms())
            self._carry_out(wanted)
            if self._has_changed():
                rest_ms = 0  # For the next turn, which comes at once.
        jobs, self._jobs = self._jobs, []
        return jobs, None if rest_ms is None else rest_ms / 1000

    def _has_changed(self) -> bool:
        return self._is_changed

    def _decide_on_all(self) -> int:
        leases: Mapping[ShardId, Lease] = {}
        if not self.is_over.is_set():  # After that, user code that comes back is told that its shard is lost.
            self._look_around()
            leases = dict(self._member.leases)
        if self._crew.wants_lineage(leases, self._shards):
            self._see_shards()
        with self._lock:
            self._look_for_bereft()
            wanted = self._crew.advance(boot_ms(), leases, self._shards)
            rest_ms = 0 if self._crew.is_finished else self._crew.rest_ms(boot_ms())
        self._carry_out(wanted)
        return rest_ms

    def _look_for_bereft(self) -> None:
        """Lanes without a processor, with records that it did not save, and no task that would find out."""
        for tenure, held in self._hands.items():
            for lane in held.bereft:
                self._crew.bereft(tenure, lane)

    def _look_around(self) -> None:
        """What ends a worker from outside."""
        if self._crew.is_stopping:
            return
        if self._member.error is not None:
            self._fail(self._member.error)
        elif self._member.has_left:
            self._fail(HubClosed())
        elif self._poller is not None:
            if (why := self._poller.why_gone()) is not None:
                self._fail(why)
        elif not threading.main_thread().is_alive():
            _log.info("%s: the program ends; handing over", self._member.name)
            self._begin_stop(None)

    def _see_shards(self) -> None:
        try:
            self._shards = self._service.describe_stream(self._member.stream).shards
        except ShoalError as error:
            self._complaints.warn("looks", "%s looks at its stream: %s", self._member.name, error)

    def _carry_out(self, wanted: Sequence[Order]) -> None:
        for order in wanted:
            if not isinstance(order, orders.Run | orders.Read):
                self._is_changed = True
            match order:
                case orders.Open(tenure=tenure):
                    self._hands[tenure] = Held(tenure, self._member, self._hosting, self._lock, self.stats)
                case orders.Asked(tenure=tenure):
                    held = self._hands[tenure]
                    held.asked_ns = held.asked_ns or time.perf_counter_ns()
                case orders.Run(tenure=tenure, task=SetAside() as task):
                    self._jobs.append(partial(self._set_aside, self._hands[tenure], task))
                case orders.Run(tenure=tenure, task=task):
                    self._begin(self._hands[tenure], task)
                case orders.Read(tenure=tenure, wanted=fetch, bytes_max=bytes_max):
                    self._unread.append(partial(self._read, tenure, fetch, bytes_max))
                    self._begin_reads()
                case orders.Fail(error=error):
                    self.error = self.error or error
                case orders.Tell() | orders.Stuck() | orders.Skipped() | orders.ReadFailed():
                    self._report(order)
                case _:
                    self._errands.submit(self._errand(order))

    def _errand(self, order: orders.Errand) -> Callable[[], None]:
        match order:
            case orders.LetGo(due=due):
                return partial(self._let_go, due)
            case orders.PersistAll():
                return self._persist_all
            case orders.AskIfDrained(here=here):
                return partial(self._ask_if_drained, here)
            case orders.Show(shard=shard, block=block):
                return partial(self._show_block, shard, block)
            case orders.Retire():
                return self._retire
            case _:
                assert_never(order)

    def _report(self, order: orders.Tell | orders.Stuck | orders.Skipped | orders.ReadFailed) -> None:
        name, shard = self._member.name, order.tenure.shard
        match order:
            case orders.Tell(what=what, tenure=tenure):
                if what is What.LOST:
                    self.stats.lost += 1
                if what is What.GONE:
                    self._hands.pop(tenure, None)
                self._tell(what.value, tenure)
            case orders.Stuck():
                self.stats.stuck += 1
                timeout_s = self._options.process_timeout
                _log.error("%s: process of shard %s has been running for over %s s", name, shard, timeout_s)
            case orders.Skipped(records=records, offset=offset):
                self.stats.skipped += records
                _log.warning(
                    "%s: retention removed %s records of shard %s before they were read; going on at %s",
                    name,
                    records,
                    shard,
                    offset,
                )
            case orders.ReadFailed(error=error):
                self.stats.fetch_failed(error)
                if self._poller is not None:
                    self._poller.could_not_read(self._member.stream, shard, error)
                self._complaints.warn(
                    ("reads", shard, type(error)), "%s reads shard %s: %s", name, shard, error
                )

    # --- User code. ----------------------------------------------------------------------------------

    def stir(self, shard: ShardId) -> None:
        """User code has said something about a shard: look at it anew."""
        self._deciding.call(partial(self._touch, shard))

    def _touch(self, shard: ShardId) -> None:
        tenure = self._crew.held.get(shard)
        if tenure is not None:
            self._touched[tenure] = None

    def _begin(self, held: Held, task: Task) -> None:
        if held.begin(task, partial(self._ended, held, task)):
            return
        if self._executor is not None:
            try:
                future = self._executor.submit(lambda: self._deciding.bring(self._perform(held, task)))
            except RuntimeError:
                # It was shut down, at the latest by the end of the main thread. What has begun is finished.
                _log.debug("%s: the executor takes nothing more", self._member.name)
            else:
                future.add_done_callback(partial(self._see_if_cancelled, held, task))
                return
        self._jobs.append(partial(self._perform, held, task))

    def _see_if_cancelled(self, held: Held, task: Task, future: Future[None]) -> None:
        """What an executor that is shut down will never begin is begun anew, then without it."""
        if future.cancelled():
            self._deciding.post(partial(self._came, held, task, Came(took_ns=0, is_postponed=True)))

    def _perform(self, held: Held, task: Task) -> Event:
        """In a thread for user code."""
        self._in_user_code.is_so = True
        came = held.run(task)
        self._in_user_code.is_so = False
        return partial(self._came, held, task, came)

    def _ended(self, held: Held, task: Task, came: Came) -> None:
        """In any thread: a task ended that was taken over. Who polls goes on with what follows at once."""
        event = partial(self._came, held, task, came)
        self._deciding.bring(event) if came.may_decide else self._deciding.call(event)

    def _failed(self, error: BaseException) -> None:
        """In any thread: what should not happen, and must not go unnoticed."""
        _log.error("%s: %r", self._member.name, error, exc_info=error)
        self._deciding.post(partial(self._fail, error))

    def _set_aside(self, held: Held, task: SetAside) -> Event:
        """In a thread of the pool."""
        assert self._aside is not None
        began_ns = time.perf_counter_ns()
        error = failure = None
        is_dead = False
        try:
            source = held.tenure.lanes[task.lane].queue[0].source
            assert isinstance(source, Batch)
            is_dead = self._aside.put(source, task.offset, task.failure)
        except ShoalError as caught:
            error, failure = caught, Failure(kind=type(caught).__name__, text=str(caught), is_outage=True)
        came = Came(took_ns=time.perf_counter_ns() - began_ns, error=error, failure=failure, is_dead=is_dead)
        return partial(self._came, held, task, came)

    def _came(self, held: Held, task: Task, came: Came) -> None:
        tenure, wanted = held.tenure, list[Order]()
        self._touched[tenure] = None
        with self._lock:
            if came.is_postponed:
                self.stats.put_off(held.done_of(task))
                self._crew.postponed(tenure, task, boot_ms(), self._late_ms(tenure))
            elif came.is_bereft:
                self._crew.bereft(tenure, task.lane)
            elif came.failure is None:
                if isinstance(task, Process):
                    self.stats.processed(len(task.piece.offsets), came.took_ns)
                if isinstance(task, SetAside):
                    self.stats.set_aside(is_dead=came.is_dead)
                self._crew.returned(tenure, task, came.back_to)
            else:
                self.stats.raised(held.done_of(task), came.took_ns if isinstance(task, Process) else 0)
                self._report_failure(held, task, came.failure, came.error)
                wanted = self._crew.raised(tenure, task, came.failure, boot_ms(), random.random())
        self._carry_out(wanted)

    def _late_ms(self, tenure: Tenure) -> int:
        """For how long there has been no valid deadline."""
        lease = self._member.leases.get(tenure.shard)
        return 0 if lease is None else max(0, boot_ms() - lease.deadline_ms)

    def _report_failure(self, held: Held, task: Task, failure: Failure, error: BaseException | None) -> None:
        shard, what = held.tenure.shard, type(task).__name__.lower()
        is_ours = isinstance(error, ShoalError) and error.retriable
        self._complaints.warn(
            (what, shard, failure.kind, failure.text),
            "%s: %s of shard %s raised %s: %s",
            self._member.name,
            what,
            shard,
            failure.kind,
            failure.text,
            exc_info=None if is_ours else error,  # Where a store that is away was met says nothing.
        )

    def _tell(self, what: str, tenure: Tenure) -> None:
        if self._listener is not None:
            self._in_user_code.is_so = True
            try:
                self._listener(what, tenure.shard, tenure.epoch)
            except BaseException:  # noqa: BLE001 - around user code
                _log.exception("the listener of %s raised", self._member.name)
            finally:
                self._in_user_code.is_so = False

    # --- Records. ------------------------------------------------------------------------------------

    def _begin_reads(self) -> None:
        while self._unread and self._reading < self._options.fetchers:
            self._reading += 1
            self._jobs.append(self._unread.popleft())

    def _read(self, tenure: Tenure, wanted: Fetch, bytes_max: int) -> Event:
        """In a thread of the pool."""
        if not self._member.may_act(tenure.shard, tenure.epoch):
            # The store is away, and the membership asks for it: not every shard has to.
            return partial(self._not_read, tenure)
        found = self._fetcher.read(tenure, wanted, bytes_max)
        end = None
        if isinstance(found, OffsetExpired) and self._options.on_expired is OnExpired.END:
            end = self._fetcher.end_of(tenure.shard)
        return partial(self._found, tenure, wanted, found, end)

    def _not_read(self, tenure: Tenure) -> None:
        self._touched[tenure] = None
        self._reading -= 1
        self._begin_reads()
        with self._lock:
            self._crew.not_read(tenure, boot_ms())

    def _found(self, tenure: Tenure, wanted: Fetch, found: Found | ShoalError, end: int | None) -> None:
        follows: list[Order] = []
        self._touched[tenure] = None
        self._reading -= 1
        self._begin_reads()
        with self._lock:
            if isinstance(found, ShoalError):
                follows = self._crew.not_found(tenure, wanted, found, boot_ms(), end)
            else:
                if found.is_tail and (held := self._hands.get(tenure)) is not None:
                    held.nothing = found.batch.after()
                self._crew.found(
                    tenure,
                    wanted,
                    found.pieces,
                    next_offset=found.next_offset,
                    is_end=found.is_end,
                    is_tail=found.is_tail,
                    now_ms=boot_ms(),
                )
        self._carry_out(follows)

    def _moved(self, shard: ShardId) -> None:
        tenure = self._crew.moved(shard)
        if tenure is not None:
            self._touched[tenure] = None

    # --- Errands to the hub, in threads of their own. ------------------------------------------------

    def _let_go(self, due: Sequence[tuple[Tenure, int | None]]) -> None:
        """What is not answered, the membership says again with its heartbeats."""
        try:
            self._member.release(
                {tenure.shard: at for tenure, at in due},
                epochs={tenure.shard: tenure.epoch for tenure, _ in due},
            )
        except ShoalError as error:
            self.stats.refused(error)
            shards = [tenure.shard for tenure, _ in due]
            _log.warning("%s releases %s: %s", self._member.name, shards, error)
        self._deciding.post(partial(self._let_go_of, [tenure for tenure, _ in due]))

    def _let_go_of(self, gone: list[Tenure]) -> None:
        for tenure in gone:
            # Here and now: a little later it may be the shard's next tenure that is told to wait no more.
            self._fetcher.forget(tenure.shard)
            held = self._hands.get(tenure)  # None: it was given up, and its user code has come back since.
            if held is not None and held.asked_ns is not None:
                self.stats.handed_over(time.perf_counter_ns() - held.asked_ns)
            if not tenure.is_given_up:  # Its user code comes back later, if at all.
                self._hands.pop(tenure, None)
        self._is_changed = True
        with self._lock:
            self._crew.let_go_of(gone)

    def _persist_all(self) -> None:
        """What was declared done since the last time."""
        for shard, held in self.held.items():
            try:
                held.persist()
            except ShoalError as error:
                self._complaints.warn(
                    ("saves", shard), "%s saves shard %s: %s", self._member.name, shard, error
                )

    def _ask_if_drained(self, here: Sequence[ShardId]) -> None:
        """Others wait for what is saved here, as this one does for theirs."""
        assert self._drained is not None
        drained = Drained.NOT_YET
        self._persist_all()
        try:
            drained = self._drained(here)
        except ShoalError as error:
            self._complaints.warn("drained", "%s asks whether all is drained: %s", self._member.name, error)
        self._deciding.post(partial(self._heard_if_drained, drained))

    def _heard_if_drained(self, drained: Drained) -> None:
        with self._lock:
            wanted = self._crew.heard_if_drained(drained, boot_ms())
        self._carry_out(wanted)

    def _show_block(self, shard: ShardId, block: Block | None) -> None:
        """What people do not see, they see with the next attempt."""
        try:
            self._service.groups.block(self._member.group_id, shard, block)
        except ShoalError as error:
            _log.info("%s shows what holds up shard %s: %s", self._member.name, shard, error)

    def _retire(self) -> None:
        try:
            self._member.retire()
        except ShoalError as error:
            _log.info("%s retires: %s", self._member.name, error)

    # --- The end. ------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """Who polls is not waited for: it hears of it when it comes, if it ever does."""
        self.error = self.error or error
        self._begin_stop(None if self._poller is None else 0)

    def _begin_stop(self, timeout_ms: int | None) -> None:
        with self._lock:
            wanted = self._crew.stop(boot_ms(), timeout_ms)
        self._carry_out(wanted)

    def _end(self) -> None:
        try:
            self._errands.join()
            self._fetcher.close()
            self._member.leave()
        except ShoalError as error:
            _log.warning("%s leaves: %s", self._member.name, error)
        finally:
            self.is_over.set()
            self._deciding.take_turn()
            self._threads.close()
            self._over()


def _crew_rules(
    options: WorkerOptions,
    rules: FailureRules,
    targets: Mapping[ShardId, int] | None,
    shown: Mapping[ShardId, str],
    *,
    is_on_demand: bool,
) -> CrewRules:
    def in_ms(seconds: float | None) -> int | None:
        return None if seconds is None else max(1, round(seconds * 1000))

    return CrewRules(
        failure=rules,
        budget=Budget(total=options.ahead_bytes, at_once=options.fetch_bytes),
        lanes=options.parallelism,
        is_on_demand=is_on_demand,
        persist_interval_ms=max(1, round(options.persist_interval * 1000)),
        stop_timeout_ms=round(options.stop_timeout * 1000),
        process_timeout_ms=in_ms(options.process_timeout),
        is_stuck_released=options.on_stuck is OnStuck.RELEASE,
        is_expired_skipped=options.on_expired is not OnExpired.STOP,
        fetch_interval_ms=in_ms(options.fetch_interval),
        idle_ms=in_ms(options.call_when_idle),
        limits=targets,
        shown=shown,
    )
