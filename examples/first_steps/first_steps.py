"""First steps: make a stream, send by key, split a shard, read every key in its order.

Usage: first_steps.py [HUB URL]. Without a URL it works in a temporary folder and leaves nothing behind.
"""

import sys
import tempfile
from collections import defaultdict

import shoal

CUSTOMERS = ("ada", "edsger", "donald")


def main(url: str) -> None:
    with shoal.connect(url) as hub:
        hub.create_stream("orders", shards=2)

        # 1. Send. A key's records go to one shard, in order; `result()` waits until a record is durable.
        with hub.producer("orders") as producer:
            for step in ("ordered", "paid"):
                for customer in CUSTOMERS:
                    at = producer.send(step, key=customer).result()
                    print(f"{customer} {step}: shard {at.shard}, offset {at.offset}")

            # 2. Split a shard under the producer. It follows by itself.
            left, right = hub.split_shard("orders", 0)
            print(f"shard 0 is split into {left.id} and {right.id}")
            for customer in CUSTOMERS:
                at = producer.send("shipped", key=customer).result()
                print(f"{customer} shipped: shard {at.shard}, offset {at.offset}")

        # 3. Read. Parents have smaller ids than their children, so this order keeps every key's order.
        seen = defaultdict(list)
        for shard in hub.describe_stream("orders").shards:
            offset = shard.first_offset
            while offset < shard.next_offset:
                batch = hub.read("orders", shard.id, offset)
                for record in batch:
                    customer = (record.key or b"").decode()
                    seen[customer].append(record.value.decode())
                offset = batch.next_offset
        for customer, steps in sorted(seen.items()):
            print(f"{customer}: {', '.join(steps)}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"sqlite:///{folder}/shoal.db")
