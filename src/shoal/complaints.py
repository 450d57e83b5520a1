"""What goes wrong again and again is said less and less often: an outage is not a log of megabytes.

Not for what happens once, or differs each time. Nothing is dropped in silence: the next line that is said
tells how many there were since the last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

_FIRST_S: Final = 1.0
_LONGEST_S: Final = 600.0
"""Between two lines about the same."""
_OVER_S: Final = 120.0
"""What has not been heard of for so long, and is said again, is new."""
_KEPT: Final = 4096
"""Things that are complained of. A shard of each group is one, and there are not many more at once."""


@dataclass(slots=True)
class _Heard:
    said_s: float
    last_s: float
    pause_s: float = _FIRST_S
    untold: int = 0


class Complaints:
    """Those of one owner, in its log. Any thread; without a lock: of two at once, both may be said."""

    def __init__(self, log: logging.Logger, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock_s = log, clock_s
        self._heard: dict[Hashable, _Heard] = {}

    def warn(
        self, about: Hashable, text: str, *values: object, exc_info: BaseException | None = None
    ) -> None:
        """Say this, unless the same (`about`) was said a short while ago."""
        now_s = self._clock_s()
        heard = self._heard.get(about)
        if heard is None or now_s - heard.last_s > _OVER_S:
            if len(self._heard) >= _KEPT:
                self._heard.clear()
            self._heard[about] = _Heard(now_s, now_s)
            self._log.warning(text, *values, exc_info=exc_info)
            return
        heard.last_s = now_s
        if now_s - heard.said_s < heard.pause_s:
            heard.untold += 1
            return
        # By how long it has really been: what comes once a minute gets rarer, too.
        heard.pause_s = min(2 * (now_s - heard.said_s), _LONGEST_S)
        untold, heard.untold, heard.said_s = heard.untold, 0, now_s
        self._log.warning(f"{text} (and %d times more since)", *values, untold, exc_info=exc_info)
