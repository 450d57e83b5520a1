"""Whether a busy producer is refused when shards are split and merged: in one process, in two, over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import shoal
from bench.table import Line
from shoal.testing.serving import served

RATE: Final = 2_000
"""Records a second."""
COUNTS: Final = (4, 3, 5, 2)
"""Shards, one after another, again and again."""
PAUSE_S: Final = 0.2


class Outcome(NamedTuple):
    """Batches."""

    moved: int
    refused: int


def lines(folder: Path, less: int) -> Iterator[Line]:
    """What is measured, in a table: while a producer hears of what is announced, and while it does not."""
    rounds = max(1, 4 // less)
    for where in ("one process", "two processes", "over HTTP"):
        deaf = resharded(folder / f"deaf-{where}.db", where, rounds, hold_s=0.0)
        heard = resharded(folder / f"heard-{where}.db", where, rounds, hold_s=shoal.ProducerOptions().hold_s)
        yield Line(
            f"batches refused while {rounds * len(COUNTS)} reshards moved them, {RATE:,} records/s, {where}",
            f"{heard.refused} of {heard.moved}",
            f"{deaf.refused} of {deaf.moved} without announcements",
            "a tenth",
            heard.refused * 10 <= heard.moved,
        )


def resharded(database: Path, where: str, rounds: int, *, hold_s: float) -> Outcome:
    """Reshard a stream while a producer sends to it."""
    with ExitStack() as stack:
        url = f"sqlite:///{database}"
        if where == "over HTTP":
            url = stack.enter_context(served(url))
        hub = stack.enter_context(shoal.connect(url))
        hub.create_stream("orders", shards=2)
        seconds = rounds * len(COUNTS) * (PAUSE_S + 0.1) + 2
        found: list[Outcome] = []

        def load() -> None:
            if where == "one process":
                found.append(sent(hub, seconds, hold_s))
                return
            command = [sys.executable, "-m", "bench.routes", url, str(seconds), str(hold_s)]
            answer = subprocess.run(command, check=True, capture_output=True).stdout
            found.append(Outcome(*json.loads(answer)))

        sending = threading.Thread(target=load)
        sending.start()
        deadline = time.monotonic() + 30
        while not any(shard.next_offset for shard in hub.describe_stream("orders").shards):
            assert time.monotonic() < deadline, "the producer has not begun"
            time.sleep(0.05)
        for count in COUNTS * rounds:
            time.sleep(PAUSE_S)
            hub.reshard("orders", count)
        sending.join()
        return found[0]


def sent(hub: shoal.Hub, seconds: float, hold_s: float) -> Outcome:
    """Send at the rate for so long."""
    began = time.monotonic()
    with hub.producer("orders", hold_s=hold_s) as producer:
        i = 0
        while (elapsed := time.monotonic() - began) < seconds:
            while i < elapsed * RATE:
                producer.send(b"%d" % i, b"k%d" % (i % 50))
                i += 1
            time.sleep(0.002)
        producer.flush()
        return Outcome(producer.stats.moved, producer.stats.refused)


if __name__ == "__main__":
    with shoal.connect(sys.argv[1]) as connected:
        print(json.dumps(sent(connected, float(sys.argv[2]), float(sys.argv[3]))))
