"""A hub that a server keeps, on SQLite: the whole contract again, over HTTP."""

from collections.abc import Iterator

import pytest

import shoal
from shoal import Hub
from shoal.testing.contract import HubContract
from shoal.testing.serving import served
from tests.contract.served_hub import ServedHub


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


class TestRemoteHub(ServedHub, HubContract):
    """On SQLite."""
