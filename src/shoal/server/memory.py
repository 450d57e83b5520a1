"""Memory that is given back. The C library keeps what each thread has freed, for that thread alone: after one
bad minute, a server with many threads would hold hundreds of megabytes for ever.
"""

from __future__ import annotations

import ctypes
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


def give_back_memory() -> bool:
    """For this process; before it has threads. False where the C library is another: nothing is changed."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    settings = {_ARENA_MAX: ARENAS, _MMAP_THRESHOLD: LARGE, _TRIM_THRESHOLD: KEPT}
    return all(mallopt(name, value) for name, value in settings.items())
