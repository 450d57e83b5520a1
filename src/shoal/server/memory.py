"""Memory that is given back. The C library keeps what each thread has freed, for that thread alone, and free
pages among used ones: after one bad minute, a server would hold hundreds of megabytes for ever.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

_ARENA_MAX: Final = -8
_MMAP_THRESHOLD: Final = -3
_TRIM_THRESHOLD: Final = -1
"""Names of settings in glibc's malloc.h."""
ARENAS: Final = 4
LARGE: Final = 4_000_000
"""Blocks from this on are of their own, and go back to the system when they are freed."""
KEPT: Final = 16_000_000
"""What an arena keeps of what was freed: pages that come anew for every batch that is read cost more than to
read it."""

GROWN: Final = 32_000_000
"""More than the least that it ever had: then free pages go back. For less it is not worth the time."""
MOVED: Final = 4_000_000
"""More or less than after the last time: else nothing has happened that would leave free pages."""
LOOK_S: Final = 10.0


def give_back_memory() -> bool:
    """For this process; before it has threads. False where the C library is another: nothing is changed."""
    try:
        library = ctypes.CDLL(None)
        mallopt, trim = library.mallopt, library.malloc_trim
    except (AttributeError, OSError):
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    settings = {_ARENA_MAX: ARENAS, _MMAP_THRESHOLD: LARGE, _TRIM_THRESHOLD: KEPT}
    trimmer = Trimmer(held, lambda: trim(0))
    threading.Thread(target=trimmer.run, name="shoal-memory", daemon=True).start()
    return all(mallopt(name, value) for name, value in settings.items())


class Trimmer:
    """Gives free pages back after the process has grown."""

    def __init__(self, held: Callable[[], int], trim: Callable[[], object]) -> None:
        self._held, self._trim = held, trim
        self._least = self._left = held()

    def run(self) -> None:
        """Look again and again, for as long as the process is there."""
        pause = threading.Event()
        while not pause.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Trim, if it has grown, and has done something since the last time."""
        now = self._held()
        self._least = min(self._least, now)
        if now >= self._least + GROWN and abs(now - self._left) >= MOVED:
            self._trim()
            self._left = self._held()


def held() -> int:
    """What this process holds of the machine's memory, in bytes."""
    pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
