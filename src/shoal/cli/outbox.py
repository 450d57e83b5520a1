"""`shoal outbox`: make the tables of an outbox in a database, relay what waits in it, see how much does."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict
from typing import Annotated

import typer

from shoal import Outbox, OutboxRelay, RelayOptions, connect
from shoal.cli import output
from shoal.cli.options import DEFAULT_HUB, AsJson, HubUrl
from shoal.cli.values import parse_seconds
from shoal.outbox.journal import Journal, create_outbox
from shoal.outbox.outbox import DEFAULT_TABLE
from shoal.stopping import heeding_signals

outboxes = typer.Typer(help="Relay records that were written in transactions of your own database.")

DatabaseUrl = Annotated[
    str,
    typer.Option(
        "--database",
        envvar="SHOAL_DATABASE",
        metavar="URL",
        help="Your own: sqlite:///file.db, postgresql://…, mysql://…  Keep passwords in the variable.",
        show_default=False,
    ),
]
TableName = Annotated[str, typer.Option(metavar="TABLE", help="The outbox's table in it.")]


@outboxes.command()
def create(database: DatabaseUrl, *, table: TableName = DEFAULT_TABLE, json: AsJson = False) -> None:
    """Make the tables of an outbox, unless they are there."""
    outbox = Outbox(table)
    create_outbox(database, outbox)
    if json:
        output.print_json({"table": table, "relay": outbox.tables.relay.name})
    else:
        typer.echo(f"outbox {table} is there, and {outbox.tables.relay.name} for its relay")


@outboxes.command()
def relay(
    database: DatabaseUrl,
    *,
    hub: HubUrl = DEFAULT_HUB,
    table: TableName = DEFAULT_TABLE,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when nothing waits any more.")
    ] = False,
    lease: Annotated[
        str, typer.Option(metavar="TIME", help="A relay silent for so long is taken for dead: 10s.")
    ] = "10s",
    poll: Annotated[
        str, typer.Option(metavar="TIME", help="How often an empty outbox is looked at: 100ms.")
    ] = "100ms",
    json: AsJson = False,
) -> None:
    """Send what is committed to the log, in order per key, each record once, until Ctrl-C or SIGTERM.

    One relay of an outbox works at a time. Others wait, and take over when it ends or is silent.
    """
    options = RelayOptions(lease_s=parse_seconds("lease", lease), poll_s=parse_seconds("poll", poll))
    began_s = time.monotonic()
    with (
        connect(hub) as opened,
        OutboxRelay(opened, database, Outbox(table), options=options) as relaying,
    ):
        with heeding_signals(lambda _: relaying.stop()):
            relaying.run(until_empty=until_empty)
        took_s = time.monotonic() - began_s
        if json:
            output.print_json({"relayed": relaying.relayed, "seconds": round(took_s, 3)})
        else:
            typer.echo(f"relayed {relaying.relayed:,} records in {took_s:.2f} s")


@outboxes.command()
def status(database: DatabaseUrl, *, table: TableName = DEFAULT_TABLE, json: AsJson = False) -> None:
    """Show how many records wait, since when, who relays, and what is held up."""
    with closing(Journal(database, Outbox(table))) as journal:
        found = journal.status()
    if json:
        output.print_json(asdict(found))
        return
    since = "" if found.oldest_ms is None else f", the first since {output.moment(found.oldest_ms)}"
    typer.echo(f"{found.waiting:,} records wait{since}; {found.relayed:,} relayed")
    typer.echo(f"relayed by {found.relay}" if found.relay else "nobody relays")
    for one in found.stalled:
        where = f"from row {one.row} of {table} on"
        typer.echo(f"{one.waiting:,} for {one.stream} are held up {where}: {one.why}")
