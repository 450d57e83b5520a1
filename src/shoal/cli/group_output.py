"""How groups look: tables and lines for people, JSON for machines. Shows values; asks and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text

from shoal.cli import group_ownerless
from shoal.cli.output import age, moment, plain_table, printable
from shoal.cli.values import Position
from shoal.core.aside import Retrying
from shoal.core.describing import ELSEWHERE, Block, GroupInfo, changed
from shoal.core.group import Delivery, GroupSettings, MemberStatus, Note, ShardState

_HUES: Final = {
    "stable": "green",
    "moving": "yellow",
    "empty": "dim",
    "active": "green",
    ShardState.ALREADY_ALLOC: "green",
    ShardState.TRANSFER: "yellow",
    ShardState.NOT_ALLOC: "red",
    ShardState.WAIT: "cyan",
    ShardState.OVER: "dim",
    MemberStatus.ACTIVE: "green",
    MemberStatus.LEAVING: "yellow",
    MemberStatus.BARRED: "red",
}

_NAMES_SHOWN: Final = 5

# --- For people. ------------------------------------------------------------------------------------


def group_list(groups: Sequence[GroupInfo]) -> Table:
    """A line for each group."""
    table = plain_table("stream", "group", "state", ">members", ">held", ">shards", ">lag", ">behind")
    for info in groups:
        if info.state == ELSEWHERE:
            table.add_row(info.stream, info.name, "elsewhere: give --leases", "?", "?", "?", "?", "?")
            continue
        table.add_row(
            info.stream,
            info.name,
            _hued(info.state),
            f"{len(info.members) or len(info.consumers) or len(info.positions):,}",
            f"{info.held:,}",
            f"{info.live:,}",
            f"{info.lag:,}",
            _behind(info.lag, info.lag_s),
        )
    return table


def group_view(
    info: GroupInfo, joined: Mapping[str, int], now_ms: int, retrying: Retrying | None = None
) -> Stack:
    """A group with its settings, members and shards; one without owners with what it has instead."""
    members = [member_table(info, joined, now_ms)] if info.members else []
    tables = group_ownerless.tables(info)
    if not tables:
        tables = [shard_table(info, now_ms)]
    lines = [*waiting_lines(info), *blocked_lines(info, now_ms), *retry_lines(retrying)]
    return Stack(_heading(info), *members, *tables, *map(Text, lines))


def _heading(info: GroupInfo) -> Text:
    over = len(info.shards) - info.live
    return Text.assemble(
        (f"{info.name}", "bold"),
        f" of {info.stream}  ",
        _hued(info.state),
        f"  {group_ownerless.holding(info) or _holding(info)}"
        + (f", {over} over" if over else "")
        + f", {_count(info.lag, 'record')} to come"
        + (f", {span(info.lag_s)} behind" if info.lag else "")
        + "\n",
        f"{settings_line(info.settings)}; created {moment(info.created_ms)}",
    )


def _holding(info: GroupInfo) -> str:
    return f"{_count(len(info.members), 'member')}, {info.held} of {_count(info.live, 'shard')} held"


def settings_line(settings: GroupSettings) -> str:
    """A group's settings in a sentence."""
    if settings.delivery is not Delivery.EXCLUSIVE:
        return group_ownerless.settings_line(settings)
    table = f" in table {settings.lease_table}" if settings.lease_table else ""
    return (
        f"{'in order' if settings.in_order else 'not in order'}, {settings.coordination.value}{table}, "
        f"{settings.delivery.value}, strategy {settings.strategy}, timeout {age(settings.timeout_ms)}, "
        f"hand-over timeout {_setting('handover_timeout_ms', settings.handover_timeout_ms)}, "
        f"failure {settings.policy.value}"
    )


def member_table(info: GroupInfo, joined: Mapping[str, int], now_ms: int) -> Table:
    """A line for each consumer."""
    table = plain_table("member", "status", ">shards", "since", ">timeout", ">silent")
    for member in info.members:
        table.add_row(
            member.name,
            _hued(member.status.value),
            f"{member.shards:,}",
            _ago(joined.get(member.name), now_ms),
            age(member.timeout_ms),
            span(member.silent_ms / 1000),
        )
    return table


