"""How the demo's story looks: chapters with numbers, sentences, lines of code, tables; and pauses to read."""

from __future__ import annotations

import time

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text


class Page:
    """Where the story is told. `pause_s` is how long a table is looked at; sentences take half of that."""

    def __init__(self, screen: Console, pause_s: float) -> None:
        self._screen = screen
        self._pause_s = pause_s
        self._chapter = 0

    def frame(self, text: str, style: str) -> None:
        """What it is all about, in a box."""
        self._screen.print(Panel.fit(text, border_style=style))

    def begin(self, title: str) -> None:
        """The next chapter."""
        self._chapter += 1
        self._screen.print()
        self._screen.rule(f"[bold]{self._chapter}. {title}[/]", align="left", style="cyan")
        time.sleep(self._pause_s)

    def say(self, text: str) -> None:
        """A sentence or two."""
        self._screen.print(Text(text))
        time.sleep(self._pause_s / 2)

    def code(self, text: str, prompt: str = ">>>") -> None:
        """What is called now."""
        self._screen.print(Padding.indent(Text(f"{prompt} {text}", style="bold cyan"), 2))
        time.sleep(self._pause_s / 2)

    def show(self, thing: RenderableType) -> None:
        """A table, or a ring."""
        self._screen.print(Padding.indent(thing, 2))
        time.sleep(self._pause_s)
