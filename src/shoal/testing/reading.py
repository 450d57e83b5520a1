"""Reading a stream back as tests want it: everything, by shard, or by key along the lineage.

Also `picture` and `unchanged`, for tests which say that a refused call left no trace. Not for: consuming;
a group does that, and keeps its place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from shoal import Hub, Record, Shard

UNTIL_S: Final = 20.0
_PAUSE_S: Final = 0.005


def read_shard(hub: Hub, stream: str, shard: int, **limits: Any) -> list[Record]:
    """Every kept record of a shard, in order; offsets are checked to be dense on the way."""
    return _read(hub, stream, hub.describe_stream(stream).shards[shard], **limits)


def _read(hub: Hub, stream: str, info: Shard, **limits: Any) -> list[Record]:
    shard, offset = info.id, info.first_offset
    found: list[Record] = []
    while True:
        if offset == info.next_offset:
            return found
        batch = hub.read(stream, shard, offset, **limits)
        assert (batch.shard, batch.first_offset) == (shard, offset)
        assert len(batch) > 0
        records = list(batch)
        assert [record.offset for record in records] == list(range(offset, batch.next_offset))
        found += records
        offset = batch.next_offset


def read_stream(hub: Hub, stream: str) -> dict[int, list[Record]]:
    """Every kept record of a stream, by shard."""
    return {shard.id: _read(hub, stream, shard) for shard in hub.describe_stream(stream).shards}


def values_by_key(hub: Hub, stream: str) -> dict[bytes | None, list[object]]:
    """Values of each key in the order of reading along the lineage: a shard after its ancestors.

    Ids are given in order of birth, so that reading shard after shard is such an order.
    """
    found: dict[bytes | None, list[object]] = {}
    for _, records in sorted(read_stream(hub, stream).items()):
        for record in records:
            found.setdefault(record.key, []).append(record.value)
    return found


def picture(hub: Hub, stream: str) -> object:
    """All that can be seen of a stream: its description, its figures, and every record."""
    return hub.describe_stream(stream), hub.stats(stream), read_stream(hub, stream)


@contextmanager
def unchanged(hub: Hub, stream: str) -> Iterator[None]:
    """Whatever happens inside leaves no trace in the stream."""
    before = picture(hub, stream)
    yield
    assert picture(hub, stream) == before, f"{stream} was changed"


def until(condition: Callable[[], object], *, within_s: float = UNTIL_S) -> None:
    """Wait for something that another thread or process brings about; fail if it does not come."""
    deadline = time.monotonic() + within_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"it did not come about within {within_s:g} s"
        pause.wait(_PAUSE_S)
