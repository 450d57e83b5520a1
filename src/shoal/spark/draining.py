"""A planned stop of a query that is a member of a group: it hands over first, and nothing is repeated.

The query runs elsewhere, and Spark has no way to speak to its source. A group that the hub coordinates has:
the member is announced to leave, and lets go of its shards at the end of the batch that it is at. A leased
group has no one to announce it to: there the source's process is told by a signal, which goes no further than
the driver's machine. From elsewhere (Spark Connect) a leased query is stopped once Spark has found nothing
new to read, when all that it had read is saved.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pyspark.sql.streaming.query import StreamingQuery

from shoal.connect import Hub
from shoal.core.errors import DrainCutShort, DrainFailed, DrainTimeout, InvalidInput
from shoal.core.group import Coordination
from shoal.core.names import stream_name
from shoal.spark.memberships import LEAVE
from shoal.spark.reasons import reason

_LOOK_S: Final = 0.1
_LEAVE_S: Final = 5.0
"""How long a source that was stopped while nothing ran takes to leave, at most."""


class _Seat(NamedTuple):
    """A member of a group of one stream, and the process that it lives in."""

    stream: str
    group: str
    member: str
    host: str
    process: int


def drain(query: StreamingQuery, hub: Hub, *, timeout: float = 60.0) -> None:
    """Have a query with `member=true` finish its batch, hand its shards over, and stop.

    A query of a leased group is waited for until it finds nothing new, unless its driver runs on this
    machine. DrainTimeout: it still runs.
    """
    deadline = time.monotonic() + timeout
    seats = _seats(query, deadline)
    if seats is None:
        raise DrainTimeout(member=query.name or query.id, shards=(), waited_s=timeout)
    unheard = [seat for seat in seats if not _announced(hub, seat)]

    def held(among: list[_Seat] = seats) -> list[str]:
        return [
            f"{seat.stream}/{shard.id}"
            for seat in among
            for shard in hub.describe_group(seat.stream, seat.group).shards
            if shard.owner == seat.member
        ]

    def is_ready() -> bool:
        told = [seat for seat in seats if seat not in unheard]
        is_idle = not unheard or not query.status["isDataAvailable"]
        return not query.isActive or (is_idle and not held(told))

    if not _until(is_ready, deadline):
        raise DrainTimeout(member=seats[-1].member, shards=held(), waited_s=timeout)
    if not query.isActive and (failed := query.exception()) is not None:
        raise DrainFailed(member=seats[-1].member, reason=reason(failed))
    query.stop()
    if unheard and not _until(lambda: not held(unheard), time.monotonic() + _LEAVE_S):
        raise DrainCutShort(member=unheard[-1].member, shards=held(unheard))


def _announced(hub: Hub, seat: _Seat) -> bool:
    """Tell a member to leave; whether that is possible."""
    group = hub.service.groups.find(stream_name(seat.stream), seat.group)
    if group.settings.coordination is Coordination.LEASED:
        return _signalled(seat)
    for one in hub.describe_group(seat.stream, seat.group).members:
        if one.name == seat.member:
            hub.service.groups.retire(group.id, one.incarnation)
    return True


def _signalled(seat: _Seat) -> bool:
    """Tell the process, if it is on this machine."""
    if not seat.process or seat.host != socket.gethostname():
        return False
    try:
        os.kill(seat.process, LEAVE)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _seats(query: StreamingQuery, deadline: float) -> list[_Seat] | None:
    """What the query's sources say of themselves, which is at the end of its first batch; None if that does
    not come in time."""
    found: list[_Seat] = []

    def look() -> bool:
        has_spoken = False
        for progress in query.recentProgress[-1:]:
            for source in progress["sources"]:
                offset = _parsed(source["latestOffset"])
                has_spoken |= "shoal" in offset
                if offset.get("member"):
                    found.extend(
                        _Seat(one, offset["group"], offset["member"], offset["host"], offset["process"])
                        for one in offset["streams"]
                    )
        return has_spoken or not query.isActive

    if not _until(look, deadline):
        return None
    if not found:
        raise InvalidInput(
            "query", query.name, "it has no source of Shoal's that runs with member=true; stop() it"
        )
    return found


def _parsed(said: object) -> dict[str, Any]:
    offset = json.loads(said) if isinstance(said, str) else said
    return offset if isinstance(offset, dict) else {}


def _until(condition: Callable[[], bool], deadline: float) -> bool:
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_S)
    return True
