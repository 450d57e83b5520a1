"""A program that polls: `python poll_program.py URL HOW`. It prints what it got.

HOW: `end` lets the main thread end with a batch in its hands, and closes nothing; `thread` does so too, while
another thread goes on polling; `fork` polls in a forked child; `signal` waits in a loop until Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import threading

import shoal
from shoal.core.errors import ConsumerClosed


def main() -> None:
    url, how = sys.argv[1:]
    hub = shoal.connect(url)
    consumer = shoal.Consumer(hub, "billing", name="anna", timeout=60, max_poll_records=2)
    consumer.subscribe(["orders"])
    if how == "thread":
        threading.Thread(target=poll_all, args=(hub, consumer)).start()
        return
    for _ in range(2):
        say(consumer.poll(20))
    if how == "fork":
        fork(consumer)
    if how == "signal":
        try:
            for _ in consumer:
                pass
        finally:
            consumer.close()
            hub.close()


def poll_all(hub: shoal.Hub, consumer: shoal.Consumer) -> None:
    threading.main_thread().join()
    threading.Event().wait(1.5)  # Longer than anyone takes to notice that the main thread has ended.
    for _ in range(3):
        say(consumer.poll(20))
    consumer.close()
    hub.close()


def fork(consumer: shoal.Consumer) -> None:
    if os.fork() == 0:
        try:
            consumer.poll(0)
        except ConsumerClosed:
            os.write(1, b"refused\n")
        consumer.close()
        os._exit(0)
    os.wait()
    say(consumer.poll(20))
    consumer.close()


def say(batches: list[shoal.Batch]) -> None:
    values = [record.value.decode() for batch in batches for record in batch]
    os.write(1, f"{' '.join(values)}\n".encode())


if __name__ == "__main__":
    main()
