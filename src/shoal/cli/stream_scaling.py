"""`shoal stream scale` and `shoal stream hot`: splitting and merging by load, and which keys are the load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Final

import typer

from shoal import connect
from shoal.cli import output
from shoal.cli.options import DEFAULT_HUB, AsJson, HubUrl, StreamArgument
from shoal.cli.values import parse_seconds, parse_size
from shoal.core.errors import InvalidInput
from shoal.core.hot import HotKey
from shoal.core.model import Scaling

_LEAST: Final = 1
_MOST: Final = 64
_COOL_DOWN: Final = "5m"
_MERGE_BELOW: Final = 0.25


def scale(
    stream: StreamArgument,
    *,
    hub: HubUrl = DEFAULT_HUB,
    records: Annotated[
        float | None, typer.Option("--records-per-s", help="Split a shard that takes more records a second.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--bytes-per-s", metavar="SIZE", help="Or more stored bytes a second: 500kB, 5MB."),
    ] = None,
    least: Annotated[int, typer.Option("--min", help="Merges leave at least so many shards.")] = _LEAST,
    most: Annotated[int, typer.Option("--max", help="Splits leave at most so many.")] = _MOST,
    cool_down: Annotated[
        str, typer.Option(metavar="TIME", help="A new shard is left alone for so long: 30s, 5m.")
    ] = _COOL_DOWN,
    merge_below: Annotated[
        float, typer.Option(help="Merge neighbours that take less than this share of the limit; 0 is never.")
    ] = _MERGE_BELOW,
    off: Annotated[bool, typer.Option("--off", help="No more by itself.")] = False,
    json: AsJson = False,
) -> None:
    """Let a stream split and merge by its load; without options, show whether it does."""
    asked = records is not None or size is not None
    if asked and off:
        raise InvalidInput("--off", True, "give limits, or --off, not both")
    if not asked:
        _refuse_alone({"--min": least, "--max": most, "--cool-down": cool_down, "--merge-below": merge_below})
    with connect(hub) as opened:
        if asked:
            opened.set_scaling(
                stream,
                records_per_s=records,
                bytes_per_s=None if size is None else parse_size("bytes_per_s", size),
                shards_min=least,
                shards_max=most,
                cool_down_s=parse_seconds("cool_down", cool_down),
                merge_below=merge_below,
            )
        elif off:
            opened.set_scaling(stream, None)
        found = opened.scaling(stream)
    if json:
        output.print_json({"stream": stream, "scaling": None if found is None else asdict(found)})
    else:
        typer.echo(f"stream {stream} {_sentence(found)}")


def hot(
    stream: StreamArgument,
    *,
    hub: HubUrl = DEFAULT_HUB,
    shard: Annotated[int | None, typer.Option(help="Only this shard; otherwise every open one.")] = None,
    most: Annotated[int, typer.Option("--most", help="So many keys.")] = 10,
    json: AsJson = False,
) -> None:
    """Show the keys that most of the newest records have."""
    with connect(hub) as opened:
        found = opened.hot_keys(stream, shard, most=most)
    if json:
        output.print_json([{"key": _text(key), "shard": key.shard, "share": key.share} for key in found])
    elif found:
        table = output.plain_table("key", ">shard", ">of its newest records")
        for key in found:
            table.add_row(_text(key), str(key.shard), f"{key.share:.1%}")
        output.screen().print(table)
    else:
        output.note(f"no record of {stream} that is kept has a key")


def _refuse_alone(given: Mapping[str, object]) -> None:
    """What says how to scale says nothing without a limit, and must not seem to be taken."""
    for (option, value), unsaid in zip(given.items(), (_LEAST, _MOST, _COOL_DOWN, _MERGE_BELOW), strict=True):
        if value != unsaid:
            raise InvalidInput(option, value, "give a limit with it: --records-per-s, --bytes-per-s, or both")


def _text(hot: HotKey) -> str:
    return hot.key.decode(errors="backslashreplace")


def _sentence(scaling: Scaling | None) -> str:
    if scaling is None:
        return "splits and merges only when told"
    limits = []
    if scaling.records_per_s is not None:
        limits.append(f"{scaling.records_per_s:,g} records/s")
    if scaling.bytes_per_s is not None:
        limits.append(f"{output.bytes_text(int(scaling.bytes_per_s))}/s")
    return (
        f"splits a shard that takes more than {' or '.join(limits)}; {scaling.shards_min} to "
        f"{scaling.shards_max} shards, each left alone for its first {scaling.cool_down_s:g} s"
    )
