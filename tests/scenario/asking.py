"""Requests to a server as a stranger makes them, and its figures."""

import http.client
import json
import re
from contextlib import closing
from typing import Any

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


def _no_number(name: str) -> None:
    """What Python takes for JSON, and nobody else does."""
    raise ValueError(f"{name} is not JSON")


def figure(url: str, name: str) -> float:
    """One of the figures at /metrics."""
    text = asked(url, "/metrics", method="GET")[1].decode()
    found = re.search(rf"^shoal_server_{name} (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])
