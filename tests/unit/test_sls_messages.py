"""LogHub's messages as columns, and back: what is read, what is refused, what comes out again."""

import tracemalloc
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from shoal.server.sls import wire
from shoal.server.sls.packing import RAW_BYTES_MAX, Malformed, TooMuch
from shoal.server.sls.records import RECORDS_BYTES_MAX, SCHEMA, batches_of, groups_of, records_bytes
from shoal.server.sls.wire import NO_NUMBER, LogGroup, parsed
from tests.sls.messages import Pairs, field, pair, varint
from tests.sls.messages import group as encoded
from tests.sls.messages import log as encoded_log

Log = tuple[int, int | None, Pairs]

PAIRS = st.lists(st.tuples(st.text(max_size=5).map(str.encode), st.binary(max_size=9)), max_size=4)
LOGS = st.lists(
    st.tuples(st.integers(0, 2**32 - 1), st.none() | st.integers(0, 2**32 - 1), PAIRS), max_size=5
)
TEXT = st.none() | st.text(max_size=5).map(str.encode)
TAGS = st.lists(st.tuples(*[st.text(max_size=5).map(str.encode)] * 2), max_size=3)


@given(LOGS, st.tuples(TEXT, TEXT, TEXT), TAGS)
def test_a_group_comes_back_from_columns_byte_for_byte(
    logs: list[Log],
    names: tuple[bytes | None, bytes | None, bytes | None],
    tags: list[tuple[bytes, bytes]],
) -> None:
    raw = encoded(logs, names, tags)
    group = parsed(raw)
    assert len(group.times) == len(logs)
    if not logs:
        return
    (batch,) = batches_of(group, 1)
    ((count, listed),) = groups_of([batch])
    assert count == len(logs)
    assert listed == b"\x0a" + varint(len(raw)) + raw


@given(st.binary(max_size=200))
def test_bytes_of_strangers_are_a_group_or_malformed(raw: bytes) -> None:
    try:
        group = parsed(raw)
    except (Malformed, TooMuch):
        return
    assert isinstance(group, LogGroup)


@given(LOGS, st.data())
def test_a_message_that_is_cut_is_malformed_or_shorter(logs: list[Log], data: st.DataObject) -> None:
    raw = encoded(logs, (b"topic", None, None))
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    try:
        group = parsed(cut)
    except Malformed:
        return
    assert len(group.times) <= len(logs)
    assert group.topic is None


def test_a_length_that_lies_is_refused() -> None:
    for raw in (
        b"\x0a\x7f\x08\x01",
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x0a\x03\x12\x05\x0a",
        b"\x0a" + b"\xff" * 11,
    ):
        with pytest.raises(Malformed):
            parsed(raw)


def test_a_log_without_a_time_and_a_field_without_a_value_are_refused() -> None:
    for raw in (b"\x0a\x00", b"\x0a\x06\x08\x01\x12\x02\x0a\x00", b"\x0a\x02\x08"):
        with pytest.raises(Malformed):
            parsed(raw)


def test_a_key_that_is_no_text_is_refused_and_a_value_may_be_any_bytes() -> None:
    (batch,) = batches_of(parsed(encoded([(1, None, [(b"k", b"\xff\x00")])])), 1)
    assert batch.column("contents").to_pylist() == [[("k", b"\xff\x00")]]
    with pytest.raises(Malformed):
        batches_of(parsed(encoded([(1, None, [(b"\xff", b"v")])])), 1)


def test_a_large_group_is_cut_into_batches_that_can_be_stored() -> None:
    raw = encoded([(i, None, [(b"k", bytes(100_000))]) for i in range(120)])
    batches = batches_of(parsed(raw), 1)
    assert len(batches) > 1
    assert sum(batch.num_rows for batch in batches) == 120
    assert all(batch.nbytes <= 8_000_000 for batch in batches)
    assert pa.concat_arrays([batch.column("time") for batch in batches]).to_pylist() == list(range(120))


