"""The options of `shoal serve`, as the command line shows them. What they mean is in `server.options`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

PORT: Final = 7400

StoreUrl = Annotated[
    str,
    typer.Option(envvar="SHOAL_STORE", metavar="URL", help="sqlite:///file.db, postgresql://…, mysql://…"),
]
Listen = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to be reached.")]
AllowAnyone = Annotated[
    bool,
    typer.Option(
        "--allow-anyone",
        help="Listen beyond this machine although no user is defined: anyone may do anything.",
    ),
]
OpenMetrics = Annotated[
    bool,
    typer.Option("--open-metrics", help="Show groups' lag at /metrics also where users are defined."),
]
Certificate = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Speak TLS, with this certificate (PEM).")
]
CertificateKey = Annotated[Path | None, typer.Option(metavar="FILE", help="The key of that certificate.")]
MaxBody = Annotated[str, typer.Option(metavar="SIZE", help="The largest request.")]
MaxConnections = Annotated[int, typer.Option(metavar="N", help="Connections at once.")]
MaxWaiting = Annotated[int, typer.Option(metavar="N", help="Requests that wait at once.")]
MaxRate = Annotated[
    int, typer.Option(metavar="N", help="Requests a second of one user, or from one address.")
]
StopTimeout = Annotated[
    str, typer.Option(metavar="TIME", help="What is in flight may take so long when told to stop.")
]
GroupsPerStream = Annotated[int, typer.Option(metavar="N", help="Groups that one stream may have.")]
SlsHosts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A name of this server, before which Aliyun's clients put a project. May be repeated.",
    ),
]
Traces = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Send traces to a collector, such as http://host:4318/v1/traces."),
]
LogLevel = Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")]
