"""A table that follows a stream, and a sink that follows the table."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

HUB = os.environ["SHOAL_HUB"]

dp.create_sink("large_orders", "shoal", {"hub": HUB, "stream": "large-orders"})


@dp.table
def orders() -> DataFrame:
    spark = SparkSession.active()
    options = {"hub": HUB, "stream": "orders", "startingOffsets": "earliest"}
    return spark.readStream.format("shoal").options(**options).load().select("key", "value")


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    spark = SparkSession.active()
    return spark.readStream.table("orders").where("cast(cast(value AS string) AS int) >= 500")
