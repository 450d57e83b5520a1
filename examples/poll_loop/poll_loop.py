"""A poll loop: a task of its own beside it, and a clean end by `wakeup`."""

import sys
import tempfile
import threading

import shoal


def main(url: str) -> None:
    with shoal.connect(url) as hub:
        hub.create_stream("orders", shards=4)
        with hub.producer("orders") as producer:
            for number in range(1000):
                producer.send(f"order {number}", key=f"customer-{number % 50}")

        consumer = shoal.Consumer(hub, group="billing", max_poll_records=300)
        consumer.subscribe(["orders"])
        seen = 0
        try:
            while seen < 1000:
                for batch in consumer.poll(timeout=1.0):  # a short timeout leaves time for something else
                    for _ in batch:
                        seen += 1
            print(f"{seen} orders; nothing is left: {consumer.poll(timeout=0.1)}")

            threading.Timer(0.2, consumer.wakeup).start()
            consumer.poll(timeout=None)  # without a bound: until there is something, or someone wakes it up
        except shoal.errors.WokenUp:
            print("woken up")
        finally:
            consumer.close()  # what was polled is committed, and everything is handed over
        print("to come for the group:", hub.describe_group("orders", "billing").lag)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/shoal.db")
