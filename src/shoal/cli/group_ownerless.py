"""How groups without owners look: what is in whose hands, or where each consumer stands. Only shows."""

from __future__ import annotations

from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from shoal.cli.output import age, plain_table
from shoal.core.describing import GroupInfo, GroupShard
from shoal.core.group import Delivery, GroupSettings, ShardState


def holding(info: GroupInfo) -> str:
    """Who has what, in a heading; empty if its shards have owners."""
    match info.settings.delivery:
        case Delivery.SHARED:
            in_flight = sum(shard.in_flight for shard in info.shards)
            return f"{len(info.consumers):,} consumers with {in_flight:,} records in flight"
        case Delivery.BROADCAST:
            return f"{len(info.positions):,} consumers with a position"
        case _:
            return ""


def settings_line(settings: GroupSettings) -> str:
    """The settings of such a group in a sentence."""
    if settings.delivery is Delivery.SHARED:
        keys = "one record of a key at a time, " if settings.key_ordered else ""
        return (
            f"shared, {keys}visibility {age(settings.visibility_ms or 0)}, "
            f"to the dead stream after {settings.max_attempts} attempts"
        )
    order = "in order" if settings.in_order else "not in order"
    return f"broadcast, {order}, unused positions are dropped after {age(settings.unused_ms or 0)}"


def tables(info: GroupInfo) -> list[RenderableType]:
    """What such a group has instead of owners; nothing for any other."""
    match info.settings.delivery:
        case Delivery.SHARED:
            return [*_consumers(info), _shards(info)]
        case Delivery.BROADCAST:
            return [*_positions(info), *_dropped(info)]
        case _:
            return []


def _consumers(info: GroupInfo) -> list[RenderableType]:
    if not info.consumers:
        return []
    table = plain_table("consumer", ">in flight", ">first back in")
    for one in info.consumers:
        table.add_row(one.name, f"{one.in_flight:,}", age(one.ends_ms))
    return [table]


def _shards(info: GroupInfo) -> RenderableType:
    table = plain_table(">shard", "state", ">settled below", ">gaps", ">in flight", ">lag", ">dead", ">lost")
    for shard in info.shards:
        table.add_row(
            str(shard.id),
            "in flight"
            if shard.in_flight
            else "idle"
            if shard.state is ShardState.NOT_ALLOC
            else shard.state,
            f"{shard.checkpoint:,}",
            f"{shard.gaps:,}",
            f"{shard.in_flight:,}",
            f"{shard.lag:,}",
            f"{shard.dead:,}",
            f"{shard.lost:,}",
            style="dim" if shard.state is ShardState.OVER else "",
        )
    return table


_STATES: Final = {ShardState.NOT_ALLOC: "idle", ShardState.ALREADY_ALLOC: "in flight"}
"""No shard has an owner: what the others are called says nothing here."""


def _positions(info: GroupInfo) -> list[RenderableType]:
    if not info.positions:
        return []
    table = plain_table("consumer", ">lag", ">unused for", "position")
    for one in info.positions:
        places = ", ".join(f"{shard}: {offset:,}" for shard, offset in sorted(one.offsets.items()))
        table.add_row(one.consumer, f"{one.lag:,}", age(one.idle_ms) if one.idle_ms else "-", places)
    return [table]


def _dropped(info: GroupInfo) -> list[RenderableType]:
    return [Text(f"dropped, unused for too long: {', '.join(info.dropped)}")] if info.dropped else []


def shard_json(settings: GroupSettings, shard: GroupShard) -> dict[str, Any]:
    """What a shard has besides in a shared group."""
    if settings.delivery is not Delivery.SHARED:
        return {}
    return {
        "in_flight": shard.in_flight,
        "gaps": shard.gaps,
        "acknowledged": shard.acknowledged,
        "dead": shard.dead,
        "lost": shard.lost,
    }


def consumers_json(info: GroupInfo) -> dict[str, Any]:
    """What a group has instead of members."""
    match info.settings.delivery:
        case Delivery.SHARED:
            return {
                "consumers": [
                    {"name": one.name, "in_flight": one.in_flight, "ends_ms": one.ends_ms}
                    for one in info.consumers
                ]
            }
        case Delivery.BROADCAST:
            return {
                "positions": [
                    {
                        "consumer": one.consumer,
                        "lag": one.lag,
                        "unused_ms": one.idle_ms,
                        "offsets": dict(one.offsets),
                        "saved": one.saved_ms,
                    }
                    for one in info.positions
                ],
                "dropped": list(info.dropped),
            }
        case _:
            return {}
