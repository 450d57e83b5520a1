"""A database server that goes away and comes back, while records are being appended and waited for."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, bindparam, select, text, update

import shoal
from shoal.core.errors import DeliveryTimeout, StoreError, StoreUnavailable
from shoal.store.sql.database import Database
from shoal.store.sql.dialects import dialect_for
from shoal.store.sql.prepared import PreparedWrite
from shoal.testing.history import Ack, Mark, find_faults, read_history
from shoal.testing.server import Server, StopMode
from tests.scenario.proxy import Proxy

KEYS = [f"k{i}".encode() for i in range(5)]
PATIENCE_S = 30.0


@pytest.fixture(params=["postgresql", "mariadb"])
def store(request: pytest.FixtureRequest) -> str:
    """The stores that are servers."""
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture
def server(store: str, request: pytest.FixtureRequest) -> Server:
    found = request.getfixturevalue("postgres_server" if store == "postgresql" else "mariadb_server")
    assert isinstance(found, Server)
    return found


@pytest.fixture
def hub(store_url: str) -> Iterator[shoal.Hub]:
    with shoal.connect(store_url) as hub:
        hub.create_stream("orders", shards=3)
        yield hub


class Sending:
    """A thread that sends one record after the other and keeps several under way.

    Writer of all fields: the thread, under `_changed`. Readers: the test.
    """

    def __init__(self, producer: shoal.Producer, writer: str) -> None:
        self.acks: list[Ack] = []
        self.failure: BaseException | None = None
        self._changed = threading.Condition()
        self._is_over = False
        self._producer, self._writer = producer, writer
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_for_more(self, count: int) -> None:
        """Wait until so many more are acknowledged."""
        with self._changed:
            wanted = len(self.acks) + count
            self._changed.wait_for(lambda: len(self.acks) >= wanted or self.failure, PATIENCE_S)
            assert self.failure is None, self.failure
            assert len(self.acks) >= wanted, "the producer did not recover"

    def stop(self) -> list[Ack]:
        """End with everything settled."""
        with self._changed:
            self._is_over = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        assert self.failure is None, self.failure
        return self.acks

    def _run(self) -> None:
        numbers = dict.fromkeys(KEYS, 0)
        try:
            while not self._is_over:
                futures = []
                for key in KEYS * 3:
                    value = Mark.single(self._writer, numbers[key]).value()
                    futures.append((key, numbers[key], self._producer.send(value, key=key)))
                    numbers[key] += 1
                found = [
                    Ack(self._writer, key, number, *future.result(timeout=PATIENCE_S))
                    for key, number, future in futures
                ]
                with self._changed:
                    self.acks += found
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - a thread's top; the test raises it
            with self._changed:
                self.failure = error
                self._changed.notify_all()


class Asking:
    """A thread that calls the hub directly, without retries, and keeps every error it gets."""

    def __init__(self, hub: shoal.Hub) -> None:
        self.errors: list[BaseException] = []
        self._is_over = threading.Event()
        self._hub = hub
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> list[BaseException]:
        self._is_over.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.errors

    def _run(self) -> None:
        while not self._is_over.wait(0.01):
            for call in (
                lambda: self._hub.read("orders", 0, 0),
                lambda: self._hub.describe_stream("orders"),
                lambda: self._hub.reshard("orders", 3),
                lambda: self._hub.append("another", 0, [b"x"]),
            ):
                try:
                    call()
                except BaseException as error:  # noqa: BLE001 - what it is, the test asserts
                    self.errors.append(error)


def assert_all_there(hub: shoal.Hub, acks: list[Ack], given_up: set[tuple[str, bytes, int]]) -> None:
    shards, stored = read_history(hub, "orders")
    faults = find_faults(shards, stored, acks, given_up=given_up)
    assert not faults, "\n".join(faults)


@pytest.mark.timeout(120)
def test_appends_go_on_by_themselves_when_the_database_is_restarted(hub: shoal.Hub, server: Server) -> None:
    hub.create_stream("another", shards=1)
    asking = Asking(hub)
    with hub.producer("orders", linger_s=0.0) as one, hub.producer("orders", linger_s=0.002) as two:
        sending = [Sending(one, "one"), Sending(two, "two")]
        modes: tuple[StopMode, ...] = ("fast", "immediate", "fast")
        for mode in modes:
            for writer in sending:
                writer.wait_for_more(100)
            server.restart(mode)
        for writer in sending:
            writer.wait_for_more(100)
        acks = [ack for writer in sending for ack in writer.stop()]
    errors = asking.stop()

    strange = [error for error in errors if not (isinstance(error, shoal.ShoalError) and error.retriable)]
    assert not strange, f"errors that do not say that one may try again: {strange!r}"
    assert any(isinstance(error, StoreUnavailable) for error in errors)
    assert_all_there(hub, acks, set())


@pytest.mark.timeout(120)
def test_a_producer_waits_while_the_database_is_away_and_then_delivers_once(
    hub: shoal.Hub, server: Server
) -> None:
    with hub.producer("orders", linger_s=0.0, retry_most_s=0.2) as producer:
        sending = Sending(producer, "patient")
        sending.wait_for_more(30)
        with away(server):
            assert_refused(hub, server, for_s=2.0)
        sending.wait_for_more(30)
        acks = sending.stop()
    assert_all_there(hub, acks, set())


@pytest.mark.timeout(120)
def test_a_delivery_timeout_that_passes_while_the_database_is_away_fails_the_futures(
    hub: shoal.Hub, server: Server
) -> None:
    with hub.producer("orders", linger_s=0.0, delivery_timeout_s=0.7, retry_most_s=0.1) as producer:
        first = [producer.send(Mark.single("hasty", 0).value(), key=key) for key in KEYS]
        acks = [
            Ack("hasty", key, 0, *future.result(PATIENCE_S)) for key, future in zip(KEYS, first, strict=True)
        ]
        with away(server):
            began_s = time.monotonic()
            lost = [producer.send(Mark.single("hasty", 1).value(), key=key) for key in KEYS]
            errors = [future.exception(timeout=PATIENCE_S) for future in lost]
            waited_s = time.monotonic() - began_s
        assert {type(error) for error in errors} == {DeliveryTimeout}
        assert all(isinstance(error.__cause__, StoreUnavailable) for error in errors if error)
        assert waited_s < 10, "the futures fail soon after the timeout"

        again = [producer.send(Mark.single("hasty", 2).value(), key=key) for key in KEYS]
        acks += [
            Ack("hasty", key, 2, *future.result(PATIENCE_S)) for key, future in zip(KEYS, again, strict=True)
        ]
    assert_all_there(hub, acks, {("hasty", key, 1) for key in KEYS})


@pytest.mark.timeout(120)
def test_a_reader_that_waits_while_the_database_is_restarted_gets_the_record_or_a_typed_error(
    hub: shoal.Hub, server: Server
) -> None:
    outcomes: list[object] = []

    def read() -> None:
        while True:
            try:
                batch = hub.read("orders", 0, 0, wait=PATIENCE_S)
            except BaseException as error:  # noqa: BLE001 - what it is, the test asserts
                outcomes.append(error)
                if not getattr(error, "retriable", False) or len(outcomes) > 1000:
                    return
                time.sleep(0.01)  # The pause of a caller who tries again.
            else:
                outcomes.append(batch)
                return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    server.restart()
    with hub.producer("orders", linger_s=0.0) as producer:
        producer.send(b"at last", hash_key=0).result(PATIENCE_S)
    reader.join(PATIENCE_S)

    assert not reader.is_alive(), "the reader was not woken"
    *errors, last = outcomes
    assert isinstance(last, shoal.Batch), last
    assert [record.value for record in last] == [b"at last"]
    assert {type(error) for error in errors} <= {StoreUnavailable}


@pytest.mark.timeout(60)
def test_a_batch_whose_acknowledgement_was_lost_on_the_way_is_stored_once(
    store_url: str, server: Server
) -> None:
    acks: list[Ack] = []
    with Proxy(server.port) as proxy:
        url = store_url.replace(f":{server.port}/", f":{proxy.port}/")
        with shoal.connect(url) as hub:
            hub.create_stream("orders", shards=3)
            with hub.producer("orders", linger_s=0.0) as producer:
                for number in range(10):
                    if number % 2:
                        proxy.lose_next_answer()
                    futures = [producer.send(Mark.single("w", number).value(), key=key) for key in KEYS]
                    acks += [
                        Ack("w", key, number, *future.result(PATIENCE_S))
                        for key, future in zip(KEYS, futures, strict=True)
                    ]
                    if number % 2:
                        proxy.wait_for_cuts(number // 2 + 1, PATIENCE_S)
            assert_all_there(hub, acks, set())


@pytest.mark.parametrize("rows", [1, 3])
def test_a_server_ends_a_transaction_that_stands_still(store: str, store_url: str, rows: int) -> None:
    """A process that is stopped within one would keep its rows locked for as long as it stands."""
    setting = "idle_transaction_timeout" if store == "mariadb" else "idle_in_transaction_session_timeout"
    shown = f"SELECT @@SESSION.{setting}" if store == "mariadb" else f"SHOW {setting}"
    places = range(1, rows + 1)
    table = Table("still", MetaData(), Column("place", Integer, primary_key=True), Column("at", Integer))
    change = PreparedWrite(update(table).where(table.c.place == bindparam("which")).values(at=table.c.at + 1))
    with closing(Database(dialect_for(store_url))) as database:
        with database.write() as connection:
            table.create(connection)
            connection.execute(table.insert(), [{"place": place, "at": 0} for place in places])
        with pytest.raises(StoreError), database.write() as stopped:  # noqa: PT012 - it is the commit that fails
            assert str(stopped.execute(text(shown)).scalar_one()).removesuffix("s") == "10"
            stopped.execute(text(f"SET SESSION {setting} = {1 if store == 'mariadb' else 1000}"))
            assert change.run(stopped, [{"which": place} for place in places]) == rows
            with database.write() as other:  # It waits for the lock, and gets it before it gives up.
                assert change.run(other, [{"which": place} for place in places]) == rows
        with database.read() as connection:
            assert set(connection.execute(select(table.c.at)).scalars()) == {1}


@contextmanager
def away(server: Server) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


def assert_refused(hub: shoal.Hub, server: Server, *, for_s: float) -> None:
    """For so long, every call says at once that the store is away."""
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        with pytest.raises(StoreUnavailable) as caught:
            hub.append("orders", 0, [b"x"])
        assert caught.value.retriable
        with pytest.raises(StoreUnavailable):
            hub.read("orders", 0, 0)
        with pytest.raises(StoreUnavailable):
            shoal.connect(server.url)
        time.sleep(0.1)  # A pace; how often it is asked does not matter.
