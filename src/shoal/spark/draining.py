"""A planned stop of a query that is a member of a group: it hands over first, and nothing is repeated.

The query runs elsewhere, and Spark has no way to speak to its source. The group has: the member is announced
to leave, and lets go of its shards at the end of the batch that it is at.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql.streaming.query import StreamingQuery

from shoal.connect import Hub
from shoal.core.errors import DrainTimeout, InvalidInput
from shoal.core.group import Coordination
from shoal.core.names import stream_name

_LOOK_S: Final = 0.1


def drain(query: StreamingQuery, hub: Hub, *, timeout: float = 60.0) -> None:
    """Have a query with `member=true` finish its batch, hand its shards over, and stop.

    For a query of a leased group, stop() it while it is idle: that hands over too, and repeats nothing.
    """
    deadline = time.monotonic() + timeout
    seen = _report(query, deadline)
    member, group, streams = seen["member"], seen["group"], list(seen["streams"])
    for stream in streams:
        found = hub.service.groups.find(stream_name(stream), group)
        if found.settings.coordination is Coordination.LEASED:
            raise InvalidInput("query", query.name, "its group is leased; stop() it while it is idle instead")
        for one in hub.describe_group(stream, group).members:
            if one.name == member:
                hub.service.groups.retire(found.id, one.incarnation)

    def held() -> list[str]:
        return [
            f"{stream}/{shard.id}"
            for stream in streams
            for shard in hub.describe_group(stream, group).shards
            if shard.owner == member
        ]

    if not _until(lambda: not held() or not query.isActive, deadline):
        raise DrainTimeout(member=member, shards=held(), waited_s=timeout)
    query.stop()


def _report(query: StreamingQuery, deadline: float) -> dict[str, Any]:
    """What the query's source says of itself, as soon as it has said something."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        for progress in query.recentProgress[-1:]:
            for source in progress["sources"]:
                said = source["latestOffset"]
                offset = json.loads(said) if isinstance(said, str) else said
                if isinstance(offset, dict) and offset.get("member"):
                    found.append(offset)
        return bool(found) or not query.isActive

    if not _until(look, deadline) or not found:
        raise InvalidInput(
            "query", query.name, "it has no source of Shoal's that runs with member=true; stop() it"
        )
    return found[-1]


def _until(condition: Callable[[], bool], deadline: float) -> bool:
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_S)
    return True
