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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What a store has no part in is shown on SQLite alone."""
    spared = [item for item in items if _is_of_rules(item) and _store(item) not in {None, "sqlite"}]
    if spared:
        config.hook.pytest_deselected(items=spared)
        gone = set(spared)
        items[:] = [item for item in items if item not in gone]


def _is_of_rules(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and getattr(item.function, "is_of_rules", False)


def _store(item: pytest.Item) -> object:
    return item.callspec.params.get("shared_url") if hasattr(item, "callspec") else None


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
