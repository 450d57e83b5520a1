"""A question before something is lost. Where nobody can be asked, a usage error names the option."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from shoal.cli import output

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(question: str, *, act: str, undone: str) -> None:
    """Go on only with a yes. `act` names what needs it ("deleting"), `undone` what a no leaves as it was."""
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{act} needs --yes where nobody can be asked", param_hint="--yes")
    if not typer.confirm(question, err=True):
        output.note(undone)
        raise typer.Exit(1)
