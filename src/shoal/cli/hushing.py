"""A log that is kept silent for a while: what the demo does on purpose is no news to its reader."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hushed(name: str) -> Iterator[None]:
    """Nothing below CRITICAL from the log of that name; then as before."""
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
