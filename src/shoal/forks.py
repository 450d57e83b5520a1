"""What begins anew in a forked child: objects with locks and threads, of which the child has only the memory.

And what a fork waits for: a thread in the midst of an import has a lock that nobody gives back in the child.
Not for connections: those must be closed before the fork, which `store/sql/database.py` sees to.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - in a program's last moments it cannot be imported any more
import os
import threading
import weakref
from functools import cache
from typing import Final, Protocol

from shoal.wire.fitting import warm_up


class Renewed(Protocol):
    """Something that can forget its locks, threads and waiters."""

    def renew(self) -> None:
        """Called in a forked child, before any other thread is there."""


def renew_in_child(thing: Renewed) -> None:
    """Renew this in every child that is forked while it lives."""
    _RENEWED.add(thing)


@cache
def meet_arrow() -> None:
    """For whoever is about to touch its first record: Arrow's own lazy imports, while nobody forks.

    If a thread meets them and another forks at that moment, the child inherits a lock that nobody will ever
    give back, and its own first append waits for it.
    """
    with importing:
        warm_up()


importing: Final = threading.RLock()
"""Held while something is imported at its first use, and not when the program starts: no fork then."""
_RENEWED: Final[weakref.WeakSet[Renewed]] = weakref.WeakSet()


def _renew_all() -> None:
    for thing in list(_RENEWED):
        thing.renew()


os.register_at_fork(after_in_child=_renew_all)
os.register_at_fork(
    before=importing.acquire, after_in_parent=importing.release, after_in_child=importing.release
)
