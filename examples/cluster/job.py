"""The driver's program: `job.py spark://… postgresql://…`."""

import sys
import tempfile
import warnings

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone names it

warnings.simplefilter("ignore")  # Of Spark's own, about versions of pandas.

ROWS = 100_000


def main(master: str, hub: str) -> None:
    spark = (
        SparkSession.builder.master(master)
        .appName("orders to copies")
        .config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "512m")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    shoal = {"hub": hub}
    orders = spark.range(0, ROWS, 1, 4).select(
        F.format_string("customer-%d", (F.col("id") * 20 / ROWS).cast("int")).alias("key"),
        F.format_string("%08d", "id").alias("value"),
    )
    orders.write.format("shoal").options(**shoal, stream="orders").mode("append").save()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            spark.readStream.format("shoal")
            .options(**shoal, stream="orders", startingOffsets="earliest", maxOffsetsPerTrigger="40000")
            .load()
            .writeStream.format("shoal")
            .options(**shoal, stream="copies", checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
