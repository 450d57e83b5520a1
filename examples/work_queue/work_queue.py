"""A work queue on a log: three consumers share one shard, some jobs fail, one is poison.

Run: python examples/work_queue/work_queue.py
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections import Counter
from pathlib import Path

import shoal

JOBS = 200
POISON = b"job-66"


def work(hub: shoal.Hub, name: str, done: Counter[bytes]) -> None:
    """Receive jobs and settle each, until none has come for a while."""
    with shoal.SharedConsumer(hub, "jobs", "thumbnails", name) as consumer:
        while received := consumer.receive(max=20, wait=1.0):
            for record in received:
                job = record.value
                if job == POISON:
                    consumer.reject(received, record, reason="not a picture")
                elif job.endswith(b"7") and received.attempts(record) == 1:
                    consumer.release(received, record, delay=0.1)  # Busy: try again a little later.
                else:
                    done[job] += 1
                    consumer.ack(received, record)


def main() -> None:
    logging.getLogger("shoal").setLevel(logging.ERROR)
    with (
        tempfile.TemporaryDirectory() as folder,
        shoal.connect(f"sqlite:///{Path(folder) / 'shoal.db'}") as hub,
    ):
        hub.create_stream("jobs", shards=1)
        hub.create_group("jobs", "thumbnails", delivery="shared", visibility=30.0, max_attempts=3)
        hub.append("jobs", 0, [b"job-%d" % number for number in range(JOBS)])
        done: Counter[bytes] = Counter()
        threads = [threading.Thread(target=work, args=(hub, f"worker-{i}", done)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        info = hub.describe_group("jobs", "thumbnails")
        (letter,) = hub.dead_letters("jobs", "thumbnails")
        print(f"{sum(done.values())} jobs done, each once: {max(done.values()) == 1}")
        print(f"{info.lag} left, {info.shards[0].dead} dead: {letter.value!r}, {letter.origin.error}")


if __name__ == "__main__":
    main()
