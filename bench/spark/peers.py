"""What the lines are compared with: a sink in Python that discards, one that only writes to SQLite, a source
that holds nothing, and one whose rows are ready. It is the least that Python, and a disk, cost there."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

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


class Bare(DataSource):
    """Puts Arrow batches into a table of SQLite: compressed, durable, and nothing else. No key is looked at,
    nothing is numbered, and nobody could read a shard of it."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        return _BareWriter(self.options["file"])


COMMIT_BYTES: Final = 8 << 20
"""What goes into one commit: as much as in ours."""


def make_bare(file: Path) -> None:
    """The file, with the settings of a hub's; one that is there is emptied."""
    with closing(_bare(str(file))) as database:
        database.execute("CREATE TABLE IF NOT EXISTS batch (payload BLOB NOT NULL)")
        database.execute("DELETE FROM batch")


def _bare(file: str) -> sqlite3.Connection:
    from shoal.store.sql.dialects.sqlite import PRAGMAS  # noqa: PLC0415 - the other peers load nothing of ours

    database = sqlite3.connect(file, isolation_level=None, timeout=30.0)
    for pragma in PRAGMAS:
        database.execute(pragma)
    return database


class _BareWriter(DataSourceArrowWriter):
    def __init__(self, file: str) -> None:
        self._file = file

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        options = pa.ipc.IpcWriteOptions(compression=pa.Codec("lz4", -8), use_threads=False)
        with closing(_bare(self._file)) as database:
            waiting: list[tuple[memoryview]] = []
            size = 0
            for batch in iterator:
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
                    writer.write_batch(batch)
                waiting.append((memoryview(sink.getvalue()),))
                size += batch.nbytes
                if size >= COMMIT_BYTES:
                    _commit(database, waiting)
                    waiting, size = [], 0
            _commit(database, waiting)
        return WriterCommitMessage()


def _commit(database: sqlite3.Connection, rows: list[tuple[memoryview]]) -> None:
    database.execute("BEGIN IMMEDIATE")
    database.executemany("INSERT INTO batch VALUES (?)", rows)
    database.execute("COMMIT")


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
