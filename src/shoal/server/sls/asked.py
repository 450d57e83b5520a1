"""One request of an Aliyun client: its head, read and let in before anything is done for it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from shoal.core.errors import InvalidInput
from shoal.core.names import checked_name
from shoal.server.access import Access
from shoal.server.keys import Caller, Run
from shoal.server.requests import TARGET, Incoming
from shoal.server.sls.admission import admitted, unsigned
from shoal.server.sls.errors import SlsError
from shoal.server.sls.hosts import is_same_host, project_of
from shoal.server.sls.signature import Claimed, Signed, body_is_signed

_ONCE: Final = {b"host", b"authorization", b"content-length", b"date", b"x-log-date", b"content-md5"}
_QUERY_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked, by whom."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    project: str | None
    caller: Caller
    claim: Claimed | None
    """What its signature says, where signatures are checked."""

    @property
    def agent(self) -> str:
        """The program that asks, as it says; of the consumer libraries, with group and consumer."""
        return self.headers.get("user-agent", "")

    def argument(self, name: str) -> str:
        """A parameter that has to be there."""
        if name not in self.query:
            raise SlsError(400, "ParameterInvalid", f"parameter {name} is missing")
        return self.query[name]

    def check_body(self, body: bytes) -> None:
        """Refuse a body that is not the one that was signed."""
        if self.claim is not None and not body_is_signed(self.claim, self.headers, body):
            raise unsigned(400, "PostBodyInvalid", "the body is not the one that its signed digest speaks of")


async def asked_by(incoming: Incoming, access: Access, run: Run, own_hosts: Sequence[str]) -> Asked:
    """The head of a request, let in; or an error."""
    scope = incoming.scope
    if scope["http_version"] not in ("1.0", "1.1"):
        raise SlsError(400, "ParameterInvalid", "speak HTTP/1.1")
    names = [name for name, _ in scope["headers"]]
    for name in _ONCE:
        if names.count(name) > 1:
            raise SlsError(400, "ParameterInvalid", f"header {name.decode()} comes more than once")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    if "host" not in headers:
        raise SlsError(400, "MissingHost", "a request names its host")
    if TARGET in scope and not is_same_host(scope[TARGET], headers["host"]):
        raise SlsError(400, "ParameterInvalid", "the host of the target is not the one of the header")
    try:
        pairs = parse_qsl(
            scope["query_string"].decode("ascii"),
            keep_blank_values=True,
            max_num_fields=_QUERY_MAX,
            errors="strict",
        )
    except ValueError as error:
        raise SlsError(400, "ParameterInvalid", "the query cannot be read") from error
    query = dict(pairs)
    if len(query) != len(pairs):
        raise SlsError(400, "ParameterInvalid", "a parameter comes more than once")
    project = project_of(headers["host"], own_hosts)
    if project is not None:
        try:
            checked_name("project", project)
        except InvalidInput as error:
            raise SlsError(400, "ParameterInvalid", str(error)) from error
    request = Signed(method=scope["method"], path=scope["path"], query=pairs, headers=headers)
    caller, claim = await admitted(request, incoming.client, access, run, time.time_ns() // 1_000_000)
    return Asked(
        method=request.method,
        path=request.path,
        query=query,
        headers=headers,
        project=project,
        caller=caller,
        claim=claim,
    )


def json_of(body: bytes, kind: type[Any]) -> Any:
    """A body of JSON, of this kind."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise SlsError(400, "PostBodyInvalid", "the body is not JSON") from error
    if not isinstance(value, kind):
        raise SlsError(400, "PostBodyInvalid", f"the body is not a JSON {_KINDS[kind]}")
    return value


_KINDS: Final[Mapping[type[Any], str]] = {dict: "object", list: "array"}
