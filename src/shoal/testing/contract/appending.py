"""Appending: what comes back is what was given, from plain values to typed columns, atomically per batch."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from shoal import Appended, Hub, Record
from shoal.core.errors import SchemaMismatch
from shoal.testing.contract.suite import HubSuite
from shoal.testing.reading import read_shard, unchanged

SCHEMA = pa.schema([pa.field("customer", pa.string()), pa.field("amount", pa.int64(), nullable=False)])


class AppendContract(HubSuite):
    def test_offsets_are_dense_from_zero_across_batches(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        assert hub.append(orders, 1, [b"a", b"b"]) == Appended(1, 0, 2)
        assert hub.append(orders, 1, [b"c"]) == Appended(1, 2, 3)
        assert hub.append(orders, 0, [b"d"]) == Appended(0, 0, 1)
        assert (hub.first_offset(orders, 1), hub.next_offset(orders, 1)) == (0, 3)
        assert [record.value for record in read_shard(hub, orders, 1)] == [b"a", b"b", b"c"]

    def test_a_value_is_bytes_or_text_or_nothing(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        given: list[Any] = [b"\x00\xff", "größe", None, b"", bytearray(b"x")]
        hub.append(orders, 0, given)
        values = [record.value for record in read_shard(hub, orders, 0)]
        assert values == [b"\x00\xff", "größe".encode(), None, b"", b"x"]

    def test_a_record_keeps_key_timestamp_and_headers(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        given = [
            Record(0, 1_700_000_000_123, b"k", b"v", {"trace": b"1", "type": b"\xff"}),
            Record(0, 0, None, b"no key"),
            Record(0, 253_402_300_799_999, b"", b"empty key", {}),
        ]
        hub.append(orders, 0, given)
        found = read_shard(hub, orders, 0)
        assert [(r.timestamp, r.key, r.value, dict(r.headers)) for r in found] == [
            (1_700_000_000_123, b"k", b"v", {"trace": b"1", "type": b"\xff"}),
            (0, None, b"no key", {}),
            (253_402_300_799_999, b"", b"empty key", {}),
        ]
        assert found[0].time == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)

    def test_a_record_without_a_timestamp_gets_the_time_of_its_append(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        before = int(datetime.now(UTC).timestamp() * 1000) - 1
        hub.append(orders, 0, [b"a"])
        hub.append(orders, 0, pa.table({"value": [b"b"], "timestamp": pa.array([None], pa.timestamp("us"))}))
        after = int(datetime.now(UTC).timestamp() * 1000) + 1
        stamps = [record.timestamp for record in read_shard(hub, orders, 0)]
        assert len(stamps) == 2
        assert all(before <= stamp <= after for stamp in stamps)

    def test_arrow_columns_come_back_as_they_were_given(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        table = pa.table(
            {
                "key": pa.array([b"a", None, b"c"]),
                "value": pa.array([b"1", b"2", None]),
                "timestamp": pa.array([1_000, 2_000_001, 3], pa.timestamp("us", "UTC")),
                "headers": pa.array(
                    [[("h", b"1")], None, []],
                    pa.map_(pa.string(), pa.binary()),
                ),
            }
        )
        hub.append(orders, 0, table)
        found = hub.read(orders, 0, 0).to_arrow()
        assert found.schema.names == ["offset", "timestamp", "key", "headers", "value"]
        assert found.column("offset").to_pylist() == [0, 1, 2]
        for name in ("key", "value", "timestamp"):
            assert found.column(name).to_pylist() == table.column(name).to_pylist()
        assert [dict(r.headers) for r in read_shard(hub, orders, 0)] == [{"h": b"1"}, {}, {}]

    @pytest.mark.parametrize(
        ("column", "millisecond"),
        [
            (pa.array([1_700_000_000_123], pa.int64()), 1_700_000_000_123),
            (pa.array([1_700_000_000], pa.timestamp("s")), 1_700_000_000_000),
            (pa.array([1_700_000_000_123], pa.timestamp("ms", "Europe/Berlin")), 1_700_000_000_123),
            (pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")), 1_700_000_000_123),
            (pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "UTC")), 1_700_000_000_123),
            (pa.array([17], pa.uint8()), 17),
        ],
    )
    def test_timestamps_are_taken_in_any_unit(
        self, hub: Hub, orders: str, column: pa.Array, millisecond: int
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, pa.table({"value": [b"x"], "timestamp": column}))
        assert [record.timestamp for record in read_shard(hub, orders, 0)] == [millisecond]

    @pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
    def test_every_compression_gives_back_the_same_records(
        self, hub: Hub, orders: str, compression: str
    ) -> None:
        hub.create_stream(orders, shards=1, compression=compression)
        given = [f"{i % 7}".encode() * (i % 50) for i in range(500)]
        hub.append(orders, 0, given)
        assert [record.value for record in read_shard(hub, orders, 0)] == given

    def test_a_batch_with_headers_and_one_without_are_read_as_one(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"plain"])
        hub.append(orders, 0, [Record(0, 1, None, b"with", {"h": b"x"})])
        batch = hub.read(orders, 0, 0)
        assert [dict(record.headers) for record in batch] == [{}, {"h": b"x"}]
        assert batch.to_arrow().column("headers").to_pylist() == [None, [("h", b"x")]]

    def test_a_typed_stream_takes_dicts_and_gives_typed_columns(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1, schema=SCHEMA)
        hub.append(orders, 0, [{"customer": "ann", "amount": 3}, {"amount": 2**40}])
        batch = hub.read(orders, 0, 0)
        assert [record.value for record in batch] == [
            {"customer": "ann", "amount": 3},
            {"customer": None, "amount": 2**40},
        ]
        arrow = batch.to_arrow()
        assert arrow.schema.field("amount").type == pa.int64()
        assert arrow.column("customer").to_pylist() == ["ann", None]

    def test_a_typed_stream_casts_columns_where_nothing_is_lost(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1, schema=SCHEMA)
        table = pa.table(
            {
                "amount": pa.array([1, 2], pa.int8()),
                "customer": pa.array(["a", "b"]).dictionary_encode(),
            }
        )
        hub.append(orders, 0, table)
        assert [record.value for record in read_shard(hub, orders, 0)] == [
            {"customer": "a", "amount": 1},
            {"customer": "b", "amount": 2},
        ]

    def test_a_missing_column_is_null_and_the_key_column_may_be_a_typed_one(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1, schema=SCHEMA)
        hub.append(orders, 0, pa.table({"amount": [5]}))
        hub.append(orders, 0, pa.table({"amount": [6], "customer": ["c"]}), key_column="customer")
        found = [(record.key, record.value) for record in read_shard(hub, orders, 0)]
        assert found == [
            (None, {"customer": None, "amount": 5}),
            (b"c", {"customer": "c", "amount": 6}),
        ]

    def test_nested_and_other_plain_types_survive(self, hub: Hub, orders: str) -> None:
        schema = pa.schema(
            [
                ("tags", pa.list_(pa.string())),
                ("at", pa.struct([("x", pa.float64()), ("y", pa.float64())])),
                ("price", pa.decimal128(12, 2)),
                ("day", pa.date32()),
                ("large", pa.large_string()),
            ]
        )
        hub.create_stream(orders, shards=1, schema=schema)
        rows = [
            {"tags": ["a", "b"], "at": {"x": 1.5, "y": -2.0}, "price": None, "day": None, "large": "l"},
            {"tags": [], "at": None, "price": None, "day": None, "large": None},
        ]
        hub.append(orders, 0, rows)
        hub.append(orders, 0, pa.Table.from_pylist(rows, schema=schema))
        assert [record.value for record in read_shard(hub, orders, 0)] == rows * 2

    def test_what_does_not_fit_the_schema_is_refused_whole_naming_column_and_type(
        self, hub: Hub, orders: str
    ) -> None:
        cases: list[tuple[Any, str, str]] = [
            ([{"amount": 1}, {"amount": "many"}], "amount", "int64"),
            ([{"amount": 1}, {"amount": 2**63}], "amount", "int64"),
            ([{"amount": 1}, {"amount": 1.5}], "amount", "int64"),
            ([{"amount": 1}, {"customer": "ann"}], "amount", "int64"),
            ([{"amount": 1}, {"amount": 1, "colour": "red"}], "colour", "customer"),
            ([{"amount": 1}, b"bytes"], "value", "dict"),
            (pa.table({"amount": ["one"]}), "amount", "int64"),
            (pa.table({"amount": [1.5]}), "amount", "int64"),
            (pa.table({"amount": ["1"]}), "amount", "int64"),
            (pa.table({"amount": [True]}), "amount", "int64"),
            (pa.table({"amount": [1], "customer": [5]}), "customer", "string"),
            ([{"amount": True}], "amount", "int64"),
            ([{"amount": 1, "customer": 5}], "customer", "string"),
            (pa.table({"amount": pa.array([2**63], pa.uint64())}), "amount", "int64"),
            (pa.table({"amount": [1, None]}), "amount", "not null"),
            (pa.table({"customer": ["ann"]}), "amount", "not null"),
            (pa.table({"amount": [1], "colour": ["red"]}), "colour", "customer"),
            (pa.table({"amount": [1], "customer": [{"a": 1}]}), "customer", "string"),
        ]
        hub.create_stream(orders, shards=1, schema=SCHEMA)
        hub.append(orders, 0, [{"amount": 0}])
        with unchanged(hub, orders):
            for records, column, kind in cases:
                with pytest.raises(SchemaMismatch) as caught:
                    hub.append(orders, 0, records)
                assert caught.value.column == column
                assert column in str(caught.value)
                assert kind in str(caught.value)

    @pytest.mark.parametrize("value", [1, 1.5, {"a": 1}, [b"x"]])
    def test_a_stream_without_a_schema_takes_only_bytes_and_text(
        self, hub: Hub, orders: str, value: Any
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"kept"])
        with unchanged(hub, orders), pytest.raises(SchemaMismatch, match="bytes or str"):
            hub.append(orders, 0, [b"good", value])

    def test_figures_count_what_was_appended(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        empty = hub.stats(orders)
        assert (empty.records, empty.bytes, empty.appended, empty.batches) == (0, 0, 0, 0)
        assert (empty.oldest_append_ms, empty.newest_append_ms) == (None, None)
        hub.append(orders, 0, [b"a", b"b"])
        hub.append(orders, 1, [b"c"])
        figures = hub.stats(orders)
        assert (figures.records, figures.appended, figures.batches, figures.open_shards) == (3, 3, 2, 2)
        assert [shard.records for shard in figures.shards] == [2, 1]
        assert figures.bytes == sum(shard.bytes for shard in figures.shards) > 0
        assert figures.oldest_append_ms is not None
        assert figures.newest_append_ms is not None
        assert figures.oldest_append_ms <= figures.newest_append_ms
        hub.split_shard(orders, 0)
        assert hub.stats(orders).open_shards == 3
