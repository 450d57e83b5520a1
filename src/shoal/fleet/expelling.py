"""Gives up what a dead process held in its groups, so that its shards move at once and not after the timeout.

Only for one that was waited for: nothing of it runs any more, so what it would say, were it able to, is that
it leaves. Everyone else who is silent is given the timeout. In a thread: the store may be away.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from functools import partial
from typing import Final

from shoal.connect import Hub
from shoal.consumer.membership import insist
from shoal.core.errors import NotFound, ShoalError

_log: Final = logging.getLogger("shoal.fleet")

_INSIST_S: Final = 5.0
"""A store that is away for longer has others watch the dead one meanwhile."""


class Expeller:
    """Leaves groups for the dead, one after the other."""

    def __init__(self, hub: Hub) -> None:
        self._groups = hub.service.groups
        self._asked: queue.SimpleQueue[Sequence[tuple[int, str]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="shoal-expeller", daemon=True)
        self._thread.start()

    def expel(self, seats: Sequence[tuple[int, str]]) -> None:
        """Returns at once."""
        self._asked.put(seats)

    def close(self, timeout_s: float) -> None:
        """What is not done by then is left to the timeout."""
        self._asked.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (seats := self._asked.get()) is not None:
            for group, incarnation in seats:
                try:
                    insist(partial(self._groups.leave, group, incarnation, ()), ShoalError, _INSIST_S)
                except NotFound:
                    pass  # The group is gone, and so is what was held.
                except ShoalError as error:
                    _log.warning("%s is dead, and keeps its shards until its timeout: %s", incarnation, error)
