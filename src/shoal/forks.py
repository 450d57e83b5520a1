"""What begins anew in a forked child: objects with locks and threads, of which the child has only the memory.

Not for connections: those must be closed before the fork, which `store/sql/database.py` sees to.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewed(Protocol):
    """Something that can forget its locks, threads and waiters."""

    def renew(self) -> None:
        """Called in a forked child, before any other thread is there."""


def renew_in_child(thing: Renewed) -> None:
    """Renew this in every child that is forked while it lives."""
    _RENEWED.add(thing)


_RENEWED: weakref.WeakSet[Renewed] = weakref.WeakSet()


def _renew_all() -> None:
    for thing in list(_RENEWED):
        thing.renew()


os.register_at_fork(after_in_child=_renew_all)
