"""`send_batch`: Arrow in, routed by a key column, cut to batches; and typed records one by one."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

from shoal import BatchFuture, Hub
from shoal.core.errors import EmptyBatch, InvalidInput, InvalidKey, SchemaMismatch, TooLarge, UnknownStream
from shoal.core.ring import place
from shoal.testing.contract.suite import HubSuite
from shoal.testing.reading import read_stream, unchanged, values_by_key


def keyed(count: int, keys: int) -> pa.Table:
    return pa.table(
        {"key": [b"k%d" % (i % keys) for i in range(count)], "value": [b"%d" % i for i in range(count)]}
    )


def expected(count: int, keys: int) -> dict[bytes, list[bytes]]:
    return {b"k%d" % k: [b"%d" % i for i in range(k, count, keys)] for k in range(keys)}


def with_headers(headers: list[tuple[str, bytes | None]]) -> pa.Table:
    return pa.table({"value": [b"x"], "headers": pa.array([headers], pa.map_(pa.string(), pa.binary()))})


class SendContract(HubSuite):
    def test_a_table_is_routed_by_its_key_column_in_order(self, hub: Hub, orders: str) -> None:
        stream = hub.create_stream(orders, shards=4)
        with hub.producer(orders) as producer:
            future = producer.send_batch(keyed(5000, 20))
            answers = future.result(20)
        assert future.records == 5000
        assert future.done()
        assert sum(at.next_offset - at.first_offset for at in answers) == 5000
        assert {at.shard for at in answers} == {0, 1, 2, 3}
        assert values_by_key(hub, orders) == expected(5000, 20)
        for shard, records in read_stream(hub, orders).items():
            for record in records[::50]:
                assert record.key is not None
                assert stream.shards[shard].begin <= place(record.key) < stream.shards[shard].end

    @pytest.mark.parametrize(
        "kind",
        [
            pa.string(),
            pa.large_string(),
            pa.large_binary(),
            pa.dictionary(pa.int32(), pa.string()),
            pa.dictionary(pa.int8(), pa.large_binary()),
            pa.binary(2),
            pa.string_view(),
            pa.binary_view(),
        ],
        ids=str,
    )
    def test_a_key_column_of_any_bytes_like_type_routes_as_its_bytes(
        self, hub: Hub, orders: str, kind: pa.DataType
    ) -> None:
        hub.create_stream(orders, shards=4)
        source = keyed(200, 10)
        table = source.set_column(0, "key", source.column("key").cast(pa.string()).cast(pa.binary()))
        if pa.types.is_dictionary(kind):
            column = table.column("key").cast(kind.value_type).dictionary_encode().cast(kind)
        elif pa.types.is_fixed_size_binary(kind):
            column = pa.chunked_array([pa.array(table.column("key").to_pylist(), kind)])
        else:
            column = table.column("key").cast(kind)
        with hub.producer(orders) as producer:
            producer.send_batch(table.set_column(0, "key", column)).result(10)
        assert values_by_key(hub, orders) == expected(200, 10)

    def test_value_columns_of_large_and_text_types_become_bytes(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        with hub.producer(orders) as producer:
            for kind in (pa.string(), pa.large_string(), pa.large_binary()):
                producer.send_batch(
                    pa.table({"value": pa.array(["a", None], pa.string()).cast(kind)})
                ).result(10)
            producer.send_batch(pa.table({"value": pa.nulls(1)})).result(10)
        values = [record.value for record in read_stream(hub, orders)[0]]
        assert values == [b"a", None, b"a", None, b"a", None, None]

    def test_a_slice_of_a_table_is_only_that_slice(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=3)
        table = keyed(5000, 10).slice(1234, 2000)
        with hub.producer(orders) as producer:
            producer.send_batch(table).result(10)
            producer.send_batch(keyed(100, 10).to_batches()[0].slice(50, 10)).result(10)
        sent = table.column("value").to_pylist() + [b"%d" % i for i in range(50, 60)]
        found = [record.value for records in read_stream(hub, orders).values() for record in records]
        assert sorted(found) == sorted(sent)

    def test_chunks_of_a_table_are_sent_as_one(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        parts = [keyed(100, 5).slice(i * 10, 10) for i in range(10)]
        with hub.producer(orders) as producer:
            producer.send_batch(pa.concat_tables(parts)).result(10)
        assert values_by_key(hub, orders) == expected(100, 5)

    def test_null_keys_go_together_and_keyed_records_by_their_key(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=4)
        keys = [None if i % 3 else b"k%d" % (i % 7) for i in range(3000)]
        table = pa.table({"key": pa.array(keys, pa.binary()), "value": [b"%d" % i for i in range(3000)]})
        with hub.producer(orders) as producer:
            producer.send_batch(table).result(10)
        found = read_stream(hub, orders)
        without = [shard for shard, records in found.items() if any(r.key is None for r in records)]
        assert len(without) == 1
        wanted = {key: [b"%d" % i for i in range(3000) if keys[i] == key] for key in set(keys)}
        assert values_by_key(hub, orders) == wanted

    def test_a_table_without_a_key_is_stored_whole(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=4)
        with hub.producer(orders) as producer:
            producer.send_batch(pa.table({"value": [b"a", b"b"]})).result(10)
        assert values_by_key(hub, orders) == {None: [b"a", b"b"]}

    def test_a_table_larger_than_a_batch_and_than_the_buffer_is_cut(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        table = pa.table(
            {
                "key": [b"k%d" % (i % 5) for i in range(40_000)],
                "value": [b"%0600d" % i for i in range(40_000)],
            }
        )
        assert table.nbytes > 24_000_000
        with hub.producer(orders, buffer_bytes_max=20_000_000) as producer:
            answers = producer.send_batch(table).result(60)
        assert len(answers) > 2
        found = {
            key: [int(str(value, "ascii")) for value in values] for key, values in _texts(hub, orders).items()
        }
        assert found == {b"k%d" % k: list(range(k, 40_000, 5)) for k in range(5)}

    def test_a_table_whose_large_records_lie_together_is_cut_between_them(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        values = [b"x" * 3_900_000] * 3 + [b"s"] * 997
        with hub.producer(orders) as producer:
            producer.send_batch(pa.table({"key": [b"k"] * 1000, "value": values})).result(60)
        assert values_by_key(hub, orders) == {b"k": values}

    def test_send_and_send_batch_of_one_key_keep_their_order(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        with hub.producer(orders, linger_s=30) as producer:
            for i in range(0, 60, 3):
                producer.send(b"%d" % i, key="k")
                producer.send_batch(pa.table({"key": ["k"] * 2, "value": [b"%d" % (i + 1), b"%d" % (i + 2)]}))
        assert values_by_key(hub, orders) == {b"k": [b"%d" % i for i in range(60)]}

    def test_a_table_that_waits_when_its_shard_is_closed_moves_on(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        with hub.producer(orders) as producer:
            producer.send_batch(keyed(100, 10)).result(10)
            hub.split_shard(orders, 0)
            future: BatchFuture = producer.send_batch(keyed(2000, 10).slice(100))
            assert {at.shard for at in future.result(10)} == {1, 2}
            hub.merge_shards(orders, 1, 2)
            assert {at.shard for at in producer.send_batch(pa.table({"value": [b"x"]})).result(10)} == {3}
        found = values_by_key(hub, orders)
        assert found.pop(None) == [b"x"]
        assert found == expected(2000, 10)

    def test_a_typed_stream_takes_a_table_by_one_of_its_columns(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=3, schema={"customer": "string", "amount": "int64"})
        table = pa.table({"customer": [f"c{i % 4}" for i in range(100)], "amount": list(range(100))})
        with hub.producer(orders) as producer:
            producer.send_batch(table, key_column="customer").result(10)
            producer.send({"customer": "c1", "amount": 100}, key="c1").result(10)
        found = values_by_key(hub, orders)
        assert found[b"c1"] == [{"customer": "c1", "amount": i} for i in [*range(1, 100, 4), 100]]

    def test_a_typed_stream_with_few_values_fits_its_batches(self, hub: Hub, orders: str) -> None:
        # A null costs room in its column too: whoever counts only values makes batches over the limit.
        hub.create_stream(orders, shards=1, schema={"seen": "int64", "picture": pa.binary(1000)})
        with hub.producer(orders, linger_s=30) as producer:
            for i in range(10_000):
                producer.send({"seen": i})
        assert hub.next_offset(orders, 0) == 10_000

    def test_a_typed_record_that_does_not_fit_is_refused_by_send_itself(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1, schema={"amount": "int64"})
        with hub.producer(orders) as producer, unchanged(hub, orders):
            for value in (
                {"amount": "x"},
                {"amount": 2**63},
                {"colour": 1},
                b"bytes",
                {"amount": 1.5},
            ):
                with pytest.raises(SchemaMismatch):
                    producer.send(value)
        assert hub.next_offset(orders, 0) == 0

    def test_a_bad_typed_record_takes_no_good_one_with_it(self, hub: Hub, orders: str) -> None:
        kind = pa.struct([pa.field("a", pa.int64(), nullable=False)])
        schema = {"name": "string", "tags": pa.list_(pa.string()), "at": kind, "small": "float32"}
        hub.create_stream(orders, shards=1, schema=schema)
        with hub.producer(orders, linger_s=30) as producer:
            producer.send({"name": "first"})
            bad: list[dict[str, Any]] = [
                {"name": "\ud800"},
                {"tags": ["\ud800"]},
                {"at": {"a": 1, "b": 2}},
                {"at": {}},
                {"small": 1e300},
            ]
            for value in bad:
                with pytest.raises(SchemaMismatch, match=f"{next(iter(value))}="):
                    producer.send(value)
            for large in ({"name": "😀" * 1_000_001}, {"tags": ["x" * 1_000_000] * 5}):
                with pytest.raises(TooLarge, match="4000000"):
                    producer.send(large)
            producer.send(MappingProxyType({"name": "last"}))
        assert [record.value["name"] for record in read_stream(hub, orders)[0]] == ["first", "last"]

    def test_a_typed_record_is_stored_as_it_was_when_it_was_sent(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1, schema={"n": "int64", "tags": pa.list_(pa.string())})
        row: dict[str, Any] = {"n": 0, "tags": []}
        with hub.producer(orders, linger_s=30) as producer:
            for n in range(3):
                row["n"] = n
                row["tags"].append(f"t{n}")
                producer.send(row)
            row["tags"].clear()
        assert [record.value for record in read_stream(hub, orders)[0]] == [
            {"n": n, "tags": [f"t{i}" for i in range(n + 1)]} for n in range(3)
        ]

    def test_large_nested_records_fit_their_batches(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1, schema={"tags": pa.list_(pa.string())})
        with hub.producer(orders, linger_s=30) as producer:
            for _ in range(300):
                producer.send({"tags": ["x" * 1000] * 100})
        assert hub.next_offset(orders, 0) == 300

    def test_bad_tables_are_refused_and_nothing_of_them_is_sent(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        one = pa.table({"value": [b"x"]})
        cases: list[tuple[type[Exception], str, object, str | None]] = [
            (EmptyBatch, "at least one record", one.slice(0, 0), None),
            (InvalidInput, "pyarrow", [b"x"], None),
            (InvalidInput, "customer", one, "customer"),
            (InvalidKey, "int64", pa.table({"value": [b"x"], "key": [1]}), None),
            (InvalidKey, "double", pa.table({"value": [b"x"], "k": [1.5]}), "k"),
            (SchemaMismatch, "colour", pa.table({"value": [b"x"], "colour": ["red"]}), None),
            (SchemaMismatch, "value", pa.table({"key": [b"x"]}), None),
            (SchemaMismatch, "value", pa.table({"value": [1]}), None),
            (SchemaMismatch, "headers", pa.table({"value": [b"x"], "headers": [5]}), None),
            (SchemaMismatch, "timestamp", pa.table({"value": [b"x"], "timestamp": ["today"]}), None),
            (TooLarge, "4000000", pa.table({"value": [b"s", b"x" * 4_000_001]}), None),
            (InvalidInput, "headers=.*at most 64", with_headers([(f"h{i}", b"") for i in range(65)]), None),
            (InvalidInput, "headers=.*not null", with_headers([("h", None)]), None),
            (InvalidInput, "headers=.*once", with_headers([("h", b"1"), ("h", b"2")]), None),
        ]
        with hub.producer(orders) as producer, unchanged(hub, orders):
            for kind, text, table, key_column in cases:
                with pytest.raises(kind, match=text):
                    producer.send_batch(table, key_column=key_column)
            producer.flush()

    def test_an_error_of_a_table_is_shown_by_its_future(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        producer = hub.producer(orders)
        hub.delete_stream(orders)
        future = producer.send_batch(keyed(10, 5))
        assert isinstance(future.exception(10), UnknownStream)
        with pytest.raises(UnknownStream):
            future.result(0)
        assert future.stored() == []
        producer.close()


def _texts(hub: Hub, stream: str) -> dict[bytes | None, list[bytes]]:
    return {
        key: [bytes(value) for value in values if isinstance(value, bytes)]
        for key, values in values_by_key(hub, stream).items()
    }
