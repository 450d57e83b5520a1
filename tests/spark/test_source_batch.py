"""Batch reads: `spark.read.format("shoal")`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, IsNotNull, LessThan
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

import shoal
from shoal.core.errors import InvalidInput, SchemaMismatch
from shoal.spark import ShoalDataSource, reason
from shoal.spark.batch_reader import PushingBatchReader, SpanPartition
from shoal.spark.data_source import batch_reader, schema_of, stream_reader
from shoal.spark.hubs import close_hubs
from shoal.spark.plan.filters import Bounds
from shoal.spark.pushing import bounds_of


@pytest.fixture
def hub(sqlite_url: str) -> Iterator[shoal.Hub]:
    with shoal.connect(sqlite_url) as hub:
        yield hub
    close_hubs()


def reader(spark: SparkSession, url: str, **options: Any) -> DataFrameReader:
    found = spark.read.format("shoal").option("hub", url)
    for name, value in options.items():
        found = found.option(name, value)
    return found


def refusal(found: DataFrameReader, act: str = "count") -> str:
    """The line that says why a read failed."""
    with pytest.raises(PySparkException) as caught:
        getattr(found.load(), act)()
    return reason(caught.value)


def test_every_record_is_read_once_with_all_its_columns(
    spark: SparkSession, hub: shoal.Hub, sqlite_url: str
) -> None:
    hub.create_stream("orders", shards=3)
    with hub.producer("orders") as producer:
        for number in range(300):
            producer.send(f"v{number}".encode(), key=f"k{number % 7}", headers={"n": b"%d" % number})
        producer.send(b"keyless", key=None)
    hub.split_shard("orders", 0)
    with hub.producer("orders") as producer:
        for number in range(300, 400):
            producer.send(f"v{number}".encode(), key=f"k{number % 7}")

    frame = reader(spark, sqlite_url, stream="orders", includeHeaders="true").load()

    assert frame.columns == ["stream", "shard", "offset", "timestamp", "key", "value", "headers"]
    rows = frame.collect()
    expected = {
        (shard.id, record.offset): (record.key, record.value, record.timestamp, dict(record.headers))
        for shard in hub.describe_stream("orders").shards
        for record in hub.read("orders", shard.id, 0)
    }
    found = {
        (row.shard, row.offset): (
            None if row.key is None else bytes(row.key),
            bytes(row.value),
            row.timestamp.replace(tzinfo=UTC).timestamp() * 1000,
            {name: bytes(value) for name, value in (row.headers or {}).items()},
        )
        for row in rows
    }
    assert len(rows) == 401
    assert {row.stream for row in rows} == {"orders"}
    assert found == {
        place: (*rest[:2], pytest.approx(rest[2], abs=1), rest[3]) for place, rest in expected.items()
    }


def test_typed_columns_come_as_typed_columns(spark: SparkSession, hub: shoal.Hub, sqlite_url: str) -> None:
    schema = pa.schema(
        {
            "id": pa.int64(),
            "name": pa.large_string(),
            "small": pa.uint8(),
            "huge": pa.uint64(),
            "at": pa.timestamp("ms", tz="Europe/Berlin"),
            "tags": pa.list_(pa.string()),
            "place": pa.struct({"x": pa.float64(), "n": pa.uint16()}),
        }
    )
    hub.create_stream("events", shards=1, schema=schema)
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    row = {
        "id": 5,
        "name": "ä",
        "small": 255,
        "huge": 2**64 - 1,
        "at": at,
        "tags": ["a", None],
        "place": {"x": 1.5, "n": 65535},
    }
    empty = dict.fromkeys(row)
    hub.append("events", 0, pa.Table.from_pylist([row, empty], schema=schema))

    frame = reader(spark, sqlite_url, stream="events").load().orderBy("offset")

    assert dict(frame.dtypes)["huge"] == "decimal(20,0)"
    first, second = frame.select(*schema.names).collect()
    assert first.asDict(recursive=True) == row | {
        "at": at.replace(tzinfo=None),
        "huge": pytest.approx(2**64 - 1),
    }
    assert second.asDict() == empty
    narrow = reader(spark, sqlite_url, stream="events", columns="small,offset").load()
    assert narrow.dtypes == [("small", "smallint"), ("offset", "bigint")]
    assert sorted(narrow.collect(), key=lambda row: row.offset)[0].small == 255
    own = spark.read.schema("name string, shard int").format("shoal").option("hub", sqlite_url)
    assert {row.name for row in own.option("stream", "events").load().collect()} == {"ä", None}


def test_a_read_is_bounded_by_offsets_and_times(spark: SparkSession, hub: shoal.Hub, sqlite_url: str) -> None:
    hub.create_stream("orders", shards=2)
    for shard in (0, 1):
        records = [
            shoal.Record(offset=0, timestamp=1000 * number, key=None, value=b"%d" % number, headers={})
            for number in range(10)
        ]
        hub.append("orders", shard, records)
    hub.create_group("orders", "billing", start={0: 4, 1: 7})

    def values(**options: str) -> list[tuple[int, int]]:
        rows = reader(spark, sqlite_url, stream="orders", **options).load().select("shard", "offset")
        return sorted(tuple(row) for row in rows.collect())

    assert values(startingOffsets='{"0": 8, "1": -1}') == [(0, 8), (0, 9)]
    assert values(endingOffsets='{"orders": {"0": 1, "1": 0}}') == [(0, 0)]
    assert values(startingTimestamp="8000", endingTimestamp="1970-01-01T00:00:09Z") == [(0, 8), (1, 8)]
    assert values(group="billing") == [(0, n) for n in range(4, 10)] + [(1, n) for n in range(7, 10)]
    assert len(values(group="billing", startingOffsets="earliest", endingOffsets="group")) == 11
    assert hub.describe_group("orders", "billing").members == (), "a batch read takes nothing"
    assert values(startingOffsets="latest") == []
    assert values(startingOffsets='{"0": 5, "1": 5}', endingOffsets='{"0": 5, "1": 5}') == []
    assert values(group="billing", endingOffsets='{"0": 1, "1": 8}') == [(1, 7)], "a group may be ahead"
    for start, end in (("latest", '{"0": 5}'), ('{"0": 6}', '{"0": 5}')):
        with pytest.raises(PySparkException) as caught:
            values(startingOffsets=start, endingOffsets=end)
        assert "shard 0, this is behind endingOffsets=5" in reason(caught.value)
    with pytest.raises(PySparkException) as caught:
        values(startingTimestamp="9000", endingTimestamp="8000")
    assert "startingTimestamp=9000: this is later than endingTimestamp=8000" in reason(caught.value)


def test_tasks_are_as_many_as_asked_for(spark: SparkSession, hub: shoal.Hub, sqlite_url: str) -> None:
    hub.create_stream("orders", shards=1)
    hub.append("orders", 0, [b"x"] * 100)

    def tasks(**options: str) -> int:
        return reader(spark, sqlite_url, stream="orders", **options).load().rdd.getNumPartitions()

    assert tasks(minPartitions="5") == 5
    assert tasks(minPartitions="1", maxRecordsPerPartition="30") == 4
    assert tasks(minPartitions="5", inOrder="true") == 1


def test_what_filters_say_of_shard_and_offset_is_all_that_is_planned(hub: shoal.Hub, sqlite_url: str) -> None:
    hub.create_stream("orders", shards=2)
    for shard in (0, 1):
        hub.append("orders", shard, [b"v"] * 10)
    given = {"hub": sqlite_url, "stream": "orders", "pushFilters": "true"}
    planner = batch_reader(given, schema_of(given))
    assert isinstance(planner, PushingBatchReader)
    filters = [
        EqualTo(("shard",), 1),
        GreaterThanOrEqual(("offset",), 1),
        LessThan(("offset",), 3),
        IsNotNull(("offset",)),
        EqualTo(("value",), b"v"),
    ]
    assert list(planner.pushFilters(filters)) == filters[-1:], "what is left is for Spark to check"
    planned = [span for task in planner.partitions() for span in cast("SpanPartition", task).spans]
    assert {span.shard for span in planned} == {1}
    assert (min(span.start for span in planned), max(span.end for span in planned)) == (1, 3)
    close_hubs()


def test_filters_on_shard_offset_and_time_are_pushed_down(
    spark: SparkSession, hub: shoal.Hub, sqlite_url: str
) -> None:
    hub.create_stream("orders", shards=2)
    for shard in (0, 1):
        records = [
            shoal.Record(offset=0, timestamp=stamp, key=None, value=b"v", headers={})
            for stamp in (1000, 5000, 2000, 6000)
        ]
        hub.append("orders", shard, records)
    pushing = reader(spark, sqlite_url, stream="orders", pushFilters="true")
    assert "filterPushdown" in refusal(pushing)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = pushing.load()
        one = frame.where((f.col("shard") == 1) & (f.col("offset") >= 1) & (f.col("offset") < 3))
        assert sorted((row.shard, row.offset) for row in one.collect()) == [(1, 1), (1, 2)]
        late = frame.where(f.col("timestamp") >= f.lit("1970-01-01T00:00:05Z").cast("timestamp"))
        assert sorted((row.shard, row.offset) for row in late.collect()) == [(0, 1), (0, 3), (1, 1), (1, 3)]
        assert frame.where(f.col("shard").isin(0) & (f.col("value") == b"v")).count() == 4
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_filter_on_a_time_before_all_records_leaves_all_of_them() -> None:
    long_ago = GreaterThan(("timestamp",), datetime(1960, 1, 1, tzinfo=UTC))
    assert bounds_of([long_ago]) == (Bounds(after_ms=0), [long_ago])


def test_several_streams_are_read_by_list_or_pattern(
    spark: SparkSession, hub: shoal.Hub, sqlite_url: str
) -> None:
    for name in ("orders-1", "orders-2", "shop/carts"):
        hub.create_stream(name, shards=1)
        hub.append(name, 0, [name.encode()])
    hub.create_stream("typed", shards=1, schema={"n": "int64"})

    def values(stream: str) -> set[str]:
        return {row.stream for row in reader(spark, sqlite_url, stream=stream).load().collect()}

    assert values("orders-1, shop/carts") == {"orders-1", "shop/carts"}
    assert values("orders-[0-9]+") == {"orders-1", "orders-2"}
    assert "read together" in refusal(reader(spark, sqlite_url, stream="orders-1,typed"))
    assert "no stream has a name" in refusal(reader(spark, sqlite_url, stream="x.*"))


@pytest.mark.parametrize("kind", [pa.decimal256(50, 2), pa.decimal128(5, -2)])
def test_a_type_that_spark_does_not_know_is_refused_with_its_column_and_the_remedy(
    hub: shoal.Hub, sqlite_url: str, kind: pa.DataType
) -> None:
    hub.create_stream("odd", shards=1, schema=pa.schema([("amount", kind), ("n", pa.int64())]))
    given = {"hub": sqlite_url, "stream": "odd"}
    with pytest.raises(SchemaMismatch, match=r"amount.*leave it out with columns="):
        schema_of(given)
    assert schema_of(given | {"columns": "n"}).names == ["n"]


def test_a_time_beyond_sparks_fails_the_task_and_is_not_taken_for_another(
    hub: shoal.Hub, sqlite_url: str
) -> None:
    """Microseconds are the finest that Spark knows: of finer ones the rest is cut off, as the docs say."""
    hub.create_stream(
        "odd", shards=1, schema=pa.schema([("far", pa.timestamp("s")), ("fine", pa.timestamp("ns"))])
    )
    hub.append(
        "odd",
        0,
        pa.table(
            {"far": pa.array([10**14], pa.timestamp("s")), "fine": pa.array([1_999], pa.timestamp("ns"))}
        ),
    )

    def read(columns: str) -> list[Any]:
        given = {"hub": sqlite_url, "stream": "odd", "columns": columns}
        reads = batch_reader(given, schema_of(given))
        return [batch for part in reads.partitions() for batch in reads.read(part)]

    with pytest.raises(SchemaMismatch, match=r"far.*beyond Spark's.*leave it out with columns="):
        read("far,fine")
    (batch,) = read("fine")
    assert batch.column("fine").cast(pa.int64()).to_pylist() == [1]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"stream": "orders", "startingOfsets": "latest"}, "did you mean 'startingOffsets'?"),
        ({}, "stream=None: the source needs it"),
        ({"stream": "nosuch"}, "stream='nosuch': there is no such stream"),
        ({"stream": "orders", "startingOffsets": '{"0": 99}'}, "offset=99: shard 0 of 'orders' ends at"),
        ({"stream": "orders", "startingOffsets": '{"5": 1}'}, "shard=5: stream 'orders' has shards 0 to 0"),
        ({"stream": "orders", "columns": "offset,valu"}, "columns='valu': stream orders has stream, shard"),
        (
            {"stream": "orders", "maxOffsetsPerTrigger": "5"},
            "maxOffsetsPerTrigger='5': it is for spark.readStr",
        ),
        ({"path": "orders"}, "path='orders': a source has no path; name it with"),
        ({"stream": "orders", "member": "true"}, "a member of which group?"),
        ({"stream": "orders", "startingOffsets": "group"}, "which group?"),
        ({"stream": "orders", "startingOffsets": "latest", "startingTimestamp": "5"}, "not both"),
        ({"stream": "orders", "startingTimestamp": "yesterday"}, "ISO 8601 with a time zone"),
        ({"stream": "orders", "hub": "sqlite:////nowhere/x.db"}, "there is no such file on"),
        ({"stream": "orders", "hub": "nonsense"}, "hub='nonsense'"),
    ],
)
def test_bad_input_is_answered_with_one_line(
    hub: shoal.Hub, sqlite_url: str, options: dict[str, str], line: str
) -> None:
    hub.create_stream("orders", shards=1)
    hub.append("orders", 0, [b"x"])
    given = {"hub": sqlite_url} | options
    with pytest.raises(shoal.ShoalError) as caught:
        batch_reader(given, schema_of(given)).partitions()
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"columns": "offset"}, {"includeHeaders": "true"}])
def test_options_that_say_otherwise_than_a_given_schema_are_refused(
    hub: shoal.Hub, sqlite_url: str, options: dict[str, str]
) -> None:
    hub.create_stream("orders", shards=1)
    given = {"hub": sqlite_url, "stream": "orders", **options}
    with pytest.raises(InvalidInput, match="the schema that was given"):
        batch_reader(given, StructType().add("value", "binary"))


def test_a_schema_without_columns_is_refused_and_not_read_as_no_rows(hub: shoal.Hub, sqlite_url: str) -> None:
    hub.create_stream("orders", shards=1)
    given = {"hub": sqlite_url, "stream": "orders"}
    for make in (batch_reader, stream_reader):
        with pytest.raises(InvalidInput, match="schema='': it has no columns"):
            make(given, StructType())


def test_spark_passes_the_line_on(spark: SparkSession, hub: shoal.Hub, sqlite_url: str) -> None:
    hub.create_stream("orders", shards=1)
    found = refusal(reader(spark, sqlite_url, stream="orders", startingOffsets='{"0": 99}'))
    assert found.startswith("OffsetOutOfRange: offset=99: shard 0 of 'orders' ends at offset 0")
    assert "\n" not in found


def test_a_missing_hub_is_named(spark: SparkSession) -> None:
    assert "hub=None: the source needs it" in refusal(spark.read.format("shoal").option("stream", "x"))


def test_a_schema_that_does_not_match_is_refused(
    spark: SparkSession, hub: shoal.Hub, sqlite_url: str
) -> None:
    hub.create_stream("orders", shards=1)
    wrong = spark.read.schema("value string").format("shoal").option("hub", sqlite_url)
    assert "value='string': the stream wants binary" in refusal(wrong.option("stream", "orders"), "collect")


_NESTED = pa.schema(
    {
        "both": pa.struct([pa.field("here", pa.int64(), nullable=False), pa.field("maybe", pa.int64())]),
        "list": pa.list_(pa.int64()),
        "map": pa.map_(pa.string(), pa.struct([pa.field("maybe", pa.int64())])),
    }
).append(pa.field("required", pa.int64(), nullable=False))
_BOTH = StructType().add("here", "long", nullable=False).add("maybe", "long", nullable=False)
_DEEP = StructType().add("maybe", "long", nullable=False)
_PLAIN = StructType().add("maybe", "long")


@pytest.mark.parametrize(
    ("column", "line"),
    [
        (
            StructField("key", BinaryType(), nullable=False),
            "key='binary not null': the stream wants binary w",
        ),
        (StructField("list", ArrayType(LongType()), nullable=False), "list='array<bigint> not null': "),
        (StructField("list", ArrayType(LongType(), containsNull=False)), "list.element='bigint not null': "),
        (
            StructField("both", _BOTH),
            "both.maybe='bigint not null': the stream wants bigint without NOT NULL",
        ),
        (StructField("map", MapType(StringType(), _DEEP)), "map.value.maybe='bigint not null': "),
        (
            StructField("map", MapType(StringType(), StructType(), valueContainsNull=False)),
            "map='map<string,",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_schema_that_says_of_what_may_be_null_that_it_is_not_is_refused(
    hub: shoal.Hub, sqlite_url: str, column: StructField, line: str
) -> None:
    """Spark would leave nulls out of its counts, or end in a page of Java."""
    hub.create_stream("typed", shards=1, schema=_NESTED)
    given = {"hub": sqlite_url, "stream": "typed"}
    with pytest.raises(SchemaMismatch) as caught:
        batch_reader(given, StructType([column])).partitions()
    assert line in str(caught.value)
    streamed = stream_reader(given, StructType([column]))
    with pytest.raises(SchemaMismatch) as caught:
        streamed.initialOffset()
    assert line in str(caught.value)


def test_a_schema_may_say_of_what_is_never_null_that_it_is_not(
    spark: SparkSession, hub: shoal.Hub, sqlite_url: str
) -> None:
    hub.create_stream("typed", shards=1, schema=_NESTED)
    row = {"both": {"here": 1, "maybe": None}, "list": [None], "map": {"a": None}, "required": 7}
    hub.append("typed", 0, pa.Table.from_pylist([row | {"map": [("a", None)]}], _NESTED))
    given = (
        "stream string not null, shard int not null, offset bigint not null, timestamp timestamp not null, "
        "key binary, both struct<here: bigint not null, maybe: bigint>, list array<bigint>, "
        "map map<string, struct<maybe: bigint>>, required bigint not null"
    )
    frame = reader(spark, sqlite_url, stream="typed").schema(given).load()
    assert [field.name for field in frame.schema if not field.nullable] == [
        *("stream", "shard", "offset", "timestamp", "required")
    ]
    (found,) = frame.select("both", "list", "map", "required").collect()
    assert found.asDict(recursive=True) == row
    # What Spark made of the stream by itself is a schema as well.
    again = reader(spark, sqlite_url, stream="typed").load().schema
    assert reader(spark, sqlite_url, stream="typed").schema(again).load().count() == 1


def test_spark_passes_on_that_a_schema_denies_nulls_or_has_a_column_twice(
    spark: SparkSession, hub: shoal.Hub, sqlite_url: str
) -> None:
    hub.create_stream("orders", shards=1)
    hub.append("orders", 0, [b"x"])
    denying = reader(spark, sqlite_url, stream="orders").schema("key binary not null, offset bigint")
    assert "key='binary not null': the stream wants binary without NOT NULL" in refusal(denying)
    twice = StructType().add("offset", "long").add("offset", "long")
    assert "offset='2 columns of this name'" in refusal(
        reader(spark, sqlite_url, stream="orders").schema(twice)
    )


def test_columns_whose_names_differ_in_their_case_are_read_side_by_side(
    spark: SparkSession, hub: shoal.Hub, sqlite_url: str
) -> None:
    hub.create_stream("cased", shards=1, schema={"Key": "int64"})
    with hub.producer("cased") as producer:
        producer.send({"Key": 7}, key="k")
    frame = reader(spark, sqlite_url, stream="cased").schema("Key bigint, key binary").load()
    assert [tuple(row) for row in frame.collect()] == [(7, b"k")]


def test_expired_offsets_fail_unless_loss_is_allowed(
    spark: SparkSession, hub: shoal.Hub, sqlite_url: str
) -> None:
    hub.create_stream("orders", shards=1)
    for _ in range(3):
        hub.append("orders", 0, [b"x"] * 10)
    hub.set_retention("orders", retention_bytes=1)
    hub.enforce_retention("orders")
    first = hub.first_offset("orders", 0)
    assert first > 0
    strict = reader(spark, sqlite_url, stream="orders", startingOffsets='{"0": 0}')
    assert "keeps records from offset" in refusal(strict)
    frame = strict.option("failOnDataLoss", "false").load()
    assert [row.offset for row in frame.collect()] == list(range(first, 30))


def test_the_source_can_be_registered_by_hand(spark: SparkSession, hub: shoal.Hub, sqlite_url: str) -> None:
    hub.create_stream("orders", shards=1)
    hub.append("orders", 0, [b"x"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spark.dataSource.register(ShoalDataSource)
    assert reader(spark, sqlite_url, stream="orders").load().count() == 1


def test_a_view_is_read_by_sql_and_a_table_is_refused_with_what_works(
    spark: SparkSession, hub: shoal.Hub, sqlite_url: str
) -> None:
    hub.create_stream("orders")
    hub.append("orders", 0, [b"a", b"b"])
    options = f"USING shoal OPTIONS (hub '{sqlite_url}', stream 'orders')"
    spark.sql(f"CREATE TEMPORARY VIEW orders_view {options}")
    try:
        assert spark.sql("SELECT count(*) FROM orders_view").first() == (2,)
    finally:
        spark.sql("DROP VIEW orders_view")
    with pytest.raises(PySparkException) as caught:
        spark.sql(f"CREATE TABLE orders_table {options}")
    assert "CREATE TEMPORARY VIEW … USING shoal" in reason(caught.value)
