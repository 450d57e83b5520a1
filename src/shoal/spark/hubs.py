"""Hubs as Spark's processes open them: one per process and address, kept while the process lives.

Spark forks its Python workers and uses them again and again; a task that had to connect anew each time
would spend more on that than on its records. Nothing here keeps house: retention is the work of the hub's
own processes, not of every executor.

An embedded hub is a file, and a file is there on one machine. `connect` would make it where it is missing,
and tasks would then write into, or read from, an empty log of their own. So an executor never makes one.
"""

from __future__ import annotations

import os
import socket
from typing import Final

from shoal.connect import Hub, connect
from shoal.core.errors import InvalidUrl

_HUBS: Final[dict[tuple[int, str], Hub]] = {}
"""By process id as well: a forked worker opens its own."""
_SQLITE: Final = "sqlite:///"
_HOUSEKEEPING_S: Final = 24 * 3600.0


def absolute(url: str) -> str:
    """The address as it is meant where it was given: a relative file is named in full for other processes."""
    if url.startswith(_SQLITE) and len(url) > len(_SQLITE):
        return _SQLITE + os.path.abspath(url.removeprefix(_SQLITE))
    return url


def open_hub(url: str, *, where: str) -> Hub:
    """The hub at this address. `where` is who asks ("the driver", "an executor"), for the error."""
    known = _HUBS.get((os.getpid(), url))
    if known is not None:
        return known
    path = url.removeprefix(_SQLITE).partition("?")[0]
    if url.startswith(_SQLITE) and not os.path.exists(path):
        raise InvalidUrl(
            "hub",
            url,
            f"{where} on {socket.gethostname()} sees no such file; an embedded hub is there only where its "
            "file is: create it first, or on a cluster use a hub that all machines reach (postgresql://…)",
        )
    hub = _HUBS[os.getpid(), url] = connect(url, housekeeping_s=_HOUSEKEEPING_S)
    return hub
