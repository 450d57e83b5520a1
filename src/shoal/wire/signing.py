"""How a native request is signed: what is signed, and the one header that carries it. Dry.

    Authorization: SHOAL-HMAC-SHA256 key=…,date=…,nonce=…,digest=…,server=…,signature=…

The signature is an HMAC-SHA256, under the key's secret, of the method, the path, the query, the key's id, the
digest of the body, the date (milliseconds since 1970), the nonce and the server, a line each. The secret is
never sent.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final

from shoal.core.errors import NotSignedIn

SCHEME: Final = "SHOAL-HMAC-SHA256"
ANY_SERVER: Final = "store-"
"""Before the name of a store: signed for all its servers, which then keep the nonce there."""
KEY_FORM: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_FORMS: Final = {
    "key": KEY_FORM,
    "date": re.compile(r"[0-9]{1,15}"),
    "nonce": re.compile(r"[A-Za-z0-9_-]{16,64}"),
    "digest": re.compile(r"[0-9a-f]{64}"),
    "server": re.compile(r"[A-Za-z0-9-]{0,64}"),
    "signature": re.compile(r"[0-9a-f]{64}"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """What the header of a request says."""

    key: str
    date_ms: int
    nonce: str
    digest: str
    server: str
    signature: str


def digest_of(*parts: bytes | memoryview) -> str:
    """Of a body, which is sent part after part."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def header_of(
    key: str, secret: str, *, method: str, target: str, digest: str, date_ms: int, nonce: str, server: str
) -> str:
    """The header of a request. `target` is the path, and the query after a question mark if it has one."""
    unsigned = Signed(key=key, date_ms=date_ms, nonce=nonce, digest=digest, server=server, signature="0" * 64)
    made = signature(secret, unsigned, method=method, target=target)
    return f"{SCHEME} key={key},date={date_ms},nonce={nonce},digest={digest},server={server},signature={made}"


def parse_header(header: str) -> Signed:
    """What a header says, in the one form there is, or NotSignedIn."""
    scheme, _, rest = header.partition(" ")
    if scheme != SCHEME:
        raise NotSignedIn(f"the Authorization header has to begin with {SCHEME}")
    pairs = [part.partition("=")[::2] for part in rest.split(",")]
    if [name for name, _ in pairs] != list(_FORMS):
        raise NotSignedIn(f"the Authorization header has {', '.join(_FORMS)}, once each, in this order")
    found = dict(pairs)
    for name, form in _FORMS.items():
        if not form.fullmatch(found[name]):
            raise NotSignedIn(f"{name!r} of the Authorization header has not its form")
    return Signed(
        key=found["key"],
        date_ms=int(found["date"]),
        nonce=found["nonce"],
        digest=found["digest"],
        server=found["server"],
        signature=found["signature"],
    )


def signature(secret: str, signed: Signed, *, method: str, target: str) -> str:
    """The right signature of this request."""
    path, _, query = target.partition("?")
    lines = (
        SCHEME,
        method,
        path,
        query,
        signed.key,
        signed.digest,
        str(signed.date_ms),
        signed.nonce,
        signed.server,
    )
    return hmac.new(secret.encode(), "\n".join(lines).encode(), hashlib.sha256).hexdigest()


def is_right(secret: str, signed: Signed, *, method: str, target: str) -> bool:
    """Whether the signature is the right one; takes as long whether or not."""
    return hmac.compare_digest(signature(secret, signed, method=method, target=target), signed.signature)
