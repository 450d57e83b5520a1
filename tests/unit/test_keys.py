"""What a server believes of keys, and how often it looks them up."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shoal.core.access import AccessKey
from shoal.core.errors import RateExceeded, StoreUnavailable
from shoal.server.access import Access
from shoal.server.keys import ALL_STRANGERS_PER_S, CACHE_S, STRANGERS_PER_S, Keys
from shoal.server.requests import Refused
from shoal.server.sealing import VARIABLE, Seal, new_key_id, new_master_key, new_secret
from shoal.store.sql.store import SQLStore


class World:
    """Keys over a store, the looks that were made at it, and the time."""

    def __init__(self, store: SQLStore) -> None:
        self._store, self._seal = store, Seal(new_master_key())
        self.now_s = 100.0
        self.keys = Keys(store.access, self._seal, lambda: self.now_s)
        self.looks: Counter[str] = Counter()
        store.access.create_user("user", 0)

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.looks[arguments[0]] += 1
        await asyncio.sleep(0)
        return function(*arguments)

    async def is_known(self, key: str, client: str = "here") -> bool:
        return await self.keys.known(key, client, self.run) is not None

    def make(self, key: str = "") -> str:
        key = key or new_key_id()
        sealed = self._seal.seal(key, new_secret())
        self._store.access.create_key(
            AccessKey(id=key, user="user", is_enabled=True, created_ms=0, sealed=sealed)
        )
        return key

    async def flood(self, count: int, client: str = "") -> int:
        """Ask for ids that are made up, from one address or from many; how many were refused unseen."""
        refused = 0
        for number in range(count):
            try:
                assert not await self.is_known(f"made-up-{number}", client or f"address-{number}")
            except RateExceeded:
                refused += 1
        return refused


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    store = SQLStore.open(f"sqlite:///{tmp_path / 'shoal.db'}")
    try:
        yield World(store)
    finally:
        store.close()


def test_an_id_that_no_key_has_is_looked_up_once_in_a_while(world: World) -> None:
    async def story() -> None:
        for key in ("made-up", "made-up", "other", "made-up"):
            assert not await world.is_known(key)
        assert not any(await asyncio.gather(*(world.is_known("at once") for _ in range(50))))
        assert world.looks == {"made-up": 1, "other": 1, "at once": 1}
        world.make("made-up")
        world.now_s += CACHE_S + 0.1
        assert await world.is_known("made-up")

    asyncio.run(story())


def test_made_up_ids_from_one_address_cost_few_looks_and_shut_nobody_else_out(world: World) -> None:
    async def story() -> None:
        known, new = world.make(), world.make()
        assert await world.is_known(known, "flooder")
        refused = await world.flood(20 * STRANGERS_PER_S, "flooder")
        assert refused == 19 * STRANGERS_PER_S
        assert world.looks.total() == STRANGERS_PER_S + 1
        assert await world.is_known(new, "elsewhere")
        world.now_s += CACHE_S + 0.1
        await world.flood(20 * STRANGERS_PER_S, "flooder")
        assert await world.is_known(known, "flooder")
        assert world.looks.total() <= 2 * STRANGERS_PER_S + 3

    asyncio.run(story())


def test_made_up_ids_from_many_addresses_are_bounded_together(world: World) -> None:
    async def story() -> None:
        known = world.make()
        assert await world.is_known(known)
        assert await world.flood(3 * ALL_STRANGERS_PER_S) == 2 * ALL_STRANGERS_PER_S
        assert world.looks.total() == ALL_STRANGERS_PER_S + 1
        world.now_s += CACHE_S + 0.1
        await world.flood(3 * ALL_STRANGERS_PER_S)
        assert await world.is_known(known)

    asyncio.run(story())


def test_keys_that_are_good_take_nothing_from_those_that_come_after_them(world: World) -> None:
    async def story() -> None:
        for _ in range(3 * STRANGERS_PER_S):
            assert await world.is_known(world.make(), "a proxy")

    asyncio.run(story())


def test_a_key_stays_known_through_an_outage_of_the_store(world: World) -> None:
    async def failing(*_: Any) -> Any:
        raise OSError

    async def story() -> None:
        known = world.make()
        assert await world.is_known(known)
        await world.flood(2 * STRANGERS_PER_S, "here")
        world.now_s += CACHE_S + 0.001
        await world.flood(20 * STRANGERS_PER_S, "here")
        for _ in range(3):
            with suppress(OSError):
                await world.keys.known(known, "here", failing)
        assert await world.is_known(known)

    asyncio.run(story())


def test_a_server_without_the_master_key_refuses_all_once_a_user_is_defined_and_looks_now_and_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It asked the store with every request, and answered each with a fault."""
    looks = 0

    async def run(function: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return function(*arguments)

    async def story(access: Access) -> None:
        for _ in range(50):
            with pytest.raises(Refused, match=VARIABLE) as raised:
                await access.is_on(run)
            assert raised.value.is_untouched
            assert isinstance(raised.value.error, StoreUnavailable)

    store = SQLStore.open(f"sqlite:///{tmp_path / 'shoal.db'}")
    try:
        store.access.create_user("user", 0)
        asyncio.run(story(Access(store.access, None, identity="store")))
    finally:
        store.close()
    assert looks == 1
    (line,) = caplog.records
    assert VARIABLE in line.getMessage()
