"""Consumers for tests of groups: wait for what they hold, hand over what they are asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from shoal import Hub
from shoal.consumer import Membership

PATIENCE_S: Final = 20.0
"""Long enough for a loaded machine; a test that waits so long has failed."""


def eventually(
    condition: Callable[[], bool], what: str, within_s: float = PATIENCE_S, *, every_s: float = 0.005
) -> float:
    """Look until it holds; how long that took, in seconds."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > within_s:
            raise AssertionError(f"not within {within_s:g} s: {what}")
        time.sleep(every_s)
    return time.monotonic() - began


def holds(member: Membership, shards: Iterable[int], within_s: float = PATIENCE_S) -> None:
    """Wait until a consumer holds exactly these shards, none of which it is asked for."""
    wanted = set(shards)
    eventually(
        lambda: (
            {shard for shard, lease in member.leases.items() if lease.is_wanted} == wanted
            and len(member.leases) == len(wanted)
        ),
        f"{member.name} holds {sorted(wanted)}, but has {dict(member.leases)}",
        within_s,
    )


def hand_over(member: Membership, checkpoint: int | None = None) -> set[int]:
    """Release whatever the consumer is asked for at this moment."""
    asked: set[int] = {shard for shard, lease in member.leases.items() if not lease.is_wanted}
    if asked:
        member.release(dict.fromkeys(asked, checkpoint))
    return asked


def settle(hub: Hub, stream: str, group: str, members: Iterable[Membership]) -> dict[str, set[int]]:
    """Let everyone hand over what it is asked for, until all have an even share; who holds what."""
    members = list(members)

    def is_settled() -> bool:
        for member in members:
            hand_over(member)
        info = hub.describe_group(stream, group)
        held = {member.name: {s.id for s in info.shards if s.owner == member.name} for member in members}
        counts = [len(shards) for shards in held.values()]
        return (
            info.state == "stable"
            and max(counts) - min(counts) <= 1
            and all(
                {shard for shard, lease in member.leases.items() if lease.is_wanted} == held[member.name]
                for member in members
            )
        )

    eventually(is_settled, f"group {group} settles")
    return {member.name: {int(shard) for shard in member.leases} for member in members}
