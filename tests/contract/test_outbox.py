"""The outbox in the user's own database, of every kind, through every kind of connection."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import psycopg
import pymysql
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

import shoal
from shoal import Hub, Outbox, OutboxRelay, Producer, Record, RelayOptions
from shoal.core.errors import InvalidInput, StoreUnavailable, TooLarge, UnknownStream
from shoal.outbox.journal import Journal, NextBatch
from shoal.ports import HubService
from shoal.testing.reading import read_stream, until, values_by_key

QUICK = RelayOptions(poll_s=0.01, lease_s=0.5, retry_s=0.05)
STEADY = RelayOptions(poll_s=0.01, lease_s=30.0, retry_s=0.05)
"""For one whose turn must not end while a commit takes long."""


@pytest.fixture
def database(store: str, fresh_store_url: Callable[[], str]) -> str:
    """The URL of the user's own database, which is there."""
    url = fresh_store_url()
    if store == "sqlite":
        Path(url.removeprefix("sqlite:///")).touch()
    return url


@pytest.fixture
def opened(database: str) -> Iterator[Callable[[], Any]]:
    """Opens a connection of the database's own driver."""
    made: list[Any] = []

    def open_one() -> Any:
        made.append(_open(database))
        return made[-1]

    yield open_one
    for connection in made:
        connection.close()


def _open(url: str) -> Any:
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=15, check_same_thread=False)
    if url.startswith("postgresql"):
        return psycopg.connect(url)
    address, _, name = url.removeprefix("mysql://root@").partition("/")
    host, _, port = address.partition(":")
    return pymysql.connect(host=host, port=int(port), user="root", database=name)


@pytest.fixture
def engine_url(database: str) -> str:
    return database.replace("postgresql://", "postgresql+psycopg://").replace("mysql://", "mysql+pymysql://")


@pytest.fixture
def outbox(opened: Callable[[], Any]) -> Outbox:
    made = Outbox()
    connection = opened()
    for _ in range(2):  # Twice is once.
        made.create(connection)
        connection.commit()
    return made


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with shoal.connect(f"sqlite:///{tmp_path / 'hub.db'}") as hub:
        hub.create_stream("orders", shards=3)
        yield hub


def relay_all(hub: Hub, database: str, **options: Any) -> int:
    with OutboxRelay(hub, database, options=RelayOptions(**options) if options else QUICK) as relay:
        relay.run(until_empty=True)
        return relay.relayed


def waiting(database: str) -> int:
    journal = Journal(database, Outbox())
    try:
        return journal.status().waiting
    finally:
        journal.close()


def test_what_is_committed_arrives_and_what_is_rolled_back_does_not(
    hub: Hub, database: str, outbox: Outbox, opened: Callable[[], Any]
) -> None:
    connection = opened()
    for number in range(60):
        outbox.add(connection, "orders", b"%d" % number, key=b"%d" % (number % 5))
        (connection.rollback if number % 3 == 0 else connection.commit)()
    assert relay_all(hub, database) == 40
    for key, values in values_by_key(hub, "orders").items():
        assert values == [b"%d" % n for n in range(60) if n % 3 and n % 5 == int(key or b"")]
    assert waiting(database) == 0
    assert relay_all(hub, database) == 0


