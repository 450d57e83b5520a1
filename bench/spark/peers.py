"""What the lines are compared with: a sink in Python that discards, a source that holds nothing, and one
whose rows are ready. They are the least that Python costs in Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema


class Discard(DataSource):
    """Takes Arrow batches and drops them."""

    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        return _DiscardWriter()


class _DiscardWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Ready(DataSource):
    """Rows that lie in memory as Spark wants them, in files of Arrow: nothing is read or decoded."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> Any:
        return from_arrow_schema(_mapped(self._files()[0]).schema)

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002
        return _ReadyReader(self._files())

    def _files(self) -> list[str]:
        return sorted(str(file) for file in Path(self.options["folder"]).iterdir())


class _ReadyReader(DataSourceReader):
    def __init__(self, files: list[str]) -> None:
        self._files = files

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(file) for file in self._files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from _mapped(partition.value).read_all().to_batches()


def _mapped(file: str) -> pa.RecordBatchStreamReader:
    return pa.ipc.open_stream(pa.memory_map(file))


class Tiny(DataSource):
    """A stream of one row a trigger, made of nothing: the least that a source in Python can cost."""

    @classmethod
    def name(cls) -> str:
        return "tiny"

    def schema(self) -> str:
        return "value binary"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802
        return _TinyReader(str(self.options["folder"]))


class _TinyReader(DataSourceStreamReader):
    """How far it is, a file says: its size."""

    def __init__(self, folder: str) -> None:
        self._file = f"{folder}/tiny"

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: ARG002, N802
        with open(self._file, "rb") as file:
            return {"at": file.seek(0, 2)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["at"], end["at"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        first, end = partition.value
        yield pa.record_batch({"value": pa.array([b"x"] * (end - first), pa.binary())})
