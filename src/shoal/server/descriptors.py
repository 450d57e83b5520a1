"""Room for connections. A process may have so many files open, and systems give programs 1,024 of them to
begin with, fewer than the connections that a server is said to take; up to a harder limit they may have more.
"""

from __future__ import annotations

import resource
from typing import Final

BESIDE: Final = 500
"""Files beside connections: those that are heard out (see `protocol`), the store's, and the program's own."""


def room_for(connections: int) -> int:
    """See to it that so many connections can be open at once; for how many there is room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + BESIDE
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if most > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError):  # Some systems have another limit, and do not tell.
            most = soft
    return min(connections, max(1, most - BESIDE))
