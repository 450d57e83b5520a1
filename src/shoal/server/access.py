"""The door: whose key signed a request, and what its user may do. Rules are in `core.access` and
`core.replay`; which call needs what is in `native.needs`.

With no user defined everyone may do everything. From the first user on, nothing goes without a key. Which
keys there are is in `server.keys`.

Another dialect, whose requests are signed in another way, asks three things: `is_on`, `known` (the secret of
a key, and who it is) and `check_needs` (what a call needs). See `server.sls.admission`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from starlette.types import Scope

from shoal.access_port import AccessStore
from shoal.core.access import EVERYWHERE, group_resource, stream_resource
from shoal.core.errors import (
    AccessDenied,
    InvalidInput,
    NotSignedIn,
    ReplayedRequest,
    ShoalError,
    SignedForAnother,
    StoreUnavailable,
    UnknownGroup,
)
from shoal.core.limits import SIGNED_MS
from shoal.core.model import StreamName
from shoal.core.replay import Nonces, check_date
from shoal.native.needs import SEE_GROUP, GroupNumber, Need, StreamNumber, listed, needs_of
from shoal.server.keys import ANYONE, CACHE_S, Caller, Keys, KnownKey, Run, bounded
from shoal.server.requests import Refused
from shoal.server.sealing import VARIABLE, Seal
from shoal.wire.signing import ANY_SERVER, is_right, parse_header

_log: Final = logging.getLogger("shoal.server")

Found = TypeVar("Found")


class Nonce(NamedTuple):
    """What a request shows that any server of a store may take: none may take it twice."""

    digest: str
    until_ms: int
    now_ms: int


class Admitted(NamedTuple):
    """Whose request it is, by what is signed."""

    caller: Caller
    digest: str | None = None
    """That its body has to have."""
    nonce: Nonce | None = None
    """To be used up before anything is done. This server has seen it by now, whatever becomes of that."""


class Access:
    """Keeps the door of one server. For one event loop; what waits for the store goes through `run`."""

    def __init__(
        self,
        store: AccessStore,
        seal: Seal | None,
        *,
        identity: str,
        is_needed: bool = False,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        hidden: Callable[[AccessDenied], None] = lambda _: None,
    ) -> None:
        """`hidden`: hears of refusals of which the caller is told something else."""
        self._store, self._seal, self._clock_ms = store, seal, clock_ms
        self._hidden = hidden
        self.server = secrets.token_hex(8)
        """Its name, until it ends or its clock is set back: no other server takes what is signed for it."""
        self._any_server = ANY_SERVER + identity
        self._nonces = Nonces()
        self._is_needed = is_needed
        """Others than this machine reach the server: it does not open up when the last user is deleted."""
        self.was_on = False
        """When the store was last asked."""
        self._looked_s = float("-inf")
        self._look: asyncio.Future[bool] | None = None
        """The one that is under way: who comes meanwhile hears what it finds."""
        self._is_keyless = False
        """Users were defined after it was started, and it has nothing to open their keys with."""
        self._keys = Keys(store, seal)
        self._groups: dict[int, tuple[StreamName, str]] = {}
        self._streams: dict[int, StreamName] = {}

    def look(self) -> bool:
        """Whether a user is defined, as of now. Waits for the store."""
        has_users = self._store.has_users()
        was_keyless, self._is_keyless = self._is_keyless, has_users and self._seal is None
        self.was_on = has_users or self._is_needed
        self._looked_s = time.monotonic()
        if self._is_keyless:
            if not was_keyless:
                _log.error("nobody is let in: %s", _KEYLESS)
            raise InvalidInput(VARIABLE, "not set", "users are defined, and their keys are sealed with it")
        return has_users

    async def is_on(self, run: Run) -> bool:
        """Whether access control is on: whether a user is defined. Refused, if one is, and this server was
        started without what opens keys: another may have it."""
        if time.monotonic() - self._looked_s > CACHE_S:
            if self._look is None:
                self._look = asyncio.ensure_future(self._asked(run(self.look)))
                self._look.add_done_callback(self._looked)
            with suppress(InvalidInput):  # It is remembered, and so told without a look each time.
                await asyncio.shield(self._look)
        if self._is_keyless:
            raise Refused(StoreUnavailable(_KEYLESS), is_untouched=True)
        return self.was_on

    def _looked(self, look: asyncio.Future[bool]) -> None:
        self._look = None
        if not look.cancelled():
            look.exception()  # Who has asked may be gone by now.

    # --- Who it is. ---

    async def admit(self, scope: Scope, client: str, run: Run) -> Admitted:
        """Who makes a native request, by its head and its address; or an error.

        Nothing is remembered of a request whose signature is not right.
        """
        if not await self.is_on(run):
            return Admitted(ANYONE)
        headers = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(headers) != 1:
            raise NotSignedIn(
                "users are defined, so requests have to be signed: connect with http://KEY:SECRET@host"
                if not headers
                else "there are several Authorization headers"
            )
        signed = parse_header(headers[0].decode("latin-1"))
        target = scope["raw_path"].decode("latin-1")
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("latin-1")
        known = await self.known(signed.key, client, run)
        if known is None or not is_right(known.secret, signed, method=scope["method"], target=target):
            raise NotSignedIn(
                "the key is not known or not enabled, or the signature is not that of its secret"
            )
        now_ms = self._clock_ms()
        if self._nonces.is_behind(now_ms):
            self.server, self._nonces = secrets.token_hex(8), Nonces()
        check_date(signed.date_ms, now_ms)
        if signed.server not in (self.server, self._any_server):
            raise Refused(SignedForAnother(server=self.server, store=self._any_server), is_untouched=True)
        self._nonces.take(f"{signed.key}:{signed.nonce}", signed.date_ms, now_ms, known.caller.name)
        if signed.server == self._any_server:
            digest = hashlib.sha256(f"{signed.key}:{signed.nonce}".encode()).hexdigest()
            nonce = Nonce(digest, signed.date_ms + _KEPT_MS, now_ms)
            return Admitted(known.caller, signed.digest, nonce)
        return Admitted(known.caller, signed.digest)

    async def use_up(self, nonce: Nonce, run: Run) -> None:
        """ReplayedRequest, if a server of this store has seen it. `run` waits for the client's turn: it is
        known by now."""
        if not await run(self._store.keep_nonce, nonce.digest, nonce.until_ms, nonce.now_ms):
            raise ReplayedRequest

    async def known(self, key_id: str, client: str, run: Run) -> KnownKey | None:
        """A key that is there and enabled, for a client at this address."""
        return await self._asked(self._keys.known(key_id, client, run))

    async def _asked(self, look: Awaitable[Found]) -> Found:
        """What the store says, before it is known who asks."""
        try:
            return await look
        except StoreUnavailable as error:
            raise self.told(error) from error

    def told(self, error: ShoalError) -> ShoalError:
        """What a stranger hears of the store: where it is, the log knows."""
        if not self.was_on or not isinstance(error, StoreUnavailable):
            return error
        _log.warning("%s", error)
        return StoreUnavailable("this server does not reach its store (see its log); ask again, or another")

    # --- What it may do. ---

    def check(self, caller: Caller, need: Need) -> None:
        """AccessDenied, unless the caller meets a need that names what it is about."""
        assert isinstance(need.where, str), "a number has to be looked up first"
        if not caller.meets(need.actions, need.where, need.own):
            raise AccessDenied(user=caller.name, action=need.own or need.actions[0], resource=need.where)

    async def check_call(
        self, caller: Caller, part: str, call: str, arguments: Mapping[str, Any], run: Run
    ) -> None:
        """AccessDenied, unless the caller may make this native call."""
        if caller.may_all:
            return
        for need in needs_of(part, call, arguments):
            if isinstance(need.where, str):
                self.check(caller, need)
            else:
                await self._check_numbered(caller, need.actions, need.where, run)

    async def check_again(
        self, caller: Caller, part: str, call: str, arguments: Mapping[str, Any], run: Run
    ) -> None:
        """The same for one who was let in, and has waited since: its key may have been taken away, its
        policies changed, or the first user defined."""
        if not await self.is_on(run):
            return
        known = None if caller.key_id is None else await self.known(caller.key_id, caller.name, run)
        if known is None:
            raise NotSignedIn("the key was taken away while the request waited, or it never had one")
        if known.caller is not caller:
            await self.check_call(known.caller, part, call, arguments, run)

    def check_append(self, caller: Caller, name: StreamName) -> None:
        """The same for an append, in any thread."""
        if not caller.may_all:
            self.check_needs(caller, needs_of("hub", "append", {"name": name}))

    def check_needs(self, caller: Caller, needs: Iterable[Need]) -> None:
        """The same for needs that name what they are about, in any thread."""
        for need in needs:
            self.check(caller, need)

    def shown(self, caller: Caller, part: str, call: str, arguments: Mapping[str, Any], value: Any) -> Any:
        """The answer of a call, without what the caller may not see of a list."""
        needs = None if caller.may_all else listed(part, call, arguments, value)
        if needs is None:
            return value
        return [
            one
            for one, need in zip(value, needs, strict=True)
            if caller.meets(need.actions, str(need.where), need.own)
        ]

    async def _check_numbered(
        self, caller: Caller, actions: Sequence[str], where: GroupNumber | StreamNumber, run: Run
    ) -> None:
        """The same for what is named by its number. Who may not see it is told what one is told of a number
        that nothing has, and hears no name."""
        try:
            resource = await self._resource(where, run)
        except UnknownGroup:
            if not caller.meets(actions, EVERYWHERE):
                self._hidden(_denied(caller, actions, where))
            raise
        if caller.meets(actions, resource or EVERYWHERE):
            return  # That nothing is there, the call itself will say.
        match where:
            case StreamNumber():
                raise _denied(caller, actions, where)
            case GroupNumber(number, stream):
                if resource is not None and caller.meets(SEE_GROUP, resource):
                    raise AccessDenied(user=caller.name, action=actions[0], resource=resource)
                # Whether something has the number or nothing: the figures, too, would tell the two apart.
                self._hidden(_denied(caller, actions, where))
                raise UnknownGroup(stream=str(stream or "?"), group=str(number))

    async def _resource(self, where: GroupNumber | StreamNumber, run: Run) -> str | None:
        """What has this number, in the stream that is named with it, if one is; None: nothing has."""
        match where:
            case StreamNumber(number):
                stream = self._streams.get(number) or await run(self._store.stream_place, number)
                if stream is None:
                    return None
                bounded(self._streams)[number] = stream
                return stream_resource(stream)
            case GroupNumber(number, stream_named):
                found = self._groups.get(number) or await run(self._store.group_place, number)
                if found is None:
                    return None
                bounded(self._groups)[number] = found
                stream, group = found
                if stream_named is not None and stream_named != stream:
                    raise UnknownGroup(stream=str(stream_named), group=str(number))
                return group_resource(stream, group)


def _denied(caller: Caller, actions: Sequence[str], where: GroupNumber | StreamNumber) -> AccessDenied:
    """The refusal of one who may not hear the name of what has this number."""
    kind = "stream" if isinstance(where, StreamNumber) else "group"
    return AccessDenied(user=caller.name, action=actions[0], resource=f"{kind} number {where.number}")


_KEYLESS: Final = f"users are defined, and this server was started without {VARIABLE}; start it with theirs"
_KEPT_MS: Final = 10 * SIGNED_MS
"""Nonces in the store are kept for longer than needed: the clocks of servers differ."""
