"""How Spark finds `format("shoal")` by itself: it imports every top-level module named `pyspark_…`.

All such modules are imported whenever any format is looked up, and one that fails hides all of them: so this
imports nothing but Spark's own base class, and the rest when it is asked for something.
"""

from __future__ import annotations

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

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
        found: StructType = _room("data_source").schema_of(self.options)
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        reader: DataSourceReader = _room("data_source").batch_reader(self.options, schema)
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        reader: DataSourceStreamReader = _room("data_source").stream_reader(self.options, schema)
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        writer: DataSourceWriter = _room("sink").batch_writer(dict(self.options), schema, overwrite)
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        writer: DataSourceStreamWriter = _room("sink").stream_writer(dict(self.options), schema, overwrite)
        return writer


def _room(name: str) -> Any:
    """A module of `shoal.spark`. Its first import makes nothing that could be collected, and a seventh of its
    time would be spent looking for that: Spark starts a process for every query, which waits for this."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(f"shoal.spark.{name}")
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
