"""A worker: one consumer of a group, and the user's processor on every shard that it holds.

It joins, processes, hands over and leaves; `run` does so until a signal or `stop`.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

from shoal.consumer.aside import Aside
from shoal.consumer.figures import Lag, WorkerFigures, shard_lag
from shoal.consumer.held import Hosting, InThreads
from shoal.consumer.joining import HubCalls, as_retry, checked_hub, own_name, see_group
from shoal.consumer.lane_pool import LanePool
from shoal.consumer.membership import Membership
from shoal.consumer.options import Lanes, WorkerOptions
from shoal.consumer.processor import Factory, factory_of
from shoal.consumer.runtime import Runtime, ShardListener
from shoal.consumer.statistics import COUNTERS, WorkerStats
from shoal.consumer.watching import Watch
from shoal.core.checking import is_number
from shoal.core.draining import Drained, drained
from shoal.core.errors import InvalidInput, ShoalError
from shoal.core.group import Coordination, GroupSettings
from shoal.core.limits import DURATION_S_MAX
from shoal.core.model import ShardId, StreamName
from shoal.core.names import checked_name, stream_name
from shoal.core.retry import FailureRules, Policy
from shoal.ports import HubService
from shoal.stopping import heeding_signals

_log: Final = logging.getLogger("shoal.worker")


class Worker:
    """Consumes its share of a stream. `run()`, or `start()` and `stop()`, or as a context manager."""

    def __init__(
        self,
        hub: HubCalls,
        stream: str,
        group: str,
        processor: object,
        *,
        name: str | None = None,
        options: WorkerOptions | None = None,
        executor: Executor | None = None,
        listener: ShardListener | None = None,
        hosting: Hosting | None = None,
        **changes: Any,
    ) -> None:
        """`processor`: a Processor class, a factory of one, or a function `(batch, checkpointer)`.

        `name`: this consumer's, unique in the group; without one it is made of host, process and chance.
        `changes` are fields of WorkerOptions. `executor` runs user code, instead of threads of the worker's
        own. `listener` is told `(what, shard, epoch)`: opened, moved, stopped, ended, lost, gone.
        `hosting`: for those who run user code in a way of their own; then `processor` is not looked at.
        """
        self._stream = stream_name(stream)
        self.stream = str(self._stream)
        self.group = checked_name("group", group)
        self.name = checked_name("consumer", name) if name is not None else own_name()
        if options is not None and not isinstance(options, WorkerOptions):
            raise InvalidInput("options", options, "WorkerOptions(…), or its fields as keywords")
        try:
            self.options = replace(options or WorkerOptions(), **changes)
        except TypeError as error:
            raise InvalidInput("options", sorted(changes), f"{error}; see WorkerOptions") from error
        self._hub = checked_hub(hub)
        self._pool: LanePool | None = None
        if hosting is None:
            hosting = self._host(factory_of(processor))
        self._hosting: Hosting = hosting
        self._executor = _checked_executor(executor)
        if listener is not None and not callable(listener):
            raise InvalidInput("listener", listener, "a function (what, shard, epoch)")
        self._listener = listener
        self._watch = Watch(
            self.name,
            lambda: hub.service.groups.describe(self._stream, self.group),
            lambda: self.figures,
            look_s=self.options.lag_interval,
            log_s=self.options.log_interval,
        )
        self._rules = FailureRules()
        self._runtimes: list[Runtime] = []
        self._members: list[Membership] = []
        """Of coordinated groups."""
        self._process: int | None = None
        """Where it was started; in a forked child it is not."""
        self._is_begun = False
        self._is_over = threading.Event()
        """Nothing of it runs any more, but for user code that was given up."""
        self._lock = threading.Lock()
        self._ending = threading.Lock()
        """Held by whoever ends what all parts shared."""

    def _host(self, factory: Factory) -> Hosting:
        """In threads of this process, or in processes of their own."""
        options = self.options
        if options.lanes is Lanes.THREADS:
            return InThreads(factory, options.outages)
        self._pool = LanePool(
            factory, options.outages, options.lane_processes or options.parallelism, self.name
        )
        return self._pool

    # --- Life. ---------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Join the group and begin; returns at once."""
        with self._lock:
            if self._process is not None:
                raise InvalidInput("worker", self.name, "it was started before; make a new one")
            self._process = os.getpid()
            try:
                self._start()
            except BaseException:
                for runtime in self._runtimes:  # What has begun would go on without the rest.
                    runtime.stop(self.options.stop_timeout)
                raise
            finally:
                self._is_begun = True
                if any(runtime.is_over.is_set() for runtime in self._runtimes):
                    self._end_others()  # It ended while the rest had not begun.
        return self

    def _start(self) -> None:
        options = self.options
        stream = self._hub.service.describe_stream(self._stream)
        settings = see_group(self._hub, str(self._stream), self.group, options)
        self._rules = (options.failure or FailureRules()).of_group(settings.policy)
        aside = None
        if self._rules.policy is Policy.BEST_TRIED:
            aside = Aside(self._hub, stream, self.group, self._rules)
        ask = targets = None
        if options.until is not None:
            targets = {shard.id: shard.next_offset for shard in stream.shards}
            ask = Drainer(self._hub.service, self._stream, self.group, targets, self.name).drained
        self._begin(str(self._stream), settings, options, aside=aside, targets=targets, drained=ask)
        if aside is not None:  # Even if nothing is tried again: dead letters are replayed through it.
            aside.see_retry()
            options = as_retry(options)
            settings = see_group(self._hub, str(aside.retry), self.group, options)
            self._begin(str(aside.retry), settings, options, aside=aside)
        self._watch.start()

    def _begin(self, stream: str, settings: GroupSettings, options: WorkerOptions, **how: Any) -> None:
        """Join the group of one stream, and work for it."""
        begun: list[Runtime] = []

        def changed(_: object) -> None:
            for runtime in begun:
                runtime.leases_changed()

        member = self._hub.join_group(
            stream, self.group, self.name, heartbeat_interval=options.heartbeat_interval, listener=changed
        )
        try:
            runtime = Runtime(
                self._hub.service,
                member,
                self._hosting,
                options,
                self._rules,
                stats=WorkerStats(),
                executor=self._executor,
                listener=self._listener,
                over=self._end_others,
                **how,
            )
        except BaseException:
            member.leave()
            raise
        begun.append(runtime)
        self._runtimes.append(runtime)
        if settings.coordination is Coordination.COORDINATED:
            self._members.append(member)
        runtime.start()

    def _end_others(self) -> None:
        """One part that ended by itself ends the others. The last one ends what all of them shared."""
        for runtime in self._runtimes:
            runtime.stop(self.options.stop_timeout)
        if not self._is_begun or not all(runtime.is_over.is_set() for runtime in self._runtimes):
            return
        with self._ending:
            if self._is_over.is_set():
                return  # Two of them were the last.
            self._watch.close()
            if self.options.until is not None and self.error is None:
                self._say_what_waits()
            if self._pool is not None:
                self._pool.close()
            self._is_over.set()

    def _say_what_waits(self) -> None:
        """It does not wait for other attempts; who reads its log knows that they are still to come."""
        if self._rules.policy is not Policy.BEST_TRIED:
            return
        try:
            left = self._hub.retrying(self.stream, self.group)
        except ShoalError as error:
            _log.info("%s cannot tell what is to be tried again: %s", self.name, error)
            return
        if left.waiting or left.due:
            _log.warning(
                "%s leaves %s records that are to be tried again, %s of them when their delay is over: %s",
                self.name,
                left.waiting + left.due,
                left.waiting,
                left.stream,
            )

    def stop(self, timeout: float | None = None) -> None:
        """Finish what runs, hand everything over, leave. Raises what ended the worker by itself, if it did.

        After `timeout` seconds (`stop_timeout`) what still runs is given up: it can save nothing more. Called
        by a processor or the listener, it only asks: what calls it is what would be waited for.
        """
        if self._process != os.getpid():
            return  # It was never started here.
        bound = self.options.stop_timeout if timeout is None else timeout
        if not is_number(bound) or not 0 <= bound <= DURATION_S_MAX:
            raise InvalidInput("timeout", timeout, f"seconds from 0 to {DURATION_S_MAX:g}")
        for runtime in self._runtimes:
            runtime.stop(bound)
        if any(runtime.is_in_user_code for runtime in self._runtimes):
            return
        self.wait(bound + _LEAVE_S)
        if self.error is not None:
            raise self.error

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; False after the timeout. In a forked child nothing of it runs."""
        return not self.is_running or self._is_over.wait(timeout)

    def run(self) -> None:
        """Work until SIGTERM, Ctrl-C or `stop()`, or until all is drained; then hand everything over."""
        asked = threading.Event()

        def ask(number: signal.Signals) -> None:
            _log.info("%s: stopping", number.name)
            asked.set()

        with heeding_signals(ask):
            self.start()
            while not asked.wait(_POLL_S) and self.is_running:
                pass
            self.stop()

    @property
    def stats(self) -> WorkerStats:
        """What it has done so far, in figures."""
        found = WorkerStats.sum(runtime.stats for runtime in self._runtimes)
        found.lane_deaths = 0 if self._pool is None else self._pool.deaths
        return found

    @property
    def lag(self) -> Lag | None:
        """What is still to come of the shards of the stream that it holds, as of the last look.

        None: nobody has looked yet, or the store is away. What was declared done and is not yet saved counts.
        """
        seen = self._watch.seen
        if seen is None or not self._runtimes:
            return None
        held = dict(self._runtimes[0].held)
        shards = {
            int(shard.id): shard_lag(shard, held[shard.id].checkpoint())
            for shard in seen.shards
            if shard.id in held
        }
        return Lag(shards=shards)

    @property
    def figures(self) -> WorkerFigures:
        """All of it as one value: for logs, and for `shoal.metrics`."""
        stats = self.stats
        return WorkerFigures(
            stream=self.stream,
            group=self.group,
            consumer=self.name,
            counters={name: getattr(stats, name) for name in COUNTERS},
            rate=stats.rate,
            shards=self.shards,
            lag=self.lag,
        )

    @property
    def is_running(self) -> bool:
        """Whether it has been started, in this process, and has not ended."""
        return self._process == os.getpid() and bool(self._runtimes) and not self._is_over.is_set()

    @property
    def seats(self) -> list[tuple[int, str]]:
        """What may be given up for it by who knows that its process is no more: (group, incarnation).

        Nothing, if its lanes are processes: those may live a little longer, and go on until their deadline.
        """
        return [] if self._pool else [(member.group_id, member.incarnation) for member in self._members]

    @property
    def lane_pids(self) -> list[int]:
        """The processes that its lanes run in, if they run in processes."""
        return [] if self._pool is None else self._pool.pids

    @property
    def error(self) -> BaseException | None:
        """Why it ended by itself."""
        return next((runtime.error for runtime in self._runtimes if runtime.error is not None), None)

    @property
    def shards(self) -> Mapping[int, str]:
        """What it holds of the stream, and in which phase each shard is."""
        if not self._runtimes:
            return {}
        return {shard: held.tenure.phase.value for shard, held in list(self._runtimes[0].held.items())}

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Worker {self.name} of {self.group} on {self.stream}, {len(self.shards)} shards>"


class Drainer:
    """Knows when all that was there at the start has been consumed, by this worker or by others."""

    def __init__(
        self,
        service: HubService,
        stream: StreamName,
        group: str,
        targets: Mapping[ShardId, int],
        consumer: str,
    ) -> None:
        self._service, self._stream, self._group = service, stream, group
        self._targets, self._consumer = targets, consumer

    def drained(self, here: Collection[ShardId]) -> Drained:
        """Asks the hub about what others hold; `here` are the shards that are done with by who asks."""
        info = self._service.groups.describe(self._stream, self._group)
        return drained(info, self._targets, here, self._consumer)


def _checked_executor(executor: Executor | None) -> Executor | None:
    if executor is not None and not isinstance(executor, Executor):
        raise InvalidInput("executor", executor, "one of concurrent.futures, such as a ThreadPoolExecutor")
    if isinstance(executor, ProcessPoolExecutor):
        raise InvalidInput("executor", executor, "its work must run in this process; see lanes='processes'")
    return executor


_POLL_S: Final = 0.1
_LEAVE_S: Final = 10.0
"""What leaving itself may take: a few calls of the store, each with a bound."""
