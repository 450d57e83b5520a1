"""`shoal group reset`: a group begins again, or further on, also while it runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from shoal import connect
from shoal.cli import group_output, output
from shoal.cli.asking import Yes, confirm
from shoal.cli.options import DEFAULT_HUB, AsJson, GroupArgument, HubUrl, LeasesUrl, StreamArgument
from shoal.cli.values import parse_offsets, parse_position


def reset(
    stream: StreamArgument,
    group: GroupArgument,
    *,
    hub: HubUrl = DEFAULT_HUB,
    leases: LeasesUrl = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="All shards: earliest, latest, a time (2026-01-31T08:00Z), or how long ago (10m).",
        ),
    ] = None,
    shard: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHARD=OFFSET", help="One shard, such as 3=120; again for each.", show_default=False
        ),
    ] = None,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Begin again, or further on, also while the group runs: leases end, and the next owners begin there.

    Asks first; where nobody can be asked, --yes is needed. In an in-order group the shards that come after
    those named wait for them again; the answer says which of them had been read.
    """
    if (to is None) == (not shard):
        raise typer.BadParameter(
            "say where to, in one of the two ways", param_hint="--to WHERE or --shard SHARD=OFFSET"
        )
    if to is not None:
        position = parse_position("to", [to], datetime.now(UTC))
    else:
        position = parse_offsets("shard", shard or [])
    where = group_output.where_text(position)
    with connect(hub, leases=leases) as opened:
        if not yes:
            users = [member.name for member in opened.describe_group(stream, group).members]
            held = f", while {group_output.users_text(users)} it" if users else ""
            confirm(
                f"Reset group {group} of {stream} to {where}{held}? Its checkpoints are lost.",
                act="resetting",
                undone="nothing was reset",
            )
        read = list(opened.reset_group(stream, group, position))
        info = opened.describe_group(stream, group)
    if json:
        output.print_json(
            {
                "stream": info.stream,
                "group": info.name,
                "to": group_output.where_json(position),
                "had_been_read": read,
                "lag": info.lag,
            }
        )
        return
    typer.echo(f"reset group {info.name} of {info.stream} to {where}: {info.lag:,} records are to come")
    if read:
        typer.echo(
            f"read already, and coming after: {group_output.shards_text(read)}; "
            "what was read of them does not come again, unless they are reset too"
        )