def shard_table(info: GroupInfo, now_ms: int) -> Table:
    """A line for each shard, short enough for 80 columns."""
    table = plain_table(">shard", "state", "for", "owner", ">epoch", ">checkpoint", ">lag", ">behind")
    table.padding = (0, 1, 0, 0)
    for column in table.columns:
        column.no_wrap = str(column.header) != "owner"
    for shard in info.shards:
        table.add_row(
            str(shard.id),
            _hued(shard.state.value),
            span(max(0, now_ms - shard.since_ms) / 1000),
            shard.owner or "-",
            str(shard.epoch or "-"),
            f"{shard.checkpoint:,}",
            f"{shard.lag:,}",
            _behind(shard.lag, shard.lag_s),
            style="dim" if shard.state is ShardState.OVER else "",
        )
    return table


def waiting_lines(info: GroupInfo) -> list[str]:
    """What shards wait for, a line for all that wait for the same."""
    waiting: dict[str, list[int]] = {}
    for shard in info.shards:
        if shard.waiting_for:
            then = f"; {shard.next} has it next" if shard.next else ""
            waiting.setdefault(shard.waiting_for + then, []).append(shard.id)
    return [
        f"{shards_text(ids)} {'waits' if len(ids) == 1 else 'wait'} for {reason}"
        for reason, ids in waiting.items()
    ]


def blocked_lines(info: GroupInfo, now_ms: int) -> list[str]:
    """What holds shards up, as their owners say."""
    return [
        f"shard {shard.id} has been blocked for {span(max(0, now_ms - block.since_ms) / 1000)}, "
        f"{_count(block.attempts, 'attempt')}: {printable(block.error)}"
        for shard in info.shards
        if (block := shard.blocked) is not None
    ]


def retry_lines(retrying: Retrying | None) -> list[str]:
    """What was set aside and is to be tried again."""
    if retrying is None or not retrying.waiting + retrying.due:
        return []
    return [
        f"{_count(retrying.waiting + retrying.due, 'record')} to be tried again in {retrying.stream}: "
        f"{retrying.waiting:,} after their delay, {retrying.due:,} now"
    ]


def changes_text(old: GroupSettings, new: GroupSettings) -> str:
    """What an update changed, with both values."""
    lines = [
        f"{name.removesuffix('_ms')} {' → '.join(_setting(name, getattr(one, name)) for one in (old, new))}"
        for name in changed(old, new)
    ]
    return ", ".join(lines) or "nothing changed, it was so already"


def where_text(position: Position) -> str:
    """A position in words."""
    if isinstance(position, datetime):
        return position.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    if isinstance(position, dict):
        return ", ".join(f"offset {offset:,} of shard {shard}" for shard, offset in sorted(position.items()))
    return position


def users_text(names: Sequence[str]) -> str:
    """`ada uses`, `ada, bob use`: the first few, and how many more."""
    shown, more = ", ".join(names[:_NAMES_SHOWN]), len(names) - _NAMES_SHOWN
    return f"{shown}{f' and {more} more' if more > 0 else ''} {'uses' if len(names) == 1 else 'use'}"


def shards_text(shards: Sequence[int]) -> str:
    """`shard 3`, `shards 3 and 4`."""
    *most, last = map(str, shards)
    return f"shards {', '.join(most)} and {last}" if most else f"shard {last}"


def history_line(at: datetime, note: Note) -> str:
    """What happened, in columns that stay where they are from line to line."""
    time = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    shard = "" if note.shard is None else f"shard {note.shard}"
    epoch = "" if note.epoch is None else f"epoch {note.epoch}"
    what = "  ".join(part for part in (note.consumer, printable(note.detail)) if part)
    return f"{time}  {note.kind:<10}  {shard:<10}  {epoch:<10}  {what}".rstrip()


# --- For machines. ----------------------------------------------------------------------------------


