"""The sink in Spark: what `write` and `writeStream` were given is in the log, once, each key in order."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone names it
from pyspark.sql.streaming.query import StreamingQuery

import shoal
from shoal.spark.reasons import reason
from shoal.testing.servers import PostgresServer

ROWS = 3_000


@pytest.fixture(scope="module")
def sqlite_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('hub')}/shoal.db"


@pytest.fixture
def url(request: pytest.FixtureRequest, sqlite_file: str) -> str:
    """One hub for all, or a database of PostgreSQL for who asks for it: `on_both`."""
    if getattr(request, "param", None) != "postgresql":
        return sqlite_file
    server = request.getfixturevalue("postgres_server")
    assert isinstance(server, PostgresServer)
    return server.fresh_database()


on_both = pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def hub(url: str) -> Iterator[shoal.Hub]:
    with shoal.connect(url) as made:
        for stream in made.list_streams():
            made.delete_stream(str(stream.full_name))
        made.create_stream("orders", shards=4)
        yield made


def numbered(spark: SparkSession, rows: int = ROWS, partitions: int = 2) -> DataFrame:
    """Rows of 50 keys, each key's in one partition and in order."""
    return spark.range(0, rows, 1, partitions).select(
        F.concat(F.lit("k"), (F.col("id") * 50 / rows).cast("int").cast("string")).alias("key"),
        F.format_string("%08d", F.col("id")).cast("binary").alias("value"),
    )


def stored(hub: shoal.Hub, stream: str = "orders") -> dict[bytes | None, list[Any]]:
    found: dict[bytes | None, list[Any]] = {}
    for shard in hub.describe_stream(stream).shards:
        offset = shard.first_offset
        while len(part := hub.read(stream, shard.id, offset)):
            for record in part:
                found.setdefault(record.key, []).append(record.value)
            offset = part.next_offset
    return found


def check_numbered(hub: shoal.Hub, rows: int = ROWS, stream: str = "orders") -> None:
    """Every row once, each key in order."""
    found = stored(hub, stream)
    assert sorted(int(value) for values in found.values() for value in values) == list(range(rows))
    for key, values in found.items():
        assert values == sorted(values), key


def test_a_batch_write_stores_every_row_once_and_each_key_in_order(
    spark: SparkSession, hub: shoal.Hub, url: str
) -> None:
    numbered(spark).write.format("shoal").option("hub", url).option("stream", "orders").mode("append").save()
    check_numbered(hub)


def test_typed_columns_headers_and_timestamps_arrive_as_they_were_given(
    spark: SparkSession, hub: shoal.Hub, url: str
) -> None:
    hub.create_stream("typed", shards=2, schema={"customer": "string", "amount": "int64", "price": "double"})
    rows = spark.sql(
        "SELECT 'ann' AS customer, 7 AS amount, 1.5D AS price, map('trace', cast('x' AS binary)) AS headers,"
        " timestamp'2026-01-02 03:04:05.678901' AS timestamp"
    )
    options = {"hub": url, "stream": "typed", "keyColumn": "customer"}
    rows.write.format("shoal").options(**options).mode("append").save()
    (record,) = [
        record for shard in hub.describe_stream("typed").shards for record in hub.read("typed", shard.id, 0)
    ]
    assert record.key == b"ann"
    assert record.value == {"customer": "ann", "amount": 7, "price": 1.5}
    assert record.headers == {"trace": b"x"}
    assert record.timestamp == 1767323045678


def test_columns_that_spark_knows_as_wider_types_go_back_into_the_same_schema(
    spark: SparkSession, hub: shoal.Hub, url: str
) -> None:
    schema = pa.schema(
        {
            "count": pa.uint64(),
            "half": pa.float16(),
            "both": pa.struct({"count": pa.uint64(), "small": pa.uint8()}),
            "pair": pa.list_(pa.int16(), 2),
        }
    )
    given = [
        {"count": 2**64 - 1, "half": 1.5, "both": {"count": 2**63, "small": 255}, "pair": [1, None]},
        {"count": None, "half": None, "both": None, "pair": None},
    ]
    for stream in ("here", "there"):
        hub.create_stream(stream, shards=1, schema=schema)
    with hub.producer("here") as producer:
        producer.send_batch(pa.Table.from_pylist(given, schema))
    rows = spark.read.format("shoal").options(hub=url, stream="here").load()
    for number in range(2):  # The second has nothing but nulls, which ended the task's process.
        one = rows.filter(f"offset = {number}").coalesce(1)
        one.write.format("shoal").options(hub=url, stream="there").mode("append").save()
    assert [record.value for record in hub.read("there", 0, 0)] == given


