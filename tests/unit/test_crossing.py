"""Batches and errors on their way to another process: what arrives is what was sent."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pyarrow as pa
import pytest

from shoal.consumer.lane_messages import error_of, packed_error
from shoal.core.errors import CheckpointMisuse, LeaseLost, ShoalError, StoreUnavailable
from shoal.wire.batch import Batch
from shoal.wire.crossing import pack, unpack
from shoal.wire.delivered import NOWHERE, Marked
from shoal.wire.layout import Layout, stored_schema

TIMES = pa.timestamp("us", tz="UTC")


def plain(count: int, *, with_headers: bool) -> pa.RecordBatch:
    columns = {
        "timestamp": pa.array([n * 1000 for n in range(count)], TIMES),
        "key": pa.array([None if n % 3 == 0 else b"%d" % n for n in range(count)], pa.binary()),
    }
    if with_headers:
        headers = [[("n", b"%d" % n)] if n % 2 else None for n in range(count)]
        columns["headers"] = pa.array(headers, pa.map_(pa.string(), pa.binary()))
    columns["value"] = pa.array([b"v" * n for n in range(count)], pa.binary())
    return pa.record_batch(columns, schema=Layout(None).stored(with_headers=with_headers))


def batch(*chunks: pa.RecordBatch, is_end: bool = True) -> Batch:
    return Batch(
        stream="orders",
        shard=3,
        first_offset=100,
        chunks=chunks,
        layout=Layout(None),
        end_of_shard=is_end,
    )


@pytest.mark.parametrize("offsets", [range(100, 150), range(120, 130), [101, 119, 120, 149], [149]])
def test_what_arrives_is_what_was_sent(offsets: Sequence[int]) -> None:
    sent = batch(plain(20, with_headers=False), plain(20, with_headers=True), plain(10, with_headers=False))
    label, payload = pack(sent, offsets)
    got = unpack(pickle.loads(pickle.dumps(label)), payload.to_pybytes())  # noqa: S301 - our own
    wanted = sent.part(offsets)
    assert list(got) == list(wanted)
    assert got.to_arrow() == wanted.to_arrow()
    assert (got.stream, got.shard, got.first_offset, got.next_offset) == (
        "orders", 3, wanted.first_offset, wanted.next_offset,
    )  # fmt: skip
    assert got.end_of_shard == (offsets[-1] == 149)
    assert list(got.offsets) == list(offsets)


def test_a_stream_with_columns_of_its_own_arrives_with_them() -> None:
    schema = stored_schema({"amount": "int64", "tags": pa.list_(pa.string())})
    layout = Layout(schema)
    rows = pa.record_batch(
        [
            pa.array([1, 2, 3], TIMES),
            pa.array([b"a", None, b"c"], pa.binary()),
            pa.array([1, None, 3]),
            pa.array([["x"], [], None], pa.list_(pa.string())),
        ],
        schema=layout.stored(with_headers=False),
    )
    sent = Batch(stream="typed", shard=0, first_offset=0, chunks=[rows], layout=layout, end_of_shard=False)
    label, payload = pack(sent, [0, 2])
    assert list(unpack(label, payload.to_pybytes())) == list(sent.part([0, 2]))


def test_nothing_crosses_as_nothing() -> None:
    sent = batch(is_end=False)
    label, payload = pack(sent, range(0))
    got = unpack(label, payload.to_pybytes())
    assert (len(got), got.first_offset, got.next_offset) == (0, 100, 100)


def test_a_small_part_of_a_large_batch_is_small() -> None:
    sent = batch(plain(2000, with_headers=True))
    _, payload = pack(sent, range(150, 152))
    assert payload.size < 4096


@pytest.mark.parametrize(
    "error",
    [
        LeaseLost(shard=3, epoch=7),
        CheckpointMisuse("offset", 9, "too far"),
        StoreUnavailable("away"),
        CheckpointMisuse("offset", lambda: 1, "what cannot be sent goes by its text"),
    ],
)
def test_an_error_of_ours_arrives_as_itself(error: ShoalError) -> None:
    got = error_of(pickle.loads(pickle.dumps(packed_error(error))))  # noqa: S301 - our own
    assert type(got) is type(error)
    assert str(got) == str(error)
    assert getattr(got, "shard", None) == getattr(error, "shard", None)


def test_an_error_of_others_arrives_by_its_text() -> None:
    assert str(error_of(packed_error(OSError("odd")))) == "OSError: odd"


def test_a_marked_batch_shows_where_a_loop_is_and_that_none_is() -> None:
    mark = [NOWHERE]
    given = Marked.marking(mark, batch(plain(3, with_headers=False)), range(100, 103), lambda: 1, lambda: 0)
    seen = [(record.offset, mark[0]) for record in given]
    assert seen == [(100, 100), (101, 101), (102, 102)]
    assert mark == [NOWHERE]
