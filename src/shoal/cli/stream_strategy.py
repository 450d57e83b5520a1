"""`shoal stream strategy`: what producers of a stream make of a failed attempt."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from shoal import connect
from shoal.cli import output
from shoal.cli.options import DEFAULT_HUB, AsJson, HubUrl, StreamArgument
from shoal.core.errors import InvalidInput
from shoal.core.model import SendStrategy

STRATEGY_HELP: Final = (
    "strict keeps order at any price; best_tried may go to another shard. Without: by the key."
)


def set_strategy(
    stream: StreamArgument,
    *,
    hub: HubUrl = DEFAULT_HUB,
    to: Annotated[SendStrategy | None, typer.Option("--set", help=STRATEGY_HELP)] = None,
    by_key: Annotated[bool, typer.Option("--by-key", help="Let the key decide again.")] = False,
    json: AsJson = False,
) -> None:
    """Say what producers make of a failed attempt; without options, show it."""
    if to is not None and by_key:
        raise InvalidInput("--by-key", True, "give --set, or --by-key, not both")
    with connect(hub) as opened:
        if to is not None or by_key:
            opened.set_strategy(stream, to)
        found = opened.strategy(stream)
    if json:
        output.print_json({"stream": stream, "strategy": found})
    elif found is None:
        typer.echo(f"stream {stream}: records with a key are strict, others best tried")
    else:
        typer.echo(f"stream {stream}: {found}")