@pytest.mark.parametrize(
    ("names", "tags"),
    [
        ((b"t" * 20_000, None, None), []),
        ((None, b"s" * 20_000, None), []),
        ((None, b"", b"m" * 20_000), []),
        ((None, None, None), [(b"k", b"v" * 20_000)]),
        ((None, None, None), [(b"k" * 10_000, b"v" * 10_000)]),
        ((None, None, None), [(b"", b"")] * 1000),
    ],
    ids=["topic", "source", "machine", "a tag", "a tag with a long key", "tags"],
)
def test_what_a_group_says_once_is_counted_for_each_log_before_any_record_is_made(
    names: tuple[bytes | None, bytes | None, bytes | None], tags: list[tuple[bytes, bytes]]
) -> None:
    group = parsed(encoded([(1, None, [])] * 10_000, names, tags))
    for refused in (lambda: records_bytes(group), lambda: batches_of(group, 1)):
        with pytest.raises(TooMuch, match=f"10000 logs.*at most {RECORDS_BYTES_MAX}"):
            refused()
    logs: list[Log] = [(1, None, [(b"key", b"v" * 50)])] * 2_500
    fewer = parsed(encoded(logs, names, tags))
    batches = batches_of(fewer, 1)
    assert sum(batch.num_rows for batch in batches) == 2_500
    assert sum(batch.nbytes for batch in batches) <= 1.05 * records_bytes(fewer)
    assert all(batch.nbytes <= 8_000_000 for batch in batches)
    topic, *_ = names
    last = batches[-1].slice(batches[-1].num_rows - 1).to_pylist()[0]
    assert last["topic"] == (None if topic is None else topic.decode())
    assert last["tags"] == [(key.decode(), value.decode()) for key, value in tags]
    assert last["contents"] == [("key", b"v" * 50)]


def test_a_body_as_large_as_one_may_be_is_not_too_much_as_records() -> None:
    smallest = parsed(b"\x0a\x02\x08\x01" * wire.LOGS_MAX)
    assert records_bytes(smallest) + RAW_BYTES_MAX + 8 * wire.CONTENTS_MAX < RECORDS_BYTES_MAX


def test_as_many_logs_as_the_clients_send_may_each_have_a_field_and_nanoseconds() -> None:
    found = parsed(encoded_log(1, 5, [(b"k", b"v")]) * wire.LOGS_MAX)
    assert len(found.times) == len(found.keys) == 512_000


def test_records_with_other_columns_are_read_as_fields() -> None:
    batch = pa.record_batch(
        {
            "timestamp": pa.array([1_500_000, -5], pa.timestamp("us", tz="UTC")),
            "key": pa.array([b"k", None], pa.binary()),
            "value": pa.array([b"v", b"\xff"], pa.binary()),
            "text": pa.array([None, "t"]),
            "number": pa.array([7, None]),
        }
    )
    ((count, listed),) = groups_of([batch])
    group = parsed(listed[2:])
    assert (count, group.times.tolist(), group.nanoseconds.tolist()) == (2, [1, 0], [500_000_000, 0])
    assert group.ends.tolist() == [3, 5]
    assert group.keys.to_pylist() == [b"key", b"value", b"number", b"value", b"text"]
    assert group.values.to_pylist() == [b"k", b"v", b"7", b"\xff", b"t"]


# --- Beside a peer. ---


