"""The session that the other tests of Spark stand on."""

from __future__ import annotations

from pyspark.sql import SparkSession


def test_spark_counts(spark: SparkSession) -> None:
    assert spark.range(10).count() == 10
