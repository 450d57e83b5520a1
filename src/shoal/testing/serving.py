"""Servers for tests: `shoal serve` in a thread of this process, and hubs that reach a store through one."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Self

import shoal
from shoal import Hub
from shoal.server.options import ServerOptions
from shoal.server.starting import open_server
from shoal.testing.machine import free_port


@contextmanager
def served(store: str, options: ServerOptions | None = None, **settings: Any) -> Iterator[str]:
    """The URL of a server on a free port of this machine, with the settings of `connect` for its hub."""
    options = options or ServerOptions(port=0)
    server = open_server(store, options, version=shoal.__version__, **settings).start()
    try:
        yield server.url
    finally:
        server.stop()


@contextmanager
def connected(store: str, url: str, **settings: Any) -> Iterator[Hub]:
    """One more hub through the server at `url`; or, if it is to have settings of a server, through one
    more."""
    given = {name: value for name, value in settings.items() if value is not None}
    if not given:
        with shoal.connect(url) as hub:
            yield hub
        return
    with served(store, **given) as own, shoal.connect(own) as hub:
        yield hub


class ServerProcess:
    """`shoal serve` in a process of its own, to be stopped, or killed, and started again at the same
    place."""

    def __init__(self, store: str, *options: str, port: int = 0) -> None:
        self._store, self._options = store, options
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_leaving = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Start it, and wait until it is ready."""
        self._is_leaving = False
        # A file takes all of it, and needs nobody who reads along.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        command = "from shoal.cli import main; main()"
        listen = f"127.0.0.1:{self.port}"
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                command,
                "serve",
                "--store",
                self._store,
                "--listen",
                listen,
                *self._options,
            ],
            stderr=self._log,
        )
        deadline = time.monotonic() + READY_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start: {self.end(kill=True)}")
            time.sleep(0.02)
        return self

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()

    def leave(self) -> None:
        """Tell it to stop in order, and do not wait: `end` does, without a second signal."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._is_leaving = True

    def end(self, *, kill: bool = False) -> str:
        """Stop it in order, or with SIGKILL; what it wrote to its log."""
        process = self._process
        if process is None:
            return ""
        self._process = None
        if process.poll() is None and (kill or not self._is_leaving):
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        self.code = process.wait(READY_S)
        with self._log as log:
            log.seek(0)
            return log.read().decode()

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.end()


READY_S = 30.0
