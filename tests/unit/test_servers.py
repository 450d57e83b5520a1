"""The servers of `shoal.testing` themselves: tests of a store mean nothing unless these keep their word."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import psycopg
import pymysql
import pytest
import redis

from shoal.testing.machine import PACKAGES, free_port, missing
from shoal.testing.server import Server, ServerFailed
from shoal.testing.servers import MariaDBServer, PostgresServer, RedisServer

REPOSITORY = Path(__file__).parents[2]

# Each asks a server over the URL that tests are given, by the raw driver, and gives the rows as plain values.
Ask = Callable[[str, str], list[object]]


def ask_postgres(url: str, statement: str) -> list[object]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return [row[0] for row in cursor.fetchall()] if cursor.description else []


def ask_mariadb(url: str, statement: str) -> list[object]:
    address, _, database = url.removeprefix("mysql://root@").partition("/")
    host, _, port = address.partition(":")
    connection = pymysql.connect(host=host, port=int(port), user="root", database=database, autocommit=True)
    with closing(connection), connection.cursor() as cursor:
        cursor.execute(statement)
        return [row[0] for row in cursor.fetchall()]


@pytest.fixture(params=["postgresql", "mariadb"])
def server_and_ask(request: pytest.FixtureRequest) -> tuple[Server, Ask]:
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_server"), ask_postgres
    return request.getfixturevalue("mariadb_server"), ask_mariadb


def test_a_fresh_database_is_empty_and_apart_from_the_others(server_and_ask: tuple[Server, Ask]) -> None:
    server, ask = server_and_ask
    first, second = server.fresh_database(), server.fresh_database()
    ask(first, "CREATE TABLE fish (name VARCHAR(20))")

    tables = "SELECT table_name FROM information_schema.tables WHERE table_name = 'fish' AND {} = '{}'"
    schema = "table_catalog" if isinstance(server, PostgresServer) else "table_schema"
    assert ask(first, tables.format(schema, first.rpartition("/")[2])) == ["fish"]
    assert ask(second, tables.format(schema, second.rpartition("/")[2])) == []

    server.drop_database(first)
    server.drop_database(second)


def test_a_database_can_be_dropped_while_somebody_is_in_a_transaction(
    postgres_server: PostgresServer,
) -> None:
    url = postgres_server.fresh_database()
    ask_postgres(url, "CREATE TABLE fish (name VARCHAR(20))")
    with closing(psycopg.connect(url)) as connection:
        connection.execute("SELECT * FROM fish")
        postgres_server.drop_database(url)


def test_a_mariadb_database_can_be_dropped_while_somebody_is_in_a_transaction(
    mariadb_server: MariaDBServer,
) -> None:
    url = mariadb_server.fresh_database()
    ask_mariadb(url, "CREATE TABLE fish (name VARCHAR(20))")
    connection = pymysql.connect(
        host="127.0.0.1", port=mariadb_server.port, user="root", database=url.rpartition("/")[2]
    )
    with closing(connection), connection.cursor() as cursor:
        cursor.execute("SELECT * FROM fish")
        mariadb_server.drop_database(url)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_was_committed_is_there_after_a_stop_or_a_kill_on_the_same_url(
    server_and_ask: tuple[Server, Ask], end: str
) -> None:
    server, ask = server_and_ask
    url = server.fresh_database()
    ask(url, "CREATE TABLE fish (name VARCHAR(20))")
    ask(url, "INSERT INTO fish VALUES ('herring')")
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]

    getattr(server, end)()

    assert not server.is_running
    assert not any(process.is_running() for process in processes)
    with pytest.raises((psycopg.OperationalError, pymysql.OperationalError)):
        ask(url, "SELECT 1")
    server.start()
    assert ask(url, "SELECT name FROM fish") == ["herring"]
    server.drop_database(url)


def test_postgres_syncs_as_it_does_by_default(postgres_server: PostgresServer) -> None:
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        assert ask_postgres(postgres_server.url, f"SHOW {setting}") == ["on"]


def test_mariadb_syncs_as_it_does_by_default(mariadb_server: MariaDBServer) -> None:
    assert ask_mariadb(mariadb_server.url, "SELECT @@innodb_flush_log_at_trx_commit") == [1]
    assert ask_mariadb(mariadb_server.url, "SELECT @@innodb_doublewrite") == [1]


def test_redis_syncs_every_write_and_has_it_after_a_kill(redis_server: RedisServer) -> None:
    url = redis_server.fresh_database()
    with redis_client(url) as client:
        settings = client.config_get("appendonly", "appendfsync")
        assert settings == {"appendonly": "yes", "appendfsync": "always"}
        client.xadd("fish", {"name": "herring"})
    redis_server.kill()
    redis_server.start()
    with redis_client(url) as client:
        assert client.xlen("fish") == 1
    redis_server.drop_database(url)
    with redis_client(url) as client:
        assert client.xlen("fish") == 0


@contextmanager
def redis_client(url: str) -> Iterator["redis.Redis"]:
    with closing(redis.Redis.from_url(url, decode_responses=True)) as client:
        yield client


START_AND_SAY_WHAT_RUNS = """
import sys
from shoal.testing.servers import PostgresServer
with PostgresServer() as server:
    print(server.pid, server._guard.pid, server.folder, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("victim", ["tests", "guard"])
def test_a_server_does_not_outlive_its_tests_nor_its_guard(
    victim: str, postgres_server: PostgresServer
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", START_AND_SAY_WHAT_RUNS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        assert tests.stdout is not None
        server_pid, guard_pid, folder = tests.stdout.readline().split()
        server, guard = psutil.Process(int(server_pid)), psutil.Process(int(guard_pid))

        (guard if victim == "guard" else tests).kill()

        server.wait(timeout=30)
        tests.communicate(timeout=30)  # Closes the input, on which tests that still live end too.
        guard.wait(timeout=30)
    assert not Path(folder).exists()


def test_a_server_started_by_a_thread_outlives_the_thread(redis_server: RedisServer) -> None:
    redis_server.stop()
    thread = threading.Thread(target=redis_server.start)
    thread.start()
    thread.join()
    with redis_client(redis_server.url) as client:
        assert client.ping()
    assert redis_server.is_running


class Misspelt(RedisServer):
    def _command(self) -> list[str]:
        return [*super()._command(), "--no-such-option", "1"]


def test_a_server_that_cannot_start_says_why_and_leaves_nothing(redis_server: RedisServer) -> None:
    server = Misspelt()
    with pytest.raises(ServerFailed, match="no-such-option"), server:
        pass
    assert not server.is_running
    assert not server.folder.exists()


class Unlucky(RedisServer):
    def __init__(self, taken: int) -> None:
        super().__init__()
        self.picks = [free_port(), taken]

    def _pick_port(self) -> int:
        return self.picks.pop()


def test_a_port_that_somebody_took_a_moment_before_is_left_to_them(redis_server: RedisServer) -> None:
    with Unlucky(redis_server.port) as server:
        assert server.port != redis_server.port
        assert server.is_running


def test_the_makefile_installs_exactly_what_the_tests_look_for() -> None:
    script = REPOSITORY / "scripts" / "install-servers"
    listed = subprocess.run([script, "--list"], check=True, capture_output=True, text=True).stdout
    assert dict(line.split() for line in listed.splitlines()) == PACKAGES


def test_a_missing_program_is_named_by_its_package() -> None:
    assert missing(lambda program: None if program == "mariadbd" else Path(program)) == ["mariadb-server"]


NEEDS_SOMETHING_MISSING = """
import pytest

@pytest.fixture
def server():
    pytest.skip("missing package: mariadb-server")

def test_with_the_server(server): ...
def test_with_the_server_again(server): ...
def test_without(): ...
"""


@pytest.mark.parametrize("beside", [[], ["-n", "2"]], ids=["alone", "side by side"])
def test_the_last_line_of_a_run_names_the_package_that_is_missing_and_the_tests_not_run(
    tmp_path: Path, beside: list[str]
) -> None:
    (tmp_path / "test_fish.py").write_text(NEEDS_SOMETHING_MISSING)
    earlier = tmp_path / "left out by an earlier run"
    earlier.write_text("redis-server\ttest_bird.py\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *beside, "--rootdir", tmp_path, "-p", "tests.conftest", tmp_path],
        check=True,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=os.environ | {"SHOAL_LEFT_OUT": str(earlier)},
    )
    last = run.stdout.splitlines()[-1]
    assert last == (
        "missing package: mariadb-server, redis-server; "
        "tests that did not run: 1 of test_bird.py, 2 of test_fish.py"
    )
    assert earlier.read_text().count("mariadb-server\ttest_fish.py\n") == 2
