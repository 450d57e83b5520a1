"""One process under a supervisor: its pipes, its signals, its end. Decides nothing.

It has a process group of its own, so that Ctrl-C at a terminal reaches the supervisor alone, which then asks
everyone in order.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from typing import IO, Final

from shoal.fleet.messages import Farewell, Job, Report, parse

_LINE_MAX: Final = 65536
_READ: Final = 65536


class Output(Enum):
    """Where what user code prints goes."""

    AS_IS = auto()
    """To the supervisor's standard output and error."""
    TO_ERRORS = auto()
    """All to its standard error: standard output is for machines."""
    RELAYED = auto()
    """Through the supervisor, line by line: it has a table on the screen."""


class Process:
    """A worker's process, from its start on."""

    def __init__(
        self,
        job: Job,
        selector: selectors.BaseSelector,
        *,
        output: Output,
        on_message: Callable[[Report | Farewell], None],
        on_line: Callable[[str], None],
    ) -> None:
        self._selector = selector
        reports, theirs = os.pipe()
        try:
            self._process = subprocess.Popen(
                # -P: a file of the current directory must not stand in for a module of ours.
                [sys.executable, "-P", "-m", "shoal.fleet.child", str(theirs)],
                stdin=subprocess.PIPE,
                stdout={Output.AS_IS: None, Output.TO_ERRORS: 2, Output.RELAYED: subprocess.PIPE}[output],
                stderr=subprocess.STDOUT if output is Output.RELAYED else None,
                pass_fds=[theirs],
                process_group=0,
            )
        except BaseException:
            os.close(reports)
            raise
        finally:
            os.close(theirs)
        self._reports = _Lines(reports, selector, lambda line: on_message(parse(line)))
        self._printed: _Lines | None = None
        if self._process.stdout is not None:
            printed = os.dup(self._process.stdout.fileno())
            self._process.stdout.close()
            self._printed = _Lines(
                printed, selector, lambda line: on_line(line.decode(errors="replace")), has_rest=True
            )
        self._lifeline: IO[bytes] | None = self._process.stdin
        assert self._lifeline is not None
        with suppress(OSError):  # One that died at once is seen by its end.
            self._lifeline.write(job.to_line())
            self._lifeline.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Ask it to hand everything over and leave."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def poll(self) -> int | None:
        """How it ended: an exit code, or a signal as a negative number; None if it runs. Then all is read."""
        code = self._process.poll()
        if code is not None and self._lifeline is not None:
            for lines in filter(None, (self._reports, self._printed)):
                lines.drain()
            with suppress(OSError):
                self._lifeline.close()
            self._lifeline = None
        return code

    def wait(self, timeout_s: float) -> None:
        """Wait for its end."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)


class _Lines:
    """A pipe, read as lines whenever there is something in it."""

    def __init__(
        self,
        fd: int,
        selector: selectors.BaseSelector,
        on_line: Callable[[bytes], None],
        *,
        has_rest: bool = False,
    ) -> None:
        """`has_rest`: what comes after the last line counts as one; otherwise someone died writing it."""
        self._fd, self._selector, self._on_line, self._has_rest = fd, selector, on_line, has_rest
        self._rest = b""
        self._is_open = True
        os.set_blocking(fd, False)
        selector.register(fd, selectors.EVENT_READ, self.read)

    def read(self) -> bool:
        """Take what is there; False if there is nothing now, or nothing more."""
        try:
            read = os.read(self._fd, _READ)
        except BlockingIOError:
            return False
        if not read:
            self._close()
            return False
        *lines, self._rest = (self._rest + read).split(b"\n")
        if self._has_rest and len(self._rest) > _LINE_MAX:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._on_line(line)
        return True

    def drain(self) -> None:
        """Take all that is there and close: a grandchild may hold the other end for ever."""
        while self._is_open and self.read():
            pass
        self._close()

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._selector.unregister(self._fd)
            os.close(self._fd)
            if self._rest and self._has_rest:
                self._on_line(self._rest)
