"""The arguments and options that commands share, with one spelling and one help text each."""

from __future__ import annotations

from typing import Annotated, Final

import typer

DEFAULT_HUB: Final = "sqlite:///shoal.db"
"""A file in the current folder: a first try needs no setting, and leaves nothing elsewhere."""

HubUrl = Annotated[
    str,
    typer.Option(
        "--hub",
        envvar="SHOAL_HUB",
        metavar="URL",
        help="The hub: sqlite:///file.db, postgresql://…, mysql://…, http://host:7400. "
        "Keep passwords in the variable.",
    ),
]
StreamArgument = Annotated[
    str, typer.Argument(metavar="STREAM", help="A stream: NAME, or PROJECT/NAME.", show_default=False)
]
GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", help="A group of that stream.", show_default=False)
]
LeasesUrl = Annotated[
    str | None,
    typer.Option(
        "--leases",
        envvar="SHOAL_LEASES",
        metavar="URL",
        help="The database of leased groups' tables, if it is not the hub's: as in connect(leases=…).",
    ),
]
ShardArgument = Annotated[
    int, typer.Argument(metavar="SHARD", help="The number of a shard.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
