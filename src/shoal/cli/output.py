"""How things look: tables and lines for people, JSON for machines. Shows values; asks and changes nothing.

Standard output carries what a command was asked for, standard error everything else. Where it is not a
terminal there are no control characters, and tables are as wide as they need to be.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.core.model import Shard, StreamInfo, StreamStats
from shoal.core.ring import RING_BITS, RING_SIZE
from shoal.wire.layout import Layout

_PIPED_WIDTH: Final = 160
_SHORT_DIGITS: Final = 8
_HUES: Final = ("cyan", "green", "yellow", "magenta", "blue", "red")


def screen(*, stderr: bool = False, piped_width: int = _PIPED_WIDTH) -> Console:
    """A console on standard output or error as they are now."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, width=None if stream.isatty() else piped_width)


def print_json(value: object) -> None:
    """One JSON document on one line."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def note(text: str) -> None:
    """A remark on standard error."""
    typer.echo(f"note: {text}", err=True)


# --- Streams for people. ----------------------------------------------------------------------------


def stream_list(streams: Sequence[StreamInfo]) -> Table:
    """A line for each stream."""
    table = plain_table("stream", ">open", ">shards", ">records", ">bytes", "retention", "columns")
    for info in streams:
        table.add_row(
            str(info.full_name),
            f"{len(info.open_shards):,}",
            f"{len(info.shards):,}",
            f"{sum(_records(shard) for shard in info.shards):,}",
            bytes_text(sum(shard.bytes for shard in info.shards)),
            _retention(info),
            Text(_columns(info)),  # A type such as timestamp[us] is no markup.
        )
    return table


def stream_heading(info: StreamInfo) -> Text:
    """What a stream is, in two lines."""
    settings = info.settings
    return Text.assemble(
        (str(info.full_name), "bold"),
        f"  {len(info.open_shards)} open of {len(info.shards)} shards, map version {info.version}, "
        f"created {moment(info.created_ms)}\n",
        f"hash {settings.hash}, compression {settings.compression}, retention {_retention(info)}, "
        f"columns {_columns(info)}",
    )


def shard_table(info: StreamInfo, totals: StreamStats | None = None) -> Table:
    """A line for each shard, and a last one for the whole."""
    table = plain_table(
        ">shard", "status", "range", ">share", "parents", ">first", ">next", ">records", ">bytes",
        show_footer=totals is not None,
    )  # fmt: skip
    for shard in info.shards:
        table.add_row(
            str(shard.id),
            Text(shard.status, style="green" if shard.is_open else "dim"),
            range_text(shard),
            f"{share(shard):.1%}",
            ", ".join(map(str, shard.parents)) or "-",
            f"{shard.first_offset:,}",
            f"{shard.next_offset:,}",
            f"{_records(shard):,}",
            bytes_text(shard.bytes),
            style="" if shard.is_open else "dim",
        )
    if totals is not None:
        footers = ("all", f"{totals.open_shards} open", "", "100.0%", "", "", f"{totals.appended:,}",
                   f"{totals.records:,}", bytes_text(totals.bytes))  # fmt: skip
        for column, footer in zip(table.columns, footers, strict=True):
            column.footer = footer
    return table


def stats_line(stats: StreamStats) -> str:
    """The figures that no table holds."""
    later = f"; {stats.delayed:,} come later" if stats.delayed else ""
    if stats.oldest_append_ms is None or stats.newest_append_ms is None:
        return f"{stats.appended:,} records appended in all, none kept{later}"
    return (
        f"{stats.appended:,} records appended in all; {stats.batches:,} batches kept, "
        f"appended {moment(stats.oldest_append_ms)} to {moment(stats.newest_append_ms)}{later}"
    )


def shard_line(shard: Shard) -> str:
    """A shard in a sentence."""
    return f"shard {shard.id} [{range_text(shard)}, {share(shard):.1%} of the ring]"


def ring_line(shards: Sequence[Shard], width: int) -> Text:
    """The ring unrolled: each open shard as long as its share of it."""
    line = Text()
    for shard in sorted((s for s in shards if s.is_open), key=lambda s: s.begin):
        cells = shard.end * width // RING_SIZE - shard.begin * width // RING_SIZE
        label = str(shard.id) if len(str(shard.id)) < cells else ""
        line.append(("▏" + label.center(cells - 1, "▁"))[:cells], style=_HUES[shard.id % len(_HUES)])
    return line.append("▏")


# --- Streams for machines. --------------------------------------------------------------------------


def stream_json(info: StreamInfo, stats: StreamStats | None = None) -> dict[str, Any]:
    """A stream with all its fields. Places on the ring are hexadecimal: JSON numbers do not hold 128 bits."""
    settings = info.settings
    found: dict[str, Any] = {
        "stream": str(info.full_name),
        "project": info.project,
        "name": info.name,
        "id": info.id,
        "version": info.version,
        "created": info.created_ms,
        "hash": settings.hash.value,
        "compression": settings.compression.value,
        "retention_ms": settings.retention_ms,
        "retention_bytes": settings.retention_bytes,
        "schema": _schema(info),
        "open_shards": len(info.open_shards),
        "records": sum(_records(shard) for shard in info.shards),
        "bytes": sum(shard.bytes for shard in info.shards),
        "shards": [shard_json(shard) for shard in info.shards],
    }
    if stats is not None:
        found |= {
            "appended": stats.appended,
            "batches": stats.batches,
            "delayed": stats.delayed,
            "oldest_append": stats.oldest_append_ms,
            "newest_append": stats.newest_append_ms,
        }
    return found


def shard_json(shard: Shard) -> dict[str, Any]:
    """A shard with all its fields."""
    return {
        "id": shard.id,
        "status": shard.status.value,
        "begin": f"{shard.begin:032x}",
        "end": f"{shard.end:032x}",
        "share": share(shard),
        "parents": list(shard.parents),
        "first_offset": shard.first_offset,
        "next_offset": shard.next_offset,
        "records": _records(shard),
        "bytes": shard.bytes,
        "created": shard.created_ms,
        "closed": shard.closed_ms,
    }


# --- Small things. ----------------------------------------------------------------------------------


def moment(milliseconds: int) -> str:
    """A time to the second, UTC."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


