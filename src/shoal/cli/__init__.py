"""The `shoal` command: streams, groups, producing, tailing, workers, a server and a demo, over any hub.

A thin edge: it turns words into calls of `shoal.connect`'s hub and answers into tables or JSON. It has no
rules about streams, shards or groups; what is refused is refused by the hub, and this edge says so in one
line.

Exit codes, the same for every command (the table from errors to codes is in `exits.py`):

    0    done
    1    unexpected failure, a check of the demo that failed, or a question answered with no
    2    usage: an unknown option, a missing argument, a number that is none
    3    not found: stream, shard, project, group, offset
    4    already exists, or in conflict with someone else's change
    5    the store is unavailable, busy or full: the same command may succeed later
    6    invalid input: a name, a value, a line or a URL that is not accepted
    130  stopped by Ctrl-C

A reader that goes away (`shoal tail … | head`) ends a command quietly, with 0. With SHOAL_DEBUG=1 an error
shows its traceback.
"""

from __future__ import annotations

from typing import Annotated

import typer

from shoal import __version__
from shoal.cli.access import keys, policies, users
from shoal.cli.demo import demo as demo_command
from shoal.cli.exits import EdgeGroup
from shoal.cli.group import groups
from shoal.cli.options import DEFAULT_HUB
from shoal.cli.outbox import outboxes
from shoal.cli.produce import produce as produce_command
from shoal.cli.serve import serve as serve_command
from shoal.cli.spark_home import spark_home as spark_home_command
from shoal.cli.stream import streams
from shoal.cli.tail import tail as tail_command
from shoal.cli.work import work as work_command

__all__ = ["app", "main"]

app = typer.Typer(
    name="shoal",
    cls=EdgeGroup,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.add_typer(streams, name="stream")
app.add_typer(groups, name="group")
app.add_typer(outboxes, name="outbox")
app.add_typer(users, name="user")
app.add_typer(keys, name="key")
app.add_typer(policies, name="policy")
app.command()(produce_command)
app.command()(tail_command)
app.command()(work_command)
app.command()(serve_command)
app.command()(spark_home_command)
app.command()(demo_command)

_HELP = f"""A sharded log that keeps every key in order.

Every command takes --hub URL, or reads SHOAL_HUB; the default is {DEFAULT_HUB}, a file in this folder.
Every command takes --json, for machines.

Exit codes:
  0    done
  1    unexpected failure, or a question answered with no
  2    usage: an unknown option, a missing argument
  3    not found: stream, shard, project, group, offset
  4    already exists, or in conflict with another change
  5    store unavailable, busy or full: try again later
  6    invalid input: a name, value, line or URL
  130  stopped by Ctrl-C

SHOAL_DEBUG=1 shows the traceback of an error."""


@app.callback(help=_HELP, invoke_without_command=True)
def shoal(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and end.")] = False,
) -> None:
    """What `shoal` does before, or without, a command."""
    if version:
        typer.echo(f"shoal {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def main() -> None:
    """The entry point of the `shoal` program."""
    app(prog_name="shoal")
