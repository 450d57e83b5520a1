"""Lines of the table: a figure, what it is compared with, the ratio, and the floor it must not go below."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable


@dataclass(frozen=True, slots=True)
class Line:
    """One line. `met` is None where there is no floor."""

    what: str
    figure: str
    ratio: str = ""
    floor: str = ""
    met: bool | None = None


@dataclass(slots=True)
class Report:
    """All lines of a run, by section, shown as they come."""

    console: Console
    sections: dict[str, list[Line]] = field(default_factory=dict)

    def add(self, section: str, line: Line) -> None:
        """Keep a line and show it."""
        self.sections.setdefault(section, []).append(line)
        mark = {None: " ", True: "[green]✓[/green]", False: "[red]✗[/red]"}[line.met]
        self.console.print(
            f"{mark} {section:<11} {line.what:<58} {line.figure:>24}  {line.ratio}  {line.floor}"
        )

    @property
    def missed(self) -> list[Line]:
        """Lines that are below their floor."""
        return [line for lines in self.sections.values() for line in lines if line.met is False]

    def show(self) -> None:
        """The whole table."""
        for section, lines in self.sections.items():
            table = RichTable(title=section, title_justify="left")
            for column in ("what", "figure", "ratio", "floor", ""):
                table.add_column(column)
            for line in lines:
                table.add_row(line.what, line.figure, line.ratio, line.floor, _mark(line))
            self.console.print(table)

    def write(self, path: Path, order: Sequence[str]) -> None:
        """Keep the run in docs/performance.md: its sections in this order, those that it did not run as they
        are."""
        sections = _written(path)
        for section, lines in self.sections.items():
            text = [f"## {section}", "", _run(), ""]
            text += ["| what | figure | ratio | floor | met |", "|---|---|---|---|---|"]
            text += [f"| {x.what} | {x.figure} | {x.ratio} | {x.floor} | {_mark(x)} |" for x in lines]
            sections[section] = "\n".join([*text, ""])
        text = [
            "# Performance",
            "",
            "Written by `make bench`; do not edit. 150-byte records, 100,000 distinct keys, 4 shards, full",
            "durability: an acknowledged batch survives a power cut. Absolute figures depend on the machine",
            "and on who else uses it; the ratios were measured in the same run and mean more.",
            "",
        ]
        text += [sections[section] for section in order if section in sections]
        path.write_text("\n".join(text))


def _written(path: Path) -> dict[str, str]:
    """The sections that are there, as they are."""
    found = re.split(r"^(?=## )", path.read_text(), flags=re.MULTILINE)[1:] if path.exists() else []
    return {section.partition("\n")[0].removeprefix("## "): section for section in found}


def _run() -> str:
    """When and where it was measured, and who else was there."""
    busy = os.getloadavg()[0]
    return (
        f"Measured at {datetime.now(UTC):%Y-%m-%d %H:%M} UTC on {os.cpu_count()} cores, {_memory_gb()} GB, "
        f"{_processor()}, {platform.system()} {platform.release()}, Python {platform.python_version()}; "
        f"load {busy:.1f} at the end."
    )


def _mark(line: Line) -> str:
    return {None: "", True: "yes", False: "NO"}[line.met]


def _memory_gb() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 10**9


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
