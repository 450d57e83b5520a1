"""Housekeeping by itself: retention, what deleted streams left, producers long silent."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Final

from shoal.complaints import Complaints
from shoal.core.errors import HubClosed, ShoalError

_log: Final = logging.getLogger("shoal.hub.keeper")


class Keeper:
    """Runs `work`, a method, every `interval_s`, until stopped or until the method's object is gone."""

    def __init__(self, work: Callable[[], object], interval_s: float) -> None:
        self._work = weakref.WeakMethod(work)
        self._interval_s = interval_s
        self._complaints = Complaints(_log)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end; bounded by one piece of work."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(10)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            work = self._work()
            if work is None:
                return
            try:
                work()
            except HubClosed:
                return
            except ShoalError as error:
                # The store may be away; the next round comes anyway, and nothing is lost by being late.
                self._complaints.warn(type(error).__name__, "housekeeping: %s", error)
            except Exception:  # noqa: BLE001 - a thread's top: retention must not end with one fault
                _log.exception("housekeeping failed")
            finally:
                del work
