"""What was seen: every fact of a world, in the order of real time, as one readable line and as a count.

A fact is something that an outsider could have written down: a row that was committed, a batch that was
handed to user code, a message that was lost. The checkers live on facts alone; see `checks_holding`,
`checks_delivery`.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from typing import Final

from sim.loop import Loop

TRACE_LINES_KEPT: Final = 4000


class Violation(Exception):
    """A world in which something that must always hold did not."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule, self.text = rule, text


class History:
    """Writes facts down. Without a trace only counts are kept: writing lines costs more than the rules."""

    def __init__(self, loop: Loop, *, is_traced: bool) -> None:
        self._loop = loop
        self.is_traced = is_traced
        self.faults: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.lines: deque[str] = deque(maxlen=TRACE_LINES_KEPT)
        self._digest = hashlib.sha256()

    def say(self, who: str, what: str) -> None:
        """A line of the trace. Callers on a hot path look at `is_traced` before they build the text."""
        if self.is_traced:
            line = f"{self._loop.now / 1_000_000:10.6f}  {who:<14} {what}"
            self.lines.append(line)
            self._digest.update(line.encode())

    def fault(self, kind: str, who: str = "world", detail: str = "") -> None:
        """Something was broken on purpose."""
        self.faults[kind] += 1
        if self.is_traced:
            self.say(who, f"!! {kind} {detail}")

    def digest(self) -> str:
        """A number for the whole trace: two runs of one seed have the same."""
        return self._digest.hexdigest()
