"""Why a query failed, in one line: Spark wraps what Python raised in a traceback, and that in Java's."""

from __future__ import annotations

import re
from typing import Final


def reason(error: BaseException | str) -> str:
    """The line of Shoal's own error in what Spark raised; otherwise the last of Python's or Java's, or the
    first."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1]).strip()
    theirs = _PYTHON.findall(text)
    if theirs:
        return str(theirs[-1]).strip()
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


_OURS: Final = re.compile(r"^(?:Caused by: )?shoal\.[\w.]+\.(\w+: .+)$", re.MULTILINE)
_PYTHON: Final = re.compile(r"^(?:: )?((?:[\w]+\.)*\w*(?:Error|Exception)\w*: .+)$", re.MULTILINE)
"""Java's own too, which stands behind a colon when it comes through py4j."""
