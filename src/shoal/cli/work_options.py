"""The options of `shoal work`, with their help texts, in the order in which the command shows them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import typer

from shoal.consumer.options import Lanes
from shoal.core.group import Coordination
from shoal.core.limits import LANES_MAX, PROCESSES_MAX
from shoal.core.retry import Policy

_NEW: Final = "For a group that is made: "


class Engine(StrEnum):
    """Where processors run."""

    PROCESSES = "processes"
    SPARK = "spark"


ProcessorArgument = Annotated[
    str,
    typer.Argument(
        metavar="PROCESSOR",
        help="module:attribute or path/to/file.py:attribute: a Processor class, a factory, or a function "
        "(batch, checkpointer). The current directory can be imported from.",
        show_default=False,
    ),
]
StreamOption = Annotated[str, typer.Option("--stream", "-s", metavar="STREAM", help="NAME, or PROJECT/NAME.")]
GroupOption = Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="The group to work for.")]
Processes = Annotated[
    int | None,
    typer.Option("--processes", "-n", min=1, max=PROCESSES_MAX, help="How many processes. Without it, 1."),
]
EngineOption = Annotated[
    Engine,
    typer.Option(help="Where the processor runs: in processes, or on Spark's executors."),
]
SparkMaster = Annotated[
    str | None,
    typer.Option(metavar="URL", help="--engine spark: the master. Without it, spark-submit's, or local[*]."),
]
SparkConf = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="--engine spark: a setting of Spark's; again for each."),
]
SparkCheckpoint = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        help="--engine spark: for Spark's own checkpoint. Without it, a temporary one: how far it is, "
        "the group knows.",
    ),
]
WorkersName = Annotated[
    str | None,
    typer.Option(help="The workers are NAME-1, NAME-2, …  Without it, by host and process.", metavar="NAME"),
]
Until = Annotated[
    str | None,
    typer.Option(metavar="now", help="now: end when all that is there at the start is consumed."),
]
Parallelism = Annotated[
    int | None,
    typer.Option(min=1, help="Lanes within a shard, by key, each with a processor of its own."),
]
LanesOption = Annotated[
    Lanes | None,
    typer.Option(
        help="Where processors run: in threads, or, for code that computes in Python, in processes."
    ),
]
LaneProcesses = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=LANES_MAX,
        metavar="COUNT",
        help="With --lanes processes: how many, for each worker. Without it, as many as lanes.",
    ),
]
Failure = Annotated[
    Policy | None,
    typer.Option(help="When the processor raises: try again in place, set aside and go on, or stop."),
]
MaxAttempts = Annotated[
    int | None,
    typer.Option(help="best_tried: after so many a record goes to the dead stream.", metavar="COUNT"),
]
StopTimeout = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="How long a stop waits for user code. Without it, 30s."),
]
PersistInterval = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="How often what was saved with persist=False is stored. Without it, 60s."
    ),
]
AheadBytes = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Fetched and not yet finished, per process. Without it, 64MB."),
]
CreateGroup = Annotated[
    bool, typer.Option("--create-group/--no-create-group", help="Make the group if there is none.")
]
NewStart = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WHERE",
        help=_NEW + "where it begins: earliest, latest, a time, how long ago (10m), or SHARD=OFFSET, again "
        "for each shard. Without it, earliest.",
        show_default=False,
    ),
]
NewInOrder = Annotated[
    bool | None,
    typer.Option(
        "--in-order/--no-in-order",
        " /--not-in-order",
        help=_NEW + "a shard is consumed after all its ancestors. Without it, in order.",
        show_default=False,
    ),
]
NewTimeout = Annotated[
    str | None,
    typer.Option(metavar="TIME", help=_NEW + "who is silent for so long is dead. Without it, 20s."),
]
NewCoordination = Annotated[
    Coordination | None, typer.Option(help=_NEW + "who decides: the hub, or a table of leases.")
]
Every = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="How often figures are shown. Without it, 1s; in a log every 10s."),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, metavar="PORT", help="Serve figures of all processes for Prometheus; 0: any."
    ),
]
MetricsHost = Annotated[
    str | None,
    typer.Option(metavar="HOST", help="Where to: 127.0.0.1, or 0.0.0.0 for all of this machine's addresses."),
]
