"""A worker: one consumer of a group, and the user's processor on every shard that it holds.

It joins, processes, hands over and leaves; `run` does so until a signal or `stop`.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any, Final, Protocol, Self

from shoal.consumer.membership import Listener, Membership
from shoal.consumer.options import WorkerOptions
from shoal.consumer.processor import factory_of
from shoal.consumer.runtime import Runtime
from shoal.consumer.statistics import WorkerStats
from shoal.core.errors import GroupExists, InvalidInput, UnknownGroup
from shoal.core.names import checked_name, stream_name
from shoal.ports import HubService

_log: Final = logging.getLogger("shoal.worker")


class HubCalls(Protocol):
    """What a worker needs of a hub."""

    @property
    def service(self) -> HubService: ...
    def create_group(self, stream: str, group: str, **settings: Any) -> object: ...
    def join_group(
        self,
        stream: str,
        group: str,
        consumer: str,
        *,
        heartbeat_interval: float | None = None,
        listener: Listener | None = None,
    ) -> Membership: ...


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
        listener: Callable[[str, int, int], None] | None = None,
        **changes: Any,
    ) -> None:
        """`processor`: a Processor class, a factory of one, or a function `(batch, checkpointer)`.

        `name`: this consumer's, unique in the group; without one it is made of host, process and chance.
        `changes` are fields of WorkerOptions. `executor` runs user code, instead of threads of the worker's
        own. `listener` is told `(what, shard, epoch)`: opened, closed, ended, lost, gone.
        """
        self.stream = str(stream_name(stream))
        self.group = checked_name("group", group)
        self.name = checked_name("consumer", name) if name is not None else _own_name()
        try:
            self.options = replace(options or WorkerOptions(), **changes)
        except TypeError as error:
            raise InvalidInput("options", sorted(changes), f"{error}; see WorkerOptions") from error
        self.stats = WorkerStats()
        self._hub = hub
        self._stream_given = stream
        self._factory = factory_of(processor)
        self._executor = executor
        self._listener = listener
        self._runtime: Runtime | None = None
        self._member: Membership | None = None
        self._lock = threading.Lock()

    # --- Life. ---------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Join the group and begin; returns at once."""
        with self._lock:
            if self._runtime is not None:
                raise InvalidInput("worker", self.name, "it was started before; make a new one")
            self._see_group()
            self._member = self._hub.join_group(
                self._stream_given,
                self.group,
                self.name,
                heartbeat_interval=self.options.heartbeat_interval,
                listener=lambda _: self._leases_changed(),
            )
            self._runtime = Runtime(
                self._hub.service,
                self._member,
                self._factory,
                self.options,
                stats=self.stats,
                executor=self._executor,
                listener=self._listener,
            )
            self._runtime.start()
        return self

    def stop(self, timeout: float | None = None) -> None:
        """Finish what runs, hand everything over, leave. Raises what ended the worker by itself, if it did.

        After `timeout` seconds (`stop_timeout`) what still runs is given up: it can save nothing more.
        """
        runtime = self._runtime
        if runtime is None:
            return
        bound = self.options.stop_timeout if timeout is None else timeout
        runtime.stop(bound)
        self.wait(bound + _LEAVE_S)
        if runtime.error is not None:
            raise runtime.error

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; False after the timeout."""
        return self._runtime is None or self._runtime.is_over.wait(timeout)

    def run(self) -> None:
        """Work until SIGTERM, Ctrl-C or `stop()`, then hand everything over."""
        asked = threading.Event()
        with _signals(asked):
            self.start()
            while not asked.wait(_POLL_S) and not self.wait(0):
                pass
            self.stop()

    @property
    def is_running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._runtime is not None and not self._runtime.is_over.is_set()

    @property
    def error(self) -> BaseException | None:
        """Why it ended by itself."""
        return None if self._runtime is None else self._runtime.error

    @property
    def shards(self) -> Mapping[int, str]:
        """What it holds, and in which phase each shard is."""
        if self._runtime is None:
            return {}
        return {shard: held.tenure.phase.value for shard, held in list(self._runtime.held.items())}

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Worker {self.name} of {self.group} on {self.stream}, {len(self.shards)} shards>"

    # --- How. ----------------------------------------------------------------------------------------

    def _leases_changed(self) -> None:
        if self._runtime is not None:
            self._runtime.leases_changed()

    def _see_group(self) -> None:
        """Make the group if it is not there and the user did not forbid it."""
        groups = self._hub.service.groups
        try:
            groups.find(stream_name(self._stream_given), self.group)
        except UnknownGroup:
            if not self.options.create_group:
                raise
            with suppress(GroupExists):
                self._hub.create_group(
                    self._stream_given,
                    self.group,
                    in_order=self.options.in_order,
                    timeout=self.options.timeout,
                    handover_timeout=self.options.handover_timeout,
                    coordination=self.options.coordination,
                    strategy=self.options.strategy,
                    start=self.options.start,
                )


def _own_name() -> str:
    host = "".join(c if c.isalnum() or c in "-_." else "-" for c in socket.gethostname())[:60]
    return f"{host or 'worker'}-{os.getpid()}-{secrets.token_hex(3)}"


@contextmanager
def _signals(asked: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a stop while this lasts; only the main thread can have them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, _: FrameType | None) -> None:
        _log.info("%s: stopping", signal.Signals(number).name)
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_POLL_S: Final = 0.1
_LEAVE_S: Final = 10.0
"""What leaving itself may take: a few calls of the store, each with a bound."""
