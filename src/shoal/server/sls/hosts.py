"""The project of a request: what stands before the server's own name in the Host header.

Clients name the project nowhere else. A server that was told its names knows where they begin; otherwise an
address has none of its own, and of other names the first label is a project if two or more follow it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

_ADDRESS: Final = re.compile(r"(?:(?P<project>.+)\.)?\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}")
_PORT: Final = re.compile(r":\d{1,5}$")
_ALIYUN: Final = ".log.aliyuncs.com"


def project_of(host: str, own: Sequence[str] = ()) -> str | None:
    """The project, as it was given, name or not; None if the host is the server itself."""
    name = _PORT.sub("", host.strip())
    for base in own:
        if name.lower() == base.lower():
            return None
        if name.lower().endswith("." + base.lower()):
            return name[: -len(base) - 1]
    if (address := _ADDRESS.fullmatch(name)) is not None:
        return address["project"]
    return _before(name.split("."))


def is_same_host(target: bytes, host: str) -> bool:
    """Whether a target with a host of its own, as proxies are sent, speaks of the same one: RFC 9112 goes by
    the target's, signatures by the header's."""
    try:
        found = urlsplit(target.decode("ascii"))
        named, port = found.hostname, found.port
    except ValueError:
        return False
    if found.scheme not in ("http", "https") or found.username is not None or named is None:
        return False
    said = _PORT.sub("", host.strip()).strip("[]").lower()
    given = _PORT.search(host.strip())
    usual = 443 if found.scheme == "https" else 80
    return said == named and (given is None or int(given[0][1:]) == (port or usual))


def _before(labels: Sequence[str]) -> str | None:
    """The labels that are a project's, of a name that nobody told us about."""
    if labels[0].startswith("["):  # An IPv6 address.
        return None
    if ".".join(labels).lower().endswith(_ALIYUN):
        count = len(labels) - 1 - _ALIYUN.count(".")
    elif labels[-1].lower() == "localhost":
        count = len(labels) - 1
    else:
        count = 1 if len(labels) > 2 else 0
    return ".".join(labels[:count]) if count else None
