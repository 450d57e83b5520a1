"""Many at once: threads on one hub, hubs on one store, processes that wake each other, and closing."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import shoal
from shoal import Hub
from shoal.core.errors import HubClosed, ProducerClosed
from shoal.testing.contract.suite import ConnectAgain, HubSuite
from shoal.testing.reading import read_stream, values_by_key

WAIT_S = 30.0
SOON_S = WAIT_S / 3

# What another process runs: it says that it is there, and once it is told to, it appends and then splits.
# Before each it waits for a moment on another shard, so that the reader here is surely waiting by then.
_OTHER = """
import sys, shoal
with shoal.connect(sys.argv[1]) as hub:
    print("ready", flush=True)
    sys.stdin.readline()
    hub.read(sys.argv[2], 1, 0, wait=0.15)
    hub.append(sys.argv[2], 0, [b"news"])
    hub.read(sys.argv[2], 1, 0, wait=0.15)
    hub.split_shard(sys.argv[2], 0)
"""


class SharingContract(HubSuite):
    def test_many_threads_append_and_read_at_once_and_nothing_is_lost_or_torn(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=2)

        def append(writer: int) -> None:
            for i in range(15):
                at = hub.append(orders, writer % 2, [b"%d-%d" % (writer, i)] * 3)
                assert [r.value for r in hub.read(orders, at.shard, at.first_offset, max_records=3)] == [
                    b"%d-%d" % (writer, i)
                ] * 3

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(append, range(8)))
        for shard, records in read_stream(hub, orders).items():
            found = [record.value for record in records]
            assert len(found) == 4 * 15 * 3
            assert all(found[i] == found[i + 1] == found[i + 2] for i in range(0, len(found), 3))
            for writer in range(shard, 8, 2):
                mine = [value for value in found[::3] if value.startswith(b"%d-" % writer)]
                assert mine == [b"%d-%d" % (writer, i) for i in range(15)]

    def test_many_threads_share_one_producer_and_each_keeps_its_order(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=3)
        with hub.producer(orders, batch_records=50) as producer, ThreadPoolExecutor(6) as threads:

            def send(sender: int) -> None:
                for i in range(300):
                    producer.send(b"%d" % i, key=f"sender-{sender}")

            list(threads.map(send, range(6)))
        found = values_by_key(hub, orders)
        assert found == {f"sender-{k}".encode(): [b"%d" % i for i in range(300)] for k in range(6)}

    def test_many_producers_at_once_while_shards_change_lose_and_repeat_nothing(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=2)
        started = threading.Barrier(5)

        def send(sender: int) -> None:
            with hub.producer(orders, batch_records=10, linger_s=0) as producer:
                started.wait(WAIT_S)
                for i in range(150):
                    producer.send(b"%d" % i, key=f"{sender}-{i % 3}")

        with ThreadPoolExecutor(4) as threads:
            sending = [threads.submit(send, sender) for sender in range(4)]
            started.wait(WAIT_S)
            for count in (5, 1, 4, 2):
                hub.reshard(orders, count)
            for sent in sending:
                sent.result(WAIT_S)
        found = values_by_key(hub, orders)
        assert found == {
            f"{sender}-{k}".encode(): [b"%d" % i for i in range(k, 150, 3)]
            for sender in range(4)
            for k in range(3)
        }

    def test_two_hubs_on_one_store_see_each_other_at_once(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        other = connect_again()
        hub.create_stream(orders, shards=1)
        assert other.append(orders, 0, [b"from the other"]).first_offset == 0
        assert [record.value for record in hub.read(orders, 0, 0)] == [b"from the other"]
        other.split_shard(orders, 0)
        assert hub.append(orders, 2, [b"by the new map"]).shard == 2
        assert other.describe_stream(orders) == hub.describe_stream(orders)
        other.delete_stream(orders)
        other.create_stream(orders, shards=1)
        other.append(orders, 0, [b"made again"])
        assert [record.value for record in hub.read(orders, 0, 0)] == [b"made again"]

    def test_a_reader_of_one_hub_is_woken_by_an_append_through_another(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        other = connect_again()
        hub.create_stream(orders, shards=2)
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(hub.read, orders, 0, 0, wait=WAIT_S)
            hub.read(orders, 1, 0, wait=0.1)
            other.append(orders, 0, [b"news"])
            assert [record.value for record in reading.result(SOON_S)] == [b"news"]

    def test_a_reader_that_waits_is_woken_by_another_process(
        self, hub: Hub, orders: str, hub_url: str
    ) -> None:
        hub.create_stream(orders, shards=2)
        command = [sys.executable, "-c", _OTHER, hub_url, orders]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            other.stdin.write("go\n")
            other.stdin.flush()
            began_s = time.monotonic()
            news = hub.read(orders, 0, 0, wait=WAIT_S)
            end = hub.read(orders, 0, 1, wait=WAIT_S)
            waited_s = time.monotonic() - began_s
        assert other.returncode == 0
        assert ([record.value for record in news], news.end_of_shard) == ([b"news"], False)
        assert (len(end), end.end_of_shard) == (0, True)
        assert waited_s < SOON_S

    def test_a_closed_hub_refuses_every_call_and_closing_twice_is_once(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        hub.create_stream(orders, shards=1)
        other = connect_again()
        other.close()
        other.close()
        for call in (
            lambda: other.describe_stream(orders),
            lambda: other.append(orders, 0, [b"x"]),
            lambda: other.read(orders, 0, 0),
            lambda: other.read(orders, 0, 0, wait=WAIT_S),
            lambda: other.create_stream(f"{orders}-2"),
            other.list_streams,
            other.enforce_retention,
        ):
            with pytest.raises(HubClosed, match="connect again"):
                call()
        assert hub.stats(orders).appended == 0

    def test_closing_a_hub_ends_the_waits_of_its_readers(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        hub.create_stream(orders, shards=2)
        other = connect_again()
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(other.read, orders, 0, 0, wait=WAIT_S)
            hub.read(orders, 1, 0, wait=0.2)
            other.close()
            with pytest.raises(HubClosed):
                reading.result(SOON_S)

    def test_closing_a_hub_stores_what_its_producers_hold_and_closes_them(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        hub.create_stream(orders, shards=1)
        other = connect_again()
        producer = other.producer(orders, linger_s=WAIT_S)
        future = producer.send(b"x")
        other.close()
        assert future.result(0).offset == 0
        assert hub.next_offset(orders, 0) == 1
        with pytest.raises(ProducerClosed):
            producer.send(b"y")

    def test_a_hub_is_a_context_manager_and_shows_no_password(self, hub_url: str) -> None:
        with shoal.connect(hub_url) as hub:
            assert repr(hub).startswith("<Hub ")
            hub.list_projects()
        with pytest.raises(HubClosed):
            hub.list_projects()
