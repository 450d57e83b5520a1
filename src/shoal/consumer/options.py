"""Everything a worker can be told, in one frozen object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

from shoal.core.checking import is_number, is_whole
from shoal.core.errors import InvalidInput
from shoal.core.group import Coordination, handover_timeout_ms, timeout_ms
from shoal.core.limits import DURATION_S_MAX, LANES_MAX
from shoal.core.names import checked_name
from shoal.core.retry import FailureRules


class OnExpired(StrEnum):
    """What to do when retention has removed what is to be read next."""

    STOP = "stop"
    """Stand still and say so, like a failure of `strict`."""
    JUMP = "jump"
    """Go on at the first record that is kept. What was skipped is counted and logged."""
    END = "end"
    """Go on behind all that is there. What was skipped is counted and logged."""


class OnStuck(StrEnum):
    """What to do with a `process` that runs longer than `process_timeout`."""

    REPORT = "report"
    RELEASE = "release"
    """Give its shard up: another consumer goes on from the last checkpoint."""


class Lanes(StrEnum):
    """Where the code of a worker's lanes runs."""

    THREADS = "threads"
    """In the worker's process: for code that waits, or that computes outside of Python."""
    PROCESSES = "processes"
    """In processes of their own: for code that computes in Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker works. Times are in seconds."""

    heartbeat_interval: float | None = None
    """None: a quarter of the group's timeout."""
    fetch_bytes: int = 8_000_000
    """At most, of one shard, in one read."""
    fetch_records: int = 1_000_000
    fetch_interval: float | None = None
    """A shard of which all was read is read again after so long at the earliest: fewer, larger batches.
    None: as soon as there is something."""
    ahead_bytes: int = 64_000_000
    """What all shards together may have fetched and not yet finished."""
    fetchers: int = 2
    """Reads of the hub that are under way at once."""
    batch_records: int = 1_000_000
    """At most, handed to `process` at once."""
    persist_interval: float = 60.0
    """How often what was saved with `persist=False` reaches the hub."""
    stop_timeout: float = 30.0
    """How long `stop` waits for user code; after that its shards are given up."""
    process_timeout: float | None = None
    on_stuck: OnStuck = OnStuck.REPORT
    on_expired: OnExpired = OnExpired.STOP
    call_when_idle: float | None = None
    """Call `process` with an empty batch when there was nothing for so long."""
    parallelism: int = 1
    """Lanes of a shard, by key: each has a processor of its own."""
    lanes: Lanes = Lanes.THREADS
    """Where processors run. In processes, they must be importable by name."""
    lane_processes: int | None = None
    """At most, for all shards together. None: as many as there are lanes of one shard."""
    lag_interval: float | None = 10.0
    """How often it is looked how far behind the worker is, in the background. None: never."""
    log_interval: float | None = 60.0
    """How often a line with its figures is logged, at INFO. None: never."""
    failure: FailureRules | None = None
    """None: as the group says, with the usual figures; so does one that names no policy."""
    outages: tuple[type[BaseException], ...] = (ConnectionError, TimeoutError)
    """Errors that mean the sink is out, and no record is to blame."""
    create_group: bool = True
    """Make the group if there is none, with the policy of `failure` and as these say:"""
    start: str | datetime | Mapping[int, int] = "earliest"
    in_order: bool = True
    timeout: float = 20.0
    handover_timeout: float | None = None
    coordination: str = "coordinated"
    strategy: str = "balanced"
    until: Literal["now"] | None = None
    """`now`: consume what was there when the worker started, and stop."""

    def __post_init__(self) -> None:
        for name in ("fetch_bytes", "fetch_records", "ahead_bytes", "fetchers", "batch_records"):
            value = getattr(self, name)
            if not is_whole(value) or value < 1:
                raise InvalidInput(name, value, "a whole number from 1 on")
        for name in ("persist_interval", "stop_timeout"):
            self._check_duration(name, getattr(self, name))
        for name in (
            "heartbeat_interval",
            "fetch_interval",
            "process_timeout",
            "call_when_idle",
            "lag_interval",
            "log_interval",
        ):
            if getattr(self, name) is not None:
                self._check_duration(name, getattr(self, name))
        self._check_truths()
        self._check_group()
        if not is_whole(self.parallelism) or not 1 <= self.parallelism <= LANES_MAX:
            raise InvalidInput("parallelism", self.parallelism, f"from 1 to {LANES_MAX} lanes")
        for name, kind in (("on_stuck", OnStuck), ("on_expired", OnExpired), ("lanes", Lanes)):
            try:
                object.__setattr__(self, name, kind(getattr(self, name)))
            except ValueError as error:
                raise InvalidInput(name, getattr(self, name), f"one of {', '.join(kind)}") from error
        self._check_processes(self.lane_processes)
        if self.failure is not None and not isinstance(self.failure, FailureRules):
            raise InvalidInput("failure", self.failure, "FailureRules(policy=…)")
        kinds: object = self.outages
        if not isinstance(kinds, tuple) or not all(
            isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds
        ):
            raise InvalidInput("outages", self.outages, "a tuple of exception classes")
        if self.until not in (None, "now"):
            raise InvalidInput("until", self.until, "'now', or None to go on for ever")

    def _check_truths(self) -> None:
        for name in ("create_group", "in_order"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidInput(name, getattr(self, name), "True or False")

    def _check_group(self) -> None:
        """Also where the group is there already: what makes no sense is nowhere taken for good."""
        timeout_ms("timeout", self.timeout)
        handover_timeout_ms(self.handover_timeout)
        checked_name("strategy", self.strategy)
        if self.coordination not in list(Coordination):
            raise InvalidInput("coordination", self.coordination, f"one of {', '.join(Coordination)}")
        start: object = self.start
        if not isinstance(start, datetime | Mapping) and start not in ("earliest", "latest"):
            raise InvalidInput(
                "start", start, "'earliest', 'latest', a datetime with a time zone, or {shard: offset}"
            )

    def _check_processes(self, count: object) -> None:
        if count is None:
            return
        if not is_whole(count) or not 1 <= count <= LANES_MAX:
            raise InvalidInput("lane_processes", count, f"from 1 to {LANES_MAX} processes, or None")
        if self.lanes is Lanes.THREADS:
            raise InvalidInput("lane_processes", count, "it is for lanes='processes'")

    @staticmethod
    def _check_duration(name: str, value: float) -> None:
        if not is_number(value) or not 0 < value <= DURATION_S_MAX:
            raise InvalidInput(name, value, f"seconds, above 0 and up to {DURATION_S_MAX:g}")
