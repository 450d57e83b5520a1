"""`shoal group …`: create, list, describe, update, reset, delete, history, dead; each a call or two."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.live import Live

from shoal import Hub, connect
from shoal.cli import group_output, output
from shoal.cli.asking import Yes, confirm
from shoal.cli.group_dead import dead
from shoal.cli.group_history import history
from shoal.cli.group_reset import reset
from shoal.cli.options import DEFAULT_HUB, AsJson, GroupArgument, HubUrl, LeasesUrl, StreamArgument
from shoal.cli.repeating import checked_interval, looks
from shoal.cli.values import parse_bound, parse_position, parse_seconds
from shoal.core.aside import Retrying
from shoal.core.describing import ELSEWHERE, GroupInfo, joined_ms
from shoal.core.errors import AccessDenied, GroupInUse
from shoal.core.group import Coordination, Delivery
from shoal.core.limits import GROUPS_PER_STREAM, HISTORY_KEPT
from shoal.core.retry import Policy

groups = typer.Typer(
    help="Create, show, change, reset and delete groups of consumers.", no_args_is_help=False
)

_TIMEOUT_HELP: Final = "A consumer that is silent for so long is dead: 20s, 1m, or seconds."
_HANDOVER_HELP: Final = "How long a living owner may take to let go of a shard: 30s, 5m, seconds, or none."
_VISIBILITY_HELP: Final = "Shared: how long a record is a consumer's alone: 30s, 5m, or seconds."
_ATTEMPTS_HELP: Final = "Shared: how often a record is handed out before it goes to the dead stream."
_FAILURE_HELP: Final = "When a worker's processor raises: try again in place, set aside and go on, or stop."
_UNUSED_HELP: Final = "Broadcast: a position that is not used for so long is dropped: 7d, 12h, or seconds."
_ORDER: Final = "--in-order/--not-in-order"
_ORDER_HELP: Final = "A shard is consumed after all its ancestors, so that keys keep their order."


@groups.command()
def create(
    stream: StreamArgument,
    group: GroupArgument,
    *,
    hub: HubUrl = DEFAULT_HUB,
    leases: LeasesUrl = None,
    in_order: Annotated[
        bool | None,
        typer.Option(_ORDER, help=f"{_ORDER_HELP} The default, unless it is shared.", show_default=False),
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="TIME", help=_TIMEOUT_HELP)] = "20s",
    handover_timeout: Annotated[str, typer.Option(metavar="TIME", help=_HANDOVER_HELP)] = "none",
    coordination: Annotated[
        Coordination, typer.Option(help="Who decides: the hub, or consumers through a table of leases.")
    ] = Coordination.COORDINATED,
    delivery: Annotated[
        Delivery,
        typer.Option(
            help="How records are spread: a shard to one consumer, a record to one of many, all to all."
        ),
    ] = Delivery.EXCLUSIVE,
    failure: Annotated[
        Policy | None,
        typer.Option(
            help=f"{_FAILURE_HELP} Without it, strict if in order, otherwise best_tried.", show_default=False
        ),
    ] = None,
    visibility: Annotated[str | None, typer.Option(metavar="TIME", help=_VISIBILITY_HELP)] = None,
    max_attempts: Annotated[int | None, typer.Option(metavar="COUNT", help=_ATTEMPTS_HELP)] = None,
    key_ordered: Annotated[
        bool, typer.Option("--key-ordered", help="Shared: one record of a key is in flight at a time.")
    ] = False,
    unused: Annotated[str | None, typer.Option(metavar="TIME", help=_UNUSED_HELP)] = None,
    strategy: Annotated[
        str, typer.Option(help="How shards are spread: balanced, range, round_robin, spread.")
    ] = "balanced",
    lease_table: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The table of a leased group; without it, a shared one."),
    ] = None,
    start: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHERE",
            help="Where it begins: earliest, latest, a time (2026-01-31T08:00Z), how long ago (10m), or "
            "SHARD=OFFSET, again for each shard. Without it, earliest.",
            show_default=False,
        ),
    ] = None,
    groups_per_stream: Annotated[
        int, typer.Option(min=1, metavar="COUNT", help="Refuse if the stream has so many groups already.")
    ] = GROUPS_PER_STREAM,
    json: AsJson = False,
) -> None:
    """Make a group of consumers that share a stream: by shards, by records (shared), or all of it each."""
    timeout_s = parse_seconds("timeout", timeout)
    handover_s = parse_bound("handover_timeout", handover_timeout)
    begins = parse_position("start", start or ["earliest"], datetime.now(UTC))
    with connect(hub, leases=leases, groups_per_stream=groups_per_stream) as opened:
        info = opened.create_group(
            stream,
            group,
            in_order=in_order,
            timeout=timeout_s,
            handover_timeout=handover_s,
            coordination=coordination,
            delivery=delivery,
            strategy=strategy,
            lease_table=lease_table,
            failure=failure,
            visibility=None if visibility is None else parse_seconds("visibility", visibility),
            max_attempts=max_attempts,
            key_ordered=key_ordered,
            unused=None if unused is None else parse_seconds("unused", unused),
            start=begins,
        )
    if json:
        output.print_json(group_output.group_json(info, {}))
        return
    typer.echo(f"created group {info.name} of {info.stream}, from {group_output.where_text(begins)}")
    typer.echo(group_output.settings_line(info.settings))


@groups.command("list")
def list_(
    stream: Annotated[
        str | None, typer.Argument(metavar="[STREAM]", help="Only the groups of this stream.")
    ] = None,
    *,
    hub: HubUrl = DEFAULT_HUB,
    leases: LeasesUrl = None,
    json: AsJson = False,
) -> None:
    """Show the groups of a stream, or of all: their state, members, shards, and how far behind they are."""
    with connect(hub, leases=leases) as opened:
        found = opened.describe_groups(stream)
        if json:
            output.print_json([_json(opened, info) for info in found])
            return
    if found:
        output.screen().print(group_output.group_list(found))
    else:
        where = "there are no groups" if stream is None else f"stream {stream} has no groups"
        output.note(f"{where}; make one with: shoal group create {stream or 'STREAM'} GROUP")


@groups.command()
def describe(
    stream: StreamArgument,
    group: GroupArgument,
    *,
    hub: HubUrl = DEFAULT_HUB,
    leases: LeasesUrl = None,
    watch: Annotated[
        str | None,
        typer.Option("--watch", "-w", metavar="TIME", help="Look again every 2s, 500ms, …, until Ctrl-C."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Show a group's settings, members and shards: who owns which, how far it is, and what waits for whom."""
    every_s = None if watch is None else checked_interval("watch", parse_seconds("watch", watch))
    with connect(hub, leases=leases) as opened:
        if every_s is not None:
            _watch(opened, stream, group, every_s, as_json=json)
        elif json:
            output.print_json(_json(opened, opened.describe_group(stream, group)))
        else:
            output.screen().print(_view(opened, stream, group))


