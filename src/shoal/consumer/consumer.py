"""The consumer that users poll: one member of a group on every stream that it subscribes to.

Between two polls nothing is given to user code, and nothing is taken from it: shards change hands when it
comes back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from re import Pattern
from types import TracebackType
from typing import Any, Self

from shoal.consumer.consumer_options import ConsumerOptions
from shoal.consumer.desk import Desk
from shoal.consumer.joining import HubCalls
from shoal.consumer.offsets import FIRST, NEXT, Offsets
from shoal.consumer.polling import Committed, Polling
from shoal.consumer.statistics import WorkerStats
from shoal.consumer.steps import Answer, Steps, driven
from shoal.core.checking import is_instance_of, is_number
from shoal.core.errors import ConsumerClosed, InvalidInput, WokenUp
from shoal.core.limits import DURATION_S_MAX
from shoal.core.polling import StreamShard
from shoal.ports import Pledge
from shoal.wire.batch import Batch

ShardLike = StreamShard | tuple[str, int] | int
"""(stream, shard), or the number alone if there is only one stream."""


class RebalanceListener:
    """Is told, by who polls, of shards that come and go. Override what you need."""

    def on_assigned(self, shards: Sequence[StreamShard]) -> None:
        """These are yours; nothing of them was fetched yet. `seek` here to begin where you like."""

    def on_revoked(self, shards: Sequence[StreamShard]) -> None:
        """These are handed over when this returns, or have ended: the last moment to commit them."""

    def on_lost(self, shards: Sequence[StreamShard]) -> None:
        """These are another's already: nothing can be committed."""