def test_a_record_arrives_as_it_was_given(
    hub: Hub, database: str, outbox: Outbox, opened: Callable[[], Any]
) -> None:
    hub.create_stream("shop/typed", shards=1, schema={"name": "string", "amount": "int64"})
    connection = opened()
    every = bytes(range(256))
    headers: dict[str, bytes | str] = {"trace": every, "who": "Zoë"}
    outbox.add(connection, "orders", every, key=every, timestamp=1234, headers=headers)
    outbox.add(connection, "orders", None, hash_key="f" * 32)
    outbox.add(connection, "orders", "Zoë's 50 %s?", key="")
    outbox.add(connection, "shop/typed", {"name": "Zoë", "amount": 2**60}, key="Zoë")
    outbox.add_all(connection, "orders", [Record(0, 7, b"k", b"%d" % i, {}) for i in range(3)])
    connection.commit()
    assert relay_all(hub, database) == 7
    records = [record for shard in read_stream(hub, "orders").values() for record in shard]
    first = next(record for record in records if record.key == every)
    assert (first.value, first.timestamp) == (every, 1234)
    assert first.headers == {"trace": every, "who": "Zoë".encode()}
    assert next(record for record in records if record.key == b"").value == "Zoë's 50 %s?".encode()
    assert [record.value for record in records if record.key == b"k"] == [b"0", b"1", b"2"]
    assert [record.value for record in read_stream(hub, "orders")[2] if record.key is None] == [None]
    (typed,) = read_stream(hub, "shop/typed")[0]
    assert (typed.key, typed.value) == ("Zoë".encode(), {"name": "Zoë", "amount": 2**60})


def test_a_connection_or_a_session_of_sqlalchemy_is_written_through_too(
    hub: Hub, database: str, outbox: Outbox, engine_url: str
) -> None:
    engine = create_engine(engine_url)
    with engine.begin() as connection:
        outbox.add(connection, "orders", b"core", key=b"a")
        outbox.add(connection.connection, "orders", b"of the pool", key=b"a")
    with Session(engine) as session, session.begin():
        session.execute(text("SELECT 1"))
        outbox.add(session, "orders", b"session", key=b"a")
    with Session(engine) as session:
        outbox.add(session, "orders", b"never committed", key=b"a")
        session.rollback()
    engine.dispose()
    assert relay_all(hub, database) == 3
    assert values_by_key(hub, "orders") == {b"a": [b"core", b"of the pool", b"session"]}


@pytest.mark.parametrize("store", ["postgresql", "mariadb"])  # On SQLite one writes at a time.
def test_a_transaction_that_commits_late_with_a_lower_id_is_not_lost(
    hub: Hub, database: str, outbox: Outbox, opened: Callable[[], Any]
) -> None:
    early, late = opened(), opened()
    outbox.add(early, "orders", b"lower id", key=b"a")
    outbox.add(late, "orders", b"higher id", key=b"a")
    late.commit()
    assert relay_all(hub, database) == 1
    early.commit()
    assert relay_all(hub, database) == 1
    assert values_by_key(hub, "orders") == {b"a": [b"higher id", b"lower id"]}


@pytest.mark.parametrize("cut", ["noted", "half", "sent"])
def test_a_relay_that_died_in_a_batch_leaves_it_to_the_next_which_sends_each_record_once(
    hub: Hub, database: str, outbox: Outbox, opened: Callable[[], Any], cut: str
) -> None:
    connection = opened()
    for number in range(30):
        outbox.add(connection, "orders", b"%d" % number, key=b"%d" % (number % 5))
    connection.commit()
    dead = OutboxRelay(hub, database, options=QUICK)
    assert dead._take()
    claim = dead._claim
    assert claim is not None
    assert dead._turn(claim)  # The batch is noted now.
    claim = dead._claim
    assert claim is not None
    assert len(claim.ids) == 30
    if cut == "half":
        half = type(claim)(producer=claim.producer, number=claim.number, ids=claim.ids[:11])
        dead._send(half)
    elif cut == "sent":
        dead._send(claim)
    hub.reshard("orders", 2)
    for number in range(30, 40):
        outbox.add(connection, "orders", b"%d" % number, key=b"%d" % (number % 5))
    connection.commit()
    assert relay_all(hub, database) == 40
    for key, values in values_by_key(hub, "orders").items():
        assert values == [b"%d" % n for n in range(int(key or b""), 40, 5)]
    # It was only stopped for a while, and goes on: nothing of it counts any more.
    for _ in range(2):
        with suppress(shoal.ShoalError):
            dead._send(claim)
    assert sum(len(records) for records in read_stream(hub, "orders").values()) == 40
    dead.close()


