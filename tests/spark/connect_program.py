"""A client of Spark Connect, which writes to a hub and reads it back: `connect_program.py sqlite:///…`."""

import sys
import tempfile
import warnings

from pyspark.sql import SparkSession

warnings.simplefilter("ignore")


def main(url: str) -> None:
    spark = SparkSession.builder.remote("local[2]").appName("connect").getOrCreate()
    options = {"hub": url, "stream": "orders"}
    rows = spark.range(0, 100, 1, 2).selectExpr("concat('k', id % 7) AS key", "cast(id AS string) AS value")
    rows.write.format("shoal").options(**options).mode("append").save()
    read = spark.read.format("shoal").options(**options).load()
    print("read", read.count())  # noqa: T201
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            spark.readStream.format("shoal")
            .options(**options, startingOffsets="earliest")
            .load()
            .writeStream.format("shoal")
            .options(hub=url, stream="copies", checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    print("copied", spark.read.format("shoal").options(hub=url, stream="copies").load().count())  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
