"""What a sink refuses before anything runs, in one readable line. The driver's part of it, without a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import shoal
from shoal.core.errors import InvalidInput, NotRepeated, ShoalError
from shoal.spark.hubs import HubAddress
from shoal.spark.ledger import Identity
from shoal.spark.sink import TaskWritten, batch_writer, stream_writer
from shoal.spark.sink_options import SinkSettings
from shoal.spark.sink_task import SinkTask

_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "array<string>": ArrayType(StringType()),
    "map<string,int>": MapType(StringType(), IntegerType()),
}


def columns(text: str) -> StructType:
    """`name type, …`, without the JVM that Spark's own parser needs."""
    pairs = [part.split() for part in text.split(", ")]
    return StructType([StructField(name, _TYPES[kind]) for name, kind in pairs])


SCHEMA = columns("key string, value binary")


@pytest.fixture
def hub(sqlite_url: str) -> Iterator[shoal.Hub]:
    with shoal.connect(sqlite_url) as made:
        made.create_stream("orders", shards=2)
        yield made


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"stream": None}, "stream=None: name it with"),
        ({"hub": None}, "hub=None: the sink needs it"),
        ({"steam": "x"}, "steam='x': the sink has no such option; did you mean 'stream'?"),
        ({"leases": "postgresql://u:secret@h/d"}, "leases='postgresql://u:***@h/d': the sink has no"),
        ({"hubb": "postgresql://u:secret@h/d"}, "hubb='postgresql://u:***@h/d': the sink has no such option"),
        ({"stream": "nowhere"}, "stream='nowhere': there is no such stream"),
        ({"stream": "or ders"}, "stream='or ders': a name is"),
        ({"hub": "sqlite:////no/such.db"}, "there is no such file"),
        ({"hub": "gopher://x"}, "gopher"),
        ({"keyColumn": "customer"}, "keyColumn='customer': there is no such column"),
        ({"nullKey": "drop"}, "nullKey='drop': one of route, refuse"),
        ({"exactlyOnce": "maybe"}, "exactlyOnce='maybe': true or false"),
        ({"maxBufferBytes": "-1"}, "maxBufferBytes='-1': bytes"),
        ({"maxBufferBytes": "1g"}, "maxBufferBytes=1073741824: at most"),
        ({"path": "/tmp/x"}, "a sink has no path"),
        ({"stream": "spark.ledger"}, "stream='spark.ledger': sinks keep their own notes there"),
        ({"stream": "shop/spark.ledger"}, "stream='shop/spark.ledger': sinks keep their own notes there"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(
    hub: shoal.Hub, sqlite_url: str, options: dict[str, str | None], line: str
) -> None:
    given = {"hub": sqlite_url, "stream": "orders", **options}
    wanted = {name.lower(): value for name, value in given.items() if value is not None}
    for make in (batch_writer, stream_writer):
        with pytest.raises(ShoalError) as caught:
            make(wanted, SCHEMA, False)
        assert line in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "line"),
    [
        ("value int", "value='int32': the stream wants binary"),
        ("value string, key bigint", "key='int64': a key column is binary or string"),
        ("value string, price int", "price='int32': the stream wants only value, key"),
        ("key string", "value='no such column': the stream wants"),
        ("value string, timestamp string", "timestamp='string': the stream wants a timestamp"),
        ("value string, headers array<string>", "headers='list"),
        ("value string, headers map<string,int>", "headers='map"),
    ],
)
def test_columns_that_do_not_fit_are_refused(hub: shoal.Hub, sqlite_url: str, schema: str, line: str) -> None:
    with pytest.raises(ShoalError) as caught:
        batch_writer({"hub": sqlite_url, "stream": "orders"}, columns(schema), False)
    assert line in str(caught.value)


def test_columns_that_fit_a_typed_stream_are_taken_and_others_are_not(
    hub: shoal.Hub, sqlite_url: str
) -> None:
    hub.create_stream("typed", schema={"customer": "string", "amount": "int64"})
    options = {"hub": sqlite_url, "stream": "typed", "keycolumn": "customer"}
    batch_writer(options, columns("customer string, amount int"), False)
    with pytest.raises(ShoalError, match="amount='string': the stream wants int64"):
        batch_writer(options, columns("customer string, amount string"), False)
    with pytest.raises(ShoalError, match="value='binary': the stream wants only customer, amount"):
        batch_writer(options, columns("customer string, value binary"), False)