def _watch(hub: Hub, stream: str, group: str, every_s: float, *, as_json: bool) -> None:
    """A live table on a terminal; elsewhere one look after the other, in JSON an object on each line."""
    if as_json:
        for seen in looks(lambda: _json(hub, hub.describe_group(stream, group)), every_s):
            output.print_json(seen)
        return
    screen, views = output.screen(), looks(lambda: _view(hub, stream, group), every_s)
    if not screen.is_terminal:
        for view in views:
            screen.print(view)
        return
    with Live(next(views), console=screen, auto_refresh=False) as live:
        for view in views:
            live.update(view, refresh=True)


@groups.command()
def update(
    stream: StreamArgument,
    group: GroupArgument,
    *,
    hub: HubUrl = DEFAULT_HUB,
    leases: LeasesUrl = None,
    in_order: Annotated[bool | None, typer.Option(_ORDER, help=_ORDER_HELP, show_default=False)] = None,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help=_TIMEOUT_HELP)] = None,
    handover_timeout: Annotated[str | None, typer.Option(metavar="TIME", help=_HANDOVER_HELP)] = None,
    failure: Annotated[Policy | None, typer.Option(help=_FAILURE_HELP, show_default=False)] = None,
    visibility: Annotated[str | None, typer.Option(metavar="TIME", help=_VISIBILITY_HELP)] = None,
    max_attempts: Annotated[int | None, typer.Option(metavar="COUNT", help=_ATTEMPTS_HELP)] = None,
    unused: Annotated[str | None, typer.Option(metavar="TIME", help=_UNUSED_HELP)] = None,
    json: AsJson = False,
) -> None:
    """Change a group's settings, also while it runs; what is not given stays."""
    changes: dict[str, Any] = {}
    if in_order is not None:
        changes["in_order"] = in_order
    if timeout is not None:
        changes["timeout"] = parse_seconds("timeout", timeout)
    if handover_timeout is not None:
        changes["handover_timeout"] = parse_bound("handover_timeout", handover_timeout)
    for name, value in (("visibility", visibility), ("unused", unused)):
        if value is not None:
            changes[name] = parse_seconds(name, value)
    for name, given in (("failure", failure), ("max_attempts", max_attempts)):
        if given is not None:
            changes[name] = given
    if not changes:
        raise typer.BadParameter(
            "give at least one setting to change",
            param_hint="--in-order, --not-in-order, --timeout, --handover-timeout, --failure, "
            "--visibility, --max-attempts or --unused",
        )
    with connect(hub, leases=leases) as opened:
        before = opened.describe_group(stream, group).settings
        info = opened.update_group(stream, group, **changes)
        if json:
            told = {"changed": group_output.changes_json(before, info.settings)}
            output.print_json(_json(opened, info) | told)
            return
    typer.echo(
        f"updated group {info.name} of {info.stream}: {group_output.changes_text(before, info.settings)}"
    )


