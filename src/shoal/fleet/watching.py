"""Looks at the group again and again, in a thread: a store that is away must not hold up a supervisor."""

from __future__ import annotations

import threading

from shoal.connect import Hub
from shoal.core.describing import GroupInfo
from shoal.core.errors import NotFound, ShoalError


class GroupWatch:
    """The group as it was lately. Writer of `seen` and `problem`: its thread."""

    def __init__(self, hub: Hub, stream: str, group: str, every_s: float) -> None:
        self.seen: GroupInfo | None = None
        """None: it is not there yet, or the store is away."""
        self.problem = ""
        """Why it cannot be seen, if the store is away."""
        self._hub, self._stream, self._group, self._every_s = hub, stream, group, every_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-group-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def look(self) -> None:
        """Look now, in the thread that calls."""
        try:
            seen = self._hub.describe_group(self._stream, self._group)
        except NotFound:
            self.seen, self.problem = None, ""
        except ShoalError as error:
            self.seen, self.problem = None, str(error)
        else:
            self.seen, self.problem = seen, ""

    def close(self, timeout_s: float) -> None:
        """Look once more if the store is there, and no more. A look that hangs is left alone."""
        self._is_over.set()
        self._thread.join(timeout_s)
        if not self._thread.is_alive() and not self.problem:
            self.look()

    def _run(self) -> None:
        while not self._is_over.is_set():
            self.look()
            self._is_over.wait(self._every_s)
