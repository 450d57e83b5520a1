"""Keys, and whose they are, as the store says.

That is believed for CACHE_S seconds, so that a key that is taken away is refused on every server after that
at the latest. Ids that this server does not know yet are looked up at a bounded rate, for each address and in
all: who makes them up must not keep the store busy. A key that was known a moment ago, or that turns out to
be one, takes nothing from that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from shoal.access_port import AccessStore
from shoal.core.access import Rights
from shoal.core.errors import InvalidInput, RateExceeded, StoreFailure
from shoal.core.rate import Rates
from shoal.server.sealing import VARIABLE, Seal
from shoal.wire.policies import parse_policy

CACHE_S: Final = 2.0
"""How long what the store said about a key is believed: a look at every request would cost more than most
requests do."""
STRANGERS_PER_S: Final = 50
"""Looks for ids that are not known, for one address: each client has one or two, and comes again."""
ALL_STRANGERS_PER_S: Final = 500
"""The same for all addresses: a tenth of what a store can do."""
_CACHED: Final = 10_000
_DECISIONS: Final = 10_000
_AS_STRANGER: Final = "{}, with keys that are not known here yet,"

Run = Callable[..., Awaitable[Any]]
"""Calls a function that may wait for the store, in a thread."""


class Caller:
    """Who makes a request: the user's name, and what its policies allow; without them, everything. With the
    id of the key that it has used, if there was one."""

    def __init__(self, name: str, rights: Rights | None = None, key_id: str | None = None) -> None:
        self.name, self.key_id = name, key_id
        self._rights = rights
        self._decided: dict[tuple[str, ...], bool] = {}

    def may(self, action: str, resource: str) -> bool:
        """Whether it may."""
        return self.meets((action,), resource)

    def meets(self, actions: Sequence[str], resource: str, own: str = "") -> bool:
        """See Rights. The same question is answered from memory."""
        if self._rights is None:
            return True
        asked = (*actions, own, resource)
        found = self._decided.get(asked)
        if found is None:
            if len(self._decided) >= _DECISIONS:
                self._decided.clear()
            found = self._decided[asked] = self._rights.meets(actions, resource, own)
        return found

    @property
    def may_all(self) -> bool:
        return self._rights is None

    def __repr__(self) -> str:
        return f"<Caller {self.name}>"


ANYONE: Final = Caller("anyone")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """A key that may be used, its secret, and whose it is."""

    id: str
    secret: str = field(repr=False)
    caller: Caller


class Keys:
    """Those that were looked up. For one event loop; what waits for the store goes through `run`."""

    def __init__(
        self, store: AccessStore, seal: Seal | None, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._seal, self._clock_s = store, seal, clock_s
        self._keys: dict[str, tuple[KnownKey, float]] = {}
        self._strangers: dict[str, float] = {}
        """Ids that no key had, and when that was: who tries one again costs no look at the store. Apart from
        the keys, so that those who make up ids push no key out."""
        self._looks: dict[str, asyncio.Future[KnownKey | None]] = {}
        """Those under way: who comes meanwhile hears what is found."""
        self._rates = Rates(STRANGERS_PER_S)
        self._rates_of_all = Rates(ALL_STRANGERS_PER_S)

    async def known(self, key_id: str, client: str, run: Run) -> KnownKey | None:
        """A key that is there and enabled, for a client at this address; or RateExceeded."""
        found = self._keys.get(key_id)
        now_s = self._clock_s()
        if found is not None and now_s - found[1] <= CACHE_S:
            return found[0]
        if now_s - self._strangers.get(key_id, float("-inf")) <= CACHE_S:
            return None
        look = self._looks.get(key_id)
        if look is None:
            if found is None:
                self._count(client, now_s)
            look = asyncio.ensure_future(self._look(key_id, None if found else client, run))
            self._looks[key_id] = look
            look.add_done_callback(partial(self._looked, key_id))
        return await asyncio.shield(look)

    def _count(self, client: str, now_s: float) -> None:
        """One more look for an id that is not known."""
        self._rates.take(_AS_STRANGER.format(client), now_s)
        try:
            self._rates_of_all.take(_AS_STRANGER.format("all clients"), now_s)
        except RateExceeded:
            self._rates.give_back(_AS_STRANGER.format(client))
            raise

    async def _look(self, key_id: str, counted: str | None, run: Run) -> KnownKey | None:
        """`counted` is the client for whom it is one of an id that was not known."""
        loaded: KnownKey | bool = await run(self._load, key_id)
        if isinstance(loaded, KnownKey):
            bounded(self._keys)[key_id] = (loaded, self._clock_s())
            self._strangers.pop(key_id, None)
            if counted is not None:
                self._rates.give_back(_AS_STRANGER.format(counted))
                self._rates_of_all.give_back(_AS_STRANGER.format("all clients"))
            return loaded
        self._keys.pop(key_id, None)
        if not loaded:
            bounded(self._strangers)[key_id] = self._clock_s()
        return None

    def _looked(self, key_id: str, look: asyncio.Future[KnownKey | None]) -> None:
        del self._looks[key_id]
        if not look.cancelled():
            look.exception()  # Whoever waits raises it; all may have gone.

    def _load(self, key_id: str) -> KnownKey | bool:
        """The key; or, if it cannot be used, whether it is there."""
        grant = self._store.grant(key_id)
        if grant is None:
            return False
        if not grant.key.is_enabled:
            return True
        try:
            if self._seal is None:
                raise InvalidInput(VARIABLE, "not set", "the secrets of keys are sealed with it")
            secret = self._seal.open(key_id, grant.key.sealed)
            statements = [one for text in grant.policies for one in parse_policy(text)]
        except InvalidInput as error:  # It is not the caller who is wrong.
            raise StoreFailure(str(error)) from error
        caller = Caller(grant.key.user, Rights(statements), key_id)
        return KnownKey(id=key_id, secret=secret, caller=caller)


def bounded(cache: dict[Any, Any]) -> dict[Any, Any]:
    """The same, with room for one more."""
    if len(cache) >= _CACHED:
        cache.clear()
    return cache
