"""A thread for each consumer: plain code, every shard in order, at most as many threads as shards."""

import sys
import tempfile
import threading
from collections import Counter

import shoal

THREADS, ORDERS = 3, 3000


class Work(threading.Thread):
    def __init__(self, hub: shoal.Hub, number: int) -> None:
        super().__init__(name=f"consumer-{number}")
        self.consumer = shoal.Consumer(hub, group="billing", name=self.name)
        self.seen: Counter[int] = Counter()

    def run(self) -> None:
        self.consumer.subscribe(["orders"])
        for batch in self.consumer:  # until wakeup() or close()
            self.seen.update(int(record.value) for record in batch)
        self.consumer.close()


def main(url: str) -> None:
    with shoal.connect(url) as hub:
        hub.create_stream("orders", shards=6)
        threads = [Work(hub, number) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        with hub.producer("orders") as producer:
            for number in range(ORDERS):
                producer.send(str(number), key=f"customer-{number % 100}")
        waiting = threading.Event()
        while sum(thread.seen.total() for thread in threads) < ORDERS or not _is_even(threads):
            waiting.wait(0.02)
        print("shards of each:", sorted(len(thread.consumer.assignment) for thread in threads))
        for thread in threads:
            thread.consumer.wakeup()
        for thread in threads:
            thread.join()
        seen = sum((thread.seen for thread in threads), Counter[int]())
        print(f"{len(seen)} orders, each once: {set(seen.values()) == {1}}")


def _is_even(threads: list[Work]) -> bool:
    return {len(thread.consumer.assignment) for thread in threads} == {2}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/shoal.db")
