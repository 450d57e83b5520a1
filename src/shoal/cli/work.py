"""`shoal work`: a processor of the user's on a stream, in several processes, until it is stopped.

Words become options, options become jobs; `fleet` does the rest. Whatever can be refused is refused before
the first process starts.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from shoal import WorkerOptions, connect
from shoal.cli import output
from shoal.cli.exits import ExitCode, exit_code_of
from shoal.cli.options import DEFAULT_HUB, AsJson, HubUrl, LeasesUrl
from shoal.cli.repeating import checked_interval
from shoal.cli.values import parse_position, parse_seconds, parse_size
from shoal.cli.work_asked import Asked, see_group
from shoal.cli.work_output import JsonLines, LiveTable, LogLines, Unread
from shoal.cli.work_spark import SparkSetting, work_on_spark
from shoal.consumer.options import Lanes
from shoal.core.errors import InvalidInput
from shoal.core.group import Coordination
from shoal.core.limits import LANES_MAX, PROCESSES_MAX
from shoal.core.names import checked_name, stream_name
from shoal.core.restarting import Stage
from shoal.core.retry import FailureRules, Policy
from shoal.fleet.expelling import Expeller
from shoal.fleet.figures import figures_of
from shoal.fleet.loading import load
from shoal.fleet.messages import Job
from shoal.fleet.process import Output
from shoal.fleet.supervisor import Fleet
from shoal.fleet.watching import GroupWatch

if TYPE_CHECKING:
    from shoal.metrics import MetricsServer


class Engine(StrEnum):
    """Where processors run."""

    PROCESSES = "processes"
    SPARK = "spark"


_NEW: Final = "For a group that is made: "
_REPORT_S: Final = 1.0
_LOG_S: Final = 10.0
_ILL: Final = {
    Stage.FAILED: "failed",
    Stage.GIVEN_UP: "died too often in a row",
    Stage.KILLED: "did not stop in time and was killed",
}
_LOOK_S: Final = 2.0
"""How long the last look at the group may take."""


def work(
    processor: Annotated[
        str,
        typer.Argument(
            metavar="PROCESSOR",
            help="module:attribute or path/to/file.py:attribute: a Processor class, a factory, or a function "
            "(batch, checkpointer). The current directory can be imported from.",
            show_default=False,
        ),
    ],
    *,
    stream: Annotated[str, typer.Option("--stream", "-s", metavar="STREAM", help="NAME, or PROJECT/NAME.")],
    group: Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="The group to work for.")],
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes", "-n", min=1, max=PROCESSES_MAX, help="How many processes. Without it, 1."
        ),
    ] = None,
    engine: Annotated[
        Engine,
        typer.Option(help="Where the processor runs: in processes, or on Spark's executors."),
    ] = Engine.PROCESSES,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="--engine spark: the master. Without it, spark-submit's, or local[*]."
        ),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="--engine spark: a setting of Spark's; again for each."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="--engine spark: for Spark's own checkpoint. Without it, a temporary one: how far it is, "
            "the group knows.",
        ),
    ] = None,
    hub: HubUrl = DEFAULT_HUB,
    leases: LeasesUrl = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="The workers are NAME-1, NAME-2, …  Without it, by host and process.", metavar="NAME"
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="now", help="now: end when all that is there at the start is consumed."),
    ] = None,
    parallelism: Annotated[
        int | None,
        typer.Option(min=1, help="Lanes within a shard, by key, each with a processor of its own."),
    ] = None,
    lanes: Annotated[
        Lanes | None,
        typer.Option(
            help="Where processors run: in threads, or, for code that computes in Python, in processes."
        ),
    ] = None,
    lane_processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LANES_MAX,
            metavar="COUNT",
            help="With --lanes processes: how many, for each worker. Without it, as many as lanes.",
        ),
    ] = None,
    failure: Annotated[
        Policy | None,
        typer.Option(help="When the processor raises: try again in place, set aside and go on, or stop."),
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(help="best_tried: after so many a record goes to the dead stream.", metavar="COUNT"),
    ] = None,
    stop_timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long a stop waits for user code. Without it, 30s."),
    ] = None,
    persist_interval: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="How often what was saved with persist=False is stored. Without it, 60s."
        ),
    ] = None,
    ahead_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Fetched and not yet finished, per process. Without it, 64MB."),
    ] = None,
    create_group: Annotated[
        bool, typer.Option("--create-group/--no-create-group", help="Make the group if there is none.")
    ] = True,
    start: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHERE",
            help=_NEW
            + "where it begins: earliest, latest, a time, how long ago (10m), or SHARD=OFFSET, again "
            "for each shard. Without it, earliest.",
            show_default=False,
        ),
    ] = None,
    in_order: Annotated[
        bool | None,
        typer.Option(
            "--in-order/--no-in-order",
            " /--not-in-order",
            help=_NEW + "a shard is consumed after all its ancestors. Without it, in order.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help=_NEW + "who is silent for so long is dead. Without it, 20s."),
    ] = None,
    coordination: Annotated[
        Coordination | None, typer.Option(help=_NEW + "who decides: the hub, or a table of leases.")
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How often figures are shown. Without it, 1s; in a log every 10s."),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, metavar="PORT", help="Serve figures of all processes for Prometheus; 0: any."
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(metavar="HOST", help="Where to; 0.0.0.0 for all of this machine's addresses.")
    ] = "127.0.0.1",
    json: AsJson = False,
) -> None:
    """Run a processor on a stream, in processes that are watched and started again when they die.

    Ctrl-C or SIGTERM lets all of them finish, hand over and leave; a second one ends them at once.
    """
    is_live = output.screen().is_terminal and not json
    every_s = _REPORT_S if is_live or json else _LOG_S
    if every is not None:
        every_s = checked_interval("every", parse_seconds("every", every))
    new_group = _given(
        start=None if start is None else parse_position("start", start, datetime.now(UTC)),
        in_order=in_order,
        timeout=None if timeout is None else parse_seconds("timeout", timeout),
        coordination=None if coordination is None else coordination.value,
    )
    options = new_group | _given(
        until=until,
        parallelism=parallelism,
        lanes=None if lanes is None else lanes.value,
        lane_processes=lane_processes,
        failure=_failure(failure, max_attempts),
        stop_timeout=None if stop_timeout is None else parse_seconds("stop_timeout", stop_timeout),
        persist_interval=(
            None if persist_interval is None else parse_seconds("persist_interval", persist_interval)
        ),
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
        _refuse(of_processes | {"metrics_port": metrics_port}, "it is not for --engine spark; leave it out")
        work_on_spark(asked, SparkSetting(master=master, conf=conf or (), checkpoint=checkpoint))
    else:
        _refuse(of_spark, "it is for --engine spark")
        metrics = None if metrics_port is None else (metrics_host, metrics_port)
        _work_in_processes(asked, processes or 1, metrics, is_live=is_live)


def _work_in_processes(
    asked: Asked, processes: int, metrics: tuple[str, int] | None, *, is_live: bool
) -> None:
    """Run a fleet until it ends, or is stopped by a signal."""
    names = _names(asked.name, processes)
    load(asked.processor)
    jobs = [
        Job(
            processor=asked.processor,
            hub=asked.hub,
            leases=asked.leases,
            stream=asked.stream,
            group=asked.group,
            name=one,
            options=asked.options,
            report_s=min(_REPORT_S, asked.every_s),
        )
        for one in names
    ]
    with ExitStack() as stack:
        opened = stack.enter_context(connect(asked.hub, leases=asked.leases))
        see_group(opened, asked)
        watch = GroupWatch(opened, asked.stream, asked.group, asked.every_s)
        audience: JsonLines | LiveTable | LogLines
        if asked.as_json:
            audience, prints = JsonLines(lambda: watch.seen), Output.TO_ERRORS
        elif is_live:
            heading = f"{asked.group} of {asked.stream}"
            audience = stack.enter_context(LiveTable(heading, lambda: watch.seen, output.screen()))
            prints = Output.RELAYED
        else:
            audience, prints = LogLines(lambda: watch.seen), Output.AS_IS
        shown = Unread(audience)
        expeller = Expeller(opened)
        stack.callback(expeller.close, _LOOK_S)
        fleet = Fleet(
            jobs,
            shown,
            output=prints,
            stop_timeout_s=asked.stop_timeout_s,
            every_s=asked.every_s,
            expel=expeller.expel,
        )
        if metrics is not None:
            stack.callback(_serve_metrics(fleet, watch, asked.stream, asked.group, metrics).close)
        began_s = time.monotonic()
        watch.start()
        try:
            fleet.run()
        finally:
            watch.close(_LOOK_S)
        shown.show(fleet.standings())
        seconds = time.monotonic() - began_s
    _conclude(fleet, seconds, as_json=asked.as_json)


def _refuse(given: Mapping[str, object], why: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidInput(name, value, why)


def _serve_metrics(
    fleet: Fleet, watch: GroupWatch, stream: str, group: str, where: tuple[str, int]
) -> MetricsServer:
    """One endpoint for the whole fleet: its processes come and go, and its port stays."""
    from shoal.metrics import MetricsServer  # noqa: PLC0415 - it needs a package that may not be there

    name = str(stream_name(stream))
    host, port = where
    try:
        server = MetricsServer(lambda: figures_of(fleet.standings(), name, group, watch.seen), port, host)
    except OSError as error:
        raise InvalidInput(
            "metrics_port", port, f"{host} does not let it be served there: {error}"
        ) from error
    output.note(f"metrics at http://{host}:{server.port}/metrics")
    return server


def _conclude(fleet: Fleet, seconds: float, *, as_json: bool) -> None:
    """The last line, and the exit code."""
    standings = fleet.standings()
    records = sum(one.records for one in standings)
    if fleet.is_interrupted:
        code = ExitCode.INTERRUPTED
    elif fleet.is_clean:
        code = ExitCode.OK
    else:
        code = max((exit_code_of(error.kind) for error in fleet.errors), default=ExitCode.FAILURE)
    if as_json:
        output.print_json(
            {"type": "end", "records": records, "seconds": round(seconds, 3), "exit_code": int(code)}
        )
    else:
        who = "1 process" if len(standings) == 1 else f"{len(standings)} processes"
        typer.echo(f"{records:,} records in {seconds:,.1f} s by {who}")
    if code:
        if not fleet.is_interrupted:
            typer.echo(f"error: {_reason(fleet)}", err=True)
        raise typer.Exit(code)


def _reason(fleet: Fleet) -> str:
    """Why it did not end well."""
    ill = [one for one in fleet.standings() if one.stage in _ILL]
    told = next((one for one in ill if one.stage is Stage.FAILED), ill[0])
    return f"{told.name} {_ILL[told.stage]}" + (f": {told.error}" if told.error else "")


def _given(**options: Any) -> dict[str, Any]:
    """Those that the user gave; the worker knows what the others are."""
    return {name: value for name, value in options.items() if value is not None}


def _failure(policy: Policy | None, max_attempts: int | None) -> FailureRules | None:
    changes = _given(policy=policy, max_attempts=max_attempts)
    return FailureRules(**changes) if changes else None


def _names(name: str | None, processes: int) -> list[str]:
    if name is None:
        host = "".join(c if c.isalnum() or c in "-_." else "-" for c in socket.gethostname())
        name = f"{host[:60] or 'worker'}-{os.getpid()}"
    return [checked_name("name", f"{name}-{number}") for number in range(1, processes + 1)]
