"""What this machine offers to a server that tests start: programs, accounts and ports.

Not for: starting anything (`servers.py`), or installing (`scripts/install-servers`, which has the same
table).
"""

import os
import pwd
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

# Program -> the Debian package that brings it. A test compares this with `scripts/install-servers --list`.
PACKAGES: Final[dict[str, str]] = {
    "postgres": "postgresql",
    "mariadbd": "mariadb-server",
    "redis-server": "redis-server",
    "strace": "strace",
    "java": "openjdk-17-jre-headless",
}


class NotInstalled(Exception):
    """A program is not on this machine; the message names the package that would bring it."""


def find_program(name: str) -> Path | None:
    """Look for a server's program where Debian puts it, which is often on no ordinary user's PATH."""
    if found := shutil.which(name):
        return Path(found)
    if found := shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin"):
        return Path(found)
    releases = Path("/usr/lib/postgresql").glob("*/bin")
    for folder in sorted(releases, key=lambda folder: (len(folder.parent.name), folder), reverse=True):
        if os.access(folder / name, os.X_OK):
            return folder / name
    return None


def missing(find: Callable[[str], Path | None] = find_program) -> list[str]:
    """Name the Debian packages that some test or benchmark would need and this machine does not have."""
    return [package for program, package in PACKAGES.items() if find(program) is None]


def installed(program: str) -> Path:
    """Like `find_program`, for a caller that cannot go on without it."""
    found = find_program(program)
    if found is None:
        raise NotInstalled(
            f"{program} is not installed; Debian's package is {PACKAGES.get(program, 'unknown')}"
        )
    return found


def account_of(name: str) -> tuple[int, int] | tuple[None, None]:
    """The user and group that root runs a server as; without root there is nothing to change."""
    if os.geteuid() != 0:
        return None, None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        entry = pwd.getpwnam("nobody")
    return entry.pw_uid, entry.pw_gid


def free_port() -> int:
    """A port of the loopback interface that nobody uses now; somebody may, a moment later."""
    # Below the ports that the kernel gives to outgoing connections. Among those, a client that keeps trying
    # to reach a stopped server would sooner or later be given the server's own port, connect to itself, and
    # keep the server from coming back.
    outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range")
    low = int(outgoing.read_text().split()[0]) if outgoing.exists() else 32_768
    high = low if low > 12_000 else 65_536  # A machine that gives out nearly all ports leaves no choice.
    for _ in range(100):
        port = random.randrange(10_240, high)
        if is_free(port):
            return port
    raise OSError("no free port was found on the loopback interface")


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback interface."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
