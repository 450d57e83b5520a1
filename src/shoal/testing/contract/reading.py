"""Reading: trimmed to limits, at any offset, by time, and waiting for what is not there yet."""

from __future__ import annotations

import queue
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from shoal import Batch, Hub, OffsetExpired, OffsetOutOfRange, Record
from shoal.core.errors import UnknownStream
from shoal.core.model import ShardId
from shoal.ports import Place, ShardEnd
from shoal.testing.contract.suite import HubSuite
from shoal.testing.reading import read_shard, until

WAIT_S = 30.0
SOON_S = WAIT_S / 3


def timed(call: Callable[[], Batch]) -> tuple[Batch, float]:
    """What a call returned, and how long it took."""
    began = time.monotonic()
    batch = call()
    return batch, time.monotonic() - began


class ReadContract(HubSuite):
    def test_a_read_returns_consecutive_records_from_the_offset_on(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        for first in range(0, 30, 10):
            hub.append(orders, 0, [b"%d" % i for i in range(first, first + 10)])
        batch = hub.read(orders, 0, 5)
        assert (batch.shard, batch.first_offset, batch.next_offset, len(batch)) == (0, 5, 30, 25)
        assert [record.offset for record in batch] == list(range(5, 30))
        assert [record.value for record in batch] == [b"%d" % i for i in range(5, 30)]
        assert batch.to_arrow().column("offset").to_pylist() == list(range(5, 30))
        assert batch.to_arrow().column("value").to_pylist() == [record.value for record in batch]

    def test_a_limit_in_records_is_kept_within_a_batch_and_across(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        for first in range(0, 30, 10):
            hub.append(orders, 0, [b"%d" % i for i in range(first, first + 10)])
        for max_records in (1, 3, 10, 11, 29, 30, 31):
            assert len(hub.read(orders, 0, 0, max_records=max_records)) == min(max_records, 30)
            assert len(hub.read(orders, 0, 9, max_records=max_records)) == min(max_records, 21)
        for max_records in (3, 11):
            whole = read_shard(hub, orders, 0, max_records=max_records)
            assert [record.value for record in whole] == [b"%d" % i for i in range(30)]

    def test_a_limit_in_bytes_ends_between_batches_where_it_can(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        for _ in range(5):
            hub.append(orders, 0, [b"x" * 1000] * 10)
        batch = hub.read(orders, 0, 0, max_bytes=25_000)
        assert len(batch) == 20
        assert batch.nbytes <= 25_000

    def test_a_limit_in_bytes_cuts_a_batch_that_alone_is_over_it(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"x" * 1000] * 100)
        batch = hub.read(orders, 0, 30, max_bytes=10_000)
        assert 5 <= len(batch) <= 10
        assert len(read_shard(hub, orders, 0, max_bytes=10_000)) == 100

    def test_a_record_larger_than_the_limit_is_returned_all_the_same(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"x" * 5000, b"y" * 5000])
        assert [record.value for record in hub.read(orders, 0, 0, max_bytes=1)] == [b"x" * 5000]

    def test_large_and_small_batches_of_one_shard_are_read_each_once_in_order(
        self, hub: Hub, orders: str
    ) -> None:
        """A hub looks at few batches where the last ones were large, and must see when more would fit."""
        large, middling, tiny = [700_000] * 2, [30_000], [1]
        batches = [large, large, tiny, middling, middling, tiny, large, *[middling] * 12, large, tiny]
        hub.create_stream(orders, shards=1)
        for sizes in batches:
            hub.append(orders, 0, [secrets.token_bytes(size) for size in sizes])
        found: list[tuple[int, int]] = []
        reads = []
        while len(found) < sum(map(len, batches)):
            batch = hub.read(orders, 0, len(found))
            found += [(record.offset, len(record.value)) for record in batch]
            reads.append(len(batch))
        assert found == list(enumerate(size for sizes in batches for size in sizes))
        assert len(reads) <= 5, "small ones come together, also behind large ones"

    def test_many_small_batches_are_read_whole(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        for i in range(40):
            hub.append(orders, 0, [b"%d" % i])
        assert len(hub.read(orders, 0, 0)) == 40

    def test_at_the_end_a_read_is_empty_and_returns_at_once(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"a"])
        batch = hub.read(orders, 0, 1)
        assert (len(batch), list(batch), batch.first_offset, batch.next_offset) == (0, [], 1, 1)
        assert not batch.end_of_shard
        assert batch.to_arrow().num_rows == 0
        assert batch.to_arrow().schema.names == ["offset", "timestamp", "key", "headers", "value"]

    @pytest.mark.parametrize("offset", [-1, 4, 2**70])
    def test_an_offset_past_the_end_or_below_zero_is_out_of_range(
        self, hub: Hub, orders: str, offset: int
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"a"] * 3)
        with pytest.raises(OffsetOutOfRange, match=f"offset={offset}.*from 0 to 3") as caught:
            hub.read(orders, 0, offset)
        assert caught.value.next_offset == 3

    def test_an_offset_below_the_first_kept_one_is_expired_and_says_which_is_kept(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        for _ in range(3):
            hub.append(orders, 0, [b"a"] * 4)
        hub.set_retention(orders, retention_bytes=1)
        hub.enforce_retention(orders)
        with pytest.raises(OffsetExpired, match=r"offset=7.*from offset 8 on") as caught:
            hub.read(orders, 0, 7)
        assert caught.value.first_offset == 8
        assert hub.read(orders, 0, 8).first_offset == 8

    def test_a_reader_that_waits_is_woken_by_an_append_of_another_thread(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(timed, lambda: hub.read(orders, 0, 0, wait=WAIT_S))
            hub.read(orders, 1, 0, wait=0.1)  # Time for the other thread to begin waiting.
            hub.append(orders, 0, [b"news"])
            batch, waited_s = reading.result()
        assert [record.value for record in batch] == [b"news"]
        assert waited_s < SOON_S

    def test_an_append_to_another_shard_wakes_nobody_for_long(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(timed, lambda: hub.read(orders, 0, 0, wait=0.25))
            hub.append(orders, 1, [b"elsewhere"])
            batch, waited_s = reading.result()
        assert len(batch) == 0
        assert 0.25 <= waited_s < SOON_S

    def test_a_reader_that_waits_is_woken_when_its_shard_is_closed(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(timed, lambda: hub.read(orders, 0, 0, wait=WAIT_S))
            hub.read(orders, 1, 0, wait=0.1)
            hub.split_shard(orders, 0)
            batch, waited_s = reading.result()
        assert (len(batch), batch.end_of_shard) == (0, True)
        assert waited_s < SOON_S

    def test_a_reader_that_begins_to_wait_while_others_do_is_woken_as_well(
        self, hub: Hub, orders: str
    ) -> None:
        # Whoever watches for all of them must not miss the one who came last: its hint may be the only one.
        hub.create_stream(orders, shards=4)
        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(hub.read, orders, 0, 0, wait=WAIT_S)
            for shard in (1, 2, 3):
                hub.read(orders, 0, 0, wait=0.05)
                later = threads.submit(hub.read, orders, shard, 0, wait=WAIT_S)
                hub.read(orders, 0, 0, wait=0.02)
                hub.split_shard(orders, shard)
                assert later.result(SOON_S).end_of_shard
            hub.append(orders, 0, [b"end"])
            assert len(first.result(SOON_S)) == 1

    def test_a_reader_that_waits_learns_that_its_stream_was_deleted(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(timed, lambda: hub.read(orders, 0, 0, wait=WAIT_S))
            hub.read(orders, 1, 0, wait=0.1)
            hub.delete_stream(orders)
            with pytest.raises(UnknownStream):
                reading.result(SOON_S)

    def test_many_readers_wait_at_once_and_each_gets_its_own_record(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=8)
        with ThreadPoolExecutor(16) as threads:
            reading = [threads.submit(hub.read, orders, i % 8, 0, wait=WAIT_S) for i in range(16)]
            hub.read(orders, 0, 0, wait=0.1)
            for shard in range(8):
                hub.append(orders, shard, [b"%d" % shard])
            for i, read in enumerate(reading):
                assert [record.value for record in read.result(SOON_S)] == [b"%d" % (i % 8)]

    def test_a_reader_that_waits_does_not_spin(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.read(orders, 0, 0, wait=0.05)  # The first wait opens what it listens on.
        began_s = time.process_time()
        hub.read(orders, 0, 0, wait=0.6)
        assert time.process_time() - began_s < 0.2

    def test_a_time_is_looked_up_by_the_first_record_that_reaches_it(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        for first in range(0, 100, 10):
            hub.append(orders, 0, [Record(0, 1000 + i, None, b"") for i in range(first, first + 10)])
        assert hub.offset_at(orders, 0, 0) == 0
        assert hub.offset_at(orders, 0, 1000) == 0
        assert hub.offset_at(orders, 0, 1043) == 43
        assert hub.offset_at(orders, 0, 1099) == 99
        assert hub.offset_at(orders, 0, 1100) == 100
        assert hub.offset_at(orders, 0, datetime(1970, 1, 1, 0, 0, 1, 43_000, tzinfo=UTC)) == 43

    def test_a_time_is_found_though_timestamps_are_out_of_order(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        stamps = [50, 10, 70, 20, 20, 90, 30, 95, 5]
        for first in range(0, 9, 3):
            hub.append(orders, 0, [Record(0, stamp, None, b"") for stamp in stamps[first : first + 3]])
        for at in sorted({stamp + step for stamp in stamps for step in (0, 1)}):
            wanted = next((i for i, stamp in enumerate(stamps) if stamp >= at), len(stamps))
            assert hub.offset_at(orders, 0, at) == wanted

    def test_a_time_before_what_retention_kept_is_the_first_kept_offset(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        for first in range(0, 30, 10):
            hub.append(orders, 0, [Record(0, 1000 + i, None, b"") for i in range(first, first + 10)])
        hub.set_retention(orders, retention_bytes=1)
        until(lambda: hub.enforce_retention(orders) or hub.first_offset(orders, 0) == 20)
        assert hub.offset_at(orders, 0, 1003) == 20
        assert hub.offset_at(orders, 0, 1025) == 25
        assert hub.offset_at(orders, 0, 2000) == 30

    def test_an_empty_shard_has_every_time_at_offset_zero(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        assert hub.offset_at(orders, 0, 123) == 0

    def test_who_follows_a_shard_is_told_of_each_further_record_once(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        told: queue.SimpleQueue[Place] = queue.SimpleQueue()
        following = hub.service.follow(told.put)
        place = ShardEnd(hub.describe_stream(orders).id, ShardId(0))
        assert not following.move(place, 0), "nobody waits there yet"
        following.add(place, 0)
        for end in (1, 2, 3):
            hub.append(orders, 0, [b"x"])
            assert told.get(timeout=20) == place
            assert following.move(place, end)
        assert told.empty()
        following.close()
        hub.append(orders, 0, [b"x"])
        assert not following.move(place, 4)
        assert told.empty()
