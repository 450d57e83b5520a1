"""A progress bar on standard error, for long input and only where someone looks: a terminal.

It appears after a moment, so that short input leaves nothing behind, and goes away when done.
"""

from __future__ import annotations

import os
import stat
import time
from types import TracebackType
from typing import BinaryIO, Final, Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from shoal.cli.output import screen

_AFTER_S: Final = 0.5


class Progress:
    """How far the reading of a source is, by its bytes if their number is known."""

    def __init__(
        self, source: BinaryIO, *, console: Console | None = None, after_s: float = _AFTER_S
    ) -> None:
        self._total = _size(source)
        self._console = console or screen(stderr=True)
        # Someone who types sees what they typed; a bar would write over it.
        self._is_wanted = self._console.is_terminal and not source.isatty()
        self._after_s = after_s
        self._began_s = time.monotonic()
        self._done = 0
        self._bar: Bar | None = None

    def advance(self, size: int, records: int) -> None:
        """So many bytes more are read, and so many records in all are sent."""
        self._done += size
        if not self._is_wanted:
            return
        if self._bar is None:
            if time.monotonic() - self._began_s < self._after_s:
                return
            self._bar = _bar(self._console, self._total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=self._done, records=f"{records:,} records")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar(console: Console, total: int | None) -> Bar:
    columns = (
        [BarColumn(), DownloadColumn(), TimeRemainingColumn()]
        if total
        else [SpinnerColumn(), DownloadColumn()]
    )
    bar = Bar(*columns, TextColumn("{task.fields[records]}"), console=console, transient=True)
    bar.add_task("sending", total=total, records="")
    return bar


def _size(source: BinaryIO) -> int | None:
    """The size of a file; None of a pipe or a terminal, whose end is not known."""
    try:
        found = os.fstat(source.fileno())
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
