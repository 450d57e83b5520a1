"""The servers that tests and benchmarks run: PostgreSQL, MariaDB and, as a peer to compare with, Redis.

Each is told where to live and no more. Durability is what its makers chose as the default (and full for
Redis): a test that passes here must mean something on a real machine. Not for: servers that are already
there, other machines, or anything that a running hub needs. Processes, ports and folders are in
`server.py`.

    with PostgresServer() as server:
        hub = shoal.connect(server.fresh_database())
"""

import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import ClassVar

from shoal.testing.machine import installed
from shoal.testing.server import Server, StopMode


class PostgresServer(Server):
    """PostgreSQL with its own defaults: fsync, synchronous_commit and full_page_writes are on."""

    program = "postgres"
    account = "postgres"
    stop_signals: ClassVar[dict[StopMode, signal.Signals]] = {
        "fast": signal.SIGINT,
        "immediate": signal.SIGQUIT,
    }

    def _prepare(self) -> None:
        # Without a sync here only: until the server has started, there is nothing that could be lost.
        self._run(
            [
                str(installed("postgres").resolve().parent / "initdb"),
                f"--pgdata={self._data}",
                "--username=shoal",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ]
        )

    def _command(self) -> list[str]:
        return [
            str(installed("postgres")),
            *("-D", str(self._data)),
            *("-p", str(self.port)),
            *("-c", "listen_addresses=127.0.0.1"),
            *("-c", f"unix_socket_directories={self.folder}"),
        ]

    def _is_ready(self) -> bool:
        # What pg_ctl reads too: the first line is the process, the eighth its state. A file that a killed
        # server left behind has another first line.
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0].strip() == str(self.pid) and lines[7].strip() == "ready"

    def _url(self, database: str) -> str:
        return f"postgresql://shoal@127.0.0.1:{self.port}/{database}"

    def _create_database(self, name: str) -> None:
        self._execute(f'CREATE DATABASE "{name}"')

    def _drop_database(self, name: str) -> None:
        self._execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def _execute(self, statement: str) -> None:
        import psycopg  # noqa: PLC0415  The driver is an extra; who tests on SQLite alone does not have it.

        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())


class MariaDBServer(Server):
    """MariaDB with its own defaults: innodb_flush_log_at_trx_commit is 1, the doublewrite buffer is on."""

    program = "mariadbd"
    account = "mysql"
    stop_signals: ClassVar[dict[StopMode, signal.Signals]] = {
        "fast": signal.SIGTERM,
        "immediate": signal.SIGKILL,
    }

    def _prepare(self) -> None:
        self._run(
            [
                str(installed("mariadb-install-db")),
                "--no-defaults",
                f"--datadir={self._data}",
                f"--tmpdir={self.folder}",  # Each that starts clears it of what another may be using.
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--skip-name-resolve",
            ]
        )

    def _command(self) -> list[str]:
        return [
            str(installed("mariadbd")),
            "--no-defaults",
            f"--datadir={self._data}",
            f"--tmpdir={self.folder}",
            f"--socket={self._socket}",
            f"--pid-file={self.folder / 'pid'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
        ]

    def _is_ready(self) -> bool:
        return _answers(self._socket, b"")

    def _url(self, database: str) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/{database}"

    def _create_database(self, name: str) -> None:
        self._execute(f"CREATE DATABASE `{name}`")

    def _drop_database(self, name: str) -> None:
        import pymysql  # noqa: PLC0415  See _execute.

        # A connection with an open transaction would hold the drop up for a day, which is the default here.
        # One that ends between the question and the kill is no longer in the way.
        users = f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"  # noqa: S608  Our name.
        for row in self._execute(users):
            with suppress(pymysql.MySQLError):
                self._execute(f"KILL {row[0]}")
        self._execute(f"DROP DATABASE `{name}`")

    def _execute(self, statement: str) -> Sequence[Sequence[object]]:
        import pymysql  # noqa: PLC0415  The driver is an extra; who tests on SQLite alone does not have it.

        with closing(pymysql.connect(host="127.0.0.1", port=self.port, user="root")) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            return cursor.fetchall()


class RedisServer(Server):
    """Redis with full durability, which is not its default: every write is synced before it is answered."""

    program = "redis-server"
    account = "redis"
    stop_signals: ClassVar[dict[StopMode, signal.Signals]] = {
        "fast": signal.SIGTERM,
        "immediate": signal.SIGKILL,
    }

    def _prepare(self) -> None:
        pass

    def _command(self) -> list[str]:
        return [
            str(installed("redis-server")),
            *("--port", str(self.port)),
            *("--bind", "127.0.0.1"),
            *("--unixsocket", str(self._socket)),
            *("--dir", str(self.folder)),
            *("--appendonly", "yes"),
            *("--appendfsync", "always"),
            *("--databases", "4096"),
        ]

    def _is_ready(self) -> bool:
        return _answers(self._socket, b"PING\r\n", is_good=lambda answer: answer.startswith(b"+PONG"))

    def _url(self, database: str) -> str:
        return f"redis://127.0.0.1:{self.port}/{database}"

    # Redis numbers its databases and has them all from the start, empty.
    def _main_database(self) -> str:
        return "0"

    def _database_name(self, number: int) -> str:
        return str(number)

    def _create_database(self, name: str) -> None:
        pass

    def _drop_database(self, name: str) -> None:
        _answers(self._socket, f"SELECT {name}\r\nFLUSHDB\r\n".encode())


def _answers(
    path: Path, question: bytes, *, is_good: Callable[[bytes], bool] = lambda answer: len(answer) > 0
) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5.0)
        try:
            client.connect(str(path))
            client.sendall(question)
            return is_good(client.recv(64))
        except OSError:
            return False