def test_what_a_source_adds_is_left_out(hub: shoal.Hub, sqlite_url: str) -> None:
    given = "stream string, shard int, offset bigint, timestamp timestamp, key binary, value binary"
    batch_writer({"hub": sqlite_url, "stream": "orders"}, columns(given), False)


def test_overwriting_a_log_is_refused(hub: shoal.Hub, sqlite_url: str) -> None:
    for make in (batch_writer, stream_writer):
        with pytest.raises(InvalidInput, match="a log only grows"):
            make({"hub": sqlite_url, "stream": "orders"}, SCHEMA, True)


def test_a_row_that_names_no_stream_and_one_that_names_none_that_is_there_are_refused(
    hub: shoal.Hub,
) -> None:
    task = SinkTask(
        hub.service, SinkSettings(hub=HubAddress("unused")), Identity(query="q", batch=0, partition=0)
    )
    with pytest.raises(InvalidInput, match="a row names no stream"):
        task.write([pa.record_batch({"stream": pa.array([None], pa.string()), "value": ["v"]})])
    with pytest.raises(ShoalError, match="stream='nowhere': there is no such stream"):
        task.write([pa.record_batch({"stream": ["nowhere"], "value": ["v"]})])


@pytest.mark.parametrize("name", ["spark.ledger", "default/spark.ledger", "shop/spark.ledger"])
def test_a_row_that_names_the_notes_of_sinks_is_refused_and_nothing_is_stored(
    hub: shoal.Hub, name: str
) -> None:
    task = SinkTask(
        hub.service, SinkSettings(hub=HubAddress("unused")), Identity(query="q", batch=0, partition=0)
    )
    with pytest.raises(InvalidInput, match=f"stream='{name}': sinks keep their own notes there"):
        task.write([pa.record_batch({"stream": ["orders", name], "value": ["v", "w"]})])
    assert not any(shard.next_offset for shard in hub.describe_stream("orders").shards)


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_batch_that_comes_again_with_fewer_rows_or_none_is_not_complete(
    hub: shoal.Hub, sqlite_url: str, is_complete: bool
) -> None:
    """What is missing comes in a later batch, and would be stored twice."""
    writer = stream_writer({"hub": sqlite_url, "stream": "orders"}, SCHEMA, False)
    settings = writer._settings

    def ran(*partitions: int) -> list[WriterCommitMessage | None]:
        rows = pa.record_batch({"key": ["a"], "value": [b"x"]})
        return [
            TaskWritten(
                who, SinkTask(hub.service, settings, who).write([rows] if number in partitions else [])
            )
            for number in range(2)
            for who in [Identity(query="q", batch=3, partition=number)]
        ]

    first = ran(0, 1)
    if is_complete:
        writer.commit(first, 3)
    for partitions in ((), (1,)):
        with pytest.raises(NotRepeated, match=r"partitions \[0.* were written then, and hold nothing now"):
            writer.commit(ran(*partitions), 3)
    writer.commit(ran(0, 1), 3)


def test_a_batch_without_rows_leaves_no_trace(hub: shoal.Hub, sqlite_url: str) -> None:
    writer = stream_writer({"hub": sqlite_url, "stream": "orders"}, SCHEMA, False)
    who = Identity(query="q", batch=3, partition=0)
    nothing = TaskWritten(who, SinkTask(hub.service, writer._settings, who).write([]))
    writer.commit([nothing], 3)
    assert [stream.name for stream in hub.list_streams()] == ["orders"]


def test_a_column_of_keys_taken_for_streams_is_stopped(hub: shoal.Hub, tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(300)]
    for name in names:
        hub.create_stream(name, shards=1)
    settings = SinkSettings(hub=HubAddress("unused"), is_exactly_once=False)
    task = SinkTask(hub.service, settings, Identity(query="q", batch=0, partition=0))
    with pytest.raises(InvalidInput, match="one task writes to at most 256 streams"):
        task.write([pa.record_batch({"stream": names, "value": names})])
