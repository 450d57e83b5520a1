"""The application: routes by dialect, and the edge around all of them, where every request gets a number, a
line in the log, and an answer, whatever happens.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final, TypeVar

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from shoal.core.errors import InvalidInput, ShoalError, StoreBusy, StoreFailure, StoreUnavailable
from shoal.core.rate import Rates
from shoal.hub.local import LocalHub
from shoal.native.calls import CALLS, PREFIX
from shoal.server.access import Access
from shoal.server.keys import ANYONE, Caller
from shoal.server.metrics import Counters, lag_text
from shoal.server.native.api import NativeApi
from shoal.server.openapi import document
from shoal.server.options import ServerOptions
from shoal.server.requests import (
    HEALTH_PATH,
    TARGET,
    Answer,
    ClientGone,
    Headers,
    Held,
    Incoming,
    Refused,
    error_answer,
    json_answer,
    new_request_id,
    send_answer,
    written,
)
from shoal.server.sharing import Shared
from shoal.server.sites import Sites
from shoal.server.sls.api import SlsApi
from shoal.server.sls.errors import SlsError
from shoal.server.sls.forms import error_answer as sls_error
from shoal.server.sls.routes import is_sls, looks_sls
from shoal.server.tracing import Tracing
from shoal.server.turns import Turns

_log: Final = logging.getLogger("shoal.server")
_SLOW_S: Final = 1.0
_LARGE: Final = 65_536
"""Answers up to this are small beside what a request costs anyway."""
_STORE_S: Final = 3.0
"""Who asks how the server is hears so soon that its store does not answer: balancers and scrapers have a few
seconds."""
_AT_THE_DOOR: Final = 8
"""Threads for what is written down of requests before they are let in: no client has more than half."""
_LAG_S: Final = 6.0
"""For the lag of all groups: longer than a look at them takes (`metrics.LOOK_S`), and with the look at the
store within the ten seconds of a scraper."""
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")

Found = TypeVar("Found")
Handler = Callable[[Incoming, Caller], Awaitable[Answer]]
Admit = Callable[[Incoming], Awaitable[Caller]]


class Application:
    """An ASGI application over a hub."""

    def __init__(
        self,
        hub: LocalHub,
        options: ServerOptions,
        *,
        version: str,
        counters: Counters,
        access: Access,
        tracing: Tracing | None = None,
    ) -> None:
        self._hub, self._options, self._version = hub, options, version
        self._counters, self._tracing = counters, tracing
        self.access = access
        self._turns = Turns(options.threads)
        self._door = Turns(_AT_THE_DOOR)
        """Apart: heartbeats wait for it too, and not for the slow calls of their user."""
        self._bodies = Held("requests", options.bodies_bytes_max)
        self._answers = Held("answers", options.answers_bytes_max)
        self.rates = Rates(options.requests_per_s_max)
        self._sites = Sites(options.sls_hosts, is_loopback=options.is_loopback)
        self.native = NativeApi(hub, options=options, turns=self._turns, access=access, counters=counters)
        self.sls = SlsApi(
            hub,
            options=options,
            turns=self._turns,
            access=access,
            counters=counters,
            admitted=self._admitted,
            check_answers=self._check_answers,
        )
        counters.watch("waiting", "Requests that wait.", lambda: len(self.native.waiting))
        counters.watch("body_bytes", "Bytes of requests that are held.", lambda: self._bodies.bytes)
        counters.watch("answer_bytes", "Bytes of answers not taken yet.", lambda: self._answers.bytes)
        self._openapi: bytes | None = None
        self._readiness, self._figures = Shared(self._look_if_ready), Shared(self._look_at_figures)
        self._state, self._lag = Shared(self._ask_store), Shared(self._look_at_lag)
        self._routes = Starlette(
            routes=[
                Route(HEALTH_PATH.decode(), _Endpoint(self, "healthz", self._healthy), methods=["GET"]),
                Route("/readyz", _Endpoint(self, "readyz", self._ready), methods=["GET"]),
                Route("/metrics", _Endpoint(self, "metrics", self._metrics), methods=["GET"]),
                Route(f"{PREFIX}/openapi.json", _Endpoint(self, "openapi", self._document), methods=["GET"]),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls are found by their path in one look; the rest is Starlette's."""
        if scope["type"] != "http":
            return
        call = _BY_PATH.get(scope["path"])
        if call is not None and scope["method"] == "POST":
            # A call's own request is not looked for among routes: it is what a server does all day.
            async def answer(request: Incoming, caller: Caller) -> Answer:
                if call.gets_batches:
                    self._check_answers(request)
                answer = await self.native.answer(call, request, caller)
                if call.is_repeatable and (call.gets_batches or answer.size > _LARGE):
                    self._check_answers(request, answer)
                return answer

            await self.serve(scope, receive, send, f"{call.part}.{call.name}", answer, admit=self.admit)
        elif is_sls(scope):
            await self.serve(scope, receive, send, "sls", self._sls, is_native=False)
        elif scope["path"] in _PATHS and scope["method"] in {"GET", "HEAD"}:
            await self._routes(scope, receive, send)
        else:
            await self.serve(scope, receive, send, "unknown", self._unknown)

    async def admit(self, request: Incoming) -> Caller:
        """Who makes a native request."""
        try:
            _check_host(request.scope)
            admitted = await self.access.admit(request.scope, request.client, self._turns.run_own)
            if admitted.nonce is not None:
                self._door.are_of(admitted.caller.name)
                await self.access.use_up(admitted.nonce, self._door.run)
        except (ShoalError, Refused):
            self._admitted(request, None)
            raise
        request.digest = admitted.digest
        self._admitted(request, admitted.caller)
        return admitted.caller

    def _admitted(self, request: Incoming, caller: Caller | None) -> None:
        """One more request of a client, which is a user, or, of whom no user is known, an address; or
        RateExceeded, or Refused for the page that it comes from."""
        if caller is ANYONE:
            self._check_site(request)
        elif caller is not None:
            request.client = caller.name
        self._turns.are_of(request.client)
        self.rates.take(request.client, time.monotonic())

    def _check_site(self, request: Incoming) -> None:
        self._sites.check(request.headers, is_proxied=TARGET in request.scope)

    def _check_answers(self, request: Incoming, answer: Answer | None = None) -> None:
        """Whether records may be read for a client, and sent to it: not if too much of what was read for all,
        or for itself, was not taken yet. One answer alone is sent, however large."""
        if self._answers.bytes:
            self._answers.check(0 if answer is None else answer.size, request.client)

    async def serve(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        name: str,
        handler: Handler,
        *,
        admit: Admit | None = None,
        is_native: bool = True,
    ) -> None:
        """The edge: nothing gets past it but an answer. `admit` says who a request is from; without it,
        anyone may ask, or the handler sees to that itself, as that of the other dialect does."""
        began = time.perf_counter()
        request = Incoming(scope, receive, self._options, self._bodies)
        request_id = _request_id(request.headers)
        try:
            caller = ANYONE if admit is None else await admit(request)
            answer = await handler(request, caller)
        except ClientGone:
            self._log(request_id, request.name or name, scope, 499, began=began, why="the client went away")
            return
        except Refused as refused:
            self._counters.error(refused.error)
            answer = error_answer(refused, request_id) if is_native else sls_error(refused)
        except ShoalError as error:
            self._counters.error(error)
            answer = error_answer(error, request_id) if is_native else sls_error(error)
        except SlsError as error:
            if error.why is not None:
                self._counters.error(error.why)
            answer = sls_error(error)
        except asyncio.CancelledError:
            if not self.native.waiting.is_leaving:
                raise
            lost = self._cut_short()
            answer = error_answer(lost, request_id) if is_native else sls_error(lost)
        except Exception:  # noqa: BLE001 - a request's edge: everything is answered
            _log.exception("request %s (%s) failed", request_id, name)
            self._counters.unforeseen()
            failure = StoreFailure(
                f"the server failed in a way that nobody foresaw: see its log at {request_id}"
            )
            answer = error_answer(failure, request_id) if is_native else sls_error(failure)
        finally:
            request.done()
        if not is_native:
            answer = _numbered(answer, request_id)
        if answer.closes and answer.status is not HTTPStatus.REQUEST_TIMEOUT:
            await request.discard()
        size = answer.size
        self._answers.take(size, request.client)
        try:
            await send_answer(scope, send, answer, request_id)
        finally:
            self._answers.give_back(size, request.client)
        self._log(request_id, request.name or name, scope, answer.status.value, began=began)

    def _cut_short(self) -> Refused:
        """What is still worked on when the time to stop is over. The store may yet do it: whoever asked is
        told as if the answer had been lost, and may ask again what may be asked twice."""
        error = StoreUnavailable("this server had to end before it had an answer; it may be done, or not")
        self._counters.error(error)
        return Refused(error, is_lost=True)

    def _log(
        self,
        request_id: str,
        name: str,
        scope: MutableMapping[str, Any],
        status: int,
        *,
        began: float,
        why: str = "",
    ) -> None:
        took_s = time.perf_counter() - began
        self._counters.request(name, status, took_s)
        waits = name in _WAITS
        level = logging.INFO if status >= 500 or (took_s > _SLOW_S and not waits) else logging.DEBUG
        if _log.isEnabledFor(level) or self._tracing is not None:
            client = scope.get("client") or ("?", 0)
            fields = {
                "request": request_id,
                "call": name,
                "method": scope["method"],
                "path": scope["path"][:200],
                "status": status,
                "ms": round(took_s * 1000, 2),
                "client": client[0],
            }
            if why:
                fields["why"] = why
            _log.log(level, "%s %s", name, status, extra={"fields": fields})
            if self._tracing is not None:
                now_ns = time.time_ns()
                began_ns = now_ns - int(took_s * 1e9)
                self._tracing.request(name, scope["headers"], began_ns, now_ns, **fields)

    async def _sls(self, request: Incoming, caller: Caller) -> Answer:  # noqa: ARG002
        answer = await self.sls.answer(request)
        if request.name == SlsApi.PULL or answer.size > _LARGE:
            self._check_answers(request, answer)
        return answer

    async def _unknown(self, request: Incoming, caller: Caller) -> Answer:  # noqa: ARG002
        self.rates.take(request.client, time.monotonic())
        path, method = request.scope["path"], request.scope["method"]
        if path in _BY_PATH or path in _PATHS:
            wanted = "POST" if path in _BY_PATH else "GET"
            raise Refused(
                InvalidInput("method", method, f"this one is called with {wanted}"),
                HTTPStatus.METHOD_NOT_ALLOWED,
                headers=[(b"allow", wanted.encode())],
            )
        raise Refused(
            InvalidInput("path", path[:200], f"there is nothing here; see {PREFIX}/openapi.json"),
            HTTPStatus.NOT_FOUND,
        )

    async def _healthy(self, request: Incoming, caller: Caller) -> Answer:  # noqa: ARG002
        """The process is there. Whether its store is, `/readyz` says."""
        return json_answer({"status": "ok", "version": self._version})

    async def _ready(self, request: Incoming, caller: Caller) -> Answer:  # noqa: ARG002
        self._check_onlooker(request)
        return await self._readiness()

    def _check_onlooker(self, request: Incoming) -> None:
        """Where no user is defined, it is told of the store, and of groups."""
        if not self.access.was_on:
            self._check_site(request)

    async def _look_if_ready(self) -> Answer:
        self.native.waiting.check_leaving()
        try:
            is_guarded = await _soon(self._state())
        except ShoalError as error:  # Whatever is wrong with its store: others may serve meanwhile.
            told = self.access.told(error)
            raise Refused(told, HTTPStatus.SERVICE_UNAVAILABLE) from error
        if is_guarded:
            return json_answer({"status": "ready"})
        return json_answer({"status": "ready", "store": self._hub.description})

    async def _ask_store(self) -> bool:
        """Whether access control is on; an error, if the store does not answer."""
        await self._turns.run_own(self._hub.list_projects)
        return await self.access.is_on(self._turns.run_own)

    async def _metrics(self, request: Incoming, caller: Caller) -> Answer:  # noqa: ARG002
        self.rates.take(request.client, time.monotonic())
        self._check_onlooker(request)
        return await self._figures()

    async def _look_at_figures(self) -> Answer:
        is_up, lag = False, b""
        with suppress(ShoalError, Refused):  # What was counted is told all the same.
            is_guarded = await _soon(self._state())
            is_up = True
            # Names of streams and groups are not for everyone, once there are users.
            if not is_guarded or self._options.open_metrics:
                lag = await _soon(self._lag(), _LAG_S)
        return Answer([self._counters.text(is_up) + lag], CONTENT_TYPE_LATEST.encode())

    async def _look_at_lag(self) -> bytes:
        return await self._turns.run_own(lag_text, self._hub)  # type: ignore[no-any-return]

    async def _document(self, request: Incoming, caller: Caller) -> Answer:  # noqa: ARG002
        self.rates.take(request.client, time.monotonic())
        if self._openapi is None:
            self._openapi = json.dumps(document(self._version)).encode()
        return Answer([self._openapi])

    def malformed(self, target: bytes, headers: Headers) -> bytes:
        """What is answered to that which is no request of HTTP, by what could be read of it."""
        remedy = "send one request of HTTP/1.1, of one length, for a path"
        refused = Refused(InvalidInput("request", "cannot be read", remedy), HTTPStatus.BAD_REQUEST)
        return self._unasked("malformed", refused, is_native=not looks_sls(target, headers))

    def crowded(self, target: bytes, headers: Headers) -> bytes:
        """What is answered to a connection too many, by what it asked for, if it did."""
        limit = self._options.connections_max
        busy = StoreBusy(f"the server has its {limit} connections (--max-connections)", 0.0)
        refused = Refused(busy, is_untouched=True)
        return self._unasked("crowded", refused, is_native=not looks_sls(target, headers))

    def _unasked(self, name: str, refused: Refused, *, is_native: bool) -> bytes:
        request_id = new_request_id()
        answer = error_answer(refused, request_id) if is_native else _numbered(sls_error(refused), request_id)
        self._counters.request(name, answer.status.value, 0.0)
        return written(answer, request_id)

    @property
    def is_leaving(self) -> bool:
        """Who is answered from now on makes the next request elsewhere."""
        return self.native.waiting.is_leaving

    def leave(self) -> None:
        """Tell all who wait to go elsewhere."""
        self.native.waiting.leave()

    def close(self) -> None:
        """When nothing is in flight any more."""
        self._turns.close()
        self._door.close()
        self._hub.close()
        if self._tracing is not None:
            self._tracing.close()


