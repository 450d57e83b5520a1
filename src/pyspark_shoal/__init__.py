"""How Spark finds `format("shoal")` by itself: it imports every top-level module named `pyspark_…`.

All such modules are imported whenever any format is looked up, and one that fails hides all of them: so this
imports nothing but Spark's own base class, and the rest when it is asked for something.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """A stream of Shoal, to be read or written, as a batch or as a stream."""

    @classmethod
    def name(cls) -> str:
        return "shoal"

    def schema(self) -> StructType:
        from shoal.spark.data_source import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from shoal.spark.data_source import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from shoal.spark.data_source import stream_reader

        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        sink = import_module("shoal.spark.sink")
        writer: DataSourceWriter = sink.batch_writer(dict(self.options), schema, overwrite)
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        sink = import_module("shoal.spark.sink")
        writer: DataSourceStreamWriter = sink.stream_writer(dict(self.options), schema, overwrite)
        return writer
