"""The source behind `shoal.spark.run`: it plans stays, tasks carry them out, rows say what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType, StructField, StructType

from shoal.connect import Hub
from shoal.spark.attempts import Turn
from shoal.spark.news import News
from shoal.spark.plan.tasks import Division, Task
from shoal.spark.processor_job import ProcessorJob, job_of
from shoal.spark.processor_query import ProcessorQuery
from shoal.spark.source_options import SourceOptions, source_options
from shoal.spark.stays import work_on
from shoal.spark.stream_reader import Query, Running, ShoalStreamReader

JOB: Final = "job"
ROWS: Final = StructType(
    [
        StructField("stream", StringType(), nullable=False),
        StructField("shards", IntegerType(), nullable=False),
        StructField("records", LongType(), nullable=False),
        StructField("failures", LongType(), nullable=False),
        StructField("retries", LongType(), nullable=False),
        StructField("dead", LongType(), nullable=False),
        StructField("lost", LongType(), nullable=False),
        StructField("seconds", DoubleType(), nullable=False),
    ]
)


class ProcessorSource(DataSource):
    """Made by `shoal.spark.run`."""

    @classmethod
    def name(cls) -> str:
        return "shoal-processor"

    def schema(self) -> StructType:
        return ROWS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        given: Mapping[str, str] = self.options
        job = job_of(given[JOB])
        options = source_options(
            {name: value for name, value in given.items() if name != JOB}, is_streaming=True
        )
        return ProcessorReader(options, schema, job)


class StayPartition(InputPartition):
    """What one task is given, and in whose name."""

    def __init__(self, member: str, spans: Task) -> None:
        super().__init__(spans)
        self.member, self.spans = member, spans


class ProcessorReader(ShoalStreamReader):
    """See DataSourceStreamReader."""

    def __init__(self, options: SourceOptions, schema: StructType, job: ProcessorJob) -> None:
        super().__init__(options, schema)
        self._job = job

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        query = self._begin().query
        assert isinstance(query, ProcessorQuery)
        return [StayPartition(query.member, task) for task in self._tasks(start, end)]

    def _division(self, running: Running) -> Division:
        """A shard has one processor at a time, also in a group that is not in order."""
        del running
        return Division(self._options.tasks, None, cuts=False)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, StayPartition)
        yield from map(tuple, work_on(self._job, partition.member, partition.spans, _turn()))

    def _query(self, hub: Hub, news: News) -> Query:
        return ProcessorQuery(hub, self._options, news, stream=self._job.stream, rules=self._job.rules)


def _turn() -> Turn:
    """Of this attempt."""
    task: Any = TaskContext.get()
    assert task is not None, "read() runs in a task"
    batch = task.getLocalProperty("streaming.sql.batchId")
    return Turn(int(batch or 0), task.attemptNumber())
