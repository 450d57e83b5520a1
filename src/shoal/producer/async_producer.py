"""The producer for asyncio: the same producer, whose futures are awaited. It keeps nothing of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import pyarrow as pa

from shoal.core.errors import ProducerClosed
from shoal.core.model import Appended, Position
from shoal.producer.futures import SendFuture
from shoal.producer.options import ProducerOptions
from shoal.producer.producer import Producer

Answer = TypeVar("Answer")


class ProducerMaker(Protocol):
    """What makes the producer that it sends by: a hub."""

    def producer(self, stream: str, options: ProducerOptions | None = None, **settings: Any) -> Producer: ...


class AsyncProducer:
    """Sends records to one stream: `async with AsyncProducer(hub, "orders") as producer`."""

    def __init__(
        self, hub: ProducerMaker, stream: str, options: ProducerOptions | None = None, **settings: Any
    ) -> None:
        """`settings` are fields of ProducerOptions."""
        self._make = partial(hub.producer, stream, options, **settings)
        self._made: Producer | None = None

    async def open(self) -> Self:
        """Look at the stream; needed unless `async with` does it."""
        if self._made is None:
            self._made = await _in_thread(self._make)
        return self

    async def send(
        self,
        value: bytes | str | Mapping[str, Any] | None,
        key: bytes | str | None = None,
        *,
        timestamp: int | datetime | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        hash_key: int | str | None = None,
        number: int | None = None,
        deliver_at: int | datetime | None = None,
    ) -> asyncio.Future[Position]:
        """Put one record on its way; await what it returns to know that it is durable, and where.

        It waits only while the buffer is full. Records of a key stay in the order of these calls.
        """
        producer = self._producer
        send = partial(
            producer.send,
            value,
            key,
            timestamp=timestamp,
            headers=headers,
            hash_key=hash_key,
            number=number,
            deliver_at=deliver_at,
        )
        sent = send() if producer.has_room else await _in_thread(send)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Position] = loop.create_future()
        sent.add_done_callback(partial(_hand_over, loop, future))
        return future

    async def send_batch(
        self, table: pa.Table | pa.RecordBatch, *, key_column: str | None = None
    ) -> list[Appended]:
        """Send a table at once, and wait until all of it is durable."""
        sent = await _in_thread(partial(self._producer.send_batch, table, key_column=key_column))
        return await _in_thread(sent.result)

    async def flush(self, timeout: float | None = None) -> None:
        """See Producer."""
        await _in_thread(partial(self._producer.flush, timeout))

    async def close(self, timeout: float | None = None) -> None:
        """See Producer. What is buffered is sent, even if this is cancelled meanwhile."""
        if self._made is not None:
            await _in_thread(partial(self._made.close, timeout))

    @property
    def _producer(self) -> Producer:
        if self._made is None:
            raise ProducerClosed("it was not opened; use it with `async with`, or await open()")
        return self._made

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _in_thread(call: Callable[[], Answer]) -> Answer:
    """A call that blocks, in the loop's executor. It goes on if this is cancelled."""
    return await asyncio.get_running_loop().run_in_executor(None, call)


def _hand_over(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Position], sent: SendFuture) -> None:
    """In the sender's thread: what became of a record."""
    try:
        loop.call_soon_threadsafe(_settle, future, sent)
    except RuntimeError:
        return  # The loop is closed: nobody waits any more.


def _settle(future: asyncio.Future[Position], sent: SendFuture) -> None:
    if future.cancelled():
        return
    error = sent.exception()
    if error is None:
        future.set_result(sent.result())
    else:
        future.set_exception(error)
