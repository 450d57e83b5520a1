"""Servers that are stopped, killed and started again, and others in their place."""

import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

import shoal
from shoal import Batch, Checkpointer, Hub, Worker
from shoal.core.errors import StoreUnavailable
from shoal.core.names import stream_name
from shoal.ports import Newcomer
from shoal.testing.members import eventually
from shoal.testing.server import Server
from shoal.testing.serving import ServerProcess
from tests.scenario.asking import asked, figure


def test_a_server_that_stops_answers_what_is_in_flight_and_sends_who_waits_elsewhere(sqlite_url: str) -> None:
    with ServerProcess(sqlite_url) as first, ServerProcess(sqlite_url) as second:
        both = f"http://127.0.0.1:{first.port},127.0.0.1:{second.port}"
        with shoal.connect(both) as hub, shoal.connect(second.url) as other:
            hub.create_stream("orders", shards=1)
            found: list[Batch] = []
            reader = threading.Thread(target=lambda: found.append(hub.read("orders", 0, 0, wait=30)))
            reader.start()
            eventually(
                lambda: b"shoal_server_waiting 1.0" in asked(first.url, "/metrics", method="GET")[1],
                "it waits",
            )
            began = time.monotonic()
            first.end()
            assert first.code == 0
            assert time.monotonic() - began < 10
            other.append("orders", 0, [b"through the other"])
            reader.join(20)
            assert [record.value for record in found[0]] == [b"through the other"]


def test_numbered_appends_that_a_server_had_no_time_to_answer_are_stored_once(sqlite_url: str) -> None:
    """They were answered with a failure for good, and were stored all the same."""
    quick = ("--stop-timeout", "1s")
    size = 10_000  # More than any other call sends.
    sent = [random.randbytes(size) for _ in range(4)]
    with ServerProcess(sqlite_url, *quick) as first, ServerProcess(sqlite_url) as second:
        both = f"http://127.0.0.1:{first.port},127.0.0.1:{second.port}"
        with shoal.connect(both) as hub:
            hub.create_stream("orders", shards=1)
            with hub.producer("orders") as producer:
                producer.send(sent[0], key="k").result(timeout=20)
                with write_lock(sqlite_url):
                    futures = [producer.send(value, key="k") for value in sent[1:]]
                    eventually(lambda: figure(first.url, "body_bytes") > size, "they are on their way")
                    first.leave()
                    eventually(lambda: figure(second.url, "body_bytes") > size, "the other is asked", 20)
                assert [future.result(timeout=20).offset for future in futures] == [1, 2, 3]
            assert [record.value for record in hub.read("orders", 0, 0)] == sent
        assert "Traceback" not in first.end()
        assert first.code == 0


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/v1/hub/create_stream", b'{"name":"default/new","settings":{},"shards":1}', {}),
        (
            "/logstores",
            b'{"logstoreName":"new","ttl":1,"shardCount":1}',
            {"Host": "default.localhost", "x_log_apiversion": "0.6.0"},
        ),
    ],
    ids=["native", "of Aliyun"],
)
def test_who_is_cut_short_by_a_stop_hears_in_its_own_form_that_it_may_be_done(
    sqlite_url: str, path: str, body: bytes, headers: dict[str, str]
) -> None:
    stop_s = 0.9
    with shoal.connect(sqlite_url) as hub, ServerProcess(sqlite_url, "--stop-timeout", "0.9s") as server:
        hub.create_stream("orders", shards=1)
        heard: list[tuple[int, Any]] = []
        asking = threading.Thread(target=lambda: heard.append(asked(server.url, path, body, **headers)))
        with write_lock(sqlite_url):
            asking.start()
            eventually(lambda: figure(server.url, "body_bytes") > 0, "it is on its way")
            began = time.monotonic()
            server.leave()
            asking.join(20)
            assert time.monotonic() - began >= stop_s
        ((status, told),) = heard
        assert status == 503
        if "error" in told:
            assert (told["error"], told["untouched"], told["lost"]) == ("StoreUnavailable", False, True)
            assert "may be done" in told["text"]
        else:
            assert told["errorCode"] == "ServerBusy"
        assert "Traceback" not in server.end()
        assert server.code == 0


