"""Aliyun's own client, and a server for it."""

from collections.abc import Iterator

import pytest

import shoal
from shoal import Hub
from shoal.testing.serving import served
from tests.sls.client import starter
from tests.sls.running import Start


@pytest.fixture(scope="session")
def start() -> Start:
    """Starts a program of this folder with the client."""
    return starter()


@pytest.fixture
def url(sqlite_url: str) -> Iterator[str]:
    """A server on SQLite."""
    with served(sqlite_url) as url:
        yield url


@pytest.fixture
def hub(url: str) -> Iterator[Hub]:
    """A native client of that server."""
    with shoal.connect(url) as hub:
        yield hub
