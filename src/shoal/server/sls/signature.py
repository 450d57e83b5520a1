"""Signatures of Aliyun's clients, versions 1 and 4: what is signed, and with what. Pure.

Both sign the decoded path and the decoded query: clients sign before they encode.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import quote

_V1: Final = re.compile(r"LOG ([A-Za-z0-9._-]{1,128}):([A-Za-z0-9+/=]{1,64})")
_V4: Final = re.compile(
    r"SLS4-HMAC-SHA256 Credential=([A-Za-z0-9._-]{1,128})/([0-9]{8})/([A-Za-z0-9_.-]{1,64})"
    r"/sls/aliyun_v4_request,\s?Signature=([0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """As much of a request as a signature speaks of. Header names are in lower case."""

    method: str
    path: str
    query: Sequence[tuple[str, str]]
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What a request says of itself, and says to have been signed with."""

    key_id: str
    version: int
    signature: str
    day: str = ""
    region: str = ""


def claimed(authorization: str) -> Claimed | None:
    """What the Authorization header says; None if it is of neither form."""
    if (found := _V1.fullmatch(authorization)) is not None:
        return Claimed(key_id=found[1], version=1, signature=found[2])
    if (found := _V4.fullmatch(authorization)) is not None:
        return Claimed(key_id=found[1], version=4, day=found[2], region=found[3], signature=found[4])
    return None


def signed_at_ms(claim: Claimed, headers: Mapping[str, str]) -> int | None:
    """When the client says that it signed; None if it does not say it in a form we know."""
    try:
        if claim.version == 4:
            text = headers.get("x-log-date", "")
            when = datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        else:
            when = parsedate_to_datetime(headers.get("date", ""))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return int(when.timestamp() * 1000)


def is_right(claim: Claimed, request: Signed, secret: str) -> bool:
    """Whether the signature is the one that this secret gives."""
    if claim.version == 1:
        expected = signature_v1(request, secret)
    else:
        if not request.headers.get("x-log-date", "").startswith(claim.day):
            return False
        expected = signature_v4(request, secret, claim.region)
    return hmac.compare_digest(expected.encode(), claim.signature.encode())


def body_is_signed(claim: Claimed, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether the body is the one that the signed headers speak of."""
    if claim.version == 4:
        said = headers.get("x-log-content-sha256", "")
        return hmac.compare_digest(said.lower().encode(), hashlib.sha256(body).hexdigest().encode())
    said = headers.get("content-md5", "")
    if not body and not said:
        return True
    digest = hashlib.md5(body, usedforsecurity=False).hexdigest()
    return hmac.compare_digest(said.lower().encode(), digest.encode())


def signature_v1(request: Signed, secret: str) -> str:
    """HMAC-SHA1 of method, digest, type, date, the x-log- and x-acs- headers, and the resource."""
    headers = request.headers
    # x-log-date is added by clients after they have signed.
    lines = [
        f"{name}:{headers[name]}\n"
        for name in sorted(headers)
        if name.startswith(("x-log-", "x-acs-")) and name != "x-log-date" and not name.startswith(_META)
    ]
    query = "&".join(f"{key}={value}" for key, value in sorted(request.query))
    text = "\n".join(
        (
            request.method,
            headers.get("content-md5", ""),
            headers.get("content-type", ""),
            headers.get("date", ""),
            "".join(lines) + request.path + (f"?{query}" if query else ""),
        )
    )
    return base64.b64encode(hmac.new(_text(secret), _text(text), hashlib.sha1).digest()).decode()


def signature_v4(request: Signed, secret: str, region: str) -> str:
    """HMAC-SHA256 over a canonical request, by a key that is good for one day, region and service."""
    headers = request.headers
    names = sorted(
        name
        for name in headers
        if name in ("content-type", "host")
        or name.startswith("x-acs-")
        or (name.startswith("x-log-") and not name.startswith(_META))
    )
    query = "&".join(
        f"{key}={quote(value, safe='~')}" if value else key for key, value in sorted(request.query)
    )
    canonical = "\n".join(
        (
            request.method,
            request.path,
            query,
            "".join(f"{name}:{headers[name].strip()}\n" for name in names),
            ";".join(names),
            headers.get("x-log-content-sha256", ""),
        )
    )
    date = headers.get("x-log-date", "")
    scope = f"{date[:8]}/{region}/sls/aliyun_v4_request"
    text = "\n".join(("SLS4-HMAC-SHA256", date, scope, hashlib.sha256(_text(canonical)).hexdigest()))
    key = _text("aliyun_v4" + secret)
    for part in (date[:8], region, "sls", "aliyun_v4_request"):
        key = hmac.digest(key, _text(part), "sha256")
    return hmac.digest(key, _text(text), "sha256").hex()


def _text(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


_META: Final = "x-log-meta-"