groups.command()(reset)


@groups.command()
def delete(
    stream: StreamArgument,
    group: GroupArgument,
    *,
    hub: HubUrl = DEFAULT_HUB,
    leases: LeasesUrl = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also if consumers use it, and without asking.")
    ] = False,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Remove a group with its checkpoints. Asks first; where nobody can be asked, --yes is needed."""
    with connect(hub, leases=leases) as opened:
        info = opened.describe_group(stream, group)
        users = [member.name for member in info.members] + [one.name for one in info.consumers]
        if not force and not yes:
            if users:  # The hub would say so too, but after the question.
                raise GroupInUse(group=info.name, consumers=users)
            confirm(
                f"Delete group {info.name} of {info.stream} with its checkpoints for good?",
                act="deleting",
                undone="nothing was deleted",
            )
        opened.delete_group(stream, group, force=force)
    if json:
        output.print_json({"stream": info.stream, "group": info.name, "deleted": True, "members": users})
    else:
        typer.echo(f"deleted group {info.name} of {info.stream}")


groups.command()(history)
groups.add_typer(dead, name="dead")


def _view(hub: Hub, stream: str, group: str) -> RenderableType:
    info = hub.describe_group(stream, group)
    return group_output.group_view(
        info, _joined(hub, info), time.time_ns() // 1_000_000, _retrying(hub, info)
    )


def _json(hub: Hub, info: GroupInfo) -> dict[str, Any]:
    return group_output.group_json(info, _joined(hub, info), _retrying(hub, info))


def _retrying(hub: Hub, info: GroupInfo) -> Retrying | None:
    """What is to be tried again, if there is such, and if we may see it."""
    if info.settings.delivery is not Delivery.EXCLUSIVE or info.state == ELSEWHERE:
        return None
    try:
        found = hub.retrying(info.stream, info.name)
    except AccessDenied:
        return None
    return found if found.waiting or found.due else None


def _joined(hub: Hub, info: GroupInfo) -> dict[str, int]:
    """When its members came: the history knows."""
    if not info.members:
        return {}
    lines = hub.group_history(info.stream, info.name, HISTORY_KEPT)
    return joined_ms((round(at.timestamp() * 1000), note) for at, note in lines)
