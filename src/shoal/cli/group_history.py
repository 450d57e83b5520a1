"""`shoal group history`: what happened in a group, line by line, and what happens next.

Lines have no numbers, and the group keeps its last ones only: what is new is what an earlier look did not
have. Of a leased group every consumer writes lines by itself: one may be seen after others that are later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final

import typer

from shoal import connect
from shoal.cli import output
from shoal.cli.group_output import history_json, history_line
from shoal.cli.options import DEFAULT_HUB, AsJson, GroupArgument, HubUrl, StreamArgument
from shoal.cli.repeating import looks
from shoal.core.group import Note
from shoal.core.limits import HISTORY_KEPT

Line = tuple[datetime, Note]

_LOOK_EVERY_S: Final = 0.5


def history(
    stream: StreamArgument,
    group: GroupArgument,
    *,
    hub: HubUrl = DEFAULT_HUB,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", min=1, max=HISTORY_KEPT, metavar="COUNT", help="The last so many lines."
        ),
    ] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")] = False,
    json: AsJson = False,
) -> None:
    """Show who joined, left or was expired, which shards moved, and why. --json: an object a line."""
    with connect(hub) as opened:
        if not follow:
            lines = opened.group_history(stream, group, limit)
            _print(lines, as_json=json)
            if not lines and not json:
                output.note(f"nothing has happened in group {group} of {stream} yet")
            return
        # As much as there is: many lines may come between two looks.
        found = looks(lambda: opened.group_history(stream, group, HISTORY_KEPT), _LOOK_EVERY_S)
        seen = next(found)
        _print(seen[-limit:], as_json=json)
        for now in found:
            lines = newer(seen, now)
            if len(lines) == len(now) and seen:
                output.note(f"more happened than the {HISTORY_KEPT:,} lines that are kept; some are missing")
            _print(lines, as_json=json)
            seen = now


def newer(seen: list[Line], found: list[Line]) -> list[Line]:
    """What a later look found beside the lines of an earlier one, each as often as it is there.

    Lines go missing at the front only, and come mostly at the end.
    """
    known = Counter(seen)
    known.subtract(found)
    missed = {line: -count for line, count in known.items() if count < 0}
    lines: list[Line] = []
    for line in reversed(found):  # Of equal ones the last are new.
        if missed.get(line, 0) > 0:
            missed[line] -= 1
            lines.append(line)
    return lines[::-1]


def _print(lines: Sequence[Line], *, as_json: bool) -> None:
    for at, note in lines:
        if as_json:
            output.print_json(history_json(at, note))
        else:
            typer.echo(history_line(at, note))
