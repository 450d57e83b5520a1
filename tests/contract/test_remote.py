"""A hub that a server keeps, on SQLite: the whole contract again, over HTTP."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import shoal
from shoal import Hub
from shoal.testing.contract import HubContract
from shoal.testing.contract.suite import ConnectAgain
from shoal.testing.serving import connected, served


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('served') / 'shoal.db'}"


@pytest.fixture(scope="module")
def served_url(store_url: str) -> Iterator[str]:
    with served(store_url) as url:
        yield url


@pytest.fixture(scope="module")
def served_hub(served_url: str) -> Iterator[Hub]:
    with shoal.connect(served_url) as hub:
        yield hub


class TestRemoteHub(HubContract):
    @pytest.fixture
    def hub_url(self, served_url: str) -> str:
        return served_url

    @pytest.fixture
    def hub(self, served_hub: Hub) -> Hub:
        return served_hub

    @pytest.fixture
    def connect_again(self, store_url: str, hub_url: str) -> Iterator[ConnectAgain]:
        """What a client cannot have, a server of its own has: several of them serve one store."""
        with ExitStack() as opened:

            def open_one(**settings: Any) -> Hub:
                return opened.enter_context(connected(store_url, hub_url, **settings))

            yield open_one
