"""Connections that begin with TLS: bounded in time, and in number together with those that are there.

The event loop would take any number of them, and tells nobody before hands are shaken. So they are taken
from the socket here. When there are too many, the one that has taken longest is cut off: who means to speak
is done within a moment, and so gets on however many others are silent.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from ssl import SSLContext
from typing import Final

AT_ONCE_MIN: Final = 100
"""So many may be at it also when all connections are taken: who is one too many is told so, and a probe of
the server's health is answered."""
_TAKEN_IN_TURN: Final = 50
_PAUSE_S: Final = 0.5
_SCARCE: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Handshakes:
    """A socket on which clients begin with TLS, as far as a server of asyncio is one: it can be closed. For
    one event loop, which is the one that runs."""

    def __init__(
        self,
        sock: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        *,
        context: SSLContext,
        limit_s: float,
        room: Callable[[], int],
    ) -> None:
        """`room` says how many more connections may be open, besides those that a `protocol` knows of."""
        self._socket, self._protocol = sock, protocol
        self._context, self._limit_s, self._room = context, limit_s, room
        self._loop = asyncio.get_running_loop()
        self._shaking: dict[asyncio.Task[None], None] = {}
        """The oldest first."""
        self._is_closed = False
        self._listen()

    def _listen(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._socket, self._take)

    def _take(self) -> None:
        """Those who have come, some of them at a time: others want their turn."""
        for _ in range(_TAKEN_IN_TURN):
            try:
                sock, _address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _SCARCE:
                    self._loop.remove_reader(self._socket)
                    self._loop.call_later(_PAUSE_S, self._listen)
                    return
                continue  # It has gone already.
            task = self._loop.create_task(self._shake(sock))
            self._shaking[task] = None
            task.add_done_callback(partial(self._ended, sock))
            if len(self._shaking) > max(AT_ONCE_MIN, self._room()):
                oldest = next(iter(self._shaking))
                del self._shaking[oldest]
                oldest.cancel()

    async def _shake(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with suppress(OSError):  # It went away, was too slow, or speaks something else.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                self._protocol, sock, ssl=self._context, ssl_handshake_timeout=self._limit_s
            )

    def _ended(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._shaking.pop(task, None)
        if task.cancelled():
            sock.close()  # One that had no turn yet is nobody else's.

    def close(self) -> None:
        """Nobody is taken any more, and who has not begun is cut off."""
        self._is_closed = True
        self._loop.remove_reader(self._socket)
        for task in self._shaking:
            task.cancel()

    async def wait_closed(self) -> None:
        """Until the last of them is gone."""
        await asyncio.gather(*self._shaking, return_exceptions=True)
