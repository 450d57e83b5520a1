"""Requests as Aliyun's clients make them, one by one."""

import hashlib
import http.client
import json
import time
from contextlib import closing
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qsl, unquote

from shoal.remote.signing import Credentials
from shoal.server.sls.signature import Signed, signature_v1

HOST = "proj.localhost"


def told(
    url: str, method: str, path: str, body: bytes = b"", host: str = HOST, **headers: str
) -> tuple[int, Any]:
    """The status and the JSON of the answer; its bytes, if they are something else."""
    with closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)) as connection:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {"Host": host, **named})
        answer = connection.getresponse()
        text = answer.read()
        assert answer.getheader("x-log-requestid")
        is_json = answer.getheader("content-type") == "application/json"
        return answer.status, json.loads(text) if is_json else text


def asked(
    url: str, method: str, path: str, body: bytes = b"", host: str = HOST, **headers: str
) -> tuple[int, str]:
    """The status and the code of the error, if the answer is one."""
    return _code(told(url, method, path, body, host, **headers))


class Client:
    """Signs as version 1 does."""

    def __init__(self, url: str, key: Credentials, host: str = HOST) -> None:
        self._url, self._key, self._host = url, key, host

    def told(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        host: str = "",
        at_s: float | None = None,
        sent: bytes | None = None,
        agent: str = "test",
    ) -> tuple[int, Any]:
        """As `told`; `sent` is sent instead of the body that is signed."""
        headers = {
            "date": formatdate(time.time() if at_s is None else at_s, usegmt=True),
            "x-log-apiversion": "0.6.0",
        }
        if body:
            headers["content-md5"] = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
        bare, _, query = path.partition("?")
        request = Signed(
            method=method,
            path=unquote(bare),
            query=parse_qsl(query, keep_blank_values=True),
            headers=headers,
        )
        headers["authorization"] = f"LOG {self._key.key}:{signature_v1(request, self._key.secret)}"
        headers["user-agent"] = agent
        named = {name.replace("-", "_"): value for name, value in headers.items()}
        return told(self._url, method, path, body if sent is None else sent, host or self._host, **named)

    def asked(self, method: str, path: str, body: bytes = b"", **more: Any) -> tuple[int, str]:
        """As `asked`."""
        return _code(self.told(method, path, body, **more))


def _code(answer: tuple[int, Any]) -> tuple[int, str]:
    status, value = answer
    return status, value.get("errorCode", "") if isinstance(value, dict) else ""
