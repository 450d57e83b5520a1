"""A poison record does not stop the others: it is tried again later, and ends among the dead letters.

Usage: retry_and_dead_letters.py [HUB URL].
"""

import logging
import sys
import tempfile
import threading

import shoal

RULES = shoal.FailureRules(policy=shoal.Policy.BEST_TRIED, delays_s=(0.2, 0.4), max_attempts=3)


def main(url: str) -> None:
    logging.getLogger("shoal.worker").setLevel(
        logging.CRITICAL
    )  # Every failure is logged; here they are shown.
    is_mended = threading.Event()
    paid: list[str] = []

    def charge(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        for record in batch:
            order = record.value.decode()
            if order == "order-3" and not is_mended.is_set():
                print(f"{order} fails")
                raise ValueError("card number is missing")
            paid.append(order)
            checkpointer.save(persist=False)

    with shoal.connect(url) as hub:
        hub.create_stream("orders", shards=1)
        with hub.producer("orders") as producer:
            for i in range(6):
                producer.send(f"order-{i}", key=f"customer-{i}")
        with shoal.Worker(hub, "orders", "billing", charge, in_order=False, failure=RULES) as worker:
            while worker.stats.dead == 0:
                threading.Event().wait(0.05)
            print(f"paid: {', '.join(sorted(paid))}")
            for letter in hub.dead_letters("orders", "billing"):
                origin = letter.origin
                print(f"dead: offset {origin.offset} after {origin.attempts} attempts: {origin.error}")
            is_mended.set()
            hub.replay_dead_letters("orders", "billing")
            while "order-3" not in paid:
                threading.Event().wait(0.05)
        left = len(hub.dead_letters("orders", "billing"))
        print(f"after the fix: {', '.join(sorted(paid))}; {left} dead letters")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"sqlite:///{folder}/shoal.db")
