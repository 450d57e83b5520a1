"""`shoal serve`: a hub for other machines, until it is told to stop."""

from __future__ import annotations

import gc
import logging

import typer

from shoal import __version__
from shoal.cli import output
from shoal.cli.options import DEFAULT_HUB, LeasesUrl
from shoal.cli.serve_options import (
    PORT,
    AllowAnyone,
    Certificate,
    CertificateKey,
    GroupsPerStream,
    Listen,
    LogLevel,
    MaxBody,
    MaxConnections,
    MaxRate,
    MaxWaiting,
    OpenMetrics,
    SlsHosts,
    StopTimeout,
    StoreUrl,
    Traces,
)
from shoal.cli.values import parse_duration, parse_place, parse_size
from shoal.core.errors import InvalidInput, MissingPackage
from shoal.core.limits import GROUPS_PER_STREAM


def serve(
    *,
    store: StoreUrl = DEFAULT_HUB,
    listen: Listen = f"127.0.0.1:{PORT}",
    allow_anyone: AllowAnyone = False,
    open_metrics: OpenMetrics = False,
    tls_certificate: Certificate = None,
    tls_key: CertificateKey = None,
    max_body: MaxBody = "32MB",
    max_connections: MaxConnections = 4000,
    max_waiting: MaxWaiting = 2000,
    max_rate: MaxRate = 10_000,
    stop_timeout: StopTimeout = "20s",
    groups_per_stream: GroupsPerStream = GROUPS_PER_STREAM,
    sls_host: SlsHosts = None,
    leases: LeasesUrl = None,
    traces: Traces = None,
    log_level: LogLevel = "info",
) -> None:
    """Keep a hub for other machines: `shoal.connect("http://host:7400")`.

    SIGTERM or Ctrl-C stops it in order: what is in flight is finished, and those who wait go elsewhere.
    """
    try:
        # Optional packages: who does not serve need not have them.
        from shoal.server.descriptors import room_for  # noqa: PLC0415
        from shoal.server.logs import PatientHandler, error_descriptor  # noqa: PLC0415
        from shoal.server.memory import give_back_memory  # noqa: PLC0415
        from shoal.server.options import ServerOptions  # noqa: PLC0415
        from shoal.server.starting import open_server  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingPackage(part="shoal serve", package=error.name or "uvicorn", extra="server") from error
    host, port = parse_place("listen", listen, PORT)
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
    log = PatientHandler(error_descriptor())
    _log_to(log, log_level)
    give_back_memory()
    _tell_room(room_for(max_connections), max_connections)
    settings = {"groups_per_stream": groups_per_stream, "leases": leases}
    server = open_server(store, options, version=__version__, allow_anyone=allow_anyone, **settings)
    _tell_where(server.url, is_loopback=options.is_loopback, has_users=server.has_users)
    _spare_the_collector()
    server.run()
    log.close()
    if not log.is_stuck:
        typer.echo("stopped", err=True)


def _tell_room(room: int, wanted: int) -> None:
    if room < wanted:
        output.note(f"room for about {room} connections: raise the limit of open files (ulimit -Hn)")


def _tell_where(url: str, *, is_loopback: bool, has_users: bool) -> None:
    who = "this machine alone" if is_loopback else "anyone who reaches it"
    users = "keys are asked for" if has_users else "no user is defined"
    typer.echo(f"shoal {__version__} serves {who} at {url}; {users}", err=True)


def _spare_the_collector() -> None:
    """What is there stays, and thousands who wait are no garbage: Python would look at all of it again and
    again, for a fifth of what a server with 500 waiting consumers costs."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _log_to(handler: logging.Handler, level: str) -> None:
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise InvalidInput("log_level", level, "debug, info, warning or error")
    for name in ("shoal", "uvicorn"):
        log = logging.getLogger(name)
        log.setLevel(max(number, logging.WARNING) if name == "uvicorn" else number)
        log.handlers = [handler]
        log.propagate = False
