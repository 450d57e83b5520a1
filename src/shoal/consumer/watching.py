"""Looks after a worker from beside: how far behind it is, and a line in the log from time to time.

In a thread of its own, so that nothing that handles records waits for it. One look is one description of the
group; the larger that is, the longer it rests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from shoal.consumer.figures import WorkerFigures, line
from shoal.core.describing import GroupInfo
from shoal.core.errors import ShoalError

_log: Final = logging.getLogger("shoal.worker")

_FIRST_S: Final = 1.0
"""After the start, for the first look."""
_REST: Final = 50
"""Looking takes at most this part of the time, however large the group: there may be many of us."""


class Watch:
    """Writer of `seen`: its thread."""

    def __init__(
        self,
        name: str,
        look: Callable[[], GroupInfo],
        figures: Callable[[], WorkerFigures],
        *,
        look_s: float | None,
        log_s: float | None,
    ) -> None:
        self.seen: GroupInfo | None = None
        """The group as it was lately; None: nobody has looked yet, or the store is away."""
        self._name, self._look, self._figures = name, look, figures
        self._look_s, self._log_s = look_s, log_s
        self._is_over = threading.Event()

    def start(self) -> None:
        """Begin, if there is anything to do."""
        if self._look_s is not None or self._log_s is not None:
            threading.Thread(target=self._run, name=f"shoal-watch-{self._name}", daemon=True).start()

    def close(self) -> None:
        """No more. A look that is under way is not waited for."""
        self._is_over.set()

    def _run(self) -> None:
        began_s = time.monotonic()
        look_at_s = None if self._look_s is None else began_s + min(_FIRST_S, self._look_s)
        log_at_s = None if self._log_s is None else began_s + self._log_s
        before: WorkerFigures | None = None
        while True:
            due_s = min(at_s for at_s in (look_at_s, log_at_s) if at_s is not None)
            if self._is_over.wait(max(0.0, due_s - time.monotonic())):
                return
            if look_at_s is not None and self._look_s is not None and time.monotonic() >= look_at_s:
                took_s = self._see()
                look_at_s = time.monotonic() + max(self._look_s, took_s * _REST)
            if log_at_s is not None and self._log_s is not None and time.monotonic() >= log_at_s:
                now = self._figures()
                _log.info("%s: %s", self._name, line(now, before))
                before = now
                log_at_s = time.monotonic() + self._log_s

    def _see(self) -> float:
        """Look once; how long that took."""
        began_s = time.monotonic()
        try:
            self.seen = self._look()
        except ShoalError as error:
            self.seen = None
            _log.debug("%s looks how far behind it is: %s", self._name, error)
        except Exception:  # noqa: BLE001 - a thread's top: drivers raise what they like while a database restarts
            self.seen = None
            _log.warning("%s looks how far behind it is", self._name, exc_info=True)
        return time.monotonic() - began_s
