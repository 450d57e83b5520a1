"""Opening a store: URLs, drivers, servers that are not there, and schemas older or newer than ours."""

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from sqlalchemy import inspect, select, update

import shoal
from shoal.core.errors import (
    InvalidUrl,
    MissingDriver,
    StoreError,
    StoreRefused,
    StoreTooNew,
    StoreUnavailable,
)
from shoal.core.lineage import find_shard
from shoal.core.model import StreamName
from shoal.core.resharding import split
from shoal.hub.local import LocalHub
from shoal.store.sql.database import Database
from shoal.store.sql.dialects import dialect_for
from shoal.store.sql.dialects.sqlite import BLOBS_MAX
from shoal.store.sql.migration import migrate
from shoal.store.sql.store import SQLStore
from shoal.store.sql.tables import SCHEMA_VERSION, meta
from shoal.testing.reading import read_shard


@pytest.mark.parametrize(
    "url", ["", "shoal.db", "/tmp/shoal.db", "oracle://h/d", "redis://h", "://", "sqlit:///x.db", 5, None]
)
def test_a_url_of_no_known_kind_is_refused_with_those_there_are(url: object) -> None:
    with pytest.raises(InvalidUrl, match=r"url=.*sqlite://.*postgresql://.*mysql://"):
        shoal.connect(url)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["postgresql://h:port/db", "mysql://[::1/db"])
def test_a_url_that_cannot_be_parsed_is_refused(url: str) -> None:
    with pytest.raises(InvalidUrl, match="url="):
        shoal.connect(url)


@pytest.mark.parametrize(
    ("scheme", "module", "extra"),
    [("postgresql", "psycopg", "postgres"), ("mysql", "pymysql", "mysql")],
)
def test_a_missing_driver_names_the_extra_to_install(
    tmp_path: Path, scheme: str, module: str, extra: str
) -> None:
    # A module that is None in sys.modules cannot be imported: as on a machine that does not have it.
    program = f"""
import sys
import weakref
sys.modules[{module!r}] = None
import shoal
try:
    shoal.connect("{scheme}://user@127.0.0.1/db")
except shoal.errors.MissingDriver as error:
    print(error.package, error.extra, str(error))
shoal.connect("sqlite:///" + sys.argv[1]).close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "shoal.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith(f"{module} {extra} ")
    assert f"pip install 'shoal[{extra}]'" in done.stdout
    assert issubclass(MissingDriver, ImportError)


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_server_that_is_not_there_is_unavailable_and_worth_another_try(scheme: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1") as caught:
        shoal.connect(f"{scheme}://user:secret@127.0.0.1:1/db")
    assert caught.value.retriable
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("store", ["postgresql", "mariadb"], indirect=True)
def test_a_database_that_the_server_does_not_have_is_refused(store_url: str) -> None:
    with pytest.raises(StoreRefused, match=r"nowhere.*check user, password and database") as caught:
        shoal.connect(store_url.rpartition("/")[0] + "/nowhere")
    assert not caught.value.retriable


@pytest.fixture
def database(store_url: str) -> Iterator[Database]:
    """The bare database behind a store, for putting it into a state of another time."""
    database = Database(dialect_for(store_url))
    yield database
    database.close()


def test_a_new_database_gets_the_newest_schema_and_opening_it_again_changes_nothing(
    store_url: str, database: Database
) -> None:
    for _ in range(2):
        shoal.connect(store_url).close()
        with database.read() as connection:
            rows = connection.execute(select(meta.c.name, meta.c.value)).all()
            assert ("schema_version", str(SCHEMA_VERSION)) in [tuple(row) for row in rows]


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_an_older_database_is_upgraded_in_place_with_its_records(
    store_url: str, database: Database, version: int
) -> None:
    migrate(database, durable=True, upto=version)
    if version == 2:
        with database.write() as connection:  # Tables were made without what later versions added to them.
            connection.exec_driver_sql("ALTER TABLE shoal_producer DROP COLUMN number")
    with database.read() as connection:
        older = set(inspect(connection).get_table_names())
    store = SQLStore(database)
    old = shoal.Hub(LocalHub(store, keeper_interval_s=3600), "an older one")
    old.create_stream("shop/orders", shards=2, schema={"amount": "int64"})
    old.append("shop/orders", 1, [{"amount": i} for i in range(100)])
    # Older versions announced no splits.
    store.change_shards(
        StreamName("shop", "orders"), lambda now: split(now.shards, find_shard(now, 0), None, 0)
    )
    before = old.describe_stream("shop/orders")
    with shoal.connect(store_url) as hub:
        assert hub.describe_stream("shop/orders") == before
        assert [record.value["amount"] for record in read_shard(hub, "shop/orders", 1)] == list(range(100))
        stamp = shoal.ProducerStamp(producer="p", epoch=0, sequence=0)
        assert hub.append("shop/orders", 1, [{"amount": 100}], stamp=stamp).first_offset == 100
    with database.read() as connection:
        assert set(inspect(connection).get_table_names()) > older
        value = connection.execute(select(meta.c.value).where(meta.c.name == "schema_version")).scalar_one()
    assert value == str(SCHEMA_VERSION)


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 999])
def test_a_newer_database_is_refused_and_left_alone(store_url: str, database: Database, version: int) -> None:
    with shoal.connect(store_url) as hub:
        hub.create_stream("orders", shards=1)
        hub.append("orders", 0, [b"kept"])
    with database.write() as connection:
        connection.execute(update(meta).where(meta.c.name == "schema_version").values(value=str(version)))
    with pytest.raises(StoreTooNew, match=f"schema version {version} is newer.*upgrade Shoal") as caught:
        shoal.connect(store_url)
    assert (caught.value.found, caught.value.known) == (version, SCHEMA_VERSION)
    with database.write() as connection:
        found = connection.execute(select(meta.c.value).where(meta.c.name == "schema_version")).scalar_one()
        assert found == str(version)
        connection.execute(update(meta).values(value=str(SCHEMA_VERSION)))
    with shoal.connect(store_url) as hub:
        assert [record.value for record in read_shard(hub, "orders", 0)] == [b"kept"]


def test_a_version_that_is_no_number_is_refused(store_url: str, database: Database) -> None:
    shoal.connect(store_url).close()
    with database.write() as connection:
        connection.execute(update(meta).values(value="soon"))
    with pytest.raises(StoreError, match="'soon' is not a number"):
        shoal.connect(store_url)


def test_many_that_open_a_new_store_at_once_all_find_it_whole(store_url: str) -> None:
    def open_and_look(i: int) -> int:
        with shoal.connect(store_url) as hub:
            hub.create_stream(f"s{i}", shards=1)
            return len(hub.list_streams())

    with ThreadPoolExecutor(4) as threads:
        assert max(threads.map(open_and_look, range(4))) == 4


def test_what_a_program_has_sent_is_stored_when_it_ends_without_closing(sqlite_url: str) -> None:
    # One of its producers fails, for its stream is gone; the others must be closed all the same.
    program = """
