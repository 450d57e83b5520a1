"""A program whose lanes are processes: `python lane_program.py URL PROCESSOR TIMEOUT_S`.

It prints the numbers of its lanes' processes when it has begun, and `over` in the end.
"""

from __future__ import annotations

import sys
import threading
import time

import shoal
from tests.scenario import lane_processors


class InMain(lane_processors.Noting):
    """Of the program itself, which other processes have to import under another name."""


def main() -> None:
    url, name, timeout_s = sys.argv[1:]
    kind = InMain if name == "InMain" else getattr(lane_processors, name)
    with shoal.connect(url) as hub:
        worker = shoal.Worker(
            hub, "orders", "billing", kind, parallelism=2, lanes="processes", timeout=float(timeout_s)
        )
        threading.Thread(target=tell, args=(worker,), daemon=True).start()
        worker.run()
    say("over")


def tell(worker: shoal.Worker) -> None:
    while len(worker.lane_pids) < 2:
        time.sleep(0.01)
    say(" ".join(map(str, worker.lane_pids)))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
