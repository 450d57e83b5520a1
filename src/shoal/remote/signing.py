"""The key of a client: where it comes from, and how it signs. The secret leaves this room in no text.

`http://KEY:SECRET@host:7400` names it; where a URL has none, SHOAL_ACCESS_KEY_ID and SHOAL_ACCESS_KEY_SECRET
do.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from shoal.core.errors import ClockSkewed, InvalidUrl, SignedForAnother
from shoal.remote.address import parts_of, shown
from shoal.wire.signing import KEY_FORM, header_of

ID_VARIABLE: Final = "SHOAL_ACCESS_KEY_ID"
SECRET_VARIABLE: Final = "SHOAL_ACCESS_KEY_SECRET"  # noqa: S105 - a name, not a secret

Place = tuple[str, int]

_MET: Final = 64
"""Servers that are remembered for one place: more than one balancer has behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A key and its secret."""

    key: str
    secret: str = field(repr=False)


def credentials(url: str, environment: Mapping[str, str] | None = None) -> tuple[Credentials | None, str]:
    """The key that a URL, or the environment, gives, and the URL without it."""
    given = os.environ if environment is None else environment
    parts = parts_of(url)
    user, at, hosts = parts.netloc.rpartition("@")
    bare = parts._replace(netloc=hosts).geturl()
    if not at:
        key, secret = given.get(ID_VARIABLE), given.get(SECRET_VARIABLE)
        if bool(key) != bool(secret):
            raise InvalidUrl("hub", shown(bare), f"of {ID_VARIABLE} and {SECRET_VARIABLE}, one alone is set")
        if not key or not secret:
            return None, bare
    else:
        key, _, secret = (unquote(part) for part in user.partition(":"))
        if not key or not secret or "@" in user:
            raise InvalidUrl(
                "hub", shown(bare), "a key is given with its secret: http://KEY:SECRET@host:7400"
            )
    if not KEY_FORM.fullmatch(key):
        raise InvalidUrl(
            "hub", shown(bare), "the id of a key is of letters, digits, dots, dashes and underscores"
        )
    return Credentials(key=key, secret=secret), bare


class Signer:
    """Signs requests for the server that a connection leads to. Writer of the fields: any thread; what two of
    them learn at once is right for one, and is learnt again by the other."""

    def __init__(self, of: Credentials) -> None:
        self._of = of
        self._servers: dict[Place, str] = {}
        self._met: dict[Place, tuple[str, ...]] = {}
        """Those that have refused a request at a place where connections end after each answer."""
        self._store: str | None = None
        self._ahead_ms = 0

    def server_at(self, place: Place) -> str:
        """Whom to sign for on a new connection: the server that was last met there."""
        return self._store or self._servers.get(place, "")

    def learn(self, place: Place, refusal: SignedForAnother, *, is_again: bool, is_kept: bool) -> str:
        """Whom to sign for instead, as another server answered.

        If that happens `is_again` on one connection, something between sends each request elsewhere: from
        then on requests are signed for any server of the store, which costs a commit each. Where a connection
        ends with its answer (it is not `is_kept`), no second try can show that, so it shows by a server that
        comes back after another: no server takes its old name again. Of a connection that is kept that says
        nothing: each leads to a server of its own, and is signed for that one.
        """
        if not is_kept:
            met = self._met.get(place, ())
            if refusal.server not in met:
                self._met[place] = (*met, refusal.server)[-_MET:]
            elif self._servers.get(place) != refusal.server:
                is_again = True
        if is_again:
            self._store = refusal.store
        self._servers[place] = refusal.server
        return self._store or refusal.server

    def set_clock(self, refusal: ClockSkewed) -> None:
        """Sign by the server's clock from now on: one of the two has jumped."""
        self._ahead_ms = refusal.now_ms - time.time_ns() // 1_000_000

    def header(self, target: str, digest: str, server: str) -> str:
        """The header of one request, which no other request can have."""
        return header_of(
            self._of.key,
            self._of.secret,
            method="POST",
            target=target,
            digest=digest,
            date_ms=max(0, time.time_ns() // 1_000_000 + self._ahead_ms),
            nonce=secrets.token_urlsafe(18),
            server=server,
        )
