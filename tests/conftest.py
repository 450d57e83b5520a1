"""What every test may ask for: databases that are empty and real, and programs that may be missing here.

A server starts when the first test asks for it and serves the whole run; each test gets a database of its
own. A test that needs a program which this machine does not have is skipped, and the last line of the run
says which package is missing and which tests did not run. With CI=true it is an error instead: there,
nothing may be left out unnoticed. Not for: hubs, streams or clocks; those belong to the tests that speak of
them.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import pytest

from shoal.testing.machine import PACKAGES, find_program
from shoal.testing.server import Server
from shoal.testing.servers import MariaDBServer, PostgresServer, RedisServer

STORES: Final = ("sqlite", "postgresql", "mariadb")
MISSING: Final = "missing package: "

AnyServer = TypeVar("AnyServer", bound=Server)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of an SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'shoal.db'}"


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    """The kind of store this test runs on; who asks for it runs once on each."""
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture
def store_url(fresh_store_url: Callable[[], str]) -> str:
    """The URL of an empty database; a test that asks for it runs once on each kind of store."""
    return fresh_store_url()


@pytest.fixture
def fresh_store_url(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[[], str]]:
    """Makes an empty database at every call, for tests that play many histories; drops them in the end."""
    made: list[str] = []
    if store == "sqlite":

        def make() -> str:
            made.append(f"sqlite:///{tmp_path / f'shoal-{len(made)}.db'}")
            return made[-1]

        yield make
        return

    server = request.getfixturevalue("postgres_server" if store == "postgresql" else "mariadb_server")
    assert isinstance(server, Server)

    def make_on_server() -> str:
        made.append(server.fresh_database())
        return made[-1]

    _ensure_running(server)
    yield make_on_server
    _ensure_running(server)
    for url in made:
        server.drop_database(url)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """PostgreSQL, shared by all tests of the run. Who stops it starts it again."""
    yield from _serve(PostgresServer)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    """MariaDB, shared by all tests of the run. Who stops it starts it again."""
    yield from _serve(MariaDBServer)


@pytest.fixture(scope="session")
def java() -> None:
    """Spark's machine."""
    _require("java")


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """Redis, shared by all tests of the run."""
    yield from _serve(RedisServer)


@pytest.fixture(scope="session")
def strace() -> Path:
    """The program that shows which system calls a process makes."""
    return _require("strace")


def _serve(kind: type[AnyServer]) -> Iterator[AnyServer]:
    _require(kind.program)
    with kind() as server:
        yield server


def _ensure_running(server: Server) -> None:
    # A test that failed between stopping a server and starting it must not fail all the tests after it.
    if not server.is_running:
        server.start()


def _require(program: str) -> Path:
    found = find_program(program)
    if found is not None:
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(f"{MISSING}{PACKAGES[program]} (with CI=true nothing is skipped)", pytrace=False)
    pytest.skip(f"{MISSING}{PACKAGES[program]}")


class MissingPackages:
    """Collects the tests that did not run for want of a package, and says so after everything else.

    Where `SHOAL_LEFT_OUT` names a file, it holds what earlier runs of the same command left out, a line each.
    """

    def __init__(self) -> None:
        self.packages: set[str] = set()
        self.tests: Counter[str] = Counter()
        self._file = Path(os.environ.get("SHOAL_LEFT_OUT", os.devnull))
        for line in self._file.read_text().splitlines():
            self._note(*line.split("\t"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == "passed" or report.when != "setup":
            return
        if found := re.search(re.escape(MISSING) + r"([a-z0-9.+-]+)", str(report.longrepr)):
            file = report.nodeid.partition("::")[0]
            self._note(found[1], file)
            with self._file.open("a") as left_out:
                left_out.write(f"{found[1]}\t{file}\n")

    def _note(self, package: str, file: str) -> None:
        self.packages.add(package)
        self.tests[file] += 1

    def line(self) -> str:
        packages = ", ".join(sorted(self.packages))
        tests = ", ".join(f"{count} of {file}" for file, count in sorted(self.tests.items()))
        return f"{MISSING}{packages}; tests that did not run: {tests}"

    # The summary with the counts is printed when the session ends; this hook comes after it.
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if self.packages and reporter is not None:
            reporter.write_line(self.line())


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # One of several side by side: who started it hears of every test.
        return
    config.pluginmanager.register(MissingPackages(), "shoal-missing-packages")
