"""The life of one server that tests start: its folder, its process, its port.

It can be started, stopped, killed and started again on the same data and port. Not for: what PostgreSQL,
MariaDB or Redis want to be told (`servers.py`), or watching over the process (`guard.py`).

Invariants: when the `with` block is left, and also when the process that entered it is killed, no process
and no folder remains. A server answers on `url` whenever `start` has returned.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Literal, Self

from shoal.testing import guard
from shoal.testing.machine import PACKAGES, account_of, free_port, is_free

START_SECONDS_MAX: Final = 60.0  # Recovery after a kill reads at most one checkpoint's worth of log: seconds.
STOP_SECONDS_MAX: Final = 30.0  # A clean stop of PostgreSQL writes a checkpoint first.
POLL_SECONDS: Final = 0.02
PORT_TRIES_MAX: Final = 5

StopMode = Literal["fast", "immediate"]


class ServerFailed(Exception):
    """A server did not start, or did not stop in time; the message ends with the last lines of its log."""


class Server(ABC):
    """One server and its data folder; what differs between makers is in the subclasses."""

    program: ClassVar[str]
    # As root we run the server as its package's own account: PostgreSQL refuses to run as root, and root's
    # servers would not show the errors of a folder that is not theirs.
    account: ClassVar[str]
    stop_signals: ClassVar[dict[StopMode, signal.Signals]]

    def __init__(self, *, parent: Path | None = None) -> None:
        """The data folder is made in `parent`, or where this machine keeps temporary files."""
        self.port = 0
        self.folder = Path()
        self._parent = parent
        self.pid = 0
        self._guard: subprocess.Popen[bytes] | None = None
        self._databases_made = 0

    @classmethod
    def package(cls) -> str:
        """The Debian package that brings this server."""
        return PACKAGES[cls.program]

    def __enter__(self) -> Self:
        """Make the data folder, start on a free port, and create the database that `url` names."""
        self.folder = Path(tempfile.mkdtemp(prefix=f"shoal-{self.program}-", dir=self._parent))
        try:
            user, group = account_of(self.account)
            if user is not None and group is not None:
                os.chown(self.folder, user, group)
            self._prepare()
            self._start_on_a_free_port()
            self._create_database(self._main_database())
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the server without ceremony, and remove its folder."""
        self._remove()

    @property
    def url(self) -> str:
        """The URL of the database that was made at the start and that all users of this server share."""
        return self._url(self._main_database())

    @property
    def is_running(self) -> bool:
        """Whether the server's process lives; one that was killed does not until `start`."""
        return self._guard is not None and self._guard.poll() is None

    def fresh_database(self) -> str:
        """Create an empty database and give its URL: one per test keeps tests apart, for milliseconds."""
        self._databases_made += 1
        name = self._database_name(self._databases_made)
        self._create_database(name)
        return self._url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database that `fresh_database` made, whoever is still connected to it."""
        self._drop_database(url.rpartition("/")[2])

    def start(self) -> None:
        """Start on the same data and port as before, and wait until the server answers."""
        assert not self.is_running, "the server runs already"
        self._reap()
        user, group = account_of(self.account)
        order = {
            "parent": os.getpid(),
            "command": self._command(),
            "folder": str(self.folder),
            "log": str(self._log),
            "user": user,
            "group": group,
            "last_signal": int(self.stop_signals["immediate"]),
        }
        # A session of its own, so that Ctrl-C reaches the tests only, and they then stop the server in order.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", guard.__file__, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._guard.stdout is not None
        self.pid = int(self._guard.stdout.readline() or b"0")
        self._wait_until_ready()

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop: `fast` shuts down cleanly whoever is connected, `immediate` leaves recovery to `start`."""
        self._signal(self.stop_signals[mode])

    def kill(self) -> None:
        """End the server and its children with SIGKILL, as a crash would; none is left when this returns."""
        self._signal(signal.SIGKILL)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop, and start again on the same data and port."""
        self.stop(mode)
        self.start()

    def log_tail(self, *, lines_max: int = 20) -> str:
        """The last lines of what the server said, for a message about why it failed."""
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines_max:])

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"

    @property
    def _socket(self) -> Path:
        return self.folder / "socket"

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @abstractmethod
    def _prepare(self) -> None:
        """Fill the data folder of a server that has never run."""

    @abstractmethod
    def _command(self) -> list[str]:
        """The command line that runs the server in the foreground."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether this very server takes connections. Asked by a file or socket in our folder, never by the
        port: behind the port might be somebody else's server, which took it a moment before ours could."""

    @abstractmethod
    def _url(self, database: str) -> str: ...

    @abstractmethod
    def _create_database(self, name: str) -> None: ...

    @abstractmethod
    def _drop_database(self, name: str) -> None: ...

    def _main_database(self) -> str:
        return "shoal"

    def _database_name(self, number: int) -> str:
        return f"shoal_{number}"

    def _pick_port(self) -> int:
        return free_port()

    def _start_on_a_free_port(self) -> None:
        for _ in range(PORT_TRIES_MAX - 1):
            self.port = self._pick_port()
            try:
                self.start()
            except ServerFailed:
                # Between our looking at the port and the server's taking it, somebody else may have.
                if is_free(self.port):
                    raise
            else:
                return
        self.port = self._pick_port()
        self.start()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._is_ready():
            if not self.is_running:
                self._reap()
                raise ServerFailed(f"{self.program} ended at its start:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(
                    f"{self.program} did not answer in {START_SECONDS_MAX} s:\n{self.log_tail()}"
                )
            time.sleep(POLL_SECONDS)

    def _signal(self, number: signal.Signals) -> None:
        if self._guard is None:
            return
        assert self._guard.stdin is not None
        # A server that ended by itself, and its guard with it, is what was asked for.
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(bytes([number]))
        try:
            self._guard.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._reap()
            raise ServerFailed(
                f"{self.program} did not end in {STOP_SECONDS_MAX} s after {number.name}:\n{self.log_tail()}"
            ) from None
        self._reap()

    def _reap(self) -> None:
        # Closing the pipe is what tells a guard that still lives to end its server by force; it does so in
        # bounded time, so this wait has a bound too.
        if self._guard is None:
            return
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._guard.stdin.close()
        self._guard.wait()
        self._guard.stdout.close()
        self._guard = None
        self.pid = 0

    def _remove(self) -> None:
        try:
            self.stop("immediate")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, command: Sequence[str]) -> None:
        user, group = account_of(self.account)
        done = subprocess.run(
            command,
            check=False,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            user=user,
            group=group,
            extra_groups=[] if user is not None else None,
            timeout=START_SECONDS_MAX,
        )
        if done.returncode != 0:
            raise ServerFailed(f"{command[0]} failed:\n{done.stdout.decode(errors='replace')}")
