"""A server that runs: its socket, its signals, and its end.

It stops in order: no new connection is taken, all who wait are told to go elsewhere, what is in flight is
answered, and then the store is closed. What takes longer than `stop_s` is told that its answer is lost.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from math import ceil
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from typing import Final

import uvicorn

from shoal.core.errors import InvalidInput, StoreUnavailable
from shoal.server.app import Application
from shoal.server.handshakes import Handshakes
from shoal.server.options import ServerOptions
from shoal.server.protocol import patient_protocol

_LAST_WORDS_S: Final = 0.3
"""Who uses its connections makes a request in that time, is answered, and told that the connection ends."""
_START_S: Final = 30.0


class RunningServer:
    """An application on a socket. `run` in the main thread obeys SIGTERM and Ctrl-C; `start` is a thread."""

    def __init__(self, application: Application, options: ServerOptions) -> None:
        if not __debug__:
            raise InvalidInput("python", "-O", "a server needs its assertions; start it without -O")
        self._application, self._options = application, options
        _check_certificate(options)
        self._socket = _bound(options)
        self._server = _Server(application, _config(application, options), options)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where it is reached."""
        host, port = self._socket.getsockname()[:2]
        scheme = "http" if self._options.certificate is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def has_users(self) -> bool:
        """Whether keys were asked for when it was opened."""
        return self._application.access.was_on

    def run(self) -> None:
        """Serve until it is told to stop."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._application.close()

    def start(self) -> RunningServer:
        """Serve in a thread, until `stop`."""
        self._thread = threading.Thread(target=self.run, name="shoal-server", daemon=True)
        self._thread.start()
        if not self._server.is_up.wait(_START_S):
            raise StoreUnavailable("the server did not start")
        return self

    def stop(self) -> None:
        """Stop in order, and wait for it."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(self._options.stop_s + _START_S)


class _Server(uvicorn.Server):
    def __init__(self, application: Application, config: uvicorn.Config, options: ServerOptions) -> None:
        super().__init__(config)
        self._application, self._options = application, options
        self.is_up = threading.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn does, but no signal is raised once more in the end: the store is still to be closed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        with self._hands_shaken_here() if self.config.is_ssl else nullcontext():
            await super().startup(sockets=sockets)
        self.is_up.set()

    @contextmanager
    def _hands_shaken_here(self) -> Iterator[None]:
        """Sockets that are opened meanwhile are left to Handshakes. uvicorn has no setting for it."""
        loop = asyncio.get_running_loop()
        setattr(loop, "create_server", self._shake_hands)  # noqa: B010
        try:
            yield
        finally:
            delattr(loop, "create_server")

    async def _shake_hands(
        self, protocol: Callable[[], asyncio.Protocol], *, sock: socket.socket, ssl: SSLContext, backlog: int
    ) -> Handshakes:
        """As a loop's `create_server`."""
        sock.listen(backlog)
        most, there = self._options.connections_max, self.server_state.connections
        return Handshakes(
            sock,
            protocol,
            context=ssl,
            limit_s=self._options.head_s,
            room=lambda: most - len(there),
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._application.leave()
        if self.server_state.connections and not self.force_exit:
            # A request that lies in its socket would be cut off unread, and who sent it could not know that.
            await asyncio.sleep(_LAST_WORDS_S)
        await super().shutdown(sockets=sockets)


def _check_certificate(options: ServerOptions) -> None:
    """Before anyone is told that it serves."""
    if options.certificate is None or options.key is None:
        return
    try:
        context = SSLContext(PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.certificate, options.key, partial(_refuse_phrase, options.key))
    except OSError as error:
        remedy = f"it cannot be used with the key {options.key}: {error.strerror or error}"
        raise InvalidInput("certificate", str(options.certificate), remedy) from error


def _refuse_phrase(key: Path) -> str:
    """Asked for the pass phrase of a key. Without it OpenSSL would ask at the terminal, and a server that
    starts with its machine has none."""
    remedy = "it is encrypted, and nobody is there to be asked for its pass phrase; give a key without one: "
    raise InvalidInput("key", str(key), f"{remedy}openssl pkey -in {key} -out plain.pem")


def _bound(options: ServerOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((options.host, options.port))
    except OSError as error:
        sock.close()
        where = f"{options.host}:{options.port}"
        raise InvalidInput("listen", where, f"cannot listen there: {error.strerror}") from error
    sock.setblocking(False)
    return sock


def _config(application: Application, options: ServerOptions) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        loop="uvloop",
        http=patient_protocol(application, options),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        # Whole seconds are all that uvicorn takes: never less than was asked for, nor none.
        timeout_keep_alive=ceil(options.keep_alive_s),
        timeout_graceful_shutdown=ceil(options.stop_s),
        ssl_certfile=None if options.certificate is None else str(options.certificate),
        ssl_keyfile=None if options.key is None else str(options.key),
    )
