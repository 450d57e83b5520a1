"""Lines of the table: a figure, what it is compared with, the ratio, and the floor it must not go below."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table as RichTable

PERFORMANCE: Final = Path(__file__).parent.parent / "docs" / "performance.md"
SECTIONS: Final = (
    "sqlite",
    "producers",
    "large",
    "redis",
    "postgresql",
    "mariadb",
    "groups",
    "workers",
    "consumers",
    "shared",
    "server",
    "spark",
)
"""All there are, in the order in which they are written down."""


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

    def write(self) -> None:
        """Keep the run in docs/performance.md; sections that it did not run stay as they are."""
        sections = _written(PERFORMANCE)
        for section, lines in self.sections.items():
            text = [f"## {section}", "", _run(), ""]
            text += ["| what | figure | ratio | floor | met |", "|---|---|---|---|---|"]
            text += [f"| {x.what} | {x.figure} | {x.ratio} | {x.floor} | {_mark(x)} |" for x in lines]
            sections[section] = "\n".join([*text, ""])
        text = [
            "# Performance",
            "",
            "Written by `make bench` and `make bench-spark`; do not edit. Records of 150 bytes (Spark: 232),",
            "100,000 distinct keys, 4 shards, full durability: an acknowledged batch survives a power cut.",
            "Absolute figures depend on the machine and on who else uses it; ratios were measured in the",
            "same run, and mean more.",
            "",
        ]
        text += [sections[section].rstrip("\n") + "\n" for section in SECTIONS if section in sections]
        PERFORMANCE.write_text("\n".join(text))


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


def rate_text(rate: float, unit: str = "records/s") -> str:
    """A rate, for people."""
    return f"{rate / 1e6:.2f} M {unit}" if rate >= 1e6 else f"{rate / 1e3:.0f} k {unit}"


def _mark(line: Line) -> str:
    return {None: "", True: "yes", False: "NO"}[line.met]


def _memory_gb() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 10**9


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