class _Endpoint:
    """A handler as Starlette wants it: an ASGI application of its own, inside our edge."""

    def __init__(self, application: Application, name: str, handler: Handler) -> None:
        self._application, self._name, self._handler = application, name, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._application.serve(scope, receive, send, self._name, self._handler)


async def _soon(look: Awaitable[Found], within_s: float = _STORE_S) -> Found:
    """What the store says, if it says it soon: a store that hangs refuses nothing."""
    try:
        async with asyncio.timeout(within_s):
            return await look
    except TimeoutError as error:
        raise StoreUnavailable(f"the store has not answered within {within_s:g} s") from error


def _numbered(answer: Answer, request_id: str) -> Answer:
    """With the number where Aliyun's clients look for it."""
    return replace(answer, headers=(*answer.headers, (b"x-log-requestid", request_id.encode())))


def _request_id(headers: dict[bytes, bytes]) -> str:
    """The client's own, if it is one that a log can hold; otherwise a number of this process."""
    given = headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode("ascii")
    return new_request_id()


_BY_PATH: Final = {call.path: call for call in CALLS.values()}
_PATHS: Final = {HEALTH_PATH.decode(), "/readyz", "/metrics", f"{PREFIX}/openapi.json"}
_WAITS: Final = {f"{call.part}.{call.name}" for call in CALLS.values() if call.waits}


def _check_host(scope: Scope) -> None:
    """One Host, as HTTP/1.1 has it: with two, whoever stands before the server may have gone by the other."""
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if len(hosts) != 1 and scope["http_version"] == "1.1":
        value = b", ".join(hosts).decode("latin-1")[:200]
        raise Refused(InvalidInput("Host", value, "a request has one Host"))
