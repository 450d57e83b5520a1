"""A program that consumes: `python worker_program.py URL HOW STOP_S`. It prints what it was given and told.

HOW: `run` waits in `worker.run()`; `end` starts the worker and lets the main thread end; `stuck` and
`stuck-end` are the same with a processor that never returns; `fork` is `run` with one that forks.
Lines: `given N`, `told REASON`, `over`.
"""

from __future__ import annotations

import os
import sys
import threading

import shoal
from shoal.core.errors import CheckpointMisuse


class Printing(shoal.Processor):
    how = "run"
    worker: shoal.Worker | None = None

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        checkpointer.save(persist=False)
        say(f"given {len(batch)}")
        if "stuck" in self.how:
            threading.Event().wait()
        if self.how == "fork" and os.fork() == 0:
            try:
                checkpointer.save()
            except CheckpointMisuse:
                assert self.worker is not None
                is_still = self.worker.is_running or not self.worker.wait(5)
                say("refused, and it seems to run" if is_still else "refused")
            os._exit(0)

    def shutdown(self, checkpointer: shoal.Checkpointer, reason: shoal.Reason) -> None:
        checkpointer.save(persist=False)
        say(f"told {reason.value}")


def say(what: str) -> None:
    # One write for each line: threads and a forked child share the pipe.
    os.write(1, f"{what}\n".encode())


def main() -> None:
    url, Printing.how, stop_s = sys.argv[1:]
    hub = shoal.connect(url)
    worker = shoal.Worker(
        hub, "orders", "billing", Printing, name="anna", timeout=60, stop_timeout=float(stop_s)
    )
    Printing.worker = worker
    if Printing.how.endswith("end"):
        worker.start()
        sys.stdin.readline()
    else:
        worker.run()
        say("over")
        hub.close()


if __name__ == "__main__":
    main()
