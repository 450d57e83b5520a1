"""More processors than shards: one shard in four lanes by key, every key in its order.

Usage: key_lanes.py [HUB URL].
"""

import sys
import tempfile
import threading
import time
from collections import defaultdict

import shoal

CUSTOMERS, STEPS = 40, 10


def main(url: str) -> None:
    with shoal.connect(url) as hub:
        hub.create_stream("orders", shards=1)
        with hub.producer("orders") as producer:
            for step in range(STEPS):
                for customer in range(CUSTOMERS):
                    producer.send(str(step), key=f"customer-{customer}")
        print(f"four lanes are faster: {consume(hub, 4) < consume(hub, 1)}")


def consume(hub: shoal.Hub, lanes: int) -> float:
    """Consume everything in so many lanes; seconds it took."""
    seen: dict[bytes | None, list[int]] = defaultdict(list)
    lock = threading.Lock()

    def call(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        for record in batch:
            time.sleep(0.002)  # A call over the network.
            with lock:
                seen[record.key].append(int(record.value))
            checkpointer.save(persist=False)

    began = time.perf_counter()
    shoal.Worker(hub, "orders", f"group-{lanes}", call, parallelism=lanes, until="now").run()
    took_s = time.perf_counter() - began
    in_order = all(steps == list(range(STEPS)) for steps in seen.values())
    print(f"{lanes} lanes: {sum(map(len, seen.values()))} records, in order by key: {in_order}")
    return took_s


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"sqlite:///{folder}/shoal.db")