def bytes_text(count: float) -> str:
    """A size with a unit, in thousands."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def age(milliseconds: int) -> str:
    """A duration in the largest unit that leaves no rest, as options take it."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size:,}{unit}"
    return f"{milliseconds:,}ms"


def printable(text: str) -> str:
    """Text in which nothing acts on the terminal, and no tab or line break is taken for one of ours."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def share(shard: Shard) -> float:
    """The part of the ring that a shard owns, or owned."""
    return (shard.end - shard.begin) / RING_SIZE


def range_text(shard: Shard) -> str:
    """A shard's range by the first digits of its bounds."""
    return f"{place_text(shard.begin)}–{'end' if shard.end == RING_SIZE else place_text(shard.end)}"


def place_text(place: int) -> str:
    """A place on the ring by its first digits: four if exact, otherwise eight and a sign of more."""
    digits = f"{place:0{RING_BITS // 4}x}"
    exact = digits.rstrip("0").ljust(4, "0")
    return exact if len(exact) <= _SHORT_DIGITS else f"{digits[:_SHORT_DIGITS]}…"


def _records(shard: Shard) -> int:
    return shard.next_offset - shard.first_offset


def _schema(info: StreamInfo) -> dict[str, str] | None:
    if info.settings.schema is None:
        return None
    return {field.name: str(field.type) for field in Layout(info.settings.schema).columns}


def _columns(info: StreamInfo) -> str:
    schema = _schema(info)
    return "value" if schema is None else ", ".join(f"{name}: {kind}" for name, kind in schema.items())


def _retention(info: StreamInfo) -> str:
    settings = info.settings
    kept = []
    if settings.retention_ms is not None:
        kept.append(age(settings.retention_ms))
    if settings.retention_bytes is not None:
        kept.append(bytes_text(settings.retention_bytes))
    return ", ".join(kept) or "for ever"


def plain_table(*headings: str, show_footer: bool = False) -> Table:
    """A plain table; a heading that begins with `>` is that of a column of numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_footer=show_footer, pad_edge=False, header_style="bold")
    for heading in headings:
        is_number = heading.startswith(">")
        name = Text(heading.removeprefix(">"))
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    return table
