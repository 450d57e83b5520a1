"""Batches to bytes and back; and what is not one of ours is an error, not a crash."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidInput, StoreCorrupt
from shoal.core.model import Compression
from shoal.wire.batch import Batch
from shoal.wire.fitting import fit_records
from shoal.wire.layout import Layout, stored_schema
from shoal.wire.record import Record

PLAIN = Layout(None)
rows = st.tuples(
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=5),
    st.integers(0, 253_402_300_799_999),
    st.none()
    | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), st.binary(max_size=3), max_size=2),
)
Row = tuple[bytes | None, bytes | None, int, Mapping[str, bytes] | None]


def fitted(given_rows: list[Row]) -> pa.RecordBatch:
    values, keys, stamps, headers = (list(column) for column in zip(*given_rows, strict=True))
    return fit_records(PLAIN, values, keys, stamps, headers if any(headers) else None)


@given(st.lists(rows, min_size=1, max_size=30), st.sampled_from(list(Compression)), st.integers(0, 10**12))
def test_what_is_encoded_is_decoded_to_the_same_records(
    given_rows: list[Row], compression: Compression, first: int
) -> None:
    number, payload = PLAIN.encode(fitted(given_rows), compression)
    decoded = PLAIN.decode(number, payload)
    batch = Batch(stream="s", shard=0, first_offset=first, chunks=[decoded], layout=PLAIN, end_of_shard=False)
    wanted = [
        Record(first + i, stamp, key, value, dict(headers or {}))
        for i, (value, key, stamp, headers) in enumerate(given_rows)
    ]
    assert [record._replace(headers=dict(record.headers)) for record in batch] == wanted
    arrow = batch.to_arrow()
    assert arrow.schema == PLAIN.read_schema
    assert arrow.column("value").to_pylist() == [record.value for record in wanted]


@given(st.lists(rows, min_size=3, max_size=30), st.data())
def test_a_slice_is_encoded_without_the_rest(given_rows: list[Row], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(given_rows) - 1))
    count = data.draw(st.integers(1, len(given_rows) - start))
    whole = fitted(given_rows)
    number, payload = PLAIN.encode(whole.slice(start, count), Compression.NONE)
    assert PLAIN.decode(number, payload).to_pylist() == whole.to_pylist()[start : start + count]


def test_a_joined_batch_is_its_chunks_one_after_the_other() -> None:
    chunks = [fitted([(b"%d" % i, None, i, {"h": b"x"} if i % 2 else None)]) for i in range(5)]
    batch = Batch(stream="s", shard=1, first_offset=7, chunks=chunks, layout=PLAIN, end_of_shard=True)
    assert (batch.next_offset, len(batch)) == (12, 5)
    arrow = batch.to_arrow()
    assert arrow.column("offset").to_pylist() == [7, 8, 9, 10, 11]
    assert arrow.column("value").to_pylist() == [b"0", b"1", b"2", b"3", b"4"]
    assert arrow.column("headers").to_pylist() == [None, [("h", b"x")], None, [("h", b"x")], None]


def test_a_typed_layout_keeps_its_columns_and_their_order() -> None:
    schema = pa.schema([("b", pa.int32()), ("a", pa.list_(pa.string()))], metadata={"note": "dropped"})
    layout = Layout(stored_schema(schema))
    batch = fit_records(layout, [{"a": ["x"], "b": 1}, {"b": None}], [None, b"k"], [1, 2], None)
    number, payload = layout.encode(batch, Compression.ZSTD)
    decoded = layout.decode(number, payload)
    assert decoded.schema.names == ["timestamp", "key", "b", "a"]
    assert decoded.column("a").to_pylist() == [["x"], None]
    assert stored_schema({"b": "int32", "a": pa.list_(pa.string())}) == stored_schema(schema)


@given(st.integers(0, 10**6), st.integers(1, 255), st.sampled_from(list(Compression)))
def test_a_single_byte_that_changed_is_a_damaged_store(at: int, by: int, compression: Compression) -> None:
    number, payload = PLAIN.encode(fitted([(b"v%04d" % i, b"k", i, None) for i in range(50)]), compression)
    damaged = bytearray(payload)
    damaged[at % len(payload)] ^= by
    with pytest.raises(StoreCorrupt, match=r"has changed since it was written.*restore it from a backup"):
        PLAIN.decode(number, bytes(damaged))


@pytest.mark.parametrize("payload", [b"", b"12345678", b"nonsense", b"\xff" * 100])
def test_what_is_no_batch_is_a_damaged_store(payload: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        PLAIN.decode(0, payload)


def test_a_layout_number_from_the_future_is_a_damaged_store() -> None:
    _, payload = PLAIN.encode(fitted([(b"v", None, 1, None)]), Compression.NONE)
    with pytest.raises(StoreCorrupt, match="layout 9"):
        PLAIN.decode(9, payload)


def nested(depth: int) -> pa.DataType:
    return pa.list_(nested(depth - 1)) if depth else pa.int64()


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "no columns"),
        ({"key": "string"}, "key"),
        ({"shard": "int64"}, "shard"),
        ({"a": "colour"}, "a: colour"),
        ({1: "int64"}, "1: int64"),
        ({"a": pa.dictionary(pa.int8(), pa.string())}, "plain Arrow type"),
        ({"a": pa.struct([("b", pa.run_end_encoded(pa.int16(), pa.int8()))])}, "plain Arrow type"),
        ({"a": pa.string_view()}, "plain Arrow type"),
        ({"a": pa.list_(pa.binary_view())}, "plain Arrow type"),
        ({"a": pa.list_view(pa.int64())}, "plain Arrow type"),
        ({"a": pa.struct([("b", pa.int8()), ("b", pa.int8())])}, "plain Arrow type"),
        ({"a": pa.binary(4_000_001)}, "over the limit of 4000000"),
        ({"a": pa.binary(2_000_000), "b": pa.list_(pa.int64(), 250_001)}, "over the limit of 4000000"),
        ({"a": nested(100)}, "Arrow cannot store"),
        ([("a", "int64")], "pyarrow.Schema"),
        ("a", "pyarrow.Schema"),
    ],
)
def test_a_schema_that_cannot_be_kept_is_refused(schema: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        stored_schema(schema)