import sys, shoal
hub = shoal.connect(sys.argv[1])
producers = []
for i in range(12):
    hub.create_stream(f"s{i}", shards=1)
    producers.append(hub.producer(f"s{i}", linger_s=60))
    producers[-1].send(b"last words")
for i in range(0, 12, 3):
    hub.delete_stream(f"s{i}")
"""
    subprocess.run([sys.executable, "-c", program, sqlite_url], timeout=60, check=True, capture_output=True)
    with shoal.connect(sqlite_url) as hub:
        stored = {stream.name: hub.next_offset(stream.name, 0) for stream in hub.list_streams()}
    assert stored == {f"s{i}": 1 for i in range(12) if i % 3}


def test_who_looked_all_at_once_leaves_connections_for_others(sqlite_url: str) -> None:
    """A pool has 64 at most, and a look's own are kept."""
    shoal.connect(sqlite_url).close()
    with closing(Database(dialect_for(sqlite_url))) as database:
        with ExitStack() as looks:
            for _ in range(60):
                looks.enter_context(database.look())
        with ExitStack() as reads:
            for _ in range(50):  # StoreBusy, if looks kept all of them.
                reads.enter_context(database.read())


def test_who_reads_for_long_remembers_nothing_of_what_was_read(sqlite_url: str) -> None:
    """Python's connection to SQLite keeps a reference to every blob that it opened: memory grew with every
    large batch, for as long as a process read."""
    with shoal.connect(sqlite_url) as hub:
        hub.create_stream("s", shards=1)
        hub.append("s", 0, [os.urandom(50_000)])
        assert len(hub.read("s", 0, 0)) == 1
        before = _weak_references()
        for _ in range(BLOBS_MAX + 100):
            hub.read("s", 0, 0)
        assert _weak_references() - before < BLOBS_MAX / 2


def _weak_references() -> int:
    gc.collect()
    return sum(isinstance(one, weakref.ref) for one in gc.get_objects())