def test_only_one_relays_and_another_takes_over_when_it_stops_or_is_silent(
    hub: Hub, database: str, outbox: Outbox, opened: Callable[[], Any]
) -> None:
    connection = opened()

    def add(value: bytes) -> None:
        outbox.add(connection, "orders", value, key=b"a")
        connection.commit()

    with (
        OutboxRelay(hub, database, options=STEADY, name="first") as first,
        OutboxRelay(hub, database, options=STEADY, name="second") as second,
    ):
        first.start()
        until(lambda: first.is_relaying)
        second.start()
        add(b"1")
        until(lambda: first.relayed == 1)
        assert not second.is_relaying
        first.stop()
        until(lambda: second.is_relaying)
        add(b"2")
        until(lambda: second.relayed == 1)
        second.stop()
        # One that takes the lease and is never heard of again.
        silent = OutboxRelay(hub, database, options=QUICK)
        assert silent._take()
        add(b"3")
        with OutboxRelay(hub, database, options=STEADY).start() as third:
            until(lambda: third.relayed == 1)
        silent.close()
    assert values_by_key(hub, "orders") == {b"a": [b"1", b"2", b"3"]}


def test_a_relay_whose_producer_is_fenced_waits_for_its_turn_and_ends_well(
    hub: Hub, database: str, outbox: Outbox, opened: Callable[[], Any]
) -> None:
    class Fencing:
        """Another has taken over in the meantime, and sends under the same name."""

        made = 0

        def producer(self, stream: str, *, name: str | None = None) -> Producer:
            mine = hub.producer(stream, name=name)
            self.made += 1
            if self.made == 1:
                hub.producer(stream, name=name)
            return mine

    connection = opened()
    for number in range(10):
        outbox.add(connection, "orders", b"%d" % number, key=b"a")
    connection.commit()
    with OutboxRelay(Fencing(), database, options=QUICK) as relay:
        relay.run(until_empty=True)
    assert (relay.relayed, waiting(database)) == (10, 0)
    assert values_by_key(hub, "orders") == {b"a": [b"%d" % number for number in range(10)]}


def test_many_write_at_once_while_it_is_relayed(
    hub: Hub, database: str, outbox: Outbox, opened: Callable[[], Any]
) -> None:
    writers, each = 4, 50
    connections = [opened() for _ in range(writers)]

    def write(writer: int) -> None:
        for number in range(each):
            outbox.add(connections[writer], "orders", b"%d" % number, key=b"%d" % writer)
            outbox.add(connections[writer], "orders", b"second", key=b"%d-second" % writer)
            (connections[writer].rollback if number % 3 == 2 else connections[writer].commit)()

    options = RelayOptions(poll_s=0.01, lease_s=2.0, batch_records=7)
    with OutboxRelay(hub, database, options=options).start():
        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        until(lambda: waiting(database) == 0)
    kept = [b"%d" % number for number in range(each) if number % 3 != 2]
    found = values_by_key(hub, "orders")
    for writer in range(writers):
        assert found[b"%d" % writer] == kept
        assert found[b"%d-second" % writer] == [b"second"] * len(kept)


def test_a_batch_is_bounded_by_its_bytes(
    hub: Hub, database: str, outbox: Outbox, opened: Callable[[], Any]
) -> None:
    connection = opened()
    for _ in range(6):
        outbox.add(connection, "orders", b"x" * 400_000, key=b"a")
    connection.commit()
    journal = Journal(database, outbox)
    assert journal.take(journal.look(), "one", 1000) is not None
    assert len(journal.advance("one", [], 0, NextBatch(rows=100, size=1_000_000))) == 2
    journal.release("one")
    journal.close()
    assert relay_all(hub, database, batch_bytes=1, poll_s=0.01) == 6


