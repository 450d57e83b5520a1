"""What `format("shoal")` makes: the columns, and readers and writers for them.

The class that Spark finds is `pyspark_shoal.DefaultSource`, which imports nothing of this until it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from shoal.spark.batch_reader import PushingBatchReader, ShoalBatchReader
from shoal.spark.hubs import hub_at
from shoal.spark.schema import streams_schema
from shoal.spark.source_options import check_agreed, source_options
from shoal.spark.stream_reader import ShoalStreamReader
from shoal.spark.streams import streams_at_first


def schema_of(given: Mapping[str, str]) -> StructType:
    """The columns of the streams that are named."""
    options = source_options(given)
    streams = streams_at_first(hub_at(options.hub), options.subscription, strict=options.strict)
    return streams_schema(list(streams.values()), options.columns, has_headers=options.has_headers)


def batch_reader(given: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """For `spark.read`."""
    options = source_options(given, is_streaming=False)
    check_agreed(options, schema.names)
    return (PushingBatchReader if options.pushes_filters else ShoalBatchReader)(options, schema)


def stream_reader(given: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """For `spark.readStream`."""
    options = source_options(given, is_streaming=True)
    check_agreed(options, schema.names)
    return ShoalStreamReader(options, schema)
