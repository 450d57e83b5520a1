"""A hub for each process of Spark's: opened at the first use, kept for the tasks that follow.

Executors reuse their Python processes, so that a connection outlives its task. A file that is not there is
not made here: an executor on another machine would read an empty hub of its own, and find nothing.
"""

from __future__ import annotations

import gc
import os
import socket
import threading
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from shoal.connect import Hub, open_local, open_remote
from shoal.consumer.membership import insist
from shoal.core.errors import InvalidInput, InvalidUrl, StoreError, shown_url
from shoal.core.limits import DURATION_S_MAX
from shoal.remote.address import is_remote

TASK_OUTAGE_S: Final = 60.0
"""How long a task waits for a store that is away: a restart takes less, and a task that fails begins anew."""

_LARGEST_BLOCK: Final = (32 << 20) - 65_536
"""What glibc takes note of, at most (DEFAULT_MMAP_THRESHOLD_MAX), and room for its own words."""

Key = tuple[int, str, str | None, bool, bool]


FileId = tuple[int, int]
"""A file, whatever its name: one that was deleted and made anew is another."""


class _Opened(NamedTuple):
    hub: Hub
    files: tuple[FileId | None, ...]
    """Which it has open."""


class HubAddress(NamedTuple):
    """Where a hub is, in words that every process of the query understands."""

    url: str
    leases: str | None = None

    def __repr__(self) -> str:
        return f"HubAddress({shown_url(self.url)!r})"


def address_of(url: str, leases: str | None = None) -> HubAddress:
    """An address as a user gave it. A file's name becomes a whole path: executors have other folders."""
    return HubAddress(_whole("hub", url), None if leases is None else _whole("leases", leases))


def hub_at(address: HubAddress, *, keeps: bool = False, mapped: bool = False, within_s: float = 0.0) -> Hub:
    """The hub of this process. `keeps`: it lives long, and sees to retention as others do. `mapped`: it may
    read a file through a mapping into memory, since it is begun again if that ends it.

    `within_s`: so long is a store waited for that is away. A query's processes come and go with its batches,
    also while the store restarts; who only begins is told at once.

    What the process has loaded by then stays out of garbage collections: Spark collects after each call and
    task, and over all modules that takes longer than a small batch.
    """
    files = tuple(
        _visible(name, url)
        for name, url in (("hub", address.url), ("leases", address.leases))
        if url is not None
    )
    key = (os.getpid(), address.url, address.leases, keeps, mapped)
    with _lock:
        known = _hubs.get(key)
        if known is not None and known.files != files:
            _hubs.pop(key).hub.close()  # Of a file that is gone: another has its name now.
            known = None
        if known is None:
            opened = partial(_opened, address, 30.0 if keeps else DURATION_S_MAX, mapped)
            known = _hubs[key] = _Opened(insist(opened, StoreError, within_s), files)
            gc.freeze()
    return known.hub


def _opened(address: HubAddress, housekeeping_s: float, mapped: bool) -> Hub:
    """As `connect` does, but without Arrow's late imports: who only plans needs none of them."""
    if is_remote(address.url):
        if address.leases is not None:
            raise InvalidInput(
                "leases", shown_url(address.leases), "a server has its own; start 'shoal serve' with it"
            )
        return open_remote(address.url)  # A server sees to retention by itself.
    local = open_local(address.url, leases=address.leases, housekeeping_s=housekeeping_s, mapped=mapped)
    return Hub(local, local.description)


def task_hub(address: HubAddress) -> Hub:
    """The hub of a task's process, which keeps memory for its batches. Spark repeats a task that is ended.

    What the first task loaded after it had its hub (Arrow's and Spark's late imports) stays out of garbage
    collections from the second task on.
    """
    hub = hub_at(address, mapped=True, within_s=TASK_OUTAGE_S)
    match _tasks.get(os.getpid(), 0):
        case 0:
            _keep_freed_memory()
        case 1:
            gc.freeze()
    _tasks[os.getpid()] = _tasks.get(os.getpid(), 0) + 1
    return hub


def _keep_freed_memory() -> None:
    """Let the process keep the memory of a few batches for the next ones.

    glibc gives what is free at the end of its heap back to the system beyond twice the largest block that was
    ever freed, and a task would fault in each page of every batch anew. So one is freed: as large as counts,
    and never touched.
    """
    bytearray(_LARGEST_BLOCK)


def close_hubs() -> None:
    """Give back all that this process has opened."""
    with _lock:
        for key in [key for key in _hubs if key[0] == os.getpid()]:
            _hubs.pop(key).hub.close()


def _whole(name: str, url: str) -> str:
    path = _file(name, url)
    if path is None:
        return url
    return make_url(url).set(database=str(path)).render_as_string(hide_password=False)


def _file(name: str, url: str) -> Path | None:
    """The file that a URL names; None if it names a server."""
    if is_remote(url):
        return None
    try:
        found = make_url(url)
    except (ArgumentError, ValueError):
        raise InvalidUrl(name, url, "a hub's URL, such as sqlite:////data/shoal.db") from None
    if found.get_backend_name() != "sqlite" or not found.database or found.database == ":memory:":
        return None
    return Path(found.database).expanduser().resolve()


def _visible(name: str, url: str) -> FileId | None:
    """Which file a URL names, if it names one: it is to be there."""
    path = _file(name, url)
    if path is None:
        return None
    if not path.is_file():
        raise InvalidUrl(
            name,
            url,
            f"there is no such file on {socket.gethostname()}; an embedded hub serves one machine: executors "
            "elsewhere need one that all can reach, such as postgresql://…",
        )
    found = path.stat()
    return found.st_dev, found.st_ino


_hubs: Final[dict[Key, _Opened]] = {}
"""Writer: whoever comes first, under `_lock`. A forked child has keys of its own."""
_tasks: Final[dict[int, int]] = {}
"""How many tasks a process has run. Writer: the one thread that runs them."""
_lock: Final = threading.Lock()
