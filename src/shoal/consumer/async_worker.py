"""The worker for asyncio: processors are coroutines on the user's loop, and nothing else is different.

The same `Worker` joins, reads, decides and hands over, in its few threads; only the calls of user code are
scheduled on the loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

from shoal.consumer.checkpointer import Checkpointer
from shoal.consumer.held import Held
from shoal.consumer.joining import HubCalls
from shoal.consumer.on_loop import OnLoop, finished
from shoal.consumer.options import Lanes, WorkerOptions
from shoal.consumer.processor import CheckedFactory, Factory, Processor
from shoal.consumer.statistics import WorkerStats
from shoal.consumer.user_code import Code
from shoal.consumer.worker import Worker
from shoal.core.errors import InvalidInput
from shoal.core.tasks import Reason
from shoal.wire.batch import Batch


class AsyncCheckpointer:
    """See Checkpointer. A save that waits for the hub is awaited, and is finished even if it is cancelled."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        self.shard, self.epoch = checkpointer.shard, checkpointer.epoch
        self._checkpointer = checkpointer

    async def save(self, persist: bool = True, *, offset: int | None = None) -> int:
        """See Checkpointer."""
        save = partial(self._checkpointer.save, persist, offset=offset)
        if persist is not True:
            return save()
        return await finished(asyncio.get_running_loop().run_in_executor(None, save))

    def position(self) -> int:
        """See Checkpointer."""
        return self._checkpointer.position()


class AsyncProcessor:
    """Processes one shard on the loop. Override what you need; `process` at least. See Processor."""

    async def initialize(self, shard: int) -> None:
        """See Processor."""

    async def process(self, batch: Batch, checkpointer: AsyncCheckpointer) -> int | None:
        """See Processor."""
        raise NotImplementedError("a processor overrides process(batch, checkpointer)")

    async def shutdown(self, checkpointer: AsyncCheckpointer, reason: Reason) -> None:
        """See Processor."""


AsyncProcessFunction = Callable[[Batch, AsyncCheckpointer], Awaitable[int | None]]


class AsyncWorker:
    """See Worker: `await run()`, or `async with`, or `start` and `stop`. Cancel `run` to stop it cleanly."""

    def __init__(
        self,
        hub: HubCalls,
        stream: str,
        group: str,
        processor: object,
        *,
        name: str | None = None,
        options: WorkerOptions | None = None,
        **changes: Any,
    ) -> None:
        """`processor`: an AsyncProcessor class, a factory of one, or a coroutine function of two."""
        self._factory = _factory_of(processor)
        self._worker = Worker(hub, stream, group, None, name=name, options=options, hosting=self, **changes)
        if self._worker.options.lanes is not Lanes.THREADS:
            raise InvalidInput("lanes", self._worker.options.lanes, "coroutines run on the loop alone")
        self._on_loop: OnLoop | None = None
        self.name, self.stream, self.group = self._worker.name, self._worker.stream, self._worker.group

    def host(self, held: Held) -> Code:
        """See Hosting."""
        assert self._on_loop is not None
        return self._on_loop.host(held)

    async def start(self) -> Self:
        """Join the group and begin. If it is cancelled, what has begun is stopped."""
        self._on_loop = OnLoop(self._factory, self._worker.options.outages)
        loop = asyncio.get_running_loop()
        try:
            await finished(loop.run_in_executor(None, self._worker.start))
        except asyncio.CancelledError:
            await self.stop()
            raise
        return self

    async def stop(self, timeout: float | None = None) -> None:
        """See Worker. What has not come back by then is cancelled. It is finished even if it is cancelled."""
        await finished(asyncio.ensure_future(self._stop(timeout)))

    async def _stop(self, timeout_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._worker.stop, timeout_s)
        finally:
            if self._on_loop is not None:
                left = list(self._on_loop.tasks)
                for task in left:
                    task.cancel()
                await asyncio.gather(*left, return_exceptions=True)

    async def run(self) -> None:
        """Work until it is cancelled, or all is drained, or it fails; then everything is handed over."""
        await self.start()
        try:
            while self._worker.is_running:
                await asyncio.sleep(_LOOK_S)
        finally:
            await self.stop()

    @property
    def stats(self) -> WorkerStats:
        """See Worker."""
        return self._worker.stats

    @property
    def shards(self) -> Any:
        """See Worker."""
        return self._worker.shards

    @property
    def is_running(self) -> bool:
        """See Worker."""
        return self._worker.is_running

    @property
    def error(self) -> BaseException | None:
        """See Worker."""
        return self._worker.error

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class _Adapted(Processor):
    """An async processor in the place of a plain one: what it returns is awaited by who calls it."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def initialize(self, shard: int) -> None:
        return cast(None, self._processor.initialize(shard))

    def process(self, batch: Batch, checkpointer: Checkpointer) -> int | None:
        return cast(None, self._processor.process(batch, AsyncCheckpointer(checkpointer)))

    def shutdown(self, checkpointer: Checkpointer, reason: Reason) -> None:
        return cast(None, self._processor.shutdown(AsyncCheckpointer(checkpointer), reason))


class _OfFunction(AsyncProcessor):
    def __init__(self, function: AsyncProcessFunction) -> None:
        self._function = function

    async def process(self, batch: Batch, checkpointer: AsyncCheckpointer) -> int | None:
        return await self._function(batch, checkpointer)


def _factory_of(given: object) -> Factory:
    if inspect.iscoroutinefunction(given):
        return lambda: _Adapted(_OfFunction(given))
    if isinstance(given, AsyncProcessor) or not callable(given):
        raise InvalidInput(
            "processor", given, "an AsyncProcessor class, a factory of one, or a coroutine function"
        )
    make = CheckedFactory(given)
    return lambda: _Adapted(make())


_LOOK_S = 0.1