def _peer() -> Any:
    """The class of a LogGroup, as the protobuf library makes it."""
    kinds = descriptor_pb2.FieldDescriptorProto
    described = descriptor_pb2.FileDescriptorProto(name="loghub.proto", package="loghub", syntax="proto2")
    must, may, many = kinds.LABEL_REQUIRED, kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED
    for name, fields in {
        "Pair": [("Key", 1, must, kinds.TYPE_BYTES), ("Value", 2, must, kinds.TYPE_BYTES)],
        "Log": [
            ("Time", 1, must, kinds.TYPE_UINT32),
            ("Contents", 2, many, ".loghub.Pair"),
            ("TimeNs", 4, may, kinds.TYPE_FIXED32),
        ],
        "LogGroup": [
            ("Logs", 1, many, ".loghub.Log"),
            ("Topic", 3, may, kinds.TYPE_BYTES),
            ("Source", 4, may, kinds.TYPE_BYTES),
            ("Machine", 5, may, kinds.TYPE_BYTES),
            ("Tags", 6, many, ".loghub.Pair"),
        ],
    }.items():
        message = described.message_type.add(name=name)
        for field_name, number, label, kind in fields:
            one = message.field.add(name=field_name, number=number, label=label)
            if isinstance(kind, str):
                one.type, one.type_name = kinds.TYPE_MESSAGE, kind
            else:
                one.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(described)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("loghub.LogGroup"))


PEER = _peer()
UNKNOWN = st.sampled_from([b"", b"\x50\x01", b"\x5a\x02ab", b"\x5d" + bytes(4), b"\x59" + bytes(8)])
"""Fields that nobody knows, of each kind."""
LENGTHENED = st.sampled_from([b"\x08\x01", b"\x08\x81\x00", b"\x08\x81\x80\x80\x80\x80\x80\x00"])
"""One number, as short as it goes, and longer."""
KEYS = st.binary(max_size=3).map(lambda key: field(1, key))
VALUES = st.binary(max_size=200).map(lambda value: field(2, value))
ODD_PAIRS = st.lists(KEYS | VALUES | UNKNOWN, max_size=4).map(b"".join)
ODD_LOGS = st.lists(
    ODD_PAIRS.map(lambda inner: field(2, inner))
    | st.tuples(st.binary(max_size=3), st.binary(max_size=200)).map(lambda drawn: field(2, pair(*drawn)))
    | LENGTHENED
    | UNKNOWN
    | st.integers(0, 2**32 - 1).map(lambda number: b"\x25" + number.to_bytes(4, "little")),
    max_size=5,
).map(lambda fields: field(1, b"".join(fields)))
ODD_GROUPS = st.lists(
    ODD_LOGS
    | UNKNOWN
    | st.tuples(st.integers(3, 5), st.binary(max_size=3)).map(lambda drawn: field(*drawn))
    | ODD_PAIRS.map(lambda inner: field(6, inner)),
    max_size=6,
).map(b"".join)


@pytest.mark.parametrize("together_min", [1, 24])
@given(raw=ODD_GROUPS)
def test_a_message_is_what_the_protobuf_library_takes_it_for(together_min: int, raw: bytes) -> None:
    peer = PEER.FromString(raw)
    if not peer.IsInitialized():
        with pytest.raises(Malformed):
            parsed(raw, together_min=together_min)
        return
    found = parsed(raw, together_min=together_min)
    assert found.times.tolist() == [log.Time for log in peer.Logs]
    assert found.nanoseconds.tolist() == [
        log.TimeNs if log.HasField("TimeNs") else NO_NUMBER for log in peer.Logs
    ]
    begins = [0, *found.ends.tolist()]
    for i, log in enumerate(peer.Logs):
        assert found.keys.to_pylist()[begins[i] : begins[i + 1]] == [one.Key for one in log.Contents]
        assert found.values.to_pylist()[begins[i] : begins[i + 1]] == [one.Value for one in log.Contents]
    for name, value in (("Topic", found.topic), ("Source", found.source), ("Machine", found.machine)):
        assert value == (getattr(peer, name) if peer.HasField(name) else None)
    assert found.tags == [(one.Key, one.Value) for one in peer.Tags]


# --- Bounds. ---


