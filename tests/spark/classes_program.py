"""A batch, a streaming query and a shuffle, for the classes that they load: see `shared_classes`.

`python classes_program.py FOLDER`
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from pyspark.sql import SparkSession

import shoal


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")  # Of Spark's own, about versions of pandas.
    hub = f"sqlite:///{folder}/shoal.db"
    with shoal.connect(hub) as made:
        made.create_stream("orders", shards=2)
        made.create_stream("copies", shards=2)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    rows = spark.range(100).selectExpr("cast(id % 7 AS string) AS key", "cast(id AS string) AS value")
    rows.write.format("shoal").options(hub=hub, stream="orders").mode("append").save()
    found = (
        spark.readStream.format("shoal").options(hub=hub, stream="orders", startingOffsets="earliest").load()
    )
    copied = found.select("key", "value").writeStream.format("shoal").options(hub=hub, stream="copies")
    copied.option("checkpointLocation", str(folder / "copies")).trigger(
        availableNow=True
    ).start().awaitTermination()
    copies = spark.read.format("shoal").options(hub=hub, stream="copies").load()
    assert sum(row["count"] for row in copies.groupBy("key").count().collect()) == 100
    gateway = spark.sparkContext._gateway
    spark.stop()
    assert gateway is not None
    gateway.proc.stdin.close()  # The JVM ends with its input, and writes the archive.
    assert gateway.proc.wait() == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