def group_json(
    info: GroupInfo, joined: Mapping[str, int], retrying: Retrying | None = None
) -> dict[str, Any]:
    """A group with all its fields. Times are milliseconds since 1970; `lag_s` is in seconds."""
    return {
        "stream": info.stream,
        "group": info.name,
        "state": info.state,
        "version": info.version,
        "created": info.created_ms,
        **settings_json(info.settings),
        "lag": info.lag,
        "lag_s": info.lag_s,
        "retrying": None if retrying is None else asdict(retrying),
        "members": [
            {
                "name": member.name,
                "incarnation": member.incarnation,
                "status": member.status.value,
                "shards": member.shards,
                "since": joined.get(member.name),
                "timeout_ms": member.timeout_ms,
                "silent_ms": member.silent_ms,
            }
            for member in info.members
        ],
        "shards": [
            {
                "id": shard.id,
                "state": shard.state.value,
                "owner": shard.owner,
                "next": shard.next,
                "epoch": shard.epoch,
                "checkpoint": shard.checkpoint,
                "lag": shard.lag,
                "lag_s": shard.lag_s,
                "since": shard.since_ms,
                "waiting_for": shard.waiting_for or None,
                "blocked": _block_json(shard.blocked),
                **group_ownerless.shard_json(info.settings, shard),
            }
            for shard in info.shards
        ],
        **group_ownerless.consumers_json(info),
    }


def _block_json(block: Block | None) -> dict[str, Any] | None:
    if block is None:
        return None
    return {"error": block.error, "attempts": block.attempts, "since": block.since_ms}


def settings_json(settings: GroupSettings) -> dict[str, Any]:
    """The settings under the names that `changed` has for them."""
    return {
        "in_order": settings.in_order,
        "timeout_ms": settings.timeout_ms,
        "handover_timeout_ms": settings.handover_timeout_ms,
        "coordination": settings.coordination.value,
        "delivery": settings.delivery.value,
        "strategy": settings.strategy,
        "lease_table": settings.lease_table,
        "failure": settings.failure,
        "visibility_ms": settings.visibility_ms,
        "max_attempts": settings.max_attempts,
        "key_ordered": settings.key_ordered,
        "unused_ms": settings.unused_ms,
    }


def changes_json(old: GroupSettings, new: GroupSettings) -> dict[str, Any]:
    """Each setting that an update changed, from what to what."""
    before, after = settings_json(old), settings_json(new)
    return {name: {"from": before[name], "to": after[name]} for name in changed(old, new)}


def where_json(position: Position) -> str | int | dict[int, int]:
    """A position: a word, milliseconds since 1970, or offsets by shard."""
    if isinstance(position, datetime):
        return round(position.timestamp() * 1000)
    return position


def history_json(at: datetime, note: Note) -> dict[str, Any]:
    """A line of history with all its fields."""
    return {
        "timestamp": round(at.timestamp() * 1000),
        "kind": note.kind,
        "consumer": note.consumer,
        "shard": note.shard,
        "epoch": note.epoch,
        "detail": note.detail,
    }


# --- Small things. ----------------------------------------------------------------------------------


def span(seconds: float) -> str:
    """How long, in the two largest units that matter."""
    if seconds < 10:
        return f"{seconds:.1f}s" if seconds else "0s"
    whole = round(seconds)
    for (large, size), (small, part) in _UNITS:
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size:,}{large}" + (f" {rest}{small}" if rest else "")
    return f"{whole}s"


_UNITS: Final = (
    (("d", 86400), ("h", 3600)),
    (("h", 3600), ("m", 60)),
    (("m", 60), ("s", 1)),
)


def _ago(then_ms: int | None, now_ms: int) -> str:
    return "-" if then_ms is None else f"{span(max(0, now_ms - then_ms) / 1000)} ago"


def _behind(lag: int, lag_s: float) -> str:
    return span(lag_s) if lag else "-"


def _setting(name: str, value: object) -> str:
    """Yes, no, none, a word, a count, or a duration in milliseconds."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name.endswith("_ms"):
        return age(value)
    if value is None:
        return "by order" if name == "failure" else "none"
    return str(value)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _hued(word: str) -> Text:
    return Text(word, style=_HUES.get(word, ""))