def test_a_stream_that_is_not_there_holds_its_records_up_until_it_is(
    hub: Hub, database: str, outbox: Outbox, opened: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    connection = opened()
    for stream in ("orders", "missing", "orders"):
        outbox.add(connection, stream, b"x", key=b"a")
    connection.commit()
    with pytest.raises(UnknownStream):
        relay_all(hub, database)
    assert waiting(database) == 1
    assert values_by_key(hub, "orders") == {b"a": [b"x", b"x"]}
    with OutboxRelay(hub, database, options=QUICK).start() as relay:
        until(lambda: "missing" in relay.stalled.get("missing", ""))
        assert "records for missing are held up from row 2 of shoal_outbox on: " in caplog.text
        hub.create_stream("missing", shards=1)
        until(lambda: relay.relayed == 1)
        assert relay.stalled == {}
    assert values_by_key(hub, "orders") == {b"a": [b"x", b"x"]}
    assert values_by_key(hub, "missing") == {b"a": [b"x"]}


def test_other_streams_go_on_while_one_is_held_up_through_many_batches(
    hub: Hub, database: str, outbox: Outbox, opened: Callable[[], Any]
) -> None:
    # To MariaDB the two names that differ in case are one, unless it is told otherwise.
    names, each = ("orders", "missing", "Missing"), 40
    hub.create_stream("Missing", shards=2)
    connection = opened()
    options = RelayOptions(poll_s=0.01, lease_s=10.0, retry_s=0.05, batch_records=7)
    for number in range(each):
        for name in names:
            outbox.add(connection, name, b"%d" % number, key=b"%d" % (number % 3))
    connection.commit()
    for _ in range(2):  # The second finds it noted.
        with pytest.raises(UnknownStream, match="missing"):
            relay_all(hub, database, poll_s=0.01, retry_s=0.05, batch_records=7)
    with closing(Journal(database, outbox)) as journal:
        status = journal.status()
    assert (status.waiting, status.relayed) == (each, 2 * each)
    (stalled,) = status.stalled
    assert (stalled.stream, stalled.waiting) == ("missing", each)
    assert "shoal stream create missing" in stalled.why
    first = opened().cursor()
    first.execute("SELECT MIN(id) FROM shoal_outbox")
    assert first.fetchone()[0] == stalled.row
    wanted = {b"%d" % key: [b"%d" % n for n in range(key, each, 3)] for key in range(3)}
    with OutboxRelay(hub, database, options=options).start() as relay:
        outbox.add(connection, "orders", b"more", key=b"more")
        connection.commit()
        until(lambda: relay.relayed == 1)
        hub.create_stream("missing", shards=2)
        until(lambda: relay.relayed == 1 + each)
    assert waiting(database) == 0
    assert values_by_key(hub, "orders") == {**wanted, b"more": [b"more"]}
    assert values_by_key(hub, "missing") == values_by_key(hub, "Missing") == wanted
    with closing(Journal(database, outbox)) as journal:
        assert (journal.status().relayed, journal.status().stalled) == (3 * each + 1, [])


@pytest.mark.parametrize("remedy", ["mend", "delete"])
def test_a_record_that_is_refused_holds_up_its_stream_alone_until_its_row_is_mended_or_deleted(
    hub: Hub, database: str, outbox: Outbox, opened: Callable[[], Any], remedy: str
) -> None:
    hub.create_stream("typed", shards=2, schema={"amount": "int64"})
    connection = opened()
    for number in range(20):
        amount: dict[str, Any] = {"amount": "much" if number == 8 else number}
        outbox.add(connection, "typed", amount, key=b"%d" % (number % 2))
        outbox.add(connection, "orders", b"%d" % number, key=b"a")
    connection.commit()
    with pytest.raises(shoal.ShoalError, match="much"):
        relay_all(hub, database, poll_s=0.01, batch_records=9, retry_s=0.05)
    # What comes before it in its batch is there, and gone from the outbox; nothing has overtaken it.
    assert sum(map(len, values_by_key(hub, "typed").values())) == 8
    assert values_by_key(hub, "orders") == {b"a": [b"%d" % number for number in range(20)]}
    with closing(Journal(database, outbox)) as journal:
        (stalled,) = journal.status().stalled
    assert (stalled.waiting, stalled.row) == (12, _row_of(opened(), b'{"amount": "much"}'))
    cursor = connection.cursor()
    if remedy == "mend":
        mended = "X'7b22616d6f756e74223a20387d'"
        literal = f"decode('{mended[2:-1]}', 'hex')" if database.startswith("postgresql") else mended
        cursor.execute(f"UPDATE shoal_outbox SET value = {literal} WHERE id = {stalled.row}")
    else:
        cursor.execute(f"DELETE FROM shoal_outbox WHERE id = {stalled.row}")
    connection.commit()
    assert relay_all(hub, database) == (12 if remedy == "mend" else 11)
    numbers = [number for number in range(20) if number != 8 or remedy == "mend"]
    assert values_by_key(hub, "typed") == {
        b"%d" % key: [{"amount": number} for number in numbers if number % 2 == key] for key in (0, 1)
    }


def test_a_row_that_is_held_up_and_given_to_another_stream_is_sent_there(
    hub: Hub, database: str, outbox: Outbox, opened: Callable[[], Any]
) -> None:
    connection = opened()
    for stream, value in (("ordres", b"0"), ("ordres", b"1"), ("orders", b"2"), ("orders", b"3")):
        outbox.add(connection, stream, value, key=b"a")
    connection.commit()
    with pytest.raises(UnknownStream, match="ordres"):
        relay_all(hub, database)
    # Rows of higher numbers are stored by now: under its old one it would be taken for one of them.
    cursor = connection.cursor()
    cursor.execute(f"UPDATE shoal_outbox SET stream = 'orders' WHERE id = {_row_of(opened(), b'0')}")
    connection.commit()
    with pytest.raises(UnknownStream, match="ordres"):
        relay_all(hub, database)
    assert (waiting(database), values_by_key(hub, "orders")) == (1, {b"a": [b"2", b"3", b"0"]})
    cursor.execute("UPDATE shoal_outbox SET stream = 'orders'")
    connection.commit()
    assert relay_all(hub, database) == 1
    assert (waiting(database), values_by_key(hub, "orders")) == (0, {b"a": [b"2", b"3", b"0", b"1"]})
    with closing(Journal(database, outbox)) as journal:
        assert not journal.status().stalled


def test_a_relay_says_that_it_is_there_though_it_only_tries_what_is_held_up(
    hub: Hub, database: str, outbox: Outbox, opened: Callable[[], Any]
) -> None:
    connection = opened()
    outbox.add(connection, "missing", b"x")
    connection.commit()
    with OutboxRelay(hub, database, options=RelayOptions(lease_s=1e-6, retry_s=0.001)) as relay:
        assert relay._take()
        while not relay.stalled:
            assert relay._claim is not None
            relay._turn(relay._claim)
        assert relay._claim is not None
        beat = relay._journal.look().beat
        for tries in range(1, 4):
            relay._try_again(relay._claim, "missing")
            assert relay._journal.look().beat == beat + tries


def _row_of(connection: Any, value: bytes) -> int:
    cursor = connection.cursor()
    cursor.execute("SELECT id, value FROM shoal_outbox")
    (found,) = [row[0] for row in cursor.fetchall() if bytes(row[1]) == value]
    return int(found)


def test_a_row_that_is_not_as_the_outbox_writes_it_holds_up_its_stream_alone(
    hub: Hub, database: str, outbox: Outbox, opened: Callable[[], Any]
) -> None:
    hub.create_stream("typed", shards=1, schema={"amount": "int64"})
    connection = opened()
    outbox.add(connection, "typed", {"amount": 1}, key="a")
    outbox.add(connection, "orders", b"x", key="a")
    cursor = connection.cursor()
    cursor.execute("UPDATE shoal_outbox SET headers = 'no' WHERE stream = 'typed'")
    connection.commit()
    with pytest.raises(InvalidInput, match=r"Outbox\.add"):
        relay_all(hub, database)
    assert (waiting(database), values_by_key(hub, "orders")) == (1, {b"a": [b"x"]})


def test_a_stream_that_is_deleted_under_the_relay_stalls_alone_and_goes_on_when_it_is_made_again(
    hub: Hub, database: str, outbox: Outbox, opened: Callable[[], Any]
) -> None:
    hub.create_stream("short", shards=1)
    connection = opened()

    def add(value: bytes) -> None:
        for stream in ("short", "orders"):
            outbox.add(connection, stream, value, key=b"a")
        connection.commit()

    with OutboxRelay(hub, database, options=QUICK).start() as relay:
        add(b"1")
        until(lambda: relay.relayed == 2)
        hub.delete_stream("short")  # Its producer is open, and hears of it when it sends.
        add(b"2")
        add(b"3")
        until(lambda: relay.relayed == 4)
        assert "short" in relay.stalled["short"]
        hub.create_stream("short", shards=2)
        until(lambda: relay.relayed == 6)
    assert values_by_key(hub, "short") == {b"a": [b"2", b"3"]}
    assert values_by_key(hub, "orders") == {b"a": [b"1", b"2", b"3"]}


@pytest.mark.parametrize("cut", ["before", "sent"])
def test_a_relay_that_died_while_a_stream_was_held_up_leaves_each_record_to_be_sent_once(
    hub: Hub, database: str, outbox: Outbox, opened: Callable[[], Any], cut: str
) -> None:
    connection = opened()
    for number in range(12):
        outbox.add(connection, ("orders", "late")[number % 2], b"%d" % number, key=b"a")
    connection.commit()
    with pytest.raises(UnknownStream):
        relay_all(hub, database, batch_records=6)
    hub.create_stream("late", shards=2)
    dead = OutboxRelay(hub, database, options=QUICK)
    assert dead._take()
    claim = dead._claim
    assert claim is not None
    if cut == "sent":
        noted = dead._journal.stalled("late")
        assert noted is not None
        numbers = [number for _, number in noted.rows]
        rows = dead._journal.rows([one for one, _ in noted.rows])
        assert not dead._sending.send([(numbers[place], row) for place, row in rows], claim.producer)
        assert hub.stats("late").appended == len(rows) > 0
    hub.reshard("late", 3)
    for number in range(12, 20):
        outbox.add(connection, "late", b"%d" % number, key=b"a")
    connection.commit()
    relay_all(hub, database, poll_s=0.01, lease_s=0.5, batch_records=3)
    late = [b"%d" % number for number in (*range(1, 12, 2), *range(12, 20))]
    assert values_by_key(hub, "late") == {b"a": late}
    assert (values_by_key(hub, "orders"), waiting(database)) == (
        {b"a": [b"%d" % number for number in range(0, 12, 2)]},
        0,
    )
    dead.close()


def test_more_streams_that_stall_than_are_kept_apart_hold_up_all(
    hub: Hub, database: str, outbox: Outbox, opened: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.outbox.relay.STALLED_MAX", 3)
    connection = opened()
    for number in range(5):
        outbox.add(connection, f"missing-{number}", b"x", key=b"a")
    outbox.add(connection, "orders", b"x", key=b"a")
    connection.commit()
    with pytest.raises(UnknownStream):
        relay_all(hub, database)
    assert waiting(database) == 6  # The batch is noted, and stays so.
    for number in range(5):
        hub.create_stream(f"missing-{number}", shards=1)
    assert relay_all(hub, database) == 6
    assert values_by_key(hub, "orders") == {b"a": [b"x"]}


class Away:
    """A hub that is there until it is away: from then on no append is answered."""

    def __init__(self, hub: Hub) -> None:
        self._hub, self.is_away = hub, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hub.service, name)

    def producer(self, stream: str, *, name: str | None = None) -> Producer:
        return Producer(cast("HubService", self), self._hub.describe_stream(stream), name=name)

    def append(self, *arguments: Any) -> Any:
        if self.is_away:
            raise StoreUnavailable("away")
        return self._hub.service.append(*arguments)


def test_a_relay_that_is_asked_to_stop_while_the_hub_is_away_stops_and_nothing_is_lost(
    hub: Hub, database: str, outbox: Outbox, opened: Callable[[], Any]
) -> None:
    streams = [f"s{number}" for number in range(8)]
    connection = opened()
    for stream in streams:
        hub.create_stream(stream, shards=1)
        for number in range(5):
            outbox.add(connection, stream, b"%d" % number, key=b"a")
    connection.commit()
    away = Away(hub)
    relay = OutboxRelay(away, database, options=RelayOptions(poll_s=0.01, lease_s=10.0)).start()
    until(lambda: relay._claim is not None and len(relay._claim.ids) == 40)
    began_s = time.monotonic()
    relay.stop(60)
    assert time.monotonic() - began_s < 20  # The producers would go on for two minutes.
    assert not relay.is_relaying
    relay.close()
    with closing(Journal(database, outbox)) as journal:
        assert journal.look().name is None  # Nobody has to wait for its lease.
    assert relay_all(hub, database) == 40
    away.is_away = False  # What the first one's producers still try is fenced.
    until(lambda: not any(thread.name.startswith("shoal-sender-s") for thread in threading.enumerate()))
    for stream in streams:
        assert values_by_key(hub, stream) == {b"a": [b"%d" % number for number in range(5)]}


def test_more_streams_than_producers_are_kept_open_for(
    hub: Hub, database: str, outbox: Outbox, opened: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.outbox.sending._STREAMS_MAX", 3)
    connection = opened()
    for turn in range(2):
        for stream in range(7):
            if turn == 0:
                hub.create_stream(f"s{stream}", shards=1)
            outbox.add(connection, f"s{stream}", b"%d" % turn, key=b"a")
    connection.commit()
    assert relay_all(hub, database) == 14
    assert all(values_by_key(hub, f"s{stream}") == {b"a": [b"0", b"1"]} for stream in range(7))


def test_what_could_not_be_sent_is_refused_while_the_transaction_can_be_given_up(
    outbox: Outbox, opened: Callable[[], Any]
) -> None:
    connection = opened()
    with pytest.raises(TooLarge):
        outbox.add(connection, "orders", b"x" * 5_000_000)
    wrongs: list[dict[str, Any]] = [
        {"value": 3},
        {"value": {"a": object()}},
        {"value": b"", "key": 3},
        {"value": "\ud800"},
    ]
    for wrong in wrongs:
        with pytest.raises(InvalidInput):
            outbox.add(connection, "orders", **wrong)
    for name in ("no such name!", "a/b/c", ""):
        with pytest.raises(InvalidInput):
            outbox.add(connection, name, b"")
    for other in (object(), connection.cursor()):
        with pytest.raises(InvalidInput, match=r"connection='.*': a connection or session of SQLAlchemy"):
            outbox.add(other, "orders", b"")


def test_a_class_of_the_users_own_that_is_a_drivers_connection_is_written_through(tmp_path: Path) -> None:
    class Connection(sqlite3.Connection):
        """As users have them, to count or to log."""

    database = tmp_path / "own.db"
    with closing(sqlite3.connect(database, factory=Connection)) as connection:
        outbox = Outbox()
        outbox.create(connection)
        outbox.add(connection, "orders", b"x")
        connection.commit()
    assert waiting(f"sqlite:///{database}") == 1


def test_a_database_without_an_outbox_is_said_to_have_none(hub: Hub, database: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no outbox in .*shoal outbox create"):
        OutboxRelay(hub, database)
    with pytest.raises(InvalidInput, match="no such file"):
        OutboxRelay(hub, f"sqlite:///{tmp_path / 'nowhere.db'}")
    for table in ("1a", "a b", "x" * 49, ""):
        with pytest.raises(InvalidInput, match="table="):
            Outbox(table)


def test_the_statements_that_make_the_tables_can_be_had(
    store: str, database: str, opened: Callable[[], Any], hub: Hub
) -> None:
    outbox, connection = Outbox("till_outbox"), opened()
    with closing(connection.cursor()) as cursor:
        for statement in outbox.ddl(store):
            cursor.execute(statement)
    outbox.create(connection)
    outbox.add(connection, "orders", b"x", key=b"a")
    connection.commit()
    with OutboxRelay(hub, database, outbox, options=QUICK) as relay:
        relay.run(until_empty=True)
    assert values_by_key(hub, "orders") == {b"a": [b"x"]}