@contextmanager
def write_lock(sqlite_url: str) -> Iterator[None]:
    """Another program writes to the file all the while."""
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")


def test_producers_and_workers_survive_a_restart_and_nothing_is_lost_or_stored_twice(sqlite_url: str) -> None:
    server = ServerProcess(sqlite_url)
    seen: list[bytes] = []

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        seen.extend(record.value for record in batch)
        checkpointer.save()

    with server, shoal.connect(server.url) as hub:
        hub.create_stream("orders", shards=2)
        hub.create_group("orders", "billing", timeout=3)
        worker = Worker(hub, "orders", "billing", process, name="anna").start()
        with hub.producer("orders") as producer:
            for number in range(300):
                producer.send(b"%d" % number, key=b"%d" % (number % 7))
                if number in (100, 200):
                    server.end(kill=number == 100)
                    server.start()
                time.sleep(0.002)
        eventually(lambda: len(set(seen)) == 300, "all of them are processed", 40)
        worker.stop()
        kept = [record.value for shard in (0, 1) for record in hub.read("orders", shard, 0)]
        assert sorted(map(int, kept)) == list(range(300))
        assert hub.describe_group("orders", "billing").lag == 0


def test_a_restarted_server_judges_nobody_before_it_has_looked_for_a_whole_timeout(sqlite_url: str) -> None:
    """Most of the silence was noted before; who was silent may still come back to the server that does."""
    timeout_s = 4.0
    with ServerProcess(sqlite_url) as server, shoal.connect(server.url) as hub:
        hub.create_stream("orders", shards=2)
        hub.create_group("orders", "billing", timeout=timeout_s)
        silent = Newcomer(name="silent", incarnation="silent-1")
        hub.service.groups.join(stream_name("orders"), "billing", silent)
        with hub.join_group("orders", "billing", "anna"):

            def noted_ms(name: str = "silent") -> int | None:
                members = hub.describe_group("orders", "billing").members
                return next((member.silent_ms for member in members if member.name == name), None)

            eventually(lambda: (noted_ms() or 0) > 600 * timeout_s, "most of a timeout is noted")
            server.end(kill=True)
            server.start()
            began = time.monotonic()
            eventually(lambda: (noted_ms() or 0) >= 1000 * timeout_s, "as much as the timeout is noted")
            assert time.monotonic() - began < 0.8 * timeout_s  # What was noted before was kept.
            eventually(lambda: noted_ms() is None, "it is expired")
            assert time.monotonic() - began >= 0.9 * timeout_s  # It began a moment before it was ready.
            assert noted_ms("anna") is not None


def test_its_timeout_begins_when_a_group_comes_back_to_it(sqlite_url: str) -> None:
    """A server that nobody has reached for long has not watched anyone."""
    timeout_s = 3.0
    silent, loud = (Newcomer(name=name, incarnation=f"{name}-1") for name in ("silent", "loud"))
    with ServerProcess(sqlite_url) as server, shoal.connect(server.url) as hub:
        hub.create_stream("orders", shards=2)
        hub.create_group("orders", "billing", timeout=timeout_s)

        def noted_ms() -> int | None:
            members = hub.describe_group("orders", "billing").members
            return next((member.silent_ms for member in members if member.name == "silent"), None)

        for newcomer in (silent, loud):
            hub.service.groups.join(stream_name("orders"), "billing", newcomer)
        eventually(lambda: (noted_ms() or 0) > 600 * timeout_s, "most of a timeout is noted")
        server.end(kill=True)
        server.start()
        time.sleep(1.2 * timeout_s)
        began = time.monotonic()
        with hub.join_group("orders", "billing", "anna"):
            eventually(lambda: noted_ms() is None, "it is expired")
            assert time.monotonic() - began >= 0.9 * timeout_s


