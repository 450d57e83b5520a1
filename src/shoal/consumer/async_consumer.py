"""The consumer for asyncio: the calls of `Consumer`, awaited. What it does is in `polling` and `offsets`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from re import Pattern
from types import TracebackType
from typing import Any, Self

from shoal.consumer.consumer import ShardLike, checked_timeout, listed, made_options
from shoal.consumer.consumer_options import ConsumerOptions
from shoal.consumer.desk import Desk
from shoal.consumer.joining import HubCalls
from shoal.consumer.offsets import FIRST, NEXT, Offsets
from shoal.consumer.on_loop import Bell, driven_on_loop, finished
from shoal.consumer.polling import Committed, Polling
from shoal.consumer.statistics import WorkerStats
from shoal.consumer.steps import Answer, Steps
from shoal.core.errors import ConsumerClosed, WokenUp
from shoal.core.polling import StreamShard
from shoal.wire.batch import Batch


class AsyncConsumer:
    """See Consumer. A listener's methods, and callbacks of commits, may be coroutines.

    A poll that is cancelled has taken nothing; what the poll before it returned is done, as with any next
    poll. `close` hands everything over even if it is cancelled meanwhile.
    """

    def __init__(
        self,
        hub: HubCalls,
        group: str | None = None,
        *,
        name: str | None = None,
        options: ConsumerOptions | None = None,
        **changes: Any,
    ) -> None:
        """See Consumer."""
        self.options = made_options(options, changes)
        self._bell = Bell()
        self._desk = Desk(self._bell.ring)
        self._polling = Polling(hub, group, name, self.options, desk=self._desk, decides=False)
        self._offsets = Offsets(self._polling)
        self.group, self.name = self._polling.group, self._polling.name

    async def subscribe(
        self,
        streams: Iterable[str] | Pattern[str] | None = None,
        *,
        pattern: str | Pattern[str] | None = None,
        listener: object = None,
    ) -> None:
        """See Consumer. `listener` has on_assigned, on_revoked and on_lost, or some of them."""
        await self._do(self._polling.subscribe(streams, pattern, listener))

    async def assign(self, shards: Iterable[tuple[str, int]]) -> None:
        """See Consumer."""
        await self._do(self._polling.assign(listed("shards", shards)))

    async def unsubscribe(self) -> None:
        """See Consumer."""
        await self._do(self._polling.unsubscribe())

    @property
    def assignment(self) -> list[StreamShard]:
        """See Consumer."""
        return sorted(self._polling.shards)

    @property
    def subscription(self) -> list[str]:
        """See Consumer."""
        return sorted(self._polling.readers)

    async def poll(self, timeout: float | None = 1.0) -> list[Batch]:
        """See Consumer."""
        return await self._do(self._polling.poll(checked_timeout(timeout)))

    async def __aiter__(self) -> AsyncIterator[Batch]:
        """See Consumer."""
        try:
            while True:
                for batch in await self._do(self._polling.poll(None, is_one=True)):
                    yield batch
        except (WokenUp, ConsumerClosed):
            return

    def wakeup(self) -> None:
        """See Consumer. From any thread."""
        self._polling.wake()

    def pause(self, shards: Iterable[ShardLike] | None = None) -> None:
        """See Consumer."""
        self._offsets.pause(shards, is_paused=True)

    def resume(self, shards: Iterable[ShardLike] | None = None) -> None:
        """See Consumer."""
        self._offsets.pause(shards, is_paused=False)

    @property
    def paused(self) -> list[StreamShard]:
        """See Consumer."""
        return self._offsets.paused

    async def commit(self, offsets: Mapping[Any, int] | None = None) -> Mapping[StreamShard, int]:
        """See Consumer."""
        return await self._do(self._offsets.commit(offsets))

    def commit_async(
        self, offsets: Mapping[Any, int] | None = None, callback: Committed | None = None
    ) -> Mapping[StreamShard, int]:
        """See Consumer."""
        return self._offsets.commit_later(offsets, callback)

    def position(self, shard: ShardLike) -> int:
        """See Consumer."""
        return self._offsets.position(shard)

    async def committed(self, shard: ShardLike) -> int | None:
        """See Consumer."""
        return await self._do(self._offsets.committed(shard))

    async def seek(self, shard: ShardLike, offset: int) -> None:
        """See Consumer."""
        await self._do(self._offsets.seek(shard, offset))

    async def seek_to_beginning(self, shard: ShardLike) -> None:
        """See Consumer."""
        await self._do(self._offsets.seek(shard, FIRST))

    async def seek_to_end(self, shard: ShardLike) -> None:
        """See Consumer."""
        await self._do(self._offsets.seek(shard, NEXT))

    async def beginning_offsets(self, shards: Iterable[ShardLike] | None = None) -> dict[StreamShard, int]:
        """See Consumer."""
        return await self._do(self._offsets.ends(shards, FIRST))

    async def end_offsets(self, shards: Iterable[ShardLike] | None = None) -> dict[StreamShard, int]:
        """See Consumer."""
        return await self._do(self._offsets.ends(shards, NEXT))

    async def offsets_for_times(self, times: Mapping[Any, int | datetime]) -> dict[StreamShard, int]:
        """See Consumer."""
        return await self._do(self._offsets.for_times(times))

    async def close(self, timeout: float | None = None) -> None:
        """See Consumer."""
        error = sys.exception()
        await self._close(timeout, is_clean=error is None or isinstance(error, WokenUp))

    async def _close(self, timeout_s: float | None, *, is_clean: bool) -> None:
        bound_s = self.options.close_timeout if timeout_s is None else checked_timeout(timeout_s)
        assert bound_s is not None

        async def both() -> None:
            await self._do(self._offsets.close())
            await self._do(self._polling.close(bound_s, is_clean=is_clean))

        await finished(asyncio.ensure_future(both()))

    @property
    def stats(self) -> WorkerStats:
        """See Consumer."""
        return self._polling.stats

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(None, is_clean=error is None or isinstance(error, WokenUp))

    def __repr__(self) -> str:
        return f"<AsyncConsumer {self.name} of {self.group} on {', '.join(self.subscription) or 'nothing'}>"

    async def _do(self, steps: Steps[Answer]) -> Answer:
        self._bell.here()
        return await driven_on_loop(steps, self._rest)

    async def _rest(self, seconds: float) -> None:
        await self._bell.rest(seconds, lambda: self._desk.has_changed)
