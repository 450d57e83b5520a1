"""`spark.read.format("shoal")`: everything between two places, once.

The plan is made in a short-lived process of the driver's; the reader and its partitions travel to executors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from shoal.connect import Hub
from shoal.core.checkpoint import beyond
from shoal.core.lineage import families
from shoal.core.model import StreamInfo
from shoal.spark.executor_reading import Reading, read_spans
from shoal.spark.hubs import hub_at
from shoal.spark.plan.filters import Bounds
from shoal.spark.plan.spans import Span, span_of
from shoal.spark.plan.starting import Kind, Place, check_ahead
from shoal.spark.plan.tasks import Task, tasks
from shoal.spark.pushing import bounds_of
from shoal.spark.schema import check_schema
from shoal.spark.source_options import SourceOptions
from shoal.spark.starting_points import offsets_of
from shoal.spark.streams import streams_at_first


class SpanPartition(InputPartition):
    """What one task reads."""

    def __init__(self, spans: Task) -> None:
        super().__init__(spans)
        self.spans = spans


class ShoalBatchReader(DataSourceReader):
    """Reads each shard from its start to its end as of the plan."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._reading = Reading(hub=options.hub, schema=schema, strict=options.strict)
        self._bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        """Of an empty list Spark makes a partition of its own: so it is one of no spans."""
        options = self._options
        hub = hub_at(options.hub)
        streams = streams_at_first(hub, options.subscription)
        spans = self._spans(hub, streams)
        if options.in_order:
            # Tasks run at the same time: who is to be read after its ancestors is read in their task.
            kin = {name: families(info.shards) for name, info in streams.items()}
            spread = tasks(
                spans,
                wanted=options.tasks,
                cuts=False,
                kin=lambda one: (one.stream, kin[one.stream][one.shard]),
            )
        else:
            spread = tasks(spans, wanted=options.tasks, records_max=options.task_records_max)
        return [SpanPartition(task) for task in spread] or [SpanPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See DataSourceReader. On an executor."""
        assert isinstance(partition, SpanPartition)
        return read_spans(self._reading, partition.spans)

    def _spans(self, hub: Hub, streams: Mapping[str, StreamInfo]) -> list[Span]:
        options = self._options
        check_schema(self._reading.schema, list(streams.values()))
        start = options.start or Place(kind=Kind.EARLIEST if options.group is None else Kind.GROUP)
        starts = offsets_of(
            hub,
            streams,
            start,
            option="startingOffsets",
            group=options.group,
            otherwise=Kind.EARLIEST,
            strict=options.strict,
        )
        end = options.end or Place(kind=Kind.LATEST)
        ends = offsets_of(
            hub,
            streams,
            end,
            option="endingOffsets",
            group=options.group,
            otherwise=Kind.LATEST,
            strict=options.strict,
        )
        for name, info in streams.items():
            check_ahead(info, start, starts[name], end, ends[name])
        after = self._bounds.after_ms
        froms = (
            offsets_of(
                hub,
                streams,
                Place(kind=Kind.TIME, time_ms=after),
                option="timestamp",
                group=None,
                otherwise=Kind.EARLIEST,
                strict=False,
            )
            if after is not None
            else None
        )
        spans = []
        for name, info in streams.items():
            for shard in info.shards:
                low = starts[name][shard.id]
                if froms is not None:
                    low = max(low, froms[name][shard.id])
                found = self._bounds.cut(name, shard.id, low, ends[name][shard.id])
                if found is not None:
                    begun = beyond(starts[name][shard.id])
                    spans.append(replace(span_of(info, shard, *found), beyond=begun))
        return spans


class PushingBatchReader(ShoalBatchReader):
    """The same, with filters that Spark hands over. Apart, since Spark refuses any reader that takes filters
    while its setting `spark.sql.python.filterPushdown.enabled` is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what narrows shards, offsets and times; the others, and times, Spark checks again."""
        bounds, left = bounds_of(filters)
        self._bounds = replace(bounds)
        return left
