"""A wire between a hub and its database that breaks at the worst moment: the answer to a COMMIT is lost."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

_CHUNK: Final = 1 << 16
_COMMIT: Final = b"COMMIT"


class Proxy:
    """Hands bytes on between its own port and a server's.

    Armed, it lets the next COMMIT through to the server, waits for the server's answer, and cuts both
    connections instead of handing the answer on: what was committed, the client cannot know.
    Writer of `_is_armed` and `cuts`: any thread, under `_changed`.
    """

    def __init__(self, port: int) -> None:
        self.cuts = 0
        self._target = ("127.0.0.1", port)
        self._changed = threading.Condition()
        self._is_armed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where clients connect."""
        port: int = self._listener.getsockname()[1]
        return port

    def lose_next_answer(self) -> None:
        """Cut at the next COMMIT."""
        with self._changed:
            self._is_armed = True

    def wait_for_cuts(self, count: int, timeout_s: float) -> None:
        """Wait until so many answers have been lost in all."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.cuts >= count, timeout_s), "no COMMIT was seen"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _shut(self._listener)
        for one in self._open:
            _shut(one)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._open += [client, server]
            wire = _Wire(client, server)
            threading.Thread(target=self._to_server, args=(wire,), daemon=True).start()
            threading.Thread(target=self._to_client, args=(wire,), daemon=True).start()

    def _to_server(self, wire: "_Wire") -> None:
        with suppress(OSError):
            while told := wire.client.recv(_CHUNK):
                with self._changed:
                    if self._is_armed and _COMMIT in told:
                        self._is_armed = False
                        wire.is_doomed = True
                wire.server.sendall(told)
        _shut(wire.server)

    def _to_client(self, wire: "_Wire") -> None:
        with suppress(OSError):
            while answer := wire.server.recv(_CHUNK):
                if wire.is_doomed:
                    _shut(wire.client)
                    _shut(wire.server)
                    with self._changed:
                        self.cuts += 1
                        self._changed.notify_all()
                    return
                wire.client.sendall(answer)
        _shut(wire.client)


class _Wire:
    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.is_doomed = False
        """The answer to what was sent last is to be lost. Set before that is handed to the server."""


def _shut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