def test_times_without_a_zone_are_utcs_and_numbers_are_milliseconds(
    spark: SparkSession, hub: shoal.Hub, url: str
) -> None:
    hub.create_stream("times", shards=1)
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert zone is not None
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        for time in ("timestamp_ntz'2026-01-02 03:04:05.678'", "1767323045678L"):
            rows = spark.sql(f"SELECT 'x' AS value, {time} AS timestamp")
            rows.write.format("shoal").options(hub=url, stream="times").mode("append").save()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert [record.timestamp for record in hub.read("times", 0, 0)] == [1767323045678] * 2


def test_headers_as_the_kafka_connector_has_them_are_taken(
    spark: SparkSession, hub: shoal.Hub, url: str
) -> None:
    rows = spark.sql(
        "SELECT * FROM VALUES ('a', 'v', array(named_struct('key', 'h', 'value', cast('1' AS binary)))),"
        " ('b', 'w', NULL), ('c', 'x', array()) AS t(key, value, headers)"
    )
    rows.coalesce(1).write.format("shoal").option("hub", url).option("stream", "orders").mode("append").save()
    found = {
        record.key: dict(record.headers)
        for shard in hub.describe_stream("orders").shards
        for record in hub.read("orders", shard.id, 0)
    }
    assert found == {b"a": {"h": b"1"}, b"b": {}, b"c": {}}


def test_a_column_names_the_stream_of_each_row(spark: SparkSession, hub: shoal.Hub, url: str) -> None:
    hub.create_stream("shop/refunds", shards=1)
    rows = numbered(spark, 100).withColumn(
        "stream", F.when(F.col("key") < "k3", F.lit("orders")).otherwise(F.lit("shop/refunds"))
    )
    rows.write.format("shoal").option("hub", url).mode("append").save()
    orders, refunds = stored(hub), stored(hub, "shop/refunds")
    assert set(orders).isdisjoint(refunds)
    assert sum(map(len, orders.values())) + sum(map(len, refunds.values())) == 100


def written_stream(
    spark: SparkSession, folder: Path, url: str, checkpoint: str, **options: str
) -> StreamingQuery:
    """A query over the files of a folder, one file a batch, until there are no more."""
    lines = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1)
    rows = lines.json(str(folder)).select("key", F.col("value").cast("binary"))
    return _started(rows, url, checkpoint, **options)


def _started(rows: DataFrame, url: str, checkpoint: str, **options: str) -> StreamingQuery:
    writer = rows.writeStream.format("shoal").option("hub", url).option("checkpointLocation", checkpoint)
    return writer.options(**{"stream": "orders", **options}).trigger(availableNow=True).start()


def add_file(folder: Path, number: int, rows: int = 200) -> None:
    folder.mkdir(exist_ok=True)
    lines = [
        json.dumps({"key": f"k{i % 17}", "value": f"{i:08d}"})
        for i in range(number * rows, (number + 1) * rows)
    ]
    file = folder / f"{number:04d}.json"
    file.write_text("\n".join(lines))
    os.utime(file, (1_700_000_000 + number,) * 2)  # Spark takes the oldest first.


