"""Consumers, workers and producers on an event loop, as anyio runs it.

Nothing blocks it, and whatever is cancelled is handed over.
"""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import shoal
from shoal import AsyncCheckpointer, AsyncConsumer, AsyncProcessor, AsyncProducer, AsyncWorker, Batch, Hub
from shoal.core.errors import (
    ConsumerBusy,
    ConsumerClosed,
    InvalidInput,
    ProcessorFailed,
    ProducerClosed,
    WokenUp,
)
from shoal.core.retry import Backoff, FailureRules, Policy
from shoal.testing.processing import append_numbers, checkpoints

pytestmark = pytest.mark.anyio
STREAM, GROUP = "orders", "billing"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with shoal.connect(f"sqlite:///{tmp_path}/shoal.db") as hub:
        yield hub


def stream(hub: Hub, shards: int, records: int) -> None:
    """A stream whose shards each hold the numbers from 0 on."""
    hub.create_stream(STREAM, shards=shards)
    for shard in range(shards):
        append_numbers(hub, STREAM, shard, range(records))


async def numbers(consumer: AsyncConsumer, count: int) -> list[int]:
    found: list[int] = []
    with anyio.fail_after(20):
        while len(found) < count:
            for batch in await consumer.poll(0.2):
                found += [int(record.value) for record in batch]
    return found


# --- Consumers. ---


async def test_a_consumer_polls_commits_and_hands_over(hub: Hub) -> None:
    stream(hub, 2, 5)
    consumer = AsyncConsumer(hub, GROUP, auto_commit=False)
    await consumer.subscribe([STREAM])
    assert sorted(await numbers(consumer, 10)) == sorted([*range(5)] * 2)
    assert await consumer.commit() == {(STREAM, 0): 5, (STREAM, 1): 5}
    await consumer.seek((STREAM, 0), 3)
    assert await numbers(consumer, 2) == [3, 4]
    assert await consumer.committed((STREAM, 1)) == 5
    assert set((await consumer.end_offsets()).values()) == {5}
    consumer.pause()
    append_numbers(hub, STREAM, 0, [5])
    assert await consumer.poll(0.1) == []
    consumer.resume()
    assert await numbers(consumer, 1) == [5]
    await consumer.close()
    assert hub.describe_group(STREAM, GROUP).members == ()
    with pytest.raises(ConsumerClosed):
        await consumer.poll(0)


async def test_a_loop_over_batches_ends_when_it_is_woken_up(hub: Hub) -> None:
    stream(hub, 1, 3)
    seen: list[int] = []
    async with AsyncConsumer(hub, GROUP) as consumer:
        await consumer.subscribe([STREAM])
        async for batch in consumer:
            seen += [int(record.value) for record in batch]
            threading.Timer(0.05, consumer.wakeup).start()
        consumer.wakeup()
        with pytest.raises(WokenUp):
            await consumer.poll(5)
    assert seen == [0, 1, 2]
    assert checkpoints(hub, STREAM, GROUP) == {0: 3}


async def test_a_poll_that_is_cancelled_has_taken_nothing(hub: Hub) -> None:
    hub.create_stream(STREAM, shards=2)
    seen: list[int] = []
    async with AsyncConsumer(hub, GROUP) as consumer:
        await consumer.subscribe([STREAM])
        for number in range(30):
            append_numbers(hub, STREAM, number % 2, [number])
            with anyio.move_on_after(0.001 * (number % 7)):
                for batch in await consumer.poll(5):
                    seen += [int(record.value) for record in batch]
        seen += await numbers(consumer, 30 - len(seen))
    assert sorted(seen) == list(range(30))
    assert hub.describe_group(STREAM, GROUP).lag == 0


