"""A hub whose appends go wrong as told: busy, without an answer, late. The hub behind it is a real one."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from shoal.core.errors import ShoalError, StoreBusy, StoreUnavailable
from shoal.core.model import Appended, StreamInfo
from shoal.ports import HubService, Submission

Trouble = Callable[[Sequence[Submission]], str | None]
"""What happens to a call: None, or `busy`, `lost` (it never arrives), `unanswered` (it is carried out)."""


class Troubled:
    """See HubService."""

    def __init__(self, service: HubService, trouble: Trouble, delay_s: float = 0.0) -> None:
        self._service, self._trouble, self._delay_s = service, trouble, delay_s
        self._lock = threading.Lock()
        self.calls = 0
        self.at_once = self._now = 0

    def append(self, stream: StreamInfo, batches: Sequence[Submission]) -> list[Appended | ShoalError]:
        with self._lock:
            self.calls += 1
            self._now += 1
            self.at_once = max(self.at_once, self._now)
            what = self._trouble(batches)
        try:
            time.sleep(self._delay_s)
            if what == "busy":
                raise StoreBusy("others have the lock", 0.0)
            if what == "lost":
                raise StoreUnavailable("no way there")
            answers = self._service.append(stream, batches)
            if what == "unanswered":
                raise StoreUnavailable("no answer")
            return answers
        finally:
            with self._lock:
                self._now -= 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)
