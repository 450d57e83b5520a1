"""Processes that a test starts, hears from and may kill at any moment.

A worker is forked from a small server process that has imported everything and runs no thread, so it
costs milliseconds instead of an import of Arrow. It reports through a pipe: what it reported before it was
killed has arrived, whatever happened to it. Not for: threads, or programs that are not Python functions.

Invariant: when `with` is left, the process is no more.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from types import TracebackType
from typing import Any, Final, Self

_PRELOADED: Final = [
    "pytest",
    "shoal",
    "psycopg",
    "pymysql",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
]
_END_S: Final = 10.0

Report = Callable[[Any], None]


class WorkerFailed(AssertionError):
    """A worker raised, ended early or was too slow; the text has what is known of it."""


class Worker:
    """One process that runs `target(report, *arguments)`; `reports` is what it has told so far.

    Writer of `reports`: the thread that reads the pipe. Readers: any, under `_changed`.
    """

    def __init__(self, target: Callable[..., None], *arguments: object) -> None:
        self.reports: list[Any] = []
        self._failure: str | None = None
        self._is_silent = False
        self._changed = threading.Condition()
        self._name = f"{target.__name__}{arguments!r}"
        reader, writer = _context().Pipe(duplex=False)
        self._process = _context().Process(target=_run, args=(writer, target, *arguments), daemon=True)
        self._process.start()
        writer.close()
        self._listener = threading.Thread(target=self._listen, args=(reader,), daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.is_alive()

    @property
    def failure(self) -> str | None:
        """What it raised, if it did."""
        return self._failure

    def wait_for_reports(self, count: int, timeout_s: float) -> None:
        """Wait until it has reported this often in all."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while len(self.reports) < count:
                left_s = deadline - time.monotonic()
                if self._is_silent:
                    raise WorkerFailed(f"{self._name} ended after {len(self.reports)} reports: {self._why()}")
                if left_s <= 0:
                    raise WorkerFailed(
                        f"{self._name}: {len(self.reports)} of {count} reports in {timeout_s:g} s"
                    )
                self._changed.wait(left_s)

    def send_signal(self, number: signal.Signals) -> None:
        """SIGTERM, SIGSTOP, or another."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it with SIGKILL. It must still be running: a worker that ended by itself is a failure."""
        if self._failure is not None or not self._process.is_alive():
            raise WorkerFailed(f"{self._name} was to be killed, but had ended: {self._why()}")
        self._process.kill()
        self._collect(_END_S)

    def join(self, timeout_s: float) -> list[Any]:
        """Wait until it ends by itself, without an error, and give its reports."""
        self._collect(timeout_s)
        if self._failure is not None or self._process.exitcode != 0:
            raise WorkerFailed(f"{self._name}: {self._why()}")
        return self.reports

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._collect(_END_S)

    def _collect(self, timeout_s: float) -> None:
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            raise WorkerFailed(f"{self._name} did not end in {timeout_s:g} s")
        self._listener.join(_END_S)

    def _listen(self, reader: Connection) -> None:
        with reader:
            while True:
                try:
                    told = reader.recv()
                except (EOFError, OSError):  # OSError: it was killed in the middle of a long report.
                    break
                with self._changed:
                    if isinstance(told, _Failure):
                        self._failure = told.text
                    else:
                        self.reports.append(told)
                    self._changed.notify_all()
        with self._changed:
            self._is_silent = True
            self._changed.notify_all()

    def _why(self) -> str:
        return self._failure or f"exit code {self._process.exitcode}, no error reported"


class _Failure:
    def __init__(self, text: str) -> None:
        self.text = text


def _run(writer: Connection, target: Callable[..., None], *arguments: object) -> None:
    lock = threading.Lock()

    def report(told: object) -> None:
        with lock:
            writer.send(told)

    def report_thread(failed: threading.ExceptHookArgs) -> None:
        report(_Failure("".join(traceback.format_exception(failed.exc_value))))

    # A thread that dies unnoticed would leave a worker that only seems to run.
    threading.excepthook = report_thread
    try:
        target(report, *arguments)
    except BrokenPipeError:
        return  # The test is no more.
    except Exception:  # noqa: BLE001 - a process's top; the test raises it
        report(_Failure(traceback.format_exc()))


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context
