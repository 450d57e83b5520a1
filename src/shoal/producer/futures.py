"""What `send` and `send_batch` return. Light: a record's future is a batch and an index."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from shoal.core.delaying import NOWHERE
from shoal.core.errors import ShoalError
from shoal.core.model import Appended, Position
from shoal.producer.pending import PendingColumns, PendingRecords

_log: Final = logging.getLogger("shoal.producer")


class SendFuture:
    """One record on its way. `result()` waits until it is durable and says where it is."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: PendingRecords, index: int) -> None:
        self._batch = batch
        self._index = index

    def done(self) -> bool:
        """True if `result()` would not wait."""
        return self._current()[0].settled.is_set()

    def result(self, timeout: float | None = None) -> Position:
        """Where the record was stored, or the error it failed with."""
        batch, index = self._settled(timeout)
        if batch.error is not None:
            raise batch.error
        assert batch.appended is not None
        first = batch.appended.first_offset
        return Position(batch.appended.shard, NOWHERE if first == NOWHERE else first + index)

    @property
    def is_repeat(self) -> bool:
        """Whether an earlier life of the producer has stored this number; its offset is then -1."""
        appended = self._batch.appended
        if appended is None or appended.first_offset != NOWHERE:
            return False
        return not (self.is_delayed or self._batch.is_aside)

    @property
    def is_aside(self) -> bool:
        """Whether it could not be sent, and is in the outbox: its offset is -1."""
        return self._current()[0].is_aside

    @property
    def is_delayed(self) -> bool:
        """Whether it is to come later: it is durable then, and its shard and offset are -1."""
        return self._batch.delays is not None

    def exception(self, timeout: float | None = None) -> ShoalError | None:
        """The error it failed with, or None if it was stored."""
        return self._settled(timeout)[0].error

    def add_done_callback(self, callback: Callable[[SendFuture], object]) -> None:
        """Call back when it is settled, in the sender's thread, or at once if it is."""
        batch, _ = self._current()
        batch.callbacks.append(lambda: self._call_back(callback))
        if batch.settled.is_set():
            _run_callbacks(batch)

    def _call_back(self, callback: Callable[[SendFuture], object]) -> None:
        """The batch is settled; if that means it was moved, wait for where it went."""
        if self.done():
            callback(self)
        else:
            self.add_done_callback(callback)

    def _settled(self, timeout: float | None) -> tuple[PendingRecords, int]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            batch, index = self._current()
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not batch.settled.wait(left_s):
                raise TimeoutError(f"not stored within {timeout} s; it is still being tried")
            if batch.moved is None:
                batch.is_seen = True
                return batch, index

    def _current(self) -> tuple[PendingRecords, int]:
        """The batch it is in now and its place there, following it through closed shards."""
        batch, index = self._batch, self._index
        while batch.settled.is_set() and batch.moved is not None:
            batch, index = batch.moved[index]
        return batch, index


class BatchFuture:
    """All pieces of one `send_batch`. `result()` waits until every one is durable."""

    __slots__ = ("_pieces", "records")

    def __init__(self, pieces: list[PendingColumns]) -> None:
        self._pieces = pieces
        self.records = sum(len(piece) for piece in pieces)

    def done(self) -> bool:
        """True if `result()` would not wait."""
        return all(piece.settled.is_set() for piece in self._settled_pieces())

    def result(self, timeout: float | None = None) -> list[Appended]:
        """Where the pieces were stored, or the first error that one of them failed with.

        After an error, `stored()` tells which pieces are in the log all the same.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.stored()

    def exception(self, timeout: float | None = None) -> ShoalError | None:
        """The first error of a piece, or None if all were stored."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            pieces = self._settled_pieces()
            waiting = next((piece for piece in pieces if not piece.settled.is_set()), None)
            if waiting is None:
                break
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not waiting.settled.wait(left_s):
                raise TimeoutError(f"not stored within {timeout} s; it is still being tried")
        for piece in pieces:
            piece.is_seen = True
        return next((piece.error for piece in pieces if piece.error is not None), None)

    @property
    def is_aside(self) -> bool:
        """Whether some of it could not be sent, and is in the outbox: the offsets of such pieces are -1."""
        return any(piece.is_aside for piece in self._settled_pieces())

    def add_done_callback(self, callback: Callable[[BatchFuture], object]) -> None:
        """Call back when all pieces are settled, in the sender's thread, or at once if they are."""
        pieces = self._settled_pieces()
        waiting = next((piece for piece in pieces if not piece.settled.is_set()), None)
        if waiting is None:
            pieces[0].callbacks.append(lambda: self._call_back(callback))
            _run_callbacks(pieces[0])
            return
        waiting.callbacks.append(lambda: self.add_done_callback(callback))  # For the next that is waited for.
        if waiting.settled.is_set():
            _run_callbacks(waiting)

    def _call_back(self, callback: Callable[[BatchFuture], object]) -> None:
        callback(self)

    def stored(self) -> list[Appended]:
        """The pieces that are stored by now."""
        return [piece.appended for piece in self._settled_pieces() if piece.appended is not None]

    def _settled_pieces(self) -> list[PendingColumns]:
        """The pieces as they are now, following them through closed shards."""
        found: list[PendingColumns] = []
        waiting = list(reversed(self._pieces))
        while waiting:
            piece = waiting.pop()
            if piece.settled.is_set() and piece.parts is not None:
                waiting.extend(reversed(piece.parts))
            else:
                found.append(piece)
        return found


def settle(batch: PendingRecords | PendingColumns) -> None:
    """Publish an outcome that has been written."""
    batch.settled.set()
    _run_callbacks(batch)


def _run_callbacks(batch: PendingRecords | PendingColumns) -> None:
    """Each callback once, whoever comes first. They are user code: one that raises is reported."""
    while True:
        try:
            callback = batch.callbacks.pop(0)
        except IndexError:
            return
        try:
            callback()
        except Exception:  # noqa: BLE001 - around user code
            _log.exception("a callback of a future raised")
