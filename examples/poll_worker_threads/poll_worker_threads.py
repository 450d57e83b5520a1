"""One consumer that polls, and threads that work: commits by hand, in order, and a bound by pausing."""

import sys
import tempfile
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import shoal

ORDERS, THREADS, WAITING_MAX = 600, 4, 2


def work(batch: shoal.Batch) -> int:
    for _ in batch:
        time.sleep(0.0005)  # something that waits
    return len(batch)


class Pending:
    """Batches at work, by shard, in order. A shard is done as far as its first batch that is not."""

    def __init__(self, consumer: shoal.Consumer) -> None:
        self._consumer = consumer
        self._queues: dict[shoal.StreamShard, deque[tuple[int, Future[int]]]] = {}
        self.done = 0

    def add(self, batch: shoal.Batch, future: Future[int]) -> None:
        place = shoal.StreamShard(batch.stream, batch.shard)
        queue = self._queues.setdefault(place, deque())
        queue.append((batch.next_offset, future))
        if len(queue) >= WAITING_MAX:
            self._consumer.pause([place])  # enough is under way; the shard stays ours

    def settle(self) -> None:
        ready: dict[shoal.StreamShard, int] = {}
        for place, queue in self._queues.items():
            while queue and queue[0][1].done():
                ready[place], future = queue.popleft()
                self.done += future.result()  # raises what the thread raised: nothing is passed over
            if len(queue) < WAITING_MAX and place in self._consumer.paused:
                self._consumer.resume([place])
        mine = set(self._consumer.assignment)
        self._consumer.commit({place: offset for place, offset in ready.items() if place in mine})


def main(url: str) -> None:
    with shoal.connect(url) as hub:
        hub.create_stream("orders", shards=2)
        with hub.producer("orders") as producer:
            for number in range(ORDERS):
                producer.send(str(number), key=f"customer-{number % 50}")
        with (
            ThreadPoolExecutor(THREADS) as threads,
            shoal.Consumer(hub, group="billing", auto_commit=False, max_poll_records=20) as consumer,
        ):
            consumer.subscribe(["orders"])
            pending = Pending(consumer)
            while pending.done < ORDERS:
                for batch in consumer.poll(0.01):
                    pending.add(batch, threads.submit(work, batch))
                pending.settle()
            print(f"{pending.done} orders by {THREADS} threads")
        print("to come for the group:", hub.describe_group("orders", "billing").lag)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/shoal.db")
