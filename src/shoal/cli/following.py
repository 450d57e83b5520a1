"""Reads a stream along its lineage: every shard after its ancestors, so that each key comes in its order.

It keeps a position for each shard, as a group's checkpoints would be, and asks `core.lineage` what may be
read; it decides nothing about shards. Not for sharing work: a reader reads everything, alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, assert_never

from shoal import Batch, Hub
from shoal.cli.repeating import patiently
from shoal.cli.values import AtOffset, AtTime, Earliest, Latest, Start
from shoal.core.errors import OffsetExpired, UnknownStream
from shoal.core.lineage import children, find_shard, readable
from shoal.core.model import Shard, ShardId

_PAUSE_S: Final = 0.2
"""Between two looks at a stream that has nothing new: not felt by who watches a screen."""
_PAUSE_PER_LOOK: Final = 50
"""A pause is at least this many times what a look takes: a stream of many shards is looked at more seldom."""
_PAUSE_S_MAX: Final = 5.0
"""However long a look took: most of it may have been an outage."""
_AWAY_S: Final = 1.0
"""Between two looks for a store that is away."""
_PAGE_BYTES: Final = 4_000_000


class LineageReader:
    """One pass over a stream, from a start on.

    The start applies to the shards that are there when the reader is made; a shard born later is read from
    its first record on, otherwise its first records would be skipped.
    """

    def __init__(
        self,
        hub: Hub,
        stream: str,
        start: Start,
        *,
        shard: int | None = None,
        on_expired: Callable[[OffsetExpired], None] | None = None,
    ) -> None:
        """Read all shards, or one. `on_expired` is told when retention was faster, and reading goes on at
        the first kept record; without it the error is raised."""
        self.stream = stream
        self._hub = hub
        self._on_expired = on_expired
        self._info = hub.describe_stream(stream)
        self._only = None if shard is None else find_shard(self._info, shard).id
        begun = self._info.shards if self._only is None else [self._info.shards[self._only]]
        self._positions: dict[int, int] = {each.id: self._begin(each, start) for each in begun}

    def batches(self, *, follow: bool = False, records_max: int | None = None) -> Iterator[Batch]:
        """What is there now; with `follow`, and what comes after, until a single shard that is read ends,
        however long the store is away meanwhile."""
        left = records_max
        while left is None or left > 0:
            looked_s = time.monotonic()
            if follow:
                patiently(self._look, _AWAY_S)
            is_idle = True
            for shard in self._due():
                if left == 0:
                    return
                read = partial(self._read, shard, left)
                batch = patiently(read, _AWAY_S) if follow else read()
                if len(batch) == 0:
                    continue
                is_idle = False
                left = None if left is None else left - len(batch)
                yield batch
            if is_idle:
                if not follow or self.continued_in:
                    return
                took_s = time.monotonic() - looked_s
                time.sleep(min(max(_PAUSE_S, took_s * _PAUSE_PER_LOOK), _PAUSE_S_MAX))

    @property
    def continued_in(self) -> list[ShardId]:
        """The heirs of the one shard that was asked for, if it is closed: more is to come only there."""
        return [] if self._only is None else children(self._info.shards, self._only)

    def _look(self) -> None:
        """Take the stream as of now."""
        now = self._hub.describe_stream(self.stream)
        if now.id != self._info.id:  # Deleted, and another made under its name: positions mean nothing there.
            raise UnknownStream(self.stream)
        self._info = now
        if self._only is None:
            for shard in now.shards:
                self._positions.setdefault(shard.id, shard.first_offset)

    def _due(self) -> list[Shard]:
        """Shards that may be read now and have something to read."""
        info = self._info
        allowed = readable(info.shards, self._positions) if self._only is None else [self._only]
        return [
            info.shards[each] for each in allowed if self._positions[each] < info.shards[each].next_offset
        ]

    def _read(self, shard: Shard, left: int | None) -> Batch:
        # No further than the end as it was seen: without `follow` a pass ends, however fast others append.
        unread = shard.next_offset - self._positions[shard.id]
        wanted = unread if left is None else min(left, unread)
        try:
            batch = self._read_at(shard, wanted)
        except OffsetExpired as expired:
            if self._on_expired is None:
                raise
            self._on_expired(expired)
            self._positions[shard.id] = expired.first_offset
            batch = self._read_at(shard, wanted)
        self._positions[shard.id] = batch.next_offset
        return batch

    def _read_at(self, shard: Shard, wanted: int) -> Batch:
        position = self._positions[shard.id]
        return self._hub.read(self.stream, shard.id, position, max_records=wanted, max_bytes=_PAGE_BYTES)

    def _begin(self, shard: Shard, start: Start) -> int:
        match start:
            case Earliest():
                return shard.first_offset
            case Latest():
                return shard.next_offset
            case AtOffset(offset=offset) if self._only is not None:
                return self._checked(shard, offset)
            case AtOffset(offset=offset):
                return min(max(offset, shard.first_offset), shard.next_offset)
            case AtTime(time=moment):
                return self._hub.offset_at(self.stream, shard.id, moment)
            case _:
                assert_never(start)

    def _checked(self, shard: Shard, offset: int) -> int:
        """An offset asked for in one shard: one that is not there is an error, not a nearby one."""
        try:
            self._hub.read(self.stream, shard.id, offset, max_records=1)
        except OffsetExpired:
            if self._on_expired is None:
                raise
        return offset


def read_all(hub: Hub, stream: str) -> Iterator[Batch]:
    """Everything a stream holds now, along the lineage."""
    return LineageReader(hub, stream, Earliest()).batches()