async def test_a_consumer_in_a_cancelled_scope_hands_everything_over(hub: Hub) -> None:
    stream(hub, 2, 5)
    seen: list[int] = []

    async def consume() -> None:
        async with AsyncConsumer(hub, GROUP) as consumer:
            await consumer.subscribe([STREAM])
            while True:
                for batch in await consumer.poll(10):
                    seen.extend(int(record.value) for record in batch)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consume)
            while len(seen) < 10:
                await anyio.sleep(0.01)
            await anyio.sleep(0.1)
            tasks.cancel_scope.cancel()
    assert hub.describe_group(STREAM, GROUP).members == ()
    assert hub.describe_group(STREAM, GROUP).lag == 0, "it had come back from all of it"


async def test_what_is_in_hand_when_a_task_is_cancelled_is_not_done(hub: Hub) -> None:
    stream(hub, 1, 5)
    has_begun = anyio.Event()

    async def consume() -> None:
        async with AsyncConsumer(hub, GROUP) as consumer:
            await consumer.subscribe([STREAM])
            await numbers(consumer, 5)
            has_begun.set()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consume)
        await has_begun.wait()
        tasks.cancel_scope.cancel()
    assert hub.describe_group(STREAM, GROUP).members == ()
    assert checkpoints(hub, STREAM, GROUP) == {0: 0}


async def test_two_tasks_do_not_poll_one_consumer_nor_two_loops(hub: Hub) -> None:
    hub.create_stream(STREAM, shards=1)
    async with AsyncConsumer(hub, GROUP) as consumer:
        await consumer.subscribe([STREAM])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.poll, 1.0)
            await anyio.sleep(0.05)
            with pytest.raises(ConsumerBusy):
                await consumer.poll(0)
        with pytest.raises(InvalidInput, match="loop"):
            await asyncio.to_thread(asyncio.run, consumer.poll(0))


async def test_a_listener_may_be_made_of_coroutines(hub: Hub) -> None:
    stream(hub, 2, 4)
    told: list[str] = []

    class Kept:
        async def on_assigned(self, shards: list[shoal.StreamShard]) -> None:
            for place in shards:
                told.append(f"assigned {place.shard}")
                await consumer.seek(place, 3)

        async def on_revoked(self, shards: list[shoal.StreamShard]) -> None:
            await anyio.sleep(0.01)
            told.extend(f"revoked {place.shard} at {consumer.position(place)}" for place in shards)

    consumer = AsyncConsumer(hub, GROUP, auto_commit=False)
    await consumer.subscribe([STREAM], listener=Kept())
    assert await numbers(consumer, 2) == [3, 3]
    await consumer.close()
    assert sorted(told) == ["assigned 0", "assigned 1", "revoked 0 at 4", "revoked 1 at 4"]


# --- Workers. ---


async def test_coroutines_of_many_shards_wait_together_without_a_thread_for_each(hub: Hub) -> None:
    stream(hub, 48, 1)
    waiting = 0
    all_wait = anyio.Event()

    async def process(batch: Batch, checkpointer: AsyncCheckpointer) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 48:
            all_wait.set()
        await all_wait.wait()
        await checkpointer.save(persist=False)

    before = threading.active_count()
    async with AsyncWorker(hub, STREAM, GROUP, process):
        with anyio.fail_after(20):
            await all_wait.wait()
        assert threading.active_count() - before < 20
    assert hub.describe_group(STREAM, GROUP).lag == 0


async def test_a_worker_that_is_cancelled_hands_over_what_it_saved_and_repeats_nothing(hub: Hub) -> None:
    stream(hub, 2, 20)
    given: list[tuple[int, int]] = []
    endings: list[shoal.Reason] = []

    class Slow(AsyncProcessor):
        async def process(self, batch: Batch, checkpointer: AsyncCheckpointer) -> None:
            for record in batch:
                given.append((batch.shard, record.offset))
                await anyio.sleep(0.002)
                await checkpointer.save(persist=record.offset % 5 == 0)

        async def shutdown(self, checkpointer: AsyncCheckpointer, reason: shoal.Reason) -> None:
            endings.append(reason)

    with anyio.fail_after(30):
        while len(given) < 40:
            with anyio.move_on_after(0.15):
                await AsyncWorker(hub, STREAM, GROUP, Slow, batch_records=4).run()
            assert hub.describe_group(STREAM, GROUP).members == ()
    assert sorted(given) == [(shard, offset) for shard in (0, 1) for offset in range(20)]
    assert set(endings) == {shoal.Reason.STOPPED}


