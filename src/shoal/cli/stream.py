"""`shoal stream …`: make, show, reshape, scale and delete streams. One call of the hub each."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal import connect
from shoal.cli import output
from shoal.cli.asking import Yes, confirm
from shoal.cli.options import DEFAULT_HUB, AsJson, HubUrl, ShardArgument, StreamArgument
from shoal.cli.resharding import follow_closed
from shoal.cli.stream_scaling import hot, scale
from shoal.cli.stream_strategy import STRATEGY_HELP, set_strategy
from shoal.cli.values import parse_duration, parse_schema, parse_seconds, parse_size
from shoal.core.model import Compression, KeyHash, SendStrategy

streams = typer.Typer(help="Create, show, reshape and delete streams.", no_args_is_help=False)


@streams.command()
def create(
    stream: StreamArgument,
    *,
    hub: HubUrl = DEFAULT_HUB,
    shards: Annotated[int, typer.Option(help="How many equal shards it starts with.")] = 4,
    retention: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Keep records for so long: 90s, 12h, 7d. Without it, for ever."),
    ] = None,
    retention_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Keep at most so much: 500MB, 10GB, 10GiB.")
    ] = None,
    compression: Annotated[Compression, typer.Option(help="Of stored batches.")] = Compression.LZ4,
    hash_: Annotated[
        KeyHash, typer.Option("--hash", help="How keys are placed: xxh64 as in Spark, md5 as in Kinesis.")
    ] = KeyHash.XXH64,
    schema: Annotated[
        str | None,
        typer.Option(metavar="COLUMNS", help="Typed columns: amount:int64,customer:string. Without, bytes."),
    ] = None,
    strategy: Annotated[SendStrategy | None, typer.Option(help=STRATEGY_HELP)] = None,
    json: AsJson = False,
) -> None:
    """Make a stream; PROJECT/NAME makes the project too."""
    kept_for = None if retention is None else parse_duration("retention", retention)
    kept_bytes = None if retention_bytes is None else parse_size("retention_bytes", retention_bytes)
    columns = None if schema is None else parse_schema(schema)
    with connect(hub) as opened:
        info = opened.create_stream(
            stream,
            shards,
            schema=columns,
            retention=kept_for,
            retention_bytes=kept_bytes,
            compression=compression,
            hash=hash_,
            strategy=strategy,
        )
    if json:
        output.print_json(output.stream_json(info))
    else:
        typer.echo(f"created stream {info.full_name} with {len(info.shards)} shards")


@streams.command("list")
def list_(
    *,
    hub: HubUrl = DEFAULT_HUB,
    project: Annotated[str | None, typer.Option(help="Only the streams of this project.")] = None,
    json: AsJson = False,
) -> None:
    """Show all streams."""
    with connect(hub) as opened:
        found = opened.list_streams(project)
    if json:
        output.print_json([output.stream_json(info) for info in found])
    elif found:
        output.screen().print(output.stream_list(found))
    else:
        output.note("there are no streams; make one with: shoal stream create NAME")


@streams.command()
def describe(stream: StreamArgument, *, hub: HubUrl = DEFAULT_HUB, json: AsJson = False) -> None:
    """Show a stream's settings, shards and figures."""
    with connect(hub) as opened:
        stats = opened.stats(stream)
        info = opened.describe_stream(stream)
    if json:
        output.print_json(output.stream_json(info, stats))
        return
    screen = output.screen()
    screen.print(output.stream_heading(info), soft_wrap=True)
    screen.print(output.shard_table(info, stats))
    screen.print(output.stats_line(stats), soft_wrap=True)


@streams.command()
def split(
    stream: StreamArgument,
    shard: ShardArgument,
    *,
    hub: HubUrl = DEFAULT_HUB,
    at: Annotated[
        str | None, typer.Option(metavar="HEX", help="The hash to split at; without it, in the middle.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Close a shard and open two that divide its range."""
    with connect(hub) as opened:
        left, right = opened.split_shard(stream, shard, at)
    if json:
        output.print_json(
            {"stream": stream, "closed": [shard], "opened": [*map(output.shard_json, (left, right))]}
        )
    else:
        typer.echo(f"split shard {shard} into {output.shard_line(left)} and {output.shard_line(right)}")


@streams.command()
def merge(
    stream: StreamArgument,
    shard: ShardArgument,
    other: Annotated[
        int | None, typer.Argument(metavar="[OTHER]", help="Its neighbour; without it, the right one.")
    ] = None,
    *,
    hub: HubUrl = DEFAULT_HUB,
    json: AsJson = False,
) -> None:
    """Close two neighbours and open one shard over both ranges."""
    with connect(hub) as opened:
        child = opened.merge_shards(stream, shard, other)
    if json:
        output.print_json(
            {"stream": stream, "closed": list(child.parents), "opened": [output.shard_json(child)]}
        )
    else:
        parents = " and ".join(map(str, child.parents))
        typer.echo(f"merged shards {parents} into {output.shard_line(child)}")


@streams.command()
def reshard(
    stream: StreamArgument,
    shards: Annotated[int, typer.Argument(metavar="COUNT", help="How many.", show_default=False)],
    *,
    hub: HubUrl = DEFAULT_HUB,
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Show how groups come to the end of what was closed, for at most so long: 10m.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Get to COUNT equal shards with the fewest splits and merges, all in one step."""
    within_s = None if wait is None else parse_seconds("wait", wait)
    with connect(hub) as opened:
        info = opened.reshard(stream, shards)
        if not json:
            ids = ", ".join(str(shard.id) for shard in info.open_shards)
            typer.echo(f"stream {info.full_name} has {len(info.open_shards)} open shards: {ids}")
        if within_s is not None:
            follow_closed(opened, stream, within_s)
    if json:
        output.print_json(output.stream_json(info))


streams.command()(scale)
streams.command()(hot)
streams.command("strategy")(set_strategy)


@streams.command()
def delete(
    stream: StreamArgument,
    *,
    hub: HubUrl = DEFAULT_HUB,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Remove a stream and all its records. Asks first; where nobody can be asked, --yes is needed."""
    with connect(hub) as opened:
        stats = opened.stats(stream)
        if not yes:
            confirm(
                f"Delete stream {stats.stream} with {stats.records:,} records for good?",
                act="deleting",
                undone="nothing was deleted",
            )
        opened.delete_stream(stream)
    if json:
        output.print_json({"stream": str(stats.stream), "deleted": True, "records": stats.records})
    else:
        typer.echo(f"deleted stream {stats.stream} with {stats.records:,} records")
