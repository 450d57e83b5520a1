"""A SOCKS proxy that leads everywhere to one server: for a client whose endpoint cannot have a port.

As much of version 5 (RFC 1928) as the Java machine asks for: no password, connect.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Final

_ADDRESS_BYTES: Final = {1: 4, 4: 16}


@contextmanager
def relayed(url: str) -> Iterator[int]:
    """The port of a proxy to the server at `url`."""
    host, _, port = url.removeprefix("http://").partition(":")

    class Connected(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError), closing(socket.create_connection((host, int(port)))) as server:
                _greet(self.request)
                back = threading.Thread(target=_pump, args=(server, self.request))
                back.start()
                _pump(self.request, server)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connected) as relay:
        relay.daemon_threads = True
        thread = threading.Thread(target=relay.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield relay.server_address[1]
        finally:
            relay.shutdown()
            thread.join()


def _greet(client: socket.socket) -> None:
    """Agree on no password; take the request to connect, wherever to."""
    _, methods = _exactly(client, 2)
    _exactly(client, methods)
    client.sendall(b"\x05\x00")
    _, command, _, kind = _exactly(client, 4)
    assert command == 1, "only connecting"
    _exactly(client, _ADDRESS_BYTES.get(kind) or _exactly(client, 1)[0])
    _exactly(client, 2)
    client.sendall(b"\x05\x00\x00\x01" + bytes(6))


def _exactly(client: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        if not (part := client.recv(size - len(found))):
            raise ConnectionError("ended within its greeting")
        found += part
    return found


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(65_536):
            target.sendall(part)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
