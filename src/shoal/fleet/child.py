"""One process of a fleet: a hub and a worker of its own. Started as `python -m shoal.fleet.child REPORTS`.

Its standard input brings the job, and its end brings the news that the supervisor is gone: then the worker
stops as after SIGTERM, and nothing outlives that for long. `REPORTS` is the descriptor that reports go to.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from shoal.connect import connect
from shoal.consumer.options import Lanes
from shoal.consumer.worker import Worker
from shoal.core.restarting import Ending
from shoal.fleet.loading import Named, load
from shoal.fleet.messages import REPORTED, Farewell, Job, Report, farewell_of

LEAVE_S: Final = 10.0
"""What leaving takes beyond the stop timeout, at most: a few calls of the store."""
_YOUNG_S: Final = 0.05


def main() -> None:
    """Work, and say how it ended."""
    reporter = Reporter(int(sys.argv[1]))
    signals = _SignalsSeen()
    lifeline, job = _job()
    logging.getLogger("shoal").addHandler(_Lines())
    worker: Worker | None = None
    try:
        processor = load(job.processor)
        if job.options.get("lanes") == Lanes.PROCESSES:
            processor = Named(job.processor)
        with connect(job.hub, leases=job.leases) as hub:
            worker = Worker(
                hub,
                job.stream,
                job.group,
                processor,
                name=job.name,
                listener=lambda *_: reporter.see_seats(worker),
                **job.options,
            )
            bound_s = worker.options.stop_timeout + LEAVE_S
            _thread("shoal-lifeline", lambda: _follow_lifeline(lifeline, bound_s))
            reporter.follow(worker, job.report_s)
            worker.run()
        farewell = Farewell(ending=Ending.STOPPED if signals.were_seen else Ending.DRAINED)
    except BaseException as error:  # noqa: BLE001 - a process's top: the supervisor is told
        farewell = farewell_of(error)
        if os.environ.get("SHOAL_DEBUG", "") not in ("", "0"):
            traceback.print_exception(error)
    reporter.end(worker, farewell)
    # Threads of user code that hang are waited for from here on, but the supervisor does not wait for them.
    sys.exit(0 if farewell.ending in (Ending.STOPPED, Ending.DRAINED) else 1)


def _job() -> tuple[int, Job]:
    """The job, and the rest of standard input under another number: user code must not read from it."""
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    line = b""
    while not line.endswith(b"\n"):
        read = os.read(lifeline, 65536)
        if not read:
            sys.exit(1)
        line += read
    return lifeline, Job.of_line(line)


def _follow_lifeline(lifeline: int, bound_s: float) -> None:
    with suppress(OSError):
        while os.read(lifeline, 1024):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(bound_s)
    os._exit(1)


class _SignalsSeen:
    """Whether a signal asked for the stop. Only this pipe tells: a worker that runs has its own handlers."""

    def __init__(self) -> None:
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    @property
    def were_seen(self) -> bool:
        """SIGTERM or SIGINT came."""
        try:
            seen = os.read(self._read, 4096)
        except BlockingIOError:
            return False
        return signal.SIGTERM in seen or signal.SIGINT in seen


class Reporter:
    """Tells of the worker when it runs, again and again, and in the end how it went."""

    def __init__(self, reports: int) -> None:
        os.set_inheritable(reports, False)
        self._reports = reports
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._seats: list[tuple[int, str]] = []
        """As they were told last, by the worker's listener."""

    def follow(self, worker: Worker, every_s: float) -> None:
        """Tell of it from its start to the end."""

        def run() -> None:
            while not worker.is_running and not self._is_over.wait(_YOUNG_S):
                pass  # The first report says that it has joined its group.
            while not self._is_over.is_set():
                self._send(_report(worker).to_line())
                self._is_over.wait(every_s)

        _thread("shoal-reports", run)

    def see_seats(self, worker: Worker | None) -> None:
        """Tell where it sits, if that is new: before its user code runs there, which may end the process."""
        if worker is not None and worker.seats != self._seats:
            self._seats = worker.seats
            self._send(_report(worker).to_line())

    def end(self, worker: Worker | None, farewell: Farewell) -> None:
        """The last word."""
        self._is_over.set()
        if worker is not None and any(getattr(worker.stats, name) for name in REPORTED):
            self._send(_report(worker).to_line())
        self._send(farewell.to_line())

    def _send(self, line: bytes) -> None:
        # A supervisor that is gone reads nothing; the lifeline says so too.
        with self._lock, suppress(OSError):
            os.write(self._reports, line)


def _report(worker: Worker) -> Report:
    stats = worker.stats
    return Report(
        shards=dict(worker.shards), seats=worker.seats, **{name: getattr(stats, name) for name in REPORTED}
    )


class _Lines(logging.Handler):
    """What the library says, as one line on standard error, unless the user's module set up logging."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING or logging.getLogger().handlers:
            return
        sys.stderr.write(f"{record.levelname.lower()}: {record.getMessage()}{_where(record)}\n")
        sys.stderr.flush()


def _where(record: logging.LogRecord) -> str:
    """Where an error was raised; all of it for those who debug."""
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    if os.environ.get("SHOAL_DEBUG", "") not in ("", "0"):
        return "\n" + "".join(traceback.format_exception(record.exc_info[1])).rstrip()
    frames = traceback.extract_tb(record.exc_info[2])
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def _thread(name: str, target: Callable[[], None]) -> None:
    threading.Thread(target=target, name=name, daemon=True).start()


if __name__ == "__main__":
    main()
