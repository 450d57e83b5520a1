"""SIGTERM and Ctrl-C ask for a stop, and what is on its way is finished."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def heeding_signals(ask: Callable[[signal.Signals], None]) -> Iterator[None]:
    """While this lasts `ask` hears of both; only the main thread can have them. Then all is as it was."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def heard(number: int, _: FrameType | None) -> None:
        ask(signal.Signals(number))

    before = {number: signal.signal(number, heard) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: it was not set from Python, and cannot be set again from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