@pytest.mark.timeout(120)
def test_of_two_servers_one_may_freeze_and_everybody_goes_to_the_other(postgres_server: Server) -> None:
    """Its machine is cut off, or stands still: connections to it stand, and nothing comes."""
    store = postgres_server.fresh_database()
    seen: list[int] = []

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        seen.extend(int(record.value) for record in batch)
        checkpointer.save()

    with ServerProcess(store) as first, ServerProcess(store) as second:
        both = f"{first.url},127.0.0.1:{second.port}"
        with shoal.connect(both) as hub, shoal.connect(second.url) as other:
            hub.create_stream("orders", shards=4)
            hub.create_group("orders", "billing", timeout=4)
            workers = [
                Worker(one, "orders", "billing", process, name=name).start()
                for one, name in ((hub, "anna"), (other, "bob"))
            ]
            with hub.producer("orders") as producer:
                producer.send(b"0", key=b"0").result(20)
                eventually(lambda: len(seen) == 1, "the first is processed", 20)
                os.kill(first.pid, signal.SIGSTOP)
                try:
                    began = time.monotonic()
                    for number in range(1, 41):
                        producer.send(b"%d" % number, key=b"%d" % number)
                    producer.flush()
                    eventually(lambda: set(seen) == set(range(41)), "all of them are processed", 30)
                    took_s = time.monotonic() - began
                finally:
                    os.kill(first.pid, signal.SIGCONT)
            assert took_s < 20
            for worker in workers:
                worker.stop()
            kept = [int(record.value) for shard in range(4) for record in hub.read("orders", shard, 0)]
            assert sorted(kept) == list(range(41))  # Also what the frozen one had in hand.
            assert hub.describe_group("orders", "billing").lag == 0


@pytest.mark.timeout(120)
def test_of_two_servers_on_one_database_one_may_be_killed_under_load(postgres_server: Server) -> None:
    """Section 10, 4: every acknowledged record is there once; and no group stalls."""
    store = postgres_server.fresh_database()
    acknowledged: list[bytes] = []
    seen: set[bytes] = set()

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        seen.update(record.value for record in batch)
        checkpointer.save()

    with ServerProcess(store) as first, ServerProcess(store) as second:
        both = f"http://127.0.0.1:{first.port},127.0.0.1:{second.port}"
        with shoal.connect(both) as hub, shoal.connect(second.url) as other, ExitStack() as stack:
            hub.create_stream("orders", shards=4)
            hub.create_group("orders", "billing", timeout=3)
            workers = [
                Worker(through, "orders", "billing", process, name=name).start()
                for through, name in ((hub, "anna"), (other, "bert"))
            ]

            def send(through: Hub, name: str) -> None:
                with through.producer("orders", linger_s=0.002) as producer:
                    for number in range(150):
                        value = f"{name}-{number}".encode()
                        producer.send(value, key=value).result(timeout=60)
                        acknowledged.append(value)

            senders = [
                threading.Thread(target=send, args=(through, f"p{i}"))
                for i, through in enumerate((hub, hub, other, other))
            ]
            for sender in senders:
                sender.start()
            eventually(lambda: len(acknowledged) > 100, "there is load", 40)
            first.end(kill=True)
            for sender in senders:
                sender.join(60)
            assert len(acknowledged) == 600
            eventually(lambda: len(seen) == 600, "the group goes on", 40)
            for worker in workers:
                stack.callback(worker.stop)
            kept = [record.value for shard in range(4) for record in other.read("orders", shard, 0)]
            assert sorted(kept) == sorted(acknowledged)
    postgres_server.drop_database(store)


def test_without_a_server_a_call_is_unavailable_after_a_while(sqlite_url: str) -> None:
    with ServerProcess(sqlite_url) as server, shoal.connect(server.url) as hub:
        hub.create_stream("orders", shards=1)
        server.end(kill=True)
        with pytest.raises(StoreUnavailable, match=str(server.port)):
            hub.append("orders", 0, [b"x"])
        server.start()
        assert hub.append("orders", 0, [b"x"]).first_offset == 0
