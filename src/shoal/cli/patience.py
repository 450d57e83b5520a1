"""Waiting for what comes by itself, but not for ever: the demo's chapters check afterwards if it came."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 30.0


def until(is_so: Callable[[], bool]) -> None:
    """Look again and again, until it is so or patience is over."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)
