"""`shoal serve`: a hub for other machines, until it is told to stop."""

from __future__ import annotations

import gc
import json
import logging
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from shoal import __version__
from shoal.cli import output
from shoal.cli.options import DEFAULT_HUB, LeasesUrl
from shoal.cli.values import parse_duration, parse_size
from shoal.core.errors import InvalidInput, MissingPackage
from shoal.core.limits import GROUPS_PER_STREAM

_PORT: Final = 7400


def serve(
    *,
    store: Annotated[
        str,
        typer.Option(
            envvar="SHOAL_STORE", metavar="URL", help="sqlite:///file.db, postgresql://…, mysql://…"
        ),
    ] = DEFAULT_HUB,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to be reached.")
    ] = f"127.0.0.1:{_PORT}",
    allow_anyone: Annotated[
        bool,
        typer.Option(
            "--allow-anyone",
            help="Listen beyond this machine although no user is defined: anyone may do anything.",
        ),
    ] = False,
    open_metrics: Annotated[
        bool,
        typer.Option("--open-metrics", help="Show groups' lag at /metrics also where users are defined."),
    ] = False,
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Speak TLS, with this certificate (PEM).")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The key of that certificate.")] = None,
    max_body: Annotated[str, typer.Option(metavar="SIZE", help="The largest request.")] = "32MB",
    max_connections: Annotated[int, typer.Option(metavar="N", help="Connections at once.")] = 4000,
    max_waiting: Annotated[int, typer.Option(metavar="N", help="Requests that wait at once.")] = 2000,
    max_rate: Annotated[
        int, typer.Option(metavar="N", help="Requests a second of one user, or from one address.")
    ] = 10_000,
    stop_timeout: Annotated[
        str, typer.Option(metavar="TIME", help="What is in flight may take so long when told to stop.")
    ] = "20s",
    groups_per_stream: Annotated[
        int, typer.Option(metavar="N", help="Groups that one stream may have.")
    ] = GROUPS_PER_STREAM,
    sls_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name of this server, before which Aliyun's clients put a project. May be repeated.",
        ),
    ] = None,
    leases: LeasesUrl = None,
    traces: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Send traces to a collector, such as http://host:4318/v1/traces."),
    ] = None,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    """Keep a hub for other machines: `shoal.connect("http://host:7400")`.

    SIGTERM or Ctrl-C stops it in order: what is in flight is finished, and those who wait go elsewhere.
    """
    try:
        # Optional packages: who does not serve need not have them.
        from shoal.server.descriptors import room_for  # noqa: PLC0415
        from shoal.server.memory import give_back_memory  # noqa: PLC0415
        from shoal.server.options import ServerOptions  # noqa: PLC0415
        from shoal.server.starting import open_server  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingPackage(part="shoal serve", package=error.name or "uvicorn", extra="server") from error
    host, port = _place(listen)
    options = ServerOptions(
        host=host,
        port=port,
        body_bytes_max=parse_size("max_body", max_body),
        connections_max=max_connections,
        waiting_max=max_waiting,
        requests_per_s_max=max_rate,
        stop_s=parse_duration("stop_timeout", stop_timeout).total_seconds(),
        certificate=tls_certificate,
        key=tls_key,
        open_metrics=open_metrics,
        sls_hosts=tuple(sls_host or ()),
        traces=traces,
    )
    _log_as_json(log_level)
    give_back_memory()
    room = room_for(options.connections_max)
    if room < options.connections_max:
        output.note(f"room for about {room} connections: raise the limit of open files (ulimit -Hn)")
    server = open_server(
        store,
        options,
        version=__version__,
        allow_anyone=allow_anyone,
        groups_per_stream=groups_per_stream,
        leases=leases,
    )
    who = "this machine alone" if options.is_loopback else "anyone who reaches it"
    users = "keys are asked for" if server.has_users else "no user is defined"
    typer.echo(f"shoal {__version__} serves {who} at {server.url}; {users}", err=True)
    _spare_the_collector()
    server.run()
    typer.echo("stopped", err=True)


def _spare_the_collector() -> None:
    """What is there stays, and thousands who wait are no garbage: Python would look at all of it again and
    again, for a fifth of what a server with 500 waiting consumers costs."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _place(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon:
        host, port = listen, str(_PORT)
    if not host or not port.isdigit():
        raise InvalidInput("listen", listen, f"HOST:PORT, such as 127.0.0.1:{_PORT}")
    return host.strip("[]"), int(port)


class JsonLines(logging.Formatter):
    """A line of JSON for each record, with the fields of the request that it is about."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "log": record.name,
            "text": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        return json.dumps(told)


def _log_as_json(level: str) -> None:
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise InvalidInput("log_level", level, "debug, info, warning or error")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name in ("shoal", "uvicorn"):
        log = logging.getLogger(name)
        log.setLevel(max(number, logging.WARNING) if name == "uvicorn" else number)
        log.handlers = [handler]
        log.propagate = False
