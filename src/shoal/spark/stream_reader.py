"""`spark.readStream.format("shoal")`: batches of whatever is new, planned on the driver, read on executors.

One object is made in the process that Spark keeps for the query, and plans; another is made elsewhere,
pickled once, and reads. So nothing is opened before Spark asks for an offset, and what changes from batch
to batch travels in the partitions.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from shoal.connect import Hub
from shoal.core.errors import InvalidInput
from shoal.core.limits import OFFSET_MAX
from shoal.core.model import StreamInfo
from shoal.spark.batch_reader import SpanPartition
from shoal.spark.executor_reading import Reading, read_spans
from shoal.spark.hubs import hub_at
from shoal.spark.lone_query import LoneQuery
from shoal.spark.member_query import MemberQuery
from shoal.spark.news import News
from shoal.spark.plan.limits import Limits
from shoal.spark.plan.spans import Span
from shoal.spark.plan.tasks import DIVISION, Division, Task, division_of, tasks, without_division
from shoal.spark.schema import check_schema
from shoal.spark.source_options import SourceOptions, check_cuts
from shoal.spark.streams import OUTAGE_S, streams_at_first

EVERYTHING: Final = ReadMaxRows(OFFSET_MAX)
"""No limit, in another word than Spark's own: that means Trigger.Once."""


class Query(Protocol):
    """A query as it runs: how far it is, and what comes next."""

    def initial(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins."""

    def latest(self, start: dict[str, Any], limits: Limits) -> tuple[dict[str, Any], int | None]:
        """The end of the next batch, `start` itself if nothing is new; and how many records there would be,
        if more could be waited for.

        Everything up to `start` is done: Spark has written it down.
        """

    def spans(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Span]:
        """What the batch between them is made of; also of one that an earlier run began."""

    def ordered(self) -> Sequence[str]:
        """The streams of which a shard must be read by one task. If there is one, no shard is cut."""

    def ends(self) -> dict[str, Any] | None:
        """Where the streams end, as last seen: for people."""

    def available_now(self) -> None:
        """What is there now is all that is to be read."""

    def stop(self) -> None: ...


class Running:
    """What the planning object has, and the pickled one has not."""

    def __init__(self, query: Query, news: News) -> None:
        self.query, self.news = query, news
        self.first: dict[str, Any] | None = None
        self.idle_at: dict[str, Any] | None = None
        """The offset at which nothing was new."""
        self.batch_s = time.monotonic()
        """When the last batch began."""
        self.is_available_now = False


class ShoalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See DataSourceStreamReader."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._reading = Reading(hub=options.hub, schema=schema, strict=options.strict)
        self._running: Running | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_running": None}

    # --- On the driver. ---

    def initialOffset(self) -> dict[str, Any]:
        running = self._begin()
        if running.first is None:
            running.first = running.query.initial()
        return running.first

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of Spark's own kinds: that, and all other limits, are kept in `latestOffset`."""
        if self._options.records_max is not None:
            return ReadMaxRows(self._options.records_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        if self._options.records_min is not None:
            return ReadMinRows(self._options.records_min)
        return EVERYTHING

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch. Nothing new: the answer is held back for a moment."""
        running = self._begin()
        if running.idle_at == start and not running.is_available_now and not running.news.wait():
            return start
        running.news.looking()
        limits = self._limits(limit, running.is_available_now)
        done = without_division(start)
        end, available = running.query.latest(done, limits)
        waited_s = time.monotonic() - running.batch_s
        if end == done or not limits.is_worth_it(available, waited_s):
            running.idle_at = start
            return start
        running.idle_at, running.batch_s = None, time.monotonic()
        return {**end, DIVISION: self._division(running).to_json()}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._begin().query.ends()

    def prepareForTriggerAvailableNow(self) -> None:
        running = self._begin()
        running.is_available_now = True
        running.query.available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [SpanPartition(task) for task in self._tasks(start, end)]

    def _tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[Task]:
        running = self._begin()
        spans = running.query.spans(without_division(start), without_division(end))
        return tasks(spans, **(division_of(end) or self._division(running))._asdict())

    def _division(self, running: Running) -> Division:
        options = self._options
        return Division(options.tasks, options.task_records_max, cuts=not running.query.ordered())

    def commit(self, end: dict[str, Any]) -> None:
        """Comes late, and never for the last batch: what is done, `latestOffset` is told sooner."""

    def stop(self) -> None:
        if self._running is not None:
            self._running.query.stop()
            self._running.news.close()

    # --- On an executor. ---

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SpanPartition)
        return read_spans(self._reading, partition.spans)

    # ---

    def _begin(self) -> Running:
        if self._running is None:
            hub = hub_at(self._options.hub, keeps=True, within_s=OUTAGE_S)
            news = News(hub)
            self._running = Running(self._query(hub, news), news)
            _stop_on_sigterm()
        return self._running

    def _query(self, hub: Hub, news: News) -> Query:
        options = self._options
        checked: set[int] = set()

        def check(streams: Iterable[StreamInfo]) -> None:
            found = list(streams)
            if not checked.issuperset(info.id for info in found):
                check_schema(self._reading.schema, found)
                checked.update(info.id for info in found)

        check(streams_at_first(hub, options.subscription, strict=options.strict).values())
        query: Query = (MemberQuery if options.is_member else LoneQuery)(hub, options, news, check)
        if options.task_records_max is not None:
            check_cuts(options, query.ordered())
        return query

    def _limits(self, limit: ReadLimit, is_available_now: bool) -> Limits:
        """Spark's word for everything is Trigger.Once, and overrules the options. It comes back for no second
        look, so nobody would ever save in a group what its one batch has read."""
        options = self._options
        if isinstance(limit, ReadAllAvailable):
            if options.group is not None:
                raise InvalidInput(
                    "trigger",
                    "once",
                    "Spark ends such a query without a word about its batch: its group would not hear of it; "
                    "use trigger(availableNow=True), or leave the group out",
                )
            return Limits()
        return Limits(
            records_max=limit.max_rows if isinstance(limit, ReadMaxRows) else options.records_max,
            bytes_max=options.bytes_max,
            records_min=None if is_available_now else options.records_min,
            delay_max_s=options.delay_max,
        )


def _stop_on_sigterm() -> None:
    """Spark ends the process with SIGTERM, twice. The first ends it by an exception, so that the runner calls
    `stop()`, where memberships are left; the second is not heard."""

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(0)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)
