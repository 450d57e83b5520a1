"""A server whose store is there and says nothing, or is away: what it says of itself, and to strangers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from shoal.server.sealing import VARIABLE, new_master_key
from shoal.testing.members import eventually
from shoal.testing.servers import PostgresServer
from shoal.testing.users import guarded
from tests.scenario.asking import asked

pytestmark = pytest.mark.alone


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A process and all that it has started stand still."""
    still = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for process in still:
        process.suspend()
    try:
        yield
    finally:
        for process in still:
            process.resume()


def test_while_its_store_says_nothing_a_server_tells_so_soon_and_to_strangers_not_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, new_master_key())
    with PostgresServer() as database, guarded(database.fresh_database()) as door:

        def is_ready() -> bool:
            return asked(door.url, "/readyz", method="GET")[0] == 200

        assert is_ready()
        with frozen(database.pid):
            for _ in range(2):
                began = time.monotonic()
                status, figures = asked(door.url, "/metrics", method="GET")
                assert status == 200
                assert b"shoal_server_store_up 0.0" in figures
                status, told = asked(door.url, "/readyz", method="GET")
                assert (status, told["error"]) == (503, "StoreUnavailable")
                assert asked(door.url, "/healthz", method="GET")[0] == 200
                assert time.monotonic() - began < 12
        eventually(is_ready, "it goes on")
        database.stop("immediate")
        eventually(lambda: asked(door.url, "/v1/hub/list_projects")[0] == 503, "nobody can be let in")
        for path, method in (("/readyz", "GET"), ("/v1/hub/list_projects", "POST"), ("/logstores", "GET")):
            status, told = asked(door.url, path, method=method, Host="a.localhost")
            assert status == 503
            assert str(database.port) not in str(told)
            assert "postgres" not in str(told)
        database.start()
        eventually(is_ready, "it is there again")
