"""Web pages of others. A browser on this machine reaches a server on loopback for whatever page is open in
it; and where no user is defined, nothing else would keep that page out.

Pages cannot choose two headers. `Origin` says whose page it is that posts something. `Host` is the name under
which the server was reached: a page whose own name leads to 127.0.0.1 (DNS rebinding) is no other site to its
browser, but its name is none of this machine. Programs may use any name that leads here, as Aliyun's clients
do with a line in `/etc/hosts`: they send nothing of what browsers always send, and no page can leave out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from shoal.core.errors import InvalidInput
from shoal.server.requests import Refused

_PORT: Final = re.compile(r":\d{1,5}$")
_KEPT: Final = 1_000
_OF_BROWSERS: Final = frozenset(
    {b"accept-language", b"cookie", b"origin", b"referer", b"sec-ch-ua", b"sec-fetch-mode", b"sec-fetch-site"}
)
_NO_PAGE: Final = (
    "no user is defined, and pages of other sites may ask for nothing; with users ('shoal user create') "
    "whoever has a key may"
)
_NO_NAME: Final = (
    "no user is defined, and this is no name of this machine: ask for 127.0.0.1 or localhost, or start the "
    "server with --sls-host and this name"
)


class Sites:
    """What may be asked for where no user is defined; `own` are names of the server."""

    def __init__(self, own: Sequence[str], *, is_loopback: bool) -> None:
        self._own, self._is_loopback = own, is_loopback
        self._good: set[bytes] = set()
        """Hosts that were looked at: most requests are for one of few."""

    def check(self, headers: Mapping[bytes, bytes], *, is_proxied: bool) -> None:
        """Refuse what a page of another site may have sent."""
        host = headers.get(b"host")
        origin = headers.get(b"origin")
        if origin is not None and not self._is_own_page(origin, host):
            raise Refused(InvalidInput("Origin", _shown(origin), _NO_PAGE), HTTPStatus.FORBIDDEN)
        if host is None or host in self._good or is_proxied or not self._is_loopback:
            return  # No browser leaves out the host, or takes a server for a proxy because a page says so.
        if not _is_browser(headers):
            return
        if not is_own_name(host.decode("latin-1"), self._own):
            raise Refused(InvalidInput("Host", _shown(host), _NO_NAME), HTTPStatus.MISDIRECTED_REQUEST)
        if len(self._good) >= _KEPT:
            self._good.clear()
        self._good.add(host)

    def _is_own_page(self, origin: bytes, host: bytes | None) -> bool:
        """Of the very server that is asked, or of one of its names."""
        try:
            site = urlsplit(origin.decode("ascii").lower())
            name = site.hostname or ""
        except ValueError:
            return False
        if host is not None and site.netloc == host.decode("latin-1").strip().lower():
            return bool(name)
        return any(name == one.lower() for one in self._own)


def _is_browser(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(b"user-agent", b"").startswith(b"Mozilla/") or not _OF_BROWSERS.isdisjoint(headers)


def is_own_name(host: str, own: Sequence[str] = ()) -> bool:
    """Whether a host, with or without its port, is a name of this machine or one of `own`; or what Aliyun's
    clients make of one, with a project before it."""
    name = _PORT.sub("", host.strip()).lower()
    if any(name == base or name.endswith("." + base) for base in ("localhost", *map(str.lower, own))):
        return True
    address = name[1:-1] if name.startswith("[") and name.endswith("]") else ".".join(name.split(".")[-4:])
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def _shown(value: bytes) -> str:
    return value[:80].decode("latin-1")
