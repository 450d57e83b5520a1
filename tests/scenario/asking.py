"""Requests to a server as a stranger makes them, signed or not, and its figures."""

import http.client
import json
import re
import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from shoal.remote.signing import Credentials
from shoal.wire.signing import digest_of, header_of

JSON = "application/json"


def asked(
    url: str,
    path: str,
    body: bytes = b"{}",
    *,
    method: str = "POST",
    content_type: str = JSON,
    **headers: str,
) -> tuple[int, Any]:
    """The status and the body of one request."""
    host, _, port = url.removeprefix("http://").partition(":")
    with closing(http.client.HTTPConnection(host, int(port), timeout=20)) as connection:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {"Content-Type": content_type, **given})
        response = connection.getresponse()
        text = response.read()
    is_json = response.headers["Content-Type"] == JSON
    return response.status, json.loads(text, parse_constant=_no_number) if is_json else text


@dataclass(frozen=True)
class Sent:
    """A request that is signed as one likes."""

    key: Credentials
    path: str = "/v1/hub/create_stream"
    body: bytes = b'{"name":"default/new","settings":{"hash":"xxh64","compression":"lz4"},"shards":1}'
    nonce: str = "n" * 20
    skew_ms: int = 0
    server: str = ""

    def header(self) -> str:
        return header_of(
            self.key.key,
            self.key.secret,
            method="POST",
            target=self.path,
            digest=digest_of(self.body),
            date_ms=time.time_ns() // 1_000_000 + self.skew_ms,
            nonce=self.nonce,
            server=self.server,
        )

    def for_server(self, url: str) -> "Sent":
        """Signed for the server that answers there."""
        status, told = asked(url, self.path, self.body, Authorization=self.header())
        assert (status, told["error"], told["untouched"]) == (401, "SignedForAnother", True)
        return replace(self, server=told["fields"]["server"])


def _no_number(name: str) -> None:
    """What Python takes for JSON, and nobody else does."""
    raise ValueError(f"{name} is not JSON")


def figure(url: str, name: str) -> float:
    """One of the figures at /metrics."""
    text = asked(url, "/metrics", method="GET")[1].decode()
    found = re.search(rf"^shoal_server_{name} (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])
