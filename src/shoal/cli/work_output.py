"""How a fleet of workers looks: a live table at a terminal, lines in a log, JSON for machines.

Shows values; starts and stops nothing, except that it asks for a stop when nobody reads any more.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self

import typer
from rich.console import Console
from rich.console import Group as Stack
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal.cli import output
from shoal.cli.group_output import span
from shoal.core.describing import GroupInfo
from shoal.core.restarting import Stage
from shoal.fleet.supervisor import Happening, Standing

Look = Callable[[], GroupInfo | None]
"""The group as it was lately."""

_HUES: Final = {
    Stage.WAITING: "yellow",
    Stage.STARTING: "cyan",
    Stage.RUNNING: "green",
    Stage.STOPPING: "yellow",
    Stage.DRAINED: "green",
    Stage.STOPPED: "dim",
    Stage.KILLED: "red",
    Stage.FAILED: "red",
    Stage.GIVEN_UP: "red",
}
_EVENT_HUES: Final = {
    "died": "red",
    "failed": "red",
    "given_up": "red",
    "killing": "red",
    "killed": "red",
    "running": "green",
    "drained": "green",
    "stopping": "yellow",
}
_SHARDS_WIDTH: Final = 12


# --- For people at a terminal. ----------------------------------------------------------------------


class LiveTable:
    """A table that stays at the bottom; what happens and what user code prints scrolls by above it."""

    def __init__(self, heading: str, look: Look, console: Console) -> None:
        self._heading, self._look, self._console = heading, look, console
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def happened(self, happening: Happening) -> None:
        """See Audience."""
        style = _EVENT_HUES.get(happening.what, "")
        self._console.print(Text(f"{_clock()}  {happening_text(happening)}", style=style))

    def printed(self, name: str, line: str) -> None:
        """See Audience."""
        # A warning of ours names its worker; what user code prints does not.
        told = line if name in line else f"{name}: {line}"
        self._console.print(Text(output.printable(told)), soft_wrap=True)

    def show(self, standings: Sequence[Standing]) -> None:
        """See Audience."""
        self._live.update(fleet_view(self._heading, standings, self._look()), refresh=True)


def fleet_view(heading: str, standings: Sequence[Standing], group: GroupInfo | None) -> Stack:
    """A heading, and a line for each process."""
    title = Text.assemble((heading, "bold"), "  ", summary(standings, group))
    return Stack(Text(), title, fleet_table(standings, group))


def fleet_table(standings: Sequence[Standing], group: GroupInfo | None) -> Table:
    """A line for each process."""
    table = output.plain_table(
        "process", ">pid", "state", ">held", "shards", ">records", ">rate", ">lag", ">failures", ">restarts"
    )  # fmt: skip
    table.padding = (0, 1, 0, 0)
    for column in table.columns:
        column.no_wrap = str(column.header) != "process"
    for one in standings:
        lag = lag_of(one.name, group)
        table.add_row(
            one.name,
            "-" if one.pid is None else str(one.pid),
            Text(state_text(one), style="red" if one.silent_ms else _HUES[one.stage]),
            str(len(one.shards)),
            shards_text(one.shards),
            f"{one.records:,}",
            f"{one.rate:,.0f}/s",
            "-" if lag is None else f"{lag:,}",
            Text(f"{one.failures:,}", style="red" if one.failures else ""),
            Text(str(one.restarts), style="yellow" if one.restarts else ""),
        )
    return table


# --- For a log. -------------------------------------------------------------------------------------


class LogLines:
    """A line for everything that happens, and one for the whole from time to time."""

    def __init__(self, look: Look) -> None:
        self._look = look

    def happened(self, happening: Happening) -> None:
        """See Audience."""
        _say(f"{_stamp()}  {happening_text(happening)}")

    def printed(self, name: str, line: str) -> None:
        """See Audience."""
        _say(f"{name}: {line}")

    def show(self, standings: Sequence[Standing]) -> None:
        """See Audience."""
        _say(f"{_stamp()}  {summary(standings, self._look())}")


# --- For machines. ----------------------------------------------------------------------------------


class JsonLines:
    """An object a line: `type` is `event` or `status`."""

    def __init__(self, look: Look) -> None:
        self._look = look

    def happened(self, happening: Happening) -> None:
        """See Audience."""
        in_ms = happening.restart_in_ms
        _say_json(
            {
                "type": "event",
                "time": _wall_ms(),
                "event": happening.what,
                "process": happening.name or None,
                "pid": happening.pid,
                "detail": happening.detail,
                "restart_in_s": None if in_ms is None else max(0, in_ms) / 1000,
            }
        )

    def printed(self, name: str, line: str) -> None:
        """See Audience."""
        typer.echo(f"{name}: {line}", err=True)

    def show(self, standings: Sequence[Standing]) -> None:
        """See Audience."""
        _say_json(status_json(standings, self._look()))


def status_json(standings: Sequence[Standing], group: GroupInfo | None) -> dict[str, Any]:
    """How things stand. `lag` is null while nobody can say."""
    return {
        "type": "status",
        "time": _wall_ms(),
        "state": None if group is None else group.state,
        "lag": None if group is None else group.lag,
        "lag_s": None if group is None else group.lag_s,
        "records": sum(one.records for one in standings),
        "rate": round(sum(one.rate for one in standings), 3),
        "processes": [
            {
                "name": one.name,
                "pid": one.pid,
                "state": one.stage.value,
                "silent_ms": one.silent_ms,
                "shards": sorted(one.shards),
                "records": one.records,
                "rate": round(one.rate, 3),
                "lag": lag_of(one.name, group),
                "failures": one.failures,
                "retries": one.retries,
                "dead": one.dead,
                "lost": one.lost,
                "restarts": one.restarts,
                "error": one.error or None,
            }
            for one in standings
        ],
    }


# --- Small things. ----------------------------------------------------------------------------------


def summary(standings: Sequence[Standing], group: GroupInfo | None) -> str:
    """The whole fleet in a line."""
    stages = Counter(one.stage for one in standings)
    held = sum(len(one.shards) for one in standings)
    failures = sum(one.failures for one in standings)
    parts = [
        *(f"{count} {stage.value.replace('_', ' ')}" for stage, count in stages.items()),
        f"{held} shard{'' if held == 1 else 's'} held",
        f"{sum(one.records for one in standings):,} records",
        f"{sum(one.rate for one in standings):,.0f}/s",
    ]
    if group is None:
        parts.append("lag not known")
    else:
        parts.append(f"lag {group.lag:,}" + (f" ({span(group.lag_s)} behind)" if group.lag else ""))
    if failures:
        parts.append(f"{failures:,} failures")
    return ", ".join(parts)


def lag_of(name: str, group: GroupInfo | None) -> int | None:
    """Records that are still to come of the shards that a process holds."""
    return None if group is None else sum(shard.lag for shard in group.shards if shard.owner == name)


def state_text(one: Standing) -> str:
    """What a process does now."""
    if one.silent_ms:
        return f"silent {span(one.silent_ms / 1000)}"
    if one.stage is Stage.WAITING:
        return f"restart in {span(one.start_in_ms / 1000)}"
    return one.stage.value.replace("_", " ")


def shards_text(shards: Iterable[int]) -> str:
    """`0-3 7 9-12`, cut where it gets too long."""
    runs: list[list[int]] = []
    for shard in sorted(shards):
        if runs and runs[-1][1] == shard - 1:
            runs[-1][1] = shard
        else:
            runs.append([shard, shard])
    text = ""
    for low, high in runs:
        more = (" " if text else "") + (str(low) if low == high else f"{low}-{high}")
        if len(text) + len(more) > _SHARDS_WIDTH:
            return f"{text} …"
        text += more
    return text


def happening_text(happening: Happening) -> str:
    """Something that happened, in a sentence."""
    detail = output.printable(happening.detail)
    because = f": {detail}" if detail else ""
    who = f"{happening.name} " if happening.name else ""
    whose = f" (pid {happening.pid})" if happening.pid is not None else ""
    again = span(max(0, happening.restart_in_ms or 0) / 1000)
    told = {
        "died": f"died{whose}{because}; started again in {again}",
        "failed": f"failed{because}; it is not started again",
        "given_up": f"died too often in a row{because}; it is given up",
        "killing": f"is killed{whose}{because}",
        "stopping": f"stopping; {detail}",
        "drained": f"has nothing left to do{because}",
    }
    return who + told.get(happening.what, f"{happening.what}{whose}{because}")


class Unread:
    """Passes on to another audience until nobody reads what it prints; then it asks for a stop."""

    def __init__(self, audience: LiveTable | LogLines | JsonLines) -> None:
        self._audience = audience
        self.is_unread = False

    def happened(self, happening: Happening) -> None:
        """See Audience."""
        self._try(lambda: self._audience.happened(happening))

    def printed(self, name: str, line: str) -> None:
        """See Audience."""
        self._try(lambda: self._audience.printed(name, line))

    def show(self, standings: Sequence[Standing]) -> None:
        """See Audience."""
        self._try(lambda: self._audience.show(standings))

    def _try(self, say: Callable[[], None]) -> None:
        if self.is_unread:
            return
        try:
            say()
        except BrokenPipeError:
            self.is_unread = True
            signal.raise_signal(signal.SIGTERM)


def _say(line: str) -> None:
    typer.echo(line)


def _say_json(value: object) -> None:
    output.print_json(value)


def _clock() -> str:
    return f"{datetime.now(UTC).astimezone():%H:%M:%S}"


def _stamp() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
