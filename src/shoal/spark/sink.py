"""The sink: what Spark calls, and where. Rows are written by `sink_task`, which knows nothing of Spark.

A writer is made in a short-lived process of the driver, once for each write and once for each micro-batch,
and pickled; `write` runs on the executors, `commit` and `abort` in another process of the driver, on
another copy.

Exactly once. A task is known again by (query, batch, partition), which Spark keeps through restarts; see
`ledger`. A batch write has no query: an id that is made with the writer holds for all attempts of its
tasks, and running it again is another write. Records can be read as soon as their task has stored them,
before the batch is committed; an abort can take nothing back, and need not: a batch that failed is
completed when Spark runs it again. `commit` notes that the batch is complete, which no task can know.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from shoal.consumer.membership import insist
from shoal.core.errors import InvalidInput, ShoalError, StoreError
from shoal.spark.hubs import TASK_OUTAGE_S, hub_at, task_hub
from shoal.spark.ledger import Identity, begun_at
from shoal.spark.sink_columns import check_columns
from shoal.spark.sink_options import SinkSettings, sink_settings
from shoal.spark.sink_task import SinkTask, Written, ledger_of, project_of

_log: Final = logging.getLogger("shoal.spark")


def batch_writer(options: dict[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of `df.write.format("shoal")`."""
    return BatchWriter(_checked(options, schema, overwrite, within_s=0.0), job=uuid4().hex)


def stream_writer(options: dict[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer of one micro-batch of `df.writeStream.format("shoal")`."""
    return StreamWriter(_checked(options, schema, overwrite, within_s=TASK_OUTAGE_S))


@dataclass
class TaskWritten(WriterCommitMessage):
    """What a task tells the driver."""

    who: Identity
    written: Written


class BatchWriter(DataSourceArrowWriter):
    """See DataSourceArrowWriter."""

    def __init__(self, settings: SinkSettings, job: str) -> None:
        self._settings = settings
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """On an executor: all rows of one partition."""
        task = _task_context()
        return _write(
            self._settings, Identity(query=self._job, batch=0, partition=task.partitionId()), iterator
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Every task has stored its rows."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The log takes nothing back; what was stored is said, since running the write again repeats it."""
        stored = sum(
            message.written.contents.rows for message in messages if isinstance(message, TaskWritten)
        )
        _log.warning("a write failed; %d rows of tasks that had finished are in the log", stored)


class StreamWriter(DataSourceStreamArrowWriter):
    """See DataSourceStreamArrowWriter."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """On an executor: all rows of one partition."""
        task = _task_context()
        query, batch = (
            task.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId")
        )
        if query is None or batch is None:
            raise ShoalError(
                "this task belongs to no streaming query that Spark tells of; use write, not writeStream"
            )
        if not self._settings.is_exactly_once:
            query = uuid4().hex
        who = Identity(query=query, batch=int(batch), partition=task.partitionId())
        return _write(self._settings, who, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Note that the batch is complete: only here is it known that no task's rows broke off.

        One without rows is nothing to note, unless it had some when it was run before.
        """
        done = [message for message in messages if isinstance(message, TaskWritten)]
        if not done or not self._settings.is_exactly_once:
            return
        service = hub_at(self._settings.hub, within_s=TASK_OUTAGE_S).service
        who = Identity(query=done[0].who.query, batch=batchId, partition=-1)
        claims = [message.written.claim for message in done if message.written.claim is not None]
        claim = min(claims) if claims else begun_at(service, project_of(self._settings), who)
        if claim is not None:
            held = {each.who.partition: each.written.contents for each in done if each.written.contents.rows}
            ledger_of(service, self._settings).finish(who.query, batchId, claim, held)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What is stored stays: it is numbered, and the batch is completed when it is run again."""
        done = sum(isinstance(message, TaskWritten) for message in messages)
        _log.warning("batch %d failed; %d of its %d partitions are in the log", batchId, done, len(messages))


def _checked(
    options: dict[str, str], schema: StructType, overwrite: bool, *, within_s: float
) -> SinkSettings:
    """On the driver, before anything runs: all that can be seen without a row.

    A streaming query comes here with each batch, also while the store restarts.
    """
    settings = sink_settings(options)
    if overwrite:
        raise InvalidInput("mode", "overwrite", "a log only grows: use append")
    hub = hub_at(settings.hub, within_s=within_s)
    stream = None
    if settings.stream is not None:
        stream = insist(partial(hub.describe_stream, settings.stream), StoreError, within_s)
    check_columns(settings, to_arrow_schema(schema, timezone="UTC"), stream)
    return settings


def _write(settings: SinkSettings, who: Identity, rows: Iterator[pa.RecordBatch]) -> TaskWritten:
    service = task_hub(settings.hub).service
    return TaskWritten(who=who, written=SinkTask(service, settings, who).write(rows))


def _task_context() -> Any:
    context = TaskContext.get()
    if context is None:
        raise ShoalError("a sink writes only in a task of Spark")
    return context
