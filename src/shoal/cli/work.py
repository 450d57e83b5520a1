"""`shoal work`: a processor of the user's on a stream, in several processes, until it is stopped.

Here words become what was asked for; `work_processes` and `work_spark` do it. Whatever can be refused is
refused before the first process starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from shoal import WorkerOptions
from shoal.cli import output
from shoal.cli.options import DEFAULT_HUB, AsJson, HubUrl, LeasesUrl
from shoal.cli.repeating import checked_interval
from shoal.cli.values import parse_position, parse_seconds, parse_size
from shoal.cli.work_asked import Asked
from shoal.cli.work_options import (
    AheadBytes,
    CreateGroup,
    Engine,
    EngineOption,
    Every,
    Failure,
    GroupOption,
    LaneProcesses,
    LanesOption,
    MaxAttempts,
    MetricsHost,
    MetricsPort,
    NewCoordination,
    NewInOrder,
    NewStart,
    NewTimeout,
    Parallelism,
    PersistInterval,
    Processes,
    ProcessorArgument,
    SparkCheckpoint,
    SparkConf,
    SparkMaster,
    StopTimeout,
    StreamOption,
    Until,
    WorkersName,
)
from shoal.cli.work_processes import REPORT_S, work_in_processes
from shoal.cli.work_spark import SparkSetting, work_on_spark
from shoal.core.errors import InvalidInput
from shoal.core.names import checked_name
from shoal.core.retry import FailureRules, Policy

_LOG_S: Final = 10.0
_LOOPBACK: Final = "127.0.0.1"
"""How often a log has figures."""


def work(
    processor: ProcessorArgument,
    *,
    stream: StreamOption,
    group: GroupOption,
    processes: Processes = None,
    engine: EngineOption = Engine.PROCESSES,
    master: SparkMaster = None,
    conf: SparkConf = None,
    checkpoint: SparkCheckpoint = None,
    hub: HubUrl = DEFAULT_HUB,
    leases: LeasesUrl = None,
    name: WorkersName = None,
    until: Until = None,
    parallelism: Parallelism = None,
    lanes: LanesOption = None,
    lane_processes: LaneProcesses = None,
    failure: Failure = None,
    max_attempts: MaxAttempts = None,
    stop_timeout: StopTimeout = None,
    persist_interval: PersistInterval = None,
    ahead_bytes: AheadBytes = None,
    create_group: CreateGroup = True,
    start: NewStart = None,
    in_order: NewInOrder = None,
    timeout: NewTimeout = None,
    coordination: NewCoordination = None,
    every: Every = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    json: AsJson = False,
) -> None:
    """Run a processor on a stream, in processes that are watched and started again when they die.

    Ctrl-C or SIGTERM lets all of them finish, hand over and leave; a second one ends them at once.
    """
    is_live = output.screen().is_terminal and not json
    every_s = _interval_s(every, REPORT_S if is_live or json else _LOG_S)
    new_group = _given(
        start=None if start is None else parse_position("start", start, datetime.now(UTC)),
        in_order=in_order,
        timeout=_seconds("timeout", timeout),
        coordination=None if coordination is None else coordination.value,
    )
    options = new_group | _given(
        until=until,
        parallelism=parallelism,
        lanes=None if lanes is None else lanes.value,
        lane_processes=lane_processes,
        failure=_failure(failure, max_attempts),
        stop_timeout=_seconds("stop_timeout", stop_timeout),
        persist_interval=_seconds("persist_interval", persist_interval),
        ahead_bytes=None if ahead_bytes is None else parse_size("ahead_bytes", ahead_bytes),
        create_group=None if create_group else False,
    )
    checked_name("group", group)
    asked = Asked(
        processor=processor,
        hub=hub,
        leases=leases,
        stream=stream,
        group=group,
        name=name,
        options=options,
        new_group=new_group,
        every_s=every_s,
        stop_timeout_s=WorkerOptions(**options).stop_timeout,
        as_json=json,
    )
    of_processes = {"processes": processes, "lanes": lanes, "lane_processes": lane_processes}
    of_spark = {"master": master, "conf": conf or None, "checkpoint": checkpoint}
    if engine is Engine.SPARK:
        figures = {"metrics_port": metrics_port, "metrics_host": metrics_host}
        _refuse({**of_processes, **figures}, "it is not for --engine spark; leave it out")
        work_on_spark(asked, SparkSetting(master=master, conf=conf or (), checkpoint=checkpoint))
    else:
        _refuse(of_spark, "it is for --engine spark")
        if metrics_port is None:
            _refuse({"metrics_host": metrics_host}, "nothing is told there without --metrics-port")
        metrics = None if metrics_port is None else (metrics_host or _LOOPBACK, metrics_port)
        work_in_processes(asked, processes or 1, metrics, is_live=is_live)


def _interval_s(every: str | None, without_s: float) -> float:
    return without_s if every is None else checked_interval("every", parse_seconds("every", every))


def _seconds(field: str, given: str | None) -> float | None:
    return None if given is None else parse_seconds(field, given)


def _refuse(given: Mapping[str, object], why: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidInput(name, value, why)


def _given(**options: Any) -> dict[str, Any]:
    """Those that the user gave; the worker knows what the others are."""
    return {name: value for name, value in options.items() if value is not None}


def _failure(policy: Policy | None, max_attempts: int | None) -> FailureRules | None:
    changes = _given(policy=policy, max_attempts=max_attempts)
    return FailureRules(**changes) if changes else None
