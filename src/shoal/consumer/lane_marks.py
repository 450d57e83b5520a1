"""Memory that a worker and a process of its lanes both see: which record each call is at.

A process that dies can tell nothing any more; what it wrote here stays. So the record that ended it is known
at once, instead of being found by ending many more.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import MutableSequence
from typing import Final, cast

from shoal.wire.delivered import NOWHERE

MARKS_MAX: Final = 4096
"""Calls that run in one process at once: more than a worker has threads for, its retry stream included."""
_BYTES: Final = 8


class Marks:
    """A row of numbers in shared memory."""

    def __init__(self, descriptor: int) -> None:
        """Of one that `make_marks` made, in this process or in another."""
        self._memory = mmap.mmap(descriptor, MARKS_MAX * _BYTES)
        self._numbers = memoryview(self._memory).cast("q")

    def place(self, number: int) -> MutableSequence[int]:
        """One of them, to be written to."""
        # A memoryview of numbers is a sequence that can be written to; its type does not say so.
        return cast("MutableSequence[int]", self._numbers[number : number + 1])

    def clear(self, number: int) -> None:
        """Nobody is anywhere."""
        self._numbers[number] = NOWHERE

    def read(self, number: int) -> int | None:
        """Where a call was, if it was at a record."""
        found = self._numbers[number]
        return None if found == NOWHERE else found


def make_marks() -> int:
    """A descriptor of new marks, to be handed to another process and then closed."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("shoal-marks")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, MARKS_MAX * _BYTES)
    return descriptor
