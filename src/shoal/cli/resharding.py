"""How far the groups of a stream are with the shards that a reshard closed: what comes after `reshard`.

In a group that keeps order, children wait for their parents: until those are read to the end, new shards do
not carry more than the old ones did.
"""

from __future__ import annotations

import time
from typing import Final

from shoal import Hub
from shoal.cli import output
from shoal.cli.repeating import looks
from shoal.core.errors import StillUnread

_EVERY_S: Final = 0.5


def follow_closed(hub: Hub, stream: str, within_s: float) -> None:
    """Look until no group has anything of the closed shards to read, and say so as it changes."""
    deadline = time.monotonic() + within_s

    def look() -> dict[str, tuple[int, int]]:
        closed = {shard.id for shard in hub.describe_stream(stream).shards if not shard.is_open}
        return {
            group.name: (len(unread), sum(shard.lag for shard in unread))
            for group in hub.describe_groups(stream)
            if (unread := group.unread(closed))
        }

    last: dict[str, tuple[int, int]] = {}
    for left in looks(look, _EVERY_S):
        if not left:
            output.note("every group has read the closed shards to their end")
            return
        for group, (shards, records) in left.items():
            if last.get(group) != (shards, records):
                output.note(f"{group}: {shards} closed shards still to be read, {records:,} records")
        for group in last.keys() - left.keys():
            output.note(f"{group}: has read the closed shards to their end")
        last = left
        if time.monotonic() > deadline:
            raise StillUnread(
                stream=stream,
                groups=sorted(left),
                records=sum(n for _, n in left.values()),
                waited_s=within_s,
            )
