"""The server's log: lines of JSON, written by a thread of their own. Whoever reads them may stall, as a full
pipe or a stopped terminal does: then lines wait, and at last are left out and counted, but no request waits.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import threading
import time
from queue import Full, Queue
from typing import Final

WAITING_MAX: Final = 4_000
"""Lines that wait for a reader. Later ones are left out, and the next that has room says how many."""
CLOSE_S: Final = 2.0
"""For a reader to take what is left when the server ends."""


class JsonLines(logging.Formatter):
    """A line of JSON for each record, with the fields of the request that it is about."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "log": record.name,
            "text": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


def error_descriptor() -> int:
    """Of standard error; where it was closed, one that takes everything. Its number may be another file's by
    then."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return os.open(os.devnull, os.O_WRONLY)


class PatientHandler(logging.Handler):
    """Writes to a descriptor, and makes nobody wait for whoever reads there."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self._descriptor = descriptor
        self._lines: Queue[str | None] = Queue(WAITING_MAX)
        self._left_out = 0
        self._is_closed = False
        # As a daemon: a reader that stalls for ever does not keep the process.
        self._thread = threading.Thread(target=self._write_all, name="shoal-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Called with the handler's lock held, as every handler is."""
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001 - whoever logs goes on: a line is not worth a request
            line = json.dumps(
                {"level": "error", "log": record.name, "text": f"a line could not be told: {error}"}
            )
        if not (self._tell_gap() and self._put(line)):
            self._left_out += 1

    def close(self) -> None:
        """Write what waits, if its reader takes it in time."""
        if self._is_closed:
            return
        self._is_closed = True
        self.acquire()
        try:
            self._tell_gap()
        finally:
            self.release()
        try:
            self._lines.put(None, timeout=CLOSE_S)
        except Full:
            pass
        else:
            self._thread.join(CLOSE_S)
        super().close()

    @property
    def is_stuck(self) -> bool:
        """Whether, after its end, lines are still there that nobody has read."""
        return self._thread.is_alive()

    def _put(self, line: str) -> bool:
        try:
            self._lines.put_nowait(line)
        except Full:
            return False
        return True

    def _tell_gap(self) -> bool:
        if not self._left_out:
            return True
        text = f"{self._left_out} lines were left out here: nobody read the log for a while"
        gap = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (), None)
        if not self._put(self.format(gap)):
            return False
        self._left_out = 0
        return True

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._write(f"{line}\n".encode())
            except OSError:
                # Whoever read the log is gone, or its disk is full: the server goes on without.
                continue

    def _write(self, left: bytes) -> None:
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                # Another process that has this pipe or terminal too made it so.
                select.select([], [self._descriptor], [])
