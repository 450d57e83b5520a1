"""The worker's one deciding thread: it hears what happened, asks the rules, and has it done.

User code runs in a pool that grows, reads in a few threads of their own; nothing that waits for either holds
up the thread that decides. Whatever happens to a shard belongs to its tenure and goes with it.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Final

from shoal.consumer.aside import Aside
from shoal.consumer.fetching import Budget, DueMs, Fetcher, Found, is_transient
from shoal.consumer.held import Held, Hosting
from shoal.consumer.membership import Membership, boot_ms
from shoal.consumer.options import OnExpired, OnStuck, WorkerOptions
from shoal.consumer.statistics import WorkerStats
from shoal.consumer.threads import Threads
from shoal.consumer.user_code import Came
from shoal.core.delivery import (
    Action,
    Failure,
    Phase,
    Process,
    Reason,
    Release,
    SetAside,
    StopWorker,
    Task,
    Tenure,
)
from shoal.core.describing import Block
from shoal.core.errors import HubClosed, OffsetExpired, ProcessorFailed, ShoalError
from shoal.core.lineage import ancestors
from shoal.core.model import ShardId, StreamInfo
from shoal.core.retry import FailureRules
from shoal.ports import HubService
from shoal.wire.batch import Batch

ShardListener = Callable[[str, int, int], None]
"""Is told `(what, shard, epoch)`: opened; moved, stopped, ended or lost; gone: lost code has returned."""
Drained = Callable[[Collection[ShardId]], bool]
"""Whether all that was to be consumed has been; given the shards that are done with here."""

_log: Final = logging.getLogger("shoal.worker")

_SHOWN_S: Final = 5.0
"""How often the number of attempts is shown anew while a shard is held up."""
_TICK_S: Final = 0.5
"""The longest that the thread sleeps: it looks at its timers at least so often."""
_REFETCH_MS: Final = 200
"""After a read that failed because the store was away."""
_DRAINED_S: Final = 0.2
"""How often the hub is asked whether the others have come to the end too."""
_RENEWAL_MS: Final = 50
"""After a batch found no valid deadline."""
_HUNG_MAX: Final = 4
"""Calls of user code that never return, for one shard, before it stands still here and says why."""
_THREADS_MAX: Final = 1024
"""Of user code. One that blocks keeps its thread; the others must not run out of them."""


class Runtime:
    """A worker at work. Writer of all fields: its own thread; `held` and tenures under `_lock`."""

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
        due_ms: DueMs | None = None,
        targets: Mapping[ShardId, int] | None = None,
        drained: Drained | None = None,
        over: Callable[[], None] = lambda: None,
    ) -> None:
        """`aside`: where records are set aside. `targets`: where each shard is to stop; others at once.

        `drained`: it stops when this says so. `over` is called when it has ended.
        """
        self.held: dict[ShardId, Held] = {}
        self.error: BaseException | None = None
        """Why it stopped by itself."""
        self.is_over = threading.Event()
        self._service, self._member, self._hosting, self._options = service, member, hosting, options
        self.stats = stats
        self._listener = listener
        self._aside = aside
        self._rules = rules
        self._targets = targets
        self._drained, self._over = drained, over
        self._drained_at_s: float | None = 0.0
        """When to ask next whether all is drained; None while that is being asked."""
        self._lock = threading.RLock()
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stream: StreamInfo = service.describe_stream(member.stream)
        self._executor = executor
        self._threads = Threads("shoal-process", _THREADS_MAX, self._failed)
        self._in_user_code = threading.local()
        self._fetcher = Fetcher(
            service,
            member,
            self._stream.id,
            threads=options.fetchers,
            records=options.fetch_records,
            piece_records=options.batch_records,
            moved=lambda shard: self.post(partial(self._moved, shard)),
            failed=self._failed,
            due_ms=due_ms,
        )
        self._budget = Budget(total=options.ahead_bytes, at_once=options.fetch_bytes)
        self._old: list[Held] = []
        """Lost while user code still ran: they end before the shard begins again here."""
        self._letting: list[Held] = []
        """Being released at this moment."""
        self._epochs: dict[ShardId, int] = {}
        """Of the last tenure of each shard here: none begins twice."""
        self._releasing = 0
        self._is_saving = False
        """What seems lost may have ended: a save is on its way."""
        self._is_stopping = False
        self._stop_by_s: float | None = None
        self._persist_at_s = time.monotonic() + options.persist_interval
        self._thread = threading.Thread(target=self._run, name=f"shoal-worker-{member.name}", daemon=False)

    def start(self) -> None:
        """Begin."""
        self._thread.start()
        self.post(self._follow_leases)

    def leases_changed(self) -> None:
        """The membership holds something else now."""
        self.post(self._follow_leases)

    def stop(self, timeout_s: float) -> None:
        """Hand everything over and leave; `is_over` says when that is done."""
        self.post(partial(self._begin_stop, timeout_s))

    @property
    def is_in_user_code(self) -> bool:
        """Whether this is called by a processor of its own, which must not wait for itself."""
        return getattr(self._in_user_code, "is_so", False)

    def post(self, event: Callable[[], None]) -> None:
        """Have the deciding thread do this."""
        self._events.put(event)

    # --- The thread. ---------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_finished():
                self._turn()
        except BaseException as error:  # noqa: BLE001 - a thread's top: the worker raises it
            self.error = error
            _log.exception("worker %s ends", self._member.name)
        finally:
            self._end()

    def _turn(self) -> None:
        try:
            self._events.get(timeout=self._rest_s())()
            while True:
                self._events.get_nowait()()
        except queue.Empty:
            pass
        self._tick()
        self._decide()

    def _rest_s(self) -> float:
        now_ms = boot_ms()
        if self._targets is not None and self._drained_at_s is not None and self.is_drained:
            return _DRAINED_S
        longest_s = min(_TICK_S, self._options.call_when_idle or _TICK_S)
        due = [due for held in self._all() if (due := held.tenure.due_ms()) is not None]
        return min(longest_s, max(0.0, (min(due) - now_ms) / 1000)) if due else longest_s

    def _all(self) -> list[Held]:
        return [*self.held.values(), *self._old, *self._letting]

    def _decide(self) -> None:
        """Ask every tenure what can begin now, and have it done."""
        now_ms = boot_ms()
        releases: list[tuple[Held, Release]] = []
        with self._lock:
            for held in self._all():
                if held.tenure.phase is Phase.WAITING and not self._is_preceded(held):
                    held.tenure.begin()
                for action in held.tenure.advance(now_ms):
                    self._carry_out(held, action, releases)
                self._fetch(held)
            self._old = [held for held in self._old if held.tenure.phase is not Phase.STOP_COMPLETED]
        self._show_blocks()
        if releases:
            self._release(releases)

    def _carry_out(self, held: Held, action: Action, releases: list[tuple[Held, Release]]) -> None:
        match action:
            case Release():
                self.held.pop(held.tenure.shard, None)
                releases.append((held, action))
            case StopWorker(failure=failure):
                self.error = self.error or ProcessorFailed(
                    shard=held.tenure.shard, kind=failure.kind, text=failure.text
                )
                self._begin_stop(self._options.stop_timeout)
            case SetAside():
                self._fetcher.run(partial(self._set_aside, held, action))
            case _:
                self._begin(held, action)

    def _begin(self, held: Held, task: Task) -> None:
        if self._executor is not None:
            try:
                self._executor.submit(self._perform, held, task)
            except RuntimeError:
                # It was shut down, at the latest by the end of the main thread. What has begun is finished.
                _log.debug("%s: the executor takes nothing more", self._member.name)
            else:
                return
        self._threads.submit(self._perform, held, task)

    def _perform(self, held: Held, task: Task) -> None:
        """In a thread for user code."""
        self._in_user_code.is_so = True
        came = held.run(task)
        self._in_user_code.is_so = False
        self.post(partial(self._came, held, task, came))
        if self.is_over.is_set():
            self._finish_late()

    def _failed(self, error: BaseException) -> None:
        """In any thread: what should not happen, and must not go unnoticed."""
        _log.error("%s: %r", self._member.name, error, exc_info=error)
        self.post(partial(self._fail, error))

    def _set_aside(self, held: Held, task: SetAside) -> None:
        """In a fetching thread."""
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
        self.post(partial(self._came, held, task, came))

    def _came(self, held: Held, task: Task, came: Came) -> None:
        tenure = held.tenure
        with self._lock:
            if came.is_postponed:
                tenure.postponed(task.lane, boot_ms() + _RENEWAL_MS)
                self.stats.postponed += 1
            elif came.is_bereft:
                tenure.bereft(task.lane)
            elif came.failure is None:
                if isinstance(task, Process):
                    self.stats.processed(len(task.piece.offsets), came.took_ns)
                if isinstance(task, SetAside):
                    self.stats.set_aside(is_dead=came.is_dead)
                tenure.returned(task.lane, came.back_to)
            else:
                self.stats.raised(held.done_of(task), came.took_ns if isinstance(task, Process) else 0)
                self._report_failure(held, task, came.failure, came.error)
                for action in tenure.raised(task.lane, came.failure, boot_ms(), random.random()):
                    self._carry_out(held, action, [])

    def _report_failure(self, held: Held, task: Task, failure: Failure, error: BaseException | None) -> None:
        _log.warning(
            "%s: %s of shard %s raised %s: %s",
            self._member.name,
            type(task).__name__.lower(),
            held.tenure.shard,
            failure.kind,
            failure.text,
            exc_info=error,
        )

    def _show_blocks(self) -> None:
        """Let people see what holds a shard up, and that nothing does any more; not with every attempt."""
        now_s = time.monotonic()
        for held in self.held.values():
            blocked = held.tenure.blocked
            error = None if blocked is None else f"{blocked.failure.kind}: {blocked.failure.text}"
            is_due = error is not None and now_s - held.shown_s >= _SHOWN_S
            if error != held.shown or is_due:
                held.shown, held.shown_s = error, now_s
                block = None
                if blocked is not None and error is not None:
                    block = Block(epoch=held.tenure.epoch, attempts=blocked.attempts, error=error)
                self._fetcher.run(partial(self._show_block, held.tenure.shard, block))

    def _show_block(self, shard: ShardId, block: Block | None) -> None:
        """In a fetching thread. What people do not see, they see with the next attempt."""
        try:
            self._service.groups.block(self._member.group_id, shard, block)
        except ShoalError as error:
            _log.info("%s shows what holds up shard %s: %s", self._member.name, shard, error)

    # --- Shards come and go. -------------------------------------------------------------------------

    def _follow_leases(self) -> None:
        leases = dict(self._member.leases)
        with self._lock:
            for shard, held in list(self.held.items()):
                lease = leases.get(shard)
                if lease is None or lease.epoch != held.tenure.epoch:
                    if held.saving:
                        self._is_saving = True  # See Held.persist; looked at again in a moment.
                    else:
                        self._lose(held)
                elif not lease.is_wanted and held.tenure.reason is None:
                    held.asked_ns = time.perf_counter_ns()
                    held.tenure.ask(Reason.MOVED)
            for shard, lease in leases.items():
                if shard not in self.held and lease.epoch > self._epochs.get(shard, -1):
                    self._open(shard, lease.epoch, lease.checkpoint)

    def _open(self, shard: ShardId, epoch: int, checkpoint: int) -> None:
        tenure = Tenure(
            shard,
            epoch,
            checkpoint,
            self._rules,
            lanes=self._options.parallelism,
            limit=None if self._targets is None else self._targets.get(shard, 0),
        )
        held = Held(tenure, self._member, self._hosting, self._lock, self.stats)
        if self._is_stopping:
            tenure.ask(Reason.STOPPED)
        self.held[shard] = held
        self._epochs[shard] = epoch
        self._tell("opened", tenure)

    def _lose(self, held: Held) -> None:
        del self.held[held.tenure.shard]
        self._old.append(held)
        held.tenure.lose(self._end_of(held.tenure.shard))
        if held.tenure.reason is Reason.LOST:
            self._tell("lost", held.tenure)
            self.stats.lost += 1

    def _end_of(self, shard: ShardId) -> int | None:
        """Where a shard ends, if it is closed. If the store cannot say, it is not known to have ended."""
        try:
            self._stream = self._service.describe_stream(self._member.stream)
            found = self._stream.shards[shard]
        except (ShoalError, IndexError):
            return None
        return None if found.is_open else found.next_offset

    def _is_preceded(self, held: Held) -> bool:
        """Whether an ancestor, or an earlier tenure of the same shard, is still being finished here."""
        shard = held.tenure.shard
        if shard >= len(self._stream.shards):
            try:
                self._stream = self._service.describe_stream(self._member.stream)
            except ShoalError as error:
                _log.warning("%s opens shard %s: %s", self._member.name, shard, error)
                return True  # Nobody knows yet; it is asked again in a moment.
        before = {*ancestors(self._stream.shards, shard), shard}
        others = [other for other in self._all() if other is not held and other.tenure.shard in before]
        hung = [other for other in others if other.is_given_up]
        # Who was given up is not waited for: it may never return. But not too many may hang here at once.
        return len(others) > len(hung) or len(hung) >= _HUNG_MAX

    def _release(self, releases: Iterable[tuple[Held, Release]]) -> None:
        due = [(held, release.checkpoint) for held, release in releases if release.checkpoint is not None]
        for held, release in releases:
            match held.tenure.reason:
                case Reason.ENDED:
                    self._tell("ended", held.tenure)
                case Reason.LOST:  # With a checkpoint: given up, while user code still runs.
                    self._tell("gone" if release.checkpoint is None else "lost", held.tenure)
                case reason:
                    assert reason is not None
                    self._tell(reason.value, held.tenure)
        if due:
            self._releasing += 1
            self._letting += [held for held, _ in due]
            self._fetcher.run(partial(self._let_go, due))

    def _let_go(self, due: list[tuple[Held, int]]) -> None:
        """In a fetching thread. What is not answered, the membership says again with its heartbeats."""
        try:
            mine: dict[int, int | None] = {held.tenure.shard: at for held, at in due if held.is_mine}
            if mine:
                self._member.release(mine)
        except ShoalError as error:
            self.stats.refused(error)
            _log.warning(
                "%s releases %s: %s", self._member.name, [held.tenure.shard for held, _ in due], error
            )
        self.post(partial(self._let_go_of, [held for held, _ in due]))

    def _let_go_of(self, gone: list[Held]) -> None:
        self._releasing -= 1
        self._letting = [held for held in self._letting if held not in gone]
        for held in gone:
            # Here and now: a little later it may be the shard's next tenure that is told to wait no more.
            self._fetcher.forget(held.tenure.shard)
            if held.asked_ns is not None:
                self.stats.handed_over(time.perf_counter_ns() - held.asked_ns)
        self._follow_leases()

    # --- Records. ------------------------------------------------------------------------------------

    def _fetch(self, held: Held) -> None:
        tenure = held.tenure
        wanted = tenure.wanted
        if wanted is not None and (wanted.lane is not None or not held.is_idle):
            if wanted.lane is None:
                allowed = self._budget.allowance(tenure.queued_bytes, len(self.held))
            else:
                allowed = self._budget.again(len(self.held))
            if allowed:
                tenure.is_fetching = True
                held.has_moved = False
                self._fetcher.submit(
                    tenure,
                    wanted,
                    allowed,
                    lambda found: self.post(partial(self._found, held, wanted.lane, found)),
                )

    def _found(self, held: Held, lane: int | None, found: Found | ShoalError) -> None:
        tenure = held.tenure
        with self._lock:
            match found:
                case Found() if lane is None:
                    if not len(found.batch) and not found.is_end:
                        # What came between the read and the waiting has been told of already.
                        held.is_idle, held.nothing = not held.has_moved, found.batch
                        held.idle_s = time.monotonic()
                    tenure.got(found.pieces, found.next_offset, is_end=found.is_end)
                case Found():
                    assert lane is not None
                    tenure.got_again(lane, found.pieces[lane], found.next_offset)
                case OffsetExpired() if self._options.on_expired is OnExpired.JUMP:
                    skipped = tenure.jump(found.first_offset, lane)
                    self.stats.skipped += skipped
                    _log.warning(
                        "%s: retention removed %s records of shard %s before they were read; going on at %s",
                        self._member.name,
                        skipped,
                        tenure.shard,
                        found.first_offset,
                    )
                case ShoalError() if is_transient(found) or isinstance(found, OffsetExpired):
                    self.stats.fetch_failed(found)
                    _log.warning("%s reads shard %s: %s", self._member.name, tenure.shard, found)
                    tenure.fetch_failed(boot_ms() + _REFETCH_MS)
                case ShoalError():
                    self._fail(found)

    def _moved(self, shard: ShardId) -> None:
        held = self.held.get(shard)
        if held is not None:
            held.is_idle, held.has_moved = False, True

    def _call_idle(self, now_s: float, after_s: float) -> None:
        with self._lock:
            for held in self.held.values():
                if held.is_idle and now_s - held.idle_s >= after_s:
                    held.idle_s = now_s
                    for task in held.tenure.call_idle(boot_ms()):
                        self._begin(held, task)

    @property
    def is_drained(self) -> bool:
        """All that is held has come to its target."""
        return all(held.tenure.is_drained for held in list(self.held.values()))

    # --- Time. ---------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now_s = time.monotonic()
        if not self._is_stopping:
            if self._member.error is not None:
                self._fail(self._member.error)
            elif self._member.has_left:
                self._fail(HubClosed())
            elif not threading.main_thread().is_alive():
                _log.info("%s: the program ends; handing over", self._member.name)
                self._begin_stop(self._options.stop_timeout)
        if self._is_saving:
            self._is_saving = False
            self._follow_leases()
        self._look_for_bereft()
        self._look_if_drained(now_s)
        if now_s >= self._persist_at_s:
            self._persist_at_s = now_s + self._options.persist_interval
            self._fetcher.run(self._persist_all)
        if self._stop_by_s is not None and now_s >= self._stop_by_s:
            self._stop_by_s = None
            self._give_up(list(self.held.values()))
        if self._options.call_when_idle is not None:
            self._call_idle(now_s, self._options.call_when_idle)
        timeout_s = self._options.process_timeout
        if timeout_s is not None:
            stuck = [
                held for held in self.held.values() if held.tenure.stuck(boot_ms(), int(timeout_s * 1000))
            ]
            for held in stuck:
                self.stats.stuck += 1
                _log.error(
                    "%s: process of shard %s has been running for over %s s",
                    self._member.name,
                    held.tenure.shard,
                    timeout_s,
                )
            if self._options.on_stuck is OnStuck.RELEASE:
                self._give_up(stuck)

    def _look_for_bereft(self) -> None:
        """Lanes without a processor, with records that it did not save, and no task that would find out."""
        with self._lock:
            for held in self.held.values():
                for lane in held.bereft:
                    held.tenure.bereft(lane)

    def _look_if_drained(self, now_s: float) -> None:
        if self._drained is None or self._is_stopping or self._drained_at_s is None:
            return
        if now_s >= self._drained_at_s and self.is_drained:
            self._drained_at_s = None
            self._fetcher.run(partial(self._ask_if_drained, list(self.held)))

    def _ask_if_drained(self, here: list[ShardId]) -> None:
        """In a fetching thread. Others wait for what is saved here, as this one does for theirs."""
        assert self._drained is not None
        is_drained = False
        self._persist_all()
        try:
            is_drained = self._drained(here)
        except ShoalError as error:
            _log.warning("%s asks whether all is drained: %s", self._member.name, error)
        self.post(partial(self._heard_if_drained, is_drained))

    def _heard_if_drained(self, is_drained: bool) -> None:
        self._drained_at_s = time.monotonic() + _DRAINED_S
        if is_drained and self.is_drained:
            self._begin_stop(self._options.stop_timeout)

    def _give_up(self, stuck: list[Held]) -> None:
        """Let go of shards whose user code does not come back."""
        releases = []
        with self._lock:
            for held in stuck:
                releases.append((held, held.tenure.give_up()))
                held.is_given_up = True
                del self.held[held.tenure.shard]
                self._old.append(held)
                self.stats.lost += 1
        self._release(releases)

    def _persist_all(self) -> None:
        """In a fetching thread: what was declared done since the last time."""
        for held in list(self.held.values()):
            try:
                held.persist()
            except ShoalError as error:
                _log.warning("%s saves shard %s: %s", self._member.name, held.tenure.shard, error)

    # --- The end. ------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self._begin_stop(self._options.stop_timeout)

    def _begin_stop(self, timeout_s: float) -> None:
        stop_by_s = time.monotonic() + timeout_s
        if self._is_stopping:
            if self._stop_by_s is not None:
                self._stop_by_s = min(self._stop_by_s, stop_by_s)
            return
        self._is_stopping = True
        self._stop_by_s = stop_by_s
        with self._lock:
            for held in self.held.values():
                held.asked_ns = held.asked_ns or time.perf_counter_ns()
                held.tenure.ask(Reason.STOPPED)
        self._fetcher.run(self._retire)

    def _retire(self) -> None:
        try:
            self._member.retire()
        except ShoalError as error:
            _log.info("%s retires: %s", self._member.name, error)

    def _is_finished(self) -> bool:
        if not self._is_stopping or self.held or self._releasing:
            return False
        return self._stop_by_s is None or not self._old

    def _end(self) -> None:
        try:
            self._fetcher.close()
            self._member.leave()
        except ShoalError as error:
            _log.warning("%s leaves: %s", self._member.name, error)
        finally:
            self._threads.close()
            self.is_over.set()
            self._finish_late()
            self._over()

    def _finish_late(self) -> None:
        """The deciding thread has ended: user code that comes back now is told that its shard is lost."""
        with self._lock:
            try:
                while True:
                    self._events.get_nowait()()
            except queue.Empty:
                pass
            self._decide()

    def _tell(self, what: str, tenure: Tenure) -> None:
        if self._listener is not None:
            try:
                self._listener(what, tenure.shard, tenure.epoch)
            except Exception:  # noqa: BLE001 - around user code
                _log.exception("the listener of %s raised", self._member.name)
