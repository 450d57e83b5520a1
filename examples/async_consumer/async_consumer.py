"""The same on an event loop: a producer, a consumer and a worker, and a clean cancellation."""

import asyncio
import sys
import tempfile

import shoal

ORDERS = 500


async def produce(hub: shoal.Hub) -> None:
    async with shoal.AsyncProducer(hub, "orders") as producer:
        sent = [await producer.send(str(number), key=f"customer-{number % 20}") for number in range(ORDERS)]
        await asyncio.gather(*sent)  # all of them are durable


async def consume(hub: shoal.Hub) -> int:
    seen = 0
    async with shoal.AsyncConsumer(hub, group="billing") as consumer:
        await consumer.subscribe(["orders"])
        async for batch in consumer:
            seen += len(batch)
            if seen == ORDERS:
                await consumer.commit()
                return seen
    return seen


async def work(hub: shoal.Hub, done: asyncio.Event) -> None:
    seen = 0

    async def process(batch: shoal.Batch, checkpointer: shoal.AsyncCheckpointer) -> None:
        nonlocal seen
        await asyncio.sleep(0.001)  # something that waits, for all shards at once
        await checkpointer.save(persist=False)
        seen += len(batch)
        if seen == ORDERS:
            done.set()

    await shoal.AsyncWorker(hub, "orders", "shipping", process).run()  # until it is cancelled


async def main(url: str) -> None:
    with shoal.connect(url) as hub:
        hub.create_stream("orders", shards=8)
        done = asyncio.Event()
        worker = asyncio.create_task(work(hub, done))
        _, seen = await asyncio.gather(produce(hub), consume(hub))
        await done.wait()
        worker.cancel()
        await asyncio.wait([worker])
        print(f"polled {seen} orders; the worker was cancelled: {worker.cancelled()}")
        for group in ("billing", "shipping"):
            info = hub.describe_group("orders", group)
            print(f"{group}: {info.lag} to come, {len(info.members)} members")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/shoal.db"))