class Consumer:
    """Polls its share of one or more streams. Close it, or use it as a context manager."""

    def __init__(
        self,
        hub: HubCalls,
        group: str | None = None,
        *,
        name: str | None = None,
        options: ConsumerOptions | None = None,
        **changes: Any,
    ) -> None:
        """`group`: its members share the streams; consumers of different groups each get everything.

        `name`: this consumer's, unique in the group; without one it is made of host, process and chance.
        `changes` are fields of ConsumerOptions.
        """
        self.options = made_options(options, changes)
        self._desk = Desk()
        self._polling = Polling(hub, group, name, self.options, desk=self._desk, decides=True)
        self._offsets = Offsets(self._polling)
        self.group, self.name = self._polling.group, self._polling.name

    # --- What to read. -------------------------------------------------------------------------------

    def subscribe(
        self,
        streams: Iterable[str] | Pattern[str] | None = None,
        *,
        pattern: str | Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Join the group on these streams, or on all whose name the pattern matches, now and later.

        It replaces what was subscribed before: what is not among it is handed over.
        """
        self._do(self._polling.subscribe(streams, pattern, listener))

    def assign(self, shards: Iterable[tuple[str, int]]) -> None:
        """Read these shards, whoever else does: no group gives or takes them. It replaces the last one."""
        self._do(self._polling.assign(listed("shards", shards)))

    def unsubscribe(self) -> None:
        """Hand everything over, and read nothing."""
        self._do(self._polling.unsubscribe())

    @property
    def assignment(self) -> list[StreamShard]:
        """The shards that it has."""
        return sorted(self._polling.shards)

    @property
    def subscription(self) -> list[str]:
        """The streams that it reads."""
        return sorted(self._polling.readers)

    # --- Reading. ------------------------------------------------------------------------------------

    def poll(self, timeout: float | None = 1.0) -> list[Batch]:
        """The next records, a batch for each shard that has some; an empty list after `timeout` seconds.

        With it you say that you are done with what the last one returned. None waits without a bound.
        """
        return self._do(self._polling.poll(checked_timeout(timeout)))

    def __iter__(self) -> Iterator[Batch]:
        """Batches one after the other, for ever; `wakeup` or `close` from elsewhere ends it.

        Each is a poll of its own: what the loop has not come to was not returned, and is not committed.
        """
        with suppress(WokenUp, ConsumerClosed):
            while True:
                yield from self._do(self._polling.poll(None, is_one=True))

    def wakeup(self) -> None:
        """From any thread, or a signal handler: the poll that waits, or the next one, raises WokenUp."""
        self._polling.wake()

    def pause(self, shards: Iterable[ShardLike] | None = None) -> None:
        """Poll nothing of these, or of all, until they are resumed. They stay yours."""
        self._offsets.pause(shards, is_paused=True)

    def resume(self, shards: Iterable[ShardLike] | None = None) -> None:
        """Poll them again."""
        self._offsets.pause(shards, is_paused=False)

    @property
    def paused(self) -> list[StreamShard]:
        """Those that are paused."""
        return self._offsets.paused

    # --- Offsets. ------------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[Any, int] | None = None) -> Mapping[StreamShard, int]:
        """Declare done all that polls returned, or what is below these offsets, and wait until it is saved.

        In the midst of a loop over a batch it is done up to the record at hand. Of shards that are not held
        it raises NotOwner, and nothing is committed. A checkpoint leads forward: an offset below it is done.
        """
        return self._do(self._offsets.commit(offsets))

    def pledge(self, offset: Mapping[Any, int] | None = None) -> Pledge:
        """For a producer's transaction: what `commit` would declare done now, to be saved with its records:
        `transaction.checkpoint(consumer)`."""
        return self._offsets.pledge(offset)

    def commit_async(
        self, offsets: Mapping[Any, int] | None = None, callback: Committed | None = None
    ) -> Mapping[StreamShard, int]:
        """The same, without waiting. A later poll calls `callback(offsets, error)`."""
        return self._offsets.commit_later(offsets, callback)

    def position(self, shard: ShardLike) -> int:
        """The offset of the record that a poll returns next."""
        return self._offsets.position(shard)

    def committed(self, shard: ShardLike) -> int | None:
        """The offset that the group would go on from; None without a group."""
        return self._do(self._offsets.committed(shard))

    def seek(self, shard: ShardLike, offset: int) -> None:
        """Go on there, back or ahead. What is committed stays so; `hub.reset_group` moves a group back."""
        self._do(self._offsets.seek(shard, offset))

    def seek_to_beginning(self, shard: ShardLike) -> None:
        """Go on at the first record that is kept."""
        self._do(self._offsets.seek(shard, FIRST))

    def seek_to_end(self, shard: ShardLike) -> None:
        """Go on behind all that is there."""
        self._do(self._offsets.seek(shard, NEXT))

    def beginning_offsets(self, shards: Iterable[ShardLike] | None = None) -> dict[StreamShard, int]:
        """The first offset that is kept, of each."""
        return self._do(self._offsets.ends(shards, FIRST))

    def end_offsets(self, shards: Iterable[ShardLike] | None = None) -> dict[StreamShard, int]:
        """The offset that the next record gets, of each."""
        return self._do(self._offsets.ends(shards, NEXT))

    def offsets_for_times(self, times: Mapping[Any, int | datetime]) -> dict[StreamShard, int]:
        """The first offset at or after a time, of each; the end if there is none."""
        return self._do(self._offsets.for_times(times))

    # --- The end. ------------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Hand everything over and leave, within `timeout` seconds (`close_timeout`). Twice is once.

        With auto commit the last poll's records are done, unless this is called while an exception is on its
        way: they may be what it is about.
        """
        error = sys.exception()
        self._close(timeout, is_clean=error is None or isinstance(error, WokenUp | GeneratorExit))

    def _close(self, timeout: float | None, *, is_clean: bool) -> None:
        bound_s = self.options.close_timeout if timeout is None else checked_timeout(timeout)
        assert bound_s is not None
        self._do(self._offsets.close())
        self._do(self._polling.close(bound_s, is_clean=is_clean))

    @property
    def stats(self) -> WorkerStats:
        """What it has done so far, in figures."""
        return self._polling.stats

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(None, is_clean=error is None or isinstance(error, WokenUp))

    def __repr__(self) -> str:
        return f"<Consumer {self.name} of {self.group} on {', '.join(self.subscription) or 'nothing'}>"

    def _do(self, steps: Steps[Answer]) -> Answer:
        return driven(steps, self._desk.rest)


def made_options(options: ConsumerOptions | None, changes: Mapping[str, Any]) -> ConsumerOptions:
    """The options with what was given by keyword."""
    if not is_instance_of(options, (ConsumerOptions, type(None))):
        raise InvalidInput("options", options, "ConsumerOptions(…), or its fields by keyword")
    try:
        return replace(options or ConsumerOptions(), **changes)
    except TypeError as error:
        raise InvalidInput("options", sorted(changes), f"{error}; see ConsumerOptions") from error


def listed(field: str, given: object) -> list[object]:
    """A list, if it is one."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidInput(field, given, "a list of (stream, shard)")
    return list(given)


def checked_timeout(timeout: float | None) -> float | None:
    """Seconds to wait, or None for ever."""
    if timeout is not None and not (is_number(timeout) and 0 <= timeout <= DURATION_S_MAX):
        raise InvalidInput("timeout", timeout, f"seconds from 0 to {DURATION_S_MAX:g}, or None")
    return timeout
