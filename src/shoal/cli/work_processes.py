"""`shoal work` in processes: a fleet, its audience and its figures, until it ends or is stopped.

What the processes do, and when they are started again, is `shoal.fleet`'s.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import typer

from shoal import connect
from shoal.cli import output
from shoal.cli.exits import ExitCode, exit_code_of
from shoal.cli.work_asked import Asked, see_group
from shoal.cli.work_output import JsonLines, LiveTable, LogLines, Unread
from shoal.core.errors import InvalidInput
from shoal.core.names import checked_name, stream_name
from shoal.core.restarting import Stage
from shoal.fleet.expelling import Expeller
from shoal.fleet.figures import figures_of
from shoal.fleet.loading import load
from shoal.fleet.messages import Job
from shoal.fleet.process import Output
from shoal.fleet.supervisor import Fleet
from shoal.fleet.watching import GroupWatch

if TYPE_CHECKING:
    from shoal.metrics import MetricsServer

REPORT_S: Final = 1.0
"""How often processes report, at least."""
_ILL: Final = {
    Stage.FAILED: "failed",
    Stage.GIVEN_UP: "died too often in a row",
    Stage.KILLED: "did not stop in time and was killed",
}
_LOOK_S: Final = 2.0
"""How long the last look at the group may take."""


def work_in_processes(
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
            report_s=min(REPORT_S, asked.every_s),
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


def _names(name: str | None, processes: int) -> list[str]:
    if name is None:
        host = "".join(c if c.isalnum() or c in "-_." else "-" for c in socket.gethostname())
        name = f"{host[:60] or 'worker'}-{os.getpid()}"
    return [checked_name("name", f"{name}-{number}") for number in range(1, processes + 1)]


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
