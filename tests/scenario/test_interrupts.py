"""Interrupts, dying threads and callbacks: nobody hangs, and nothing is reported stored that is not."""

import signal
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import Connection

import shoal
from shoal.core.errors import ProducerClosed, WrongThread
from shoal.producer.queues import Queues
from shoal.store.sql.dialects.sqlite import SQLite


@pytest.fixture
def hub(sqlite_url: str) -> Iterator[shoal.Hub]:
    with shoal.connect(sqlite_url) as hub:
        hub.create_stream("orders", shards=1)
        yield hub


def test_an_append_that_is_interrupted_leaves_the_hub_usable(hub: shoal.Hub, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "shoal.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # Whoever commits waits now.
    producer = hub.producer("orders")
    future = producer.send(b"behind the lock")
    alarm = threading.Timer(0.5, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
    previous = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    alarm.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            hub.append("orders", 0, [b"interrupted"])
    finally:
        alarm.join()
        signal.signal(signal.SIGUSR1, previous)
        other.execute("ROLLBACK")
        other.close()
    assert future.result(timeout=30).shard == 0
    hub.append("orders", 0, [b"after"])
    producer.close()
    values = [record.value for record in hub.read("orders", 0, 0)]
    assert {b"behind the lock", b"after"} <= set(values)
    assert len(values) == len(set(values))


@pytest.mark.parametrize("begin", ["begin_write", "begin_read"])
def test_who_is_interrupted_when_a_transaction_has_just_begun_leaves_no_lock_behind(
    hub: shoal.Hub, monkeypatch: pytest.MonkeyPatch, begin: str
) -> None:
    begun = getattr(SQLite, begin)

    def interrupted(self: SQLite, connection: Connection) -> None:
        begun(self, connection)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SQLite, begin, interrupted)
        with pytest.raises(KeyboardInterrupt):
            _ = hub.create_stream("payments") if begin == "begin_write" else hub.stats("orders")
    for name in ("invoices", "charges"):
        hub.create_stream(name)
        assert hub.stats(name).records == 0


def test_a_sender_that_dies_fails_what_waits_and_refuses_what_comes(
    hub: shoal.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PowerCut(BaseException):
        pass

    def cut(*_: object, **__: object) -> list[object]:
        raise PowerCut

    producer = hub.producer("orders", linger_s=0.3)
    future = producer.send(b"lost")
    monkeypatch.setattr(Queues, "take", cut)
    assert isinstance(future.exception(timeout=30), ProducerClosed)
    with pytest.raises(ProducerClosed, match="PowerCut"):
        producer.send(b"more")
    with pytest.raises(ProducerClosed, match="PowerCut"):
        producer.flush()
    with pytest.raises(ProducerClosed, match="PowerCut"):
        producer.close()


def test_a_callback_may_not_wait_for_the_thread_it_runs_in(hub: shoal.Hub) -> None:
    heard: list[BaseException] = []
    is_done = threading.Event()

    def call_back(_: shoal.SendFuture) -> None:
        for call in (producer.close, producer.flush):
            try:
                producer.send(b"again")
                call()
            except WrongThread as error:
                heard.append(error)
        is_done.set()

    with hub.producer("orders") as producer:
        producer.send(b"once").add_done_callback(call_back)
        assert is_done.wait(30)
    assert len(heard) == 2
