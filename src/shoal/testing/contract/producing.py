"""The producer's life: futures, flush, close, its limits, its errors, and order through resharding."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from shoal import BatchFuture, Hub, Position, Producer, ProducerOptions, SendFuture
from shoal.core.errors import BufferFull, InvalidInput, ProducerClosed, UnknownStream
from shoal.testing.contract.suite import HubSuite
from shoal.testing.reading import read_shard, read_stream, unchanged, until, values_by_key

LONG_S = 60.0
HALF_RING = 2**127


def hold_up(producer: Producer, release: threading.Event) -> SendFuture:
    """Occupy the sender: a callback runs in its thread, and this one does not return until released."""
    is_held = threading.Event()

    def hold(_: SendFuture) -> None:
        is_held.set()
        release.wait(LONG_S)

    future = producer.send(b"first", hash_key=0)
    future.add_done_callback(hold)
    assert is_held.wait(LONG_S)
    return future


def _send_many(producer: Producer, count: int) -> list[SendFuture]:
    return [producer.send(b"x" * 500) for _ in range(count)]


class ProducerContract(HubSuite):
    def test_a_future_says_where_its_record_is(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=4)
        with hub.producer(orders) as producer:
            futures = {i: producer.send(b"%d" % i, key=f"k{i}") for i in range(50)}
            for i, future in futures.items():
                place = future.result(10)
                assert isinstance(place, Position)
                assert hub.read(orders, place.shard, place.offset).to_arrow()["value"][0].as_py() == b"%d" % i
                assert future.done()
                assert future.exception() is None

    def test_a_result_is_durable_another_hub_reads_it_at_once(
        self, hub: Hub, orders: str, hub_url: str
    ) -> None:
        import shoal  # noqa: PLC0415 - only this test opens a hub by itself

        hub.create_stream(orders, shards=1)
        with hub.producer(orders) as producer:
            offset = producer.send(b"x").result(10).offset
            with shoal.connect(hub_url) as other:
                assert [record.value for record in other.read(orders, 0, offset)] == [b"x"]

    def test_a_future_that_is_not_settled_times_out_and_goes_on(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        with hub.producer(orders, linger_s=LONG_S) as producer:
            future = producer.send(b"x")
            with pytest.raises(TimeoutError, match="still being tried"):
                future.result(0.01)
            assert not future.done()
            producer.flush()
            assert future.result(0) == (0, 0)

    def test_records_of_a_key_keep_their_order(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=3)
        with hub.producer(orders, batch_records=7, linger_s=0) as producer:
            for i in range(500):
                producer.send(b"%d" % i, key=f"k{i % 10}")
        found = values_by_key(hub, orders)
        assert found == {f"k{k}".encode(): [b"%d" % i for i in range(k, 500, 10)] for k in range(10)}

    def test_order_per_key_holds_through_splits_merges_and_reshards(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        changes: list[Callable[[], object]] = [
            lambda: hub.split_shard(orders, 0),
            lambda: hub.merge_shards(orders, 3, 1),
            lambda: hub.reshard(orders, 6),
            lambda: hub.reshard(orders, 1),
            lambda: hub.reshard(orders, 5),
        ]
        with hub.producer(orders, batch_records=20, linger_s=0.001) as producer:
            futures = []
            for i in range(1500):
                if i % 250 == 100 and changes:
                    changes.pop(0)()
                futures.append(producer.send(b"%d" % i, key=f"k{i % 10}"))
            places = [future.result(20) for future in futures]
        assert not changes
        assert len(set(places)) == 1500
        found = values_by_key(hub, orders)
        assert found == {f"k{k}".encode(): [b"%d" % i for i in range(k, 1500, 10)] for k in range(10)}

    def test_what_waits_when_its_shard_is_closed_moves_on_with_its_futures(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        called: list[Position] = []
        with hub.producer(orders, linger_s=LONG_S) as producer:
            futures = [producer.send(b"%d" % i, key=f"k{i}") for i in range(20)]
            low = producer.send(b"low", hash_key=0)
            high = producer.send(b"high", key="k1", hash_key=2**128 - 1, headers={"h": "x"})
            futures[0].add_done_callback(lambda future: called.append(future.result(0)))
            hub.split_shard(orders, 0)
            producer.flush()
            assert {future.result(0).shard for future in futures} == {1, 2}
            assert (low.result(0).shard, high.result(0).shard) == (1, 2)
            until(lambda: called == [futures[0].result(0)])
        assert hub.next_offset(orders, 0) == 0
        moved = read_shard(hub, orders, 2)[-1]
        assert (moved.value, moved.key, dict(moved.headers)) == (b"high", b"k1", {"h": b"x"})

    def test_flush_leaves_every_future_settled(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        release = threading.Event()
        with hub.producer(orders, linger_s=LONG_S) as producer:
            futures = [producer.send(b"x", hash_key=place) for place in (0, HALF_RING)]
            # User code that is slow to return must not make another record look unsettled.
            for future in futures:
                future.add_done_callback(lambda _: release.wait(5))
            try:
                producer.flush()
                assert [future.done() for future in futures] == [True, True]
            finally:
                release.set()

    def test_a_record_alone_is_sent_after_its_linger(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        with hub.producer(orders, linger_s=0.05) as producer:
            assert producer.send(b"x").result(10) == (0, 0)

    def test_a_full_batch_does_not_wait_for_its_linger(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        with hub.producer(orders, linger_s=LONG_S, batch_records=10) as by_count:
            for future in [by_count.send(b"x") for _ in range(10)]:
                future.result(10)
        with hub.producer(orders, linger_s=LONG_S, batch_bytes=1000) as by_size:
            for future in [by_size.send(b"x" * 600, hash_key=0) for _ in range(2)]:
                future.result(10)

    def test_a_with_block_leaves_everything_stored_and_the_producer_closed(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        with hub.producer(orders, linger_s=LONG_S) as producer:
            future = producer.send(b"x")
        assert future.done()
        assert hub.next_offset(orders, 0) == 1
        producer.close()  # Twice is once.
        for call in (lambda: producer.send(b"y"), producer.flush):
            with pytest.raises(ProducerClosed, match=r"hub\.producer"):
                call()
        assert hub.next_offset(orders, 0) == 1

    def test_a_full_buffer_blocks_and_goes_on_when_there_is_room(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        release = threading.Event()
        options = ProducerOptions(batch_bytes=1000, buffer_bytes_max=2000, linger_s=0)
        with hub.producer(orders, options) as producer, ThreadPoolExecutor(1) as threads:
            hold_up(producer, release)
            sending = threads.submit(_send_many, producer, 50)
            until(lambda: producer.buffered_bytes > 1000)
            hub.read(orders, 0, 1, wait=0.1)
            assert not sending.done()
            assert producer.buffered_bytes <= 2000
            release.set()
            assert [future.result(10).offset for future in sending.result(10)] == list(range(1, 51))
            assert producer.buffered_bytes == 0

    def test_a_buffer_that_stays_full_is_an_error_that_names_its_limit(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        release = threading.Event()
        with hub.producer(
            orders, batch_bytes=1000, buffer_bytes_max=2000, linger_s=0, send_timeout_s=0.1
        ) as producer:
            hold_up(producer, release)
            try:
                with pytest.raises(BufferFull, match="buffer_bytes_max=2000") as caught:
                    _send_many(producer, 10)
                assert caught.value.retriable
                assert caught.value.buffered <= 2000
            finally:
                release.set()
            producer.flush()
            stored = hub.next_offset(orders, 0)
            producer.send(b"x").result(10)
        assert hub.next_offset(orders, 0) == stored + 1  # What was refused was not half sent.

    def test_a_full_buffer_does_not_wait_for_the_linger_of_what_is_in_it(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        with hub.producer(
            orders, batch_bytes=1000, buffer_bytes_max=1000, linger_s=LONG_S, send_timeout_s=5
        ) as producer:
            for i in range(10):
                producer.send(b"x" * 300, hash_key=i % 2 * HALF_RING)
        assert hub.stats(orders).records == 10

    def test_an_error_that_no_future_has_shown_is_raised_by_flush_once(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        producer = hub.producer(orders, linger_s=LONG_S)
        producer.send(b"x")
        hub.delete_stream(orders)
        with pytest.raises(UnknownStream):
            producer.flush()
        producer.flush()
        producer.close()

    def test_an_error_that_no_future_has_shown_is_raised_by_close(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        producer = hub.producer(orders, linger_s=LONG_S)
        producer.send(b"x")
        hub.delete_stream(orders)
        with pytest.raises(UnknownStream):
            producer.close()

    def test_an_error_that_a_future_has_shown_is_not_raised_again(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        producer = hub.producer(orders)
        hub.delete_stream(orders)
        with pytest.raises(UnknownStream):
            producer.send(b"x").result(10)
        producer.flush()
        producer.close()

    def test_callbacks_of_a_table_run_once_when_all_of_it_is_settled(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=4)
        called: list[tuple[bool, int]] = []
        release = threading.Event()

        def note(done: BatchFuture) -> None:
            called.append((done.done(), sum(one.next_offset - one.first_offset for one in done.result(0))))

        with hub.producer(orders) as producer:
            hold_up(producer, release)
            keys = [b"%d" % number for number in range(50)]
            future = producer.send_batch(pa.table({"key": keys, "value": keys}))
            future.add_done_callback(note)
            hub.reshard(orders, 7)  # What was cut for four shards moves to their heirs.
            assert not called
            release.set()
            producer.flush()
            until(lambda: bool(called))
            future.add_done_callback(lambda _: 1 / 0)
            future.add_done_callback(note)
            assert not future.is_aside
        assert called == [(True, 50)] * 2

    def test_callbacks_run_once_each_also_when_added_late_or_when_one_raises(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        called: list[str] = []

        def fail(_: SendFuture) -> None:
            called.append("failing")
            raise RuntimeError("a user's mistake")

        with hub.producer(orders, linger_s=LONG_S) as producer:
            future = producer.send(b"x")
            future.add_done_callback(fail)
            future.add_done_callback(lambda done: called.append(f"at {done.result(0).offset}"))
            assert called == []
            producer.flush()
            until(lambda: len(called) == 2)
            future.add_done_callback(lambda _: called.append("late"))
            assert called == ["failing", "at 0", "late"]
            alive = producer.send(b"the sender lives on")
            producer.flush()
            assert alive.result(0).offset == 1

    def test_a_record_that_is_refused_takes_no_other_with_it(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        with hub.producer(orders, linger_s=LONG_S) as producer:
            good = [producer.send(b"x", key=f"k{i}") for i in range(20)]
            too_large: list[Callable[[], SendFuture]] = [
                lambda: producer.send(b"x", key=b"K" * 4_000_001),
                lambda: producer.send(b"x" * 4_000_000, key=b"K"),
                lambda: producer.send(b"x", headers={"h": b"x" * 4_000_001}),
            ]
            for refused in too_large:
                with pytest.raises(InvalidInput, match=r"record.*limit of 4000000"):
                    refused()
            producer.flush()
            assert [future.exception(0) for future in good] == [None] * 20

    @pytest.mark.parametrize("stream_hash", ["xxh64", "md5"])
    def test_keys_go_where_the_streams_hash_places_them(
        self, hub: Hub, orders: str, stream_hash: str
    ) -> None:
        import hashlib  # noqa: PLC0415 - the model of this test alone

        import xxhash  # noqa: PLC0415 - the same

        stream = hub.create_stream(orders, shards=5, hash=stream_hash)
        with hub.producer(orders) as producer:
            sent = {f"key-{i}": producer.send(b"", key=f"key-{i}") for i in range(30)}
            for key, future in sent.items():
                shard = future.result(10).shard
                if stream_hash == "md5":
                    where = int(hashlib.md5(key.encode(), usedforsecurity=False).hexdigest(), 16)
                else:
                    where = xxhash.xxh64_intdigest(key.encode(), 42) << 64
                assert stream.shards[shard].begin <= where < stream.shards[shard].end

    def test_an_explicit_hash_key_is_taken_as_it_is(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=4)
        with hub.producer(orders) as producer:
            given: list[int | str] = [0, 2**126, f"{2**127:032x}", 2**128 - 1]
            places = [producer.send(b"", key="same", hash_key=at).result(10).shard for at in given]
        assert places == [0, 1, 2, 3]
        assert {record.key for records in read_stream(hub, orders).values() for record in records} == {
            b"same"
        }

    def test_text_and_bytes_of_a_key_are_the_same_key(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=16)
        with hub.producer(orders) as producer:
            assert producer.send(b"", key="größe").result(10).shard == (
                producer.send(b"", key="größe".encode()).result(10).shard
            )

    def test_records_without_a_key_go_to_one_shard_for_a_batch_and_spread_over_many(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=4)
        used: set[int] = set()
        for _ in range(60):
            with hub.producer(orders) as producer:
                shards = {future.result(10).shard for future in [producer.send(b"x") for _ in range(5)]}
            assert len(shards) == 1
            used |= shards
            if len(used) == 4:
                return
        pytest.fail(f"60 batches without a key reached only the shards {used}")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("linger_s", -1),
            ("batch_bytes", 0),
            ("batch_bytes", 5_000_000),
            ("batch_records", 0),
            ("batch_records", 1_000_001),
            ("buffer_bytes_max", 10),
            ("send_timeout_s", "long"),
            ("colour", "red"),
        ],
    )
    def test_options_out_of_range_are_refused_by_name(
        self, hub: Hub, orders: str, name: str, value: Any
    ) -> None:
        hub.create_stream(orders, shards=1)
        with unchanged(hub, orders), pytest.raises(InvalidInput, match=name):
            hub.producer(orders, **{name: value})
