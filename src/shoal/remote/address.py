"""What the URL of a server looks like, and as much of it as may be shown.

Nothing here, and nothing that is raised with what is made here, shows a secret: also not that of a URL whose
host was forgotten, `http://KEY:SECRET`, where it stands in the place of the port.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from shoal.core.errors import InvalidUrl

DEFAULT_PORT: Final = 7400
FORM: Final = (
    "a server is named by its host and port alone, http://host:7400, and a key stands before them, "
    "http://KEY:SECRET@host:7400"
)
_PLACE: Final = re.compile(r"([^:@\[\]]*|\[[0-9A-Fa-f:.]*\])(:[0-9]{1,5})?")
_REST: Final = re.compile(r"[/?#]")


def is_remote(url: object) -> bool:
    """Whether this names a server."""
    return isinstance(url, str) and url.startswith(("http://", "https://"))


def shown(url: str) -> str:
    """A URL for people: hosts, and ports that are some."""
    scheme, _, rest = url.partition("://")
    netloc, *more = _REST.split(rest.rpartition("@")[2], maxsplit=1)
    places = [
        place if _PLACE.fullmatch(place) else f"{place.partition(':')[0]}:***" for place in netloc.split(",")
    ]
    return f"{scheme}://{','.join(places)}{'/…' if any(more) else ''}"


def parts_of(url: str) -> SplitResult:
    """The parts of a URL, or InvalidUrl."""
    found = _split(url)
    if found is None:
        raise InvalidUrl("hub", shown(url), FORM)
    return found


def servers_of(url: str) -> tuple[str, list[tuple[str, int]]]:
    """The scheme, and the host and port of each server, of a URL without a key; or InvalidUrl."""
    parts = parts_of(url)
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise InvalidUrl("hub", shown(url), FORM)
    found = []
    for text in parts.netloc.split(","):
        place = _place(text)
        if place is None:
            raise InvalidUrl("hub", shown(url), FORM)
        found.append(place)
    return parts.scheme, found


def _place(text: str) -> tuple[str, int] | None:
    one = _split(f"//{text}")
    if one is None or one.username is not None or one.password is not None:
        return None
    try:
        host, port = one.hostname, one.port
    except ValueError:  # Its words show what stands for the port.
        return None
    return (host, port or DEFAULT_PORT) if host else None


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:  # Its words may show all of it.
        return None