async def test_a_coroutine_that_fails_is_tried_again_and_one_that_hangs_is_given_up_and_cancelled(
    hub: Hub,
) -> None:
    stream(hub, 1, 3)
    attempts: list[int] = []
    cancelled = anyio.Event()

    async def process(batch: Batch, checkpointer: AsyncCheckpointer) -> None:
        attempts.append(len(batch))
        if len(attempts) == 1:
            raise ZeroDivisionError
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    rules = FailureRules(backoff=Backoff(first_s=0.01))
    worker = await AsyncWorker(hub, STREAM, GROUP, process, failure=rules).start()
    with anyio.fail_after(20):
        while len(attempts) < 2:
            await anyio.sleep(0.01)
        await worker.stop(timeout=0.2)
        await cancelled.wait()
    assert checkpoints(hub, STREAM, GROUP) == {0: 0}
    assert not worker.is_running


async def test_a_worker_ends_by_itself_when_all_is_drained_or_its_policy_says_so(hub: Hub) -> None:
    stream(hub, 2, 5)

    async def fail(_: Batch, __: AsyncCheckpointer) -> None:
        raise ZeroDivisionError

    async def process(_: Batch, checkpointer: AsyncCheckpointer) -> None:
        await checkpointer.save()

    with anyio.fail_after(20):
        with pytest.raises(ProcessorFailed):
            await AsyncWorker(hub, STREAM, GROUP, fail, failure=FailureRules(policy=Policy.STOP)).run()
        await AsyncWorker(hub, STREAM, GROUP, process, until="now").run()
    assert hub.describe_group(STREAM, GROUP).lag == 0


@pytest.mark.parametrize("processor", [5, AsyncProcessor(), None])
async def test_what_is_no_processor_is_refused(hub: Hub, processor: Any) -> None:
    with pytest.raises(InvalidInput):
        AsyncWorker(hub, STREAM, GROUP, processor)


# --- Producers. ---


async def test_a_producer_is_awaited_record_by_record_or_all_at_once(hub: Hub) -> None:
    hub.create_stream(STREAM, shards=2)
    async with AsyncProducer(hub, STREAM) as producer:
        first = await (await producer.send(b"0", key="k"))
        rest = [await producer.send(b"%d" % number, key="k") for number in range(1, 50)]
        found = await asyncio.gather(*rest)
        assert [position.offset for position in found] == list(range(1, 50))
        assert {position.shard for position in found} == {first.shard}
        last = await producer.send(b"x", key="k")
        await producer.flush()
    assert (await last).offset == 50
    with pytest.raises(ProducerClosed):
        await producer.send(b"late")
    with pytest.raises(ProducerClosed):
        await AsyncProducer(hub, STREAM).send(b"early")


async def test_a_full_buffer_is_waited_for_without_blocking_the_loop(hub: Hub) -> None:
    hub.create_stream(STREAM, shards=1)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await anyio.sleep(0)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        async with AsyncProducer(hub, STREAM, batch_bytes=100_000, buffer_bytes_max=200_000) as producer:
            sent = [await producer.send(b"x" * 50_000) for _ in range(40)]
            assert len(await asyncio.gather(*sent)) == 40
        tasks.cancel_scope.cancel()
    assert ticks > 40
    assert hub.next_offset(STREAM, 0) == 40


async def test_an_await_that_is_cancelled_does_not_take_the_record_back(hub: Hub) -> None:
    hub.create_stream(STREAM, shards=1)
    async with AsyncProducer(hub, STREAM, linger_s=0.2) as producer:
        future = await producer.send(b"x")
        with anyio.move_on_after(0.01):
            await future
        assert future.cancelled()
    assert hub.next_offset(STREAM, 0) == 1
