"""An acknowledged record survives a power cut: seen in a trace of SQLite, asserted of servers' settings."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pymysql
import pytest

import shoal
from shoal.core.errors import StoreNotDurable
from shoal.testing.servers import MariaDBServer, PostgresServer

REPOSITORY = Path(__file__).parents[2]
APPENDS = 20
SYNCED = ("fsync", "fdatasync")


@pytest.mark.timeout(120)
def test_the_log_file_is_synced_between_each_append_and_its_acknowledgement(
    strace: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.txt"
    command = [
        *(str(strace), "-f", "-y", "-s", "64", "-o", str(trace)),
        *("-e", "trace=fsync,fdatasync,write,pwrite64"),
        *(sys.executable, "-m", "tests.scenario.traced", f"sqlite:///{tmp_path / 'shoal.db'}", str(APPENDS)),
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr

    for number, calls in enumerate(_between_marks(trace.read_text())):
        assert "write" in calls, f"append {number} was acknowledged before anything was written: {calls}"
        assert calls[-1] == "sync", f"append {number}: after the last sync, more was written: {calls}"


class CarelessPostgres(PostgresServer):
    """PostgreSQL with a setting that somebody thought would make it faster."""

    setting = "fsync=off"

    def _command(self) -> list[str]:
        return [*super()._command(), "-c", self.setting]


@pytest.fixture
def careless_postgres(postgres_server: PostgresServer) -> Iterator[CarelessPostgres]:
    # The shared server is asked for only because it knows whether this machine has the program.
    with CarelessPostgres() as server:
        yield server


def test_a_postgresql_that_would_forget_at_a_power_cut_is_refused(
    careless_postgres: CarelessPostgres,
) -> None:
    for setting in ("fsync", "full_page_writes"):
        careless_postgres.setting = f"{setting}=off"
        careless_postgres.restart()
        _assert_refused(careless_postgres.url, setting, "off")
        _assert_accepted_if_told(careless_postgres.url)


def test_a_mariadb_that_would_forget_at_a_power_cut_is_refused(
    store_url_of_mariadb: str, mariadb_server: MariaDBServer
) -> None:
    for careless in ("0", "2"):
        with _mariadb_set(mariadb_server, "innodb_flush_log_at_trx_commit", careless):
            _assert_refused(store_url_of_mariadb, "innodb_flush_log_at_trx_commit", careless)
            _assert_accepted_if_told(store_url_of_mariadb)
    with shoal.connect(store_url_of_mariadb):
        pass


@pytest.fixture
def store_url_of_mariadb(mariadb_server: MariaDBServer) -> Iterator[str]:
    url = mariadb_server.fresh_database()
    yield url
    mariadb_server.drop_database(url)


def test_a_database_whose_sessions_do_not_wait_for_the_disk_is_made_to_wait_in_ours(
    postgres_server: PostgresServer,
) -> None:
    url = postgres_server.fresh_database()
    database = url.rpartition("/")[2]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{database}" SET synchronous_commit = off'.encode())
    with shoal.connect(url) as hub:
        hub.create_stream("orders")
        with hub.producer("orders") as producer:
            producer.send(b"paid").result(timeout=30)
    postgres_server.drop_database(url)


def _between_marks(trace: str) -> Iterator[list[str]]:
    """For each append: what happened to the log file between its begin and its acknowledgement, in order.

    A call that another thread interrupts in the trace has two lines; it has happened when it returns.
    """
    began: dict[str, str] = {}
    events: list[str] | None = None
    found = 0
    for line in trace.splitlines():
        process, _, rest = line.partition(" ")
        rest = rest.strip()
        if rest.endswith("<unfinished ...>"):
            began[process] = rest
            rest = rest if "write(2<" in rest else ""
        elif rest.startswith("<..."):
            rest = began.pop(process) + rest
        if re.search(r'^write\(2<.*"begin \d+', rest) and events is None:
            events = []
        elif re.search(r'^write\(2<.*"acknowledged \d+', rest) and events is not None:
            yield events
            events, found = None, found + 1
        elif events is not None and "shoal.db-wal>" in rest:
            call = rest.partition("(")[0]
            if call in SYNCED and re.search(r"\) += 0$", rest):
                events.append("sync")
            elif call in ("write", "pwrite64") and re.search(r"\) += [1-9]\d*$", rest):
                events.append("write")
    assert found == APPENDS, f"{found} of {APPENDS} appends are in the trace"


def _assert_refused(url: str, setting: str, value: str) -> None:
    with pytest.raises(StoreNotDurable) as caught:
        shoal.connect(url)
    assert (caught.value.setting, caught.value.found) == (setting, value)
    assert not caught.value.retriable


def _assert_accepted_if_told(url: str) -> None:
    with shoal.connect(url, durable=False) as hub:
        hub.list_streams()


@contextmanager
def _mariadb_set(server: MariaDBServer, setting: str, value: str) -> Iterator[None]:
    with closing(pymysql.connect(host="127.0.0.1", port=server.port, user="root")) as connection:
        cursor = connection.cursor()
        cursor.execute(f"SELECT @@GLOBAL.{setting}")
        before = cursor.fetchone()
        assert before is not None
        cursor.execute(f"SET GLOBAL {setting} = {value}")
        try:
            yield
        finally:
            cursor.execute(f"SET GLOBAL {setting} = {before[0]}")
