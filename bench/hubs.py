"""Hubs for a measurement: each new, each closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import shoal

NewHub = Callable[[], shoal.Hub]


@contextmanager
def used(new_hub: NewHub) -> Iterator[shoal.Hub]:
    hub = new_hub()
    try:
        yield hub
    finally:
        hub.close()
