"""`shoal group dead …`: the records that a group gave up on: listed, shown, tried again, dropped."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from shoal import connect
from shoal.cli import output
from shoal.cli.asking import Yes, confirm
from shoal.cli.options import DEFAULT_HUB, AsJson, GroupArgument, HubUrl, StreamArgument
from shoal.core.dead import DeadLetter, chosen
from shoal.core.group import Delivery
from shoal.core.names import stream_name
from shoal.core.retry import Policy

dead = typer.Typer(help="Records that ran out of attempts: list, show, replay, drop.", no_args_is_help=False)

Numbers = Annotated[
    list[int] | None,
    typer.Argument(metavar="[NUMBER]...", help="Which; without any, all.", show_default=False),
]


@dead.command("list")
def list_(
    stream: StreamArgument,
    group: GroupArgument,
    *,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="At most so many, the newest.")] = 50,
    hub: HubUrl = DEFAULT_HUB,
    json: AsJson = False,
) -> None:
    """Show what waits to be settled, oldest first."""
    with connect(hub) as opened:
        letters = opened.dead_letters(stream, group)
    shown = letters[-limit:]
    if json:
        output.print_json([letter_json(letter) for letter in shown])
        return
    if not letters:
        output.note(f"group {group} of {stream} has no dead letters")
        return
    table = Table("number", "died", "from", "attempts", "key", "error")
    for letter in shown:
        origin = letter.origin
        table.add_row(
            str(letter.number),
            _time(letter.died_ms),
            f"{origin.stream} {origin.shard}@{origin.offset}",
            str(origin.attempts),
            _shown(letter.key),
            _shown(origin.error[:_SHOWN]),
        )
    output.screen().print(table)
    if len(letters) > len(shown):
        output.note(f"{len(letters) - len(shown)} older ones are not shown; --limit shows more")


@dead.command()
def show(
    stream: StreamArgument,
    group: GroupArgument,
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="As `list` shows it.")],
    *,
    hub: HubUrl = DEFAULT_HUB,
    json: AsJson = False,
) -> None:
    """Show one letter whole."""
    with connect(hub) as opened:
        (letter,) = chosen(opened.dead_letters(stream, group), [number], f"group {group!r} of {stream!r}")
    if json:
        output.print_json(letter_json(letter))
        return
    origin = letter.origin
    for name, value in (
        ("number", letter.number),
        ("died", _time(letter.died_ms)),
        ("sent", _time(origin.timestamp)),
        ("from", f"{origin.stream}, shard {origin.shard}, offset {origin.offset}"),
        ("attempts", origin.attempts),
        ("error", _shown(origin.error)),
        ("key", _shown(letter.key)),
        ("value", _shown(letter.value)),
    ):
        typer.echo(f"{name:<9} {value}")


@dead.command()
def replay(
    stream: StreamArgument,
    group: GroupArgument,
    numbers: Numbers = None,
    *,
    hub: HubUrl = DEFAULT_HUB,
    json: AsJson = False,
) -> None:
    """Give letters back to the group, through its retry stream. Its workers must run best_tried."""
    with connect(hub) as opened:
        letters = opened.replay_dead_letters(stream, group, numbers)
        settings = opened.service.groups.find(stream_name(stream), group).settings
    _report("replayed", letters, as_json=json)
    if settings.delivery is Delivery.EXCLUSIVE and settings.policy is not Policy.BEST_TRIED:
        output.note(f"the group is {settings.policy.value}: only workers that are told best_tried get them")


@dead.command()
def drop(
    stream: StreamArgument,
    group: GroupArgument,
    numbers: Numbers = None,
    *,
    yes: Yes = False,
    hub: HubUrl = DEFAULT_HUB,
    json: AsJson = False,
) -> None:
    """Settle letters without another attempt."""
    with connect(hub) as opened:
        letters = chosen(opened.dead_letters(stream, group), numbers, f"group {group!r} of {stream!r}")
        if letters and not yes:
            confirm(
                f"drop {len(letters)} dead letters of group {group} of {stream}?",
                act="dropping",
                undone="nothing was dropped",
            )
        letters = opened.drop_dead_letters(stream, group, [letter.number for letter in letters])
    _report("dropped", letters, as_json=json)


def letter_json(letter: DeadLetter) -> dict[str, Any]:
    """A letter for machines."""
    origin = letter.origin
    return {
        "number": letter.number,
        "died_ms": letter.died_ms,
        "stream": origin.stream,
        "shard": origin.shard,
        "offset": origin.offset,
        "timestamp": origin.timestamp,
        "attempts": origin.attempts,
        "error": origin.error,
        "key": _text(letter.key),
        "value": _text(letter.value),
    }


def _report(what: str, letters: list[DeadLetter], *, as_json: bool) -> None:
    if as_json:
        output.print_json({what: [letter.number for letter in letters]})
    else:
        typer.echo(f"{what} {len(letters)} dead letters")


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return None if value is None else str(value)


def _shown(value: object) -> Text:
    """For people: what is in it acts neither on the terminal nor on the table."""
    return Text(output.printable(_text(value) or "-"))


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


_SHOWN = 80
