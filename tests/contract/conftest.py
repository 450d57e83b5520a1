"""Stores for the contract: one database of each kind for all tests, as each has its own project."""

from collections.abc import Iterator

import pytest

import shoal
from shoal import Hub
from shoal.testing.server import Server

pytest.register_assert_rewrite(
    "shoal.testing.contract",
    "shoal.testing.reading",
    "shoal.testing.members",
    "shoal.testing.processing",
    "shoal.testing.polling",
)


@pytest.fixture(scope="module", params=["sqlite", "postgresql", "mariadb"])
def shared_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a database that the tests of a file share; they run once on each kind of store."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('shared') / 'shoal.db'}"
        return
    server = request.getfixturevalue("postgres_server" if request.param == "postgresql" else "mariadb_server")
    assert isinstance(server, Server)
    url = server.fresh_database()
    yield url
    server.drop_database(url)


@pytest.fixture(scope="module")
def shared_hub(shared_url: str) -> Iterator[Hub]:
    """A hub that the tests of a file share."""
    with shoal.connect(shared_url) as hub:
        yield hub