@pytest.mark.parametrize(
    "raw",
    [
        b"\x0a\x02\x08\x01" * 1001,
        b"\x0a\x00" * 1_000_000,
        b"\x1a\x00" * 1_000_000,
        field(1, b"\x08\x01" * 1_000_000),
        field(1, b"\x08\x01" * 100) * 51,
        field(1, b"\x08\x01" + b"\x12\x04\x0a\x00\x12\x00" * 21) * 51,
        field(1, b"\x08\x01" + b"\x12\x04\x0a\x00\x12\x00" * 1_000_000),
        b"\x32\x04\x0a\x00\x12\x00" * 1_000_000,
        field(1, b"\x08\x01" + field(2, b"\x18\x00" * 1_000_000)),
        field(1, b"\x08\x01" + field(2, pair(b"k", b"v") + b"\x18\x00" * 200)) * 30,
        field(6, b"\x18\x00" * 1_000_000),
    ],
    ids=[
        "logs",
        "empty logs",
        "names",
        "times",
        "times together",
        "contents together",
        "contents",
        "tags",
        "in contents",
        "in contents together",
        "in tags",
    ],
)
def test_more_than_is_taken_is_refused_before_it_is_kept(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (wire.LOGS_MAX, wire.CONTENTS_MAX, wire.FIELDS_MAX) == (512_000, 512_000, 2_000_000)
    for name, limit in (("LOGS_MAX", 1000), ("CONTENTS_MAX", 1000), ("FIELDS_MAX", 5000)):
        monkeypatch.setattr(wire, name, limit)
    tracemalloc.start()
    try:
        with pytest.raises(TooMuch):
            parsed(raw)
        # Beside the copy of the message.
        assert tracemalloc.get_traced_memory()[1] < len(raw) + 1_000_000
    finally:
        tracemalloc.stop()


def test_one_log_with_more_fields_than_all_others_is_read_with_them() -> None:
    many = [(b"%d" % i, b"v" * (i % 300)) for i in range(500)]
    logs: list[Log] = [(i, None, many if i == 20 else many[: i % 4]) for i in range(60)]
    found = parsed(encoded(logs))
    (batch,) = batches_of(found, 1)
    assert batch.column("contents").to_pylist() == [
        [(key.decode(), value) for key, value in pairs] for _, _, pairs in logs
    ]


def test_several_batches_are_written_at_once_and_end_their_groups() -> None:
    raw = [
        encoded([(1, None, [(b"k", b"v")])], (b"t", b"s", None)),
        encoded([(2, 3, []), (4, 5, [(b"k", b"v" * 200)])], (b"t", b"s", None), [(b"tag", b"x")]),
        encoded([(6, None, [])], (b"t", b"s", None), [(b"tag", b"x")]),
        encoded([(7, 8, [])], (None, b"", b"machine")),
    ]
    batches = [batch for one in raw for batch in batches_of(parsed(one), 1)]
    assert list(groups_of(batches)) == [
        (count, field(1, one)) for count, one in zip([1, 2, 1, 1], raw, strict=True)
    ]
    middle = [batches[1].slice(1, 1), batches[2]]
    assert [count for count, _ in groups_of(middle)] == [1, 1]
    assert list(groups_of([])) == []


def test_logs_that_differ_in_what_a_group_has_once_are_several_groups() -> None:
    rows = [
        {"time": 1, "topic": "a"},
        {"time": 2, "topic": "a"},
        {"time": 3, "topic": None},
        {"time": 4, "topic": ""},
        {"time": 5, "topic": "", "tags": [("k", "v")]},
        {"time": 6, "topic": "", "tags": [("k", "v")]},
        {"time": -7, "topic": "", "tags": [("k", "w")]},
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    found = list(groups_of([batch]))
    assert [count for count, _ in found] == [2, 1, 1, 2, 1]
    peers = [PEER.FromString(group[2:]) for _, group in found]
    assert [[log.Time for log in peer.Logs] for peer in peers] == [[1, 2], [3], [4], [5, 6], [0]]
    assert [peer.HasField("Topic") for peer in peers] == [True, False, True, True, True]
    assert [[(tag.Key, tag.Value) for tag in peer.Tags] for peer in peers[3:]] == [
        [(b"k", b"v")],
        [(b"k", b"w")],
    ]