def test_a_query_that_is_started_again_stores_every_row_once(
    spark: SparkSession, hub: shoal.Hub, url: str, checkpoint: str, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    for number in range(3):
        add_file(folder, number)
        if number == 1:
            hub.split_shard("orders", 1)
        written_stream(spark, folder, url, checkpoint).awaitTermination()
    check_numbered(hub, 600)


@on_both
def test_a_batch_that_spark_had_not_committed_is_run_again_and_dropped(
    spark: SparkSession, hub: shoal.Hub, url: str, checkpoint: str, tmp_path: Path
) -> None:
    """The driver dies between the sink's commit and Spark's own: as if its last lines were never written."""
    folder = tmp_path / "in"
    for number in range(3):
        add_file(folder, number)
    written_stream(spark, folder, url, checkpoint).awaitTermination()
    check_numbered(hub, 600)
    for file in Path(checkpoint, "commits").glob("*2*"):
        file.unlink()
    hub.reshard("orders", 3)
    query = written_stream(spark, folder, url, checkpoint)
    query.awaitTermination()
    assert [progress["batchId"] for progress in query.recentProgress][:1] == [2]
    check_numbered(hub, 600)


@on_both
@pytest.mark.parametrize("options", [{"maxBufferBytes": "64k"}, {}], ids=["many appends", "one append"])
def test_a_task_that_fails_halfway_is_completed_by_the_next_run(
    spark: SparkSession, hub: shoal.Hub, url: str, tmp_path: Path, options: dict[str, str]
) -> None:
    folder, checkpoint = tmp_path / "in", str(tmp_path / "checkpoint")
    add_file(folder, 0, rows=30_000)

    def start(fatal: str) -> StreamingQuery:
        lines = spark.readStream.schema("key string, value string").json(str(folder))
        dies = F.when(F.col("value") == fatal, F.raise_error(F.lit("the task dies here")))
        rows = lines.select("key", dies.otherwise(F.col("value")).alias("value"))
        return _started(rows, url, checkpoint, **options)

    with pytest.raises(PySparkException, match="the task dies here"):
        start("00025000").awaitTermination()
    assert 0 < sum(map(len, stored(hub).values())) < 30_000, "half of it was written"
    hub.split_shard("orders", 0)
    start("none").awaitTermination()
    check_numbered(hub, 30_000)


def test_a_batch_that_is_run_again_in_other_partitions_is_refused(
    spark: SparkSession, hub: shoal.Hub, url: str, checkpoint: str, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    add_file(folder, 0)

    def start(partitions: int, **options: str) -> StreamingQuery:
        lines = spark.readStream.schema("key string, value string").json(str(folder))
        return _started(lines.repartition(partitions), url, checkpoint, **options)

    start(2).awaitTermination()
    for file in Path(checkpoint, "commits").glob("*0*"):
        file.unlink()
    with pytest.raises(Exception, match="was run before with other rows") as caught:
        start(3).awaitTermination()
    assert reason(caught.value).startswith("NotRepeated: partition")
    check_numbered_as_set(hub, 200)
    start(2).awaitTermination()
    check_numbered_as_set(hub, 200)


def check_numbered_as_set(hub: shoal.Hub, rows: int) -> None:
    values = [int(value) for values in stored(hub).values() for value in values]
    assert sorted(values) == list(range(rows))


# --- Nonsense; the rest of it is in test_sink_refusals.py, without Spark. ------------------------------


def test_nonsense_is_refused_in_one_readable_line(spark: SparkSession, hub: shoal.Hub, url: str) -> None:
    writer = numbered(spark, 10).write.format("shoal").option("hub", url).mode("append")
    with pytest.raises(PySparkException) as caught:
        writer.option("steam", "orders").save()
    line = "InvalidInput: steam='orders': the sink has no such option; did you mean 'stream'?"
    assert reason(caught.value) == line


def test_a_null_key_is_routed_or_refused_as_told(spark: SparkSession, hub: shoal.Hub, url: str) -> None:
    rows = spark.sql("SELECT cast(NULL AS string) AS key, 'v' AS value")
    writer = rows.write.format("shoal").option("hub", url).option("stream", "orders").mode("append")
    writer.save()
    assert stored(hub) == {None: [b"v"]}
    with pytest.raises(PySparkException) as caught:
        writer.option("nullKey", "refuse").save()
    assert reason(caught.value) == "InvalidInput: key=None: 1 rows have no key, and nullKey is 'refuse'"


@pytest.mark.filterwarnings("ignore::FutureWarning")  # Of Spark's own, about versions of pandas.
def test_an_executor_that_does_not_see_an_embedded_hub_says_so_and_makes_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As on another machine: the file is there when the driver looks, and not where the task runs."""
    file, away = tmp_path / "shoal.db", tmp_path / "away.db"
    with shoal.connect(f"sqlite:///{file}") as hub:
        hub.create_stream("orders", shards=1)

    def take_away(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if file.exists():
            file.rename(away)
        yield from batches

    rows = spark.sql("SELECT 'k' AS key, 'v' AS value").mapInArrow(take_away, "key string, value string")
    writer = rows.repartition(1, "key").write.format("shoal").option("hub", f"sqlite:///{file}")
    with pytest.raises(PySparkException) as caught:
        writer.option("stream", "orders").mode("append").save()
    assert "there is no such file on" in reason(caught.value)
    assert "an embedded hub serves one machine" in reason(caught.value)
    assert not file.exists()
