"""What user code declares done, and how that reaches the hub.

`save` takes note at once; `persist=True` also waits until the hub has it. Errors are of three kinds:
LeaseLost (the shard is another's by now), CheckpointMisuse (the call makes no sense), and the store's own
(nothing is lost: it is saved again with the next one).
"""

from __future__ import annotations

import os
from typing import Protocol

from shoal.core.checking import is_whole
from shoal.core.errors import CheckpointMisuse
from shoal.ports import Pledge
from shoal.wire.delivered import Delivered


class Notebook(Protocol):
    """Where a checkpointer writes: the worker, for one lane of one shard under one epoch."""

    def declare(self, offset: int | None) -> int:
        """Take note that all below is done (None: all that was processed); how far it is done now."""

    def persist(self) -> None:
        """See that the hub has the checkpoint before this returns."""

    def pledge(self, offset: int | None) -> Pledge:
        """For a transaction that saves the checkpoint as if this were declared; if it does, it is. What it
        could never save is refused."""

    def declared(self) -> int:
        """How far it is done."""


class Checkpointer:
    """Given to `process` and `shutdown`. It may be used from other threads, not in a forked child."""

    def __init__(self, notebook: Notebook, shard: int, epoch: int) -> None:
        self.shard = shard
        self.epoch = epoch
        """To be shown to a sink that fences: it rises with every owner."""
        self._notebook = notebook
        self._process = os.getpid()
        self._batch: Delivered | None = None

    def save(self, persist: bool = True, *, offset: int | None = None) -> int:
        """Declare done all that was processed, and in `process` its batch too; in a loop over it, up to here.

        What `process` raised on is not among it.

        `offset`: declare done only what is below it. `persist=False`: the hub gets it in the background, and
        in any case before the shard is handed over. Returns the next offset wanted.
        """
        self._check(persist, offset)
        batch = self._batch  # Another thread may save at the very moment when `process` comes back.
        if offset is None and batch is not None:
            offset = batch.declared
        done = self._notebook.declare(offset)
        if persist:
            self._notebook.persist()
        return done

    def pledge(self, offset: int | None = None) -> Pledge:
        """For a producer's transaction: what `save` would declare done now, to be saved with its records."""
        self._check(True, offset)
        batch = self._batch
        if offset is None and batch is not None:
            offset = batch.declared
        return self._notebook.pledge(offset)

    def position(self) -> int:
        """The next offset wanted, as declared so far. Return it from `process` to get the rest again."""
        return self._notebook.declared()

    def hand(self, batch: Delivered | None) -> None:
        """For the worker: what user code works on now."""
        self._batch = batch

    def _check(self, persist: object, offset: object) -> None:
        if os.getpid() != self._process:
            raise CheckpointMisuse(
                "process", os.getpid(), "a forked child holds no lease; save in its parent"
            )
        if not isinstance(persist, bool):
            raise CheckpointMisuse("persist", persist, "True or False; give an offset as offset=…")
        if offset is not None and (not is_whole(offset) or offset < 0):
            raise CheckpointMisuse("offset", offset, "an offset is an int from 0 on")
