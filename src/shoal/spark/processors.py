"""`shoal.spark.run`: the user's processor on Spark's executors, as a streaming query.

The query is a member of the group, like any worker. Which shards it holds, where they stand and what failed
is in the group, not in Spark: a query that is started anew, with or without a checkpoint of Spark's, goes on
from there.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery

from shoal.connect import Hub
from shoal.consumer.aside import Aside
from shoal.consumer.joining import as_retry, see_group
from shoal.consumer.options import Lanes, OnStuck, WorkerOptions
from shoal.consumer.processor import factory_of
from shoal.core.checking import is_number, is_whole
from shoal.core.errors import InvalidInput
from shoal.core.group import Delivery, check_delivery
from shoal.core.limits import DURATION_S_MAX
from shoal.core.names import checked_name, stream_name
from shoal.core.retry import FailureRules, Policy
from shoal.spark.hubs import HubAddress, address_of, hub_at
from shoal.spark.processor_job import ProcessorJob, pickled
from shoal.spark.processor_source import JOB, ProcessorSource

FIGURES: Final = "shoal"
"""The name of what the query observes: `query.lastProgress["observedMetrics"]["shoal"]["records"]`."""

COUNTS: Final = ("records", "failures", "retries", "dead", "lost")


def run(
    spark: SparkSession,
    *,
    stream: str,
    group: str,
    processor: object,
    hub: str | None = None,
    leases: str | None = None,
    name: str | None = None,
    checkpoint: str | None = None,
    every: str | None = None,
    tasks: int | None = None,
    batch_seconds: float = 10.0,
    options: WorkerOptions | None = None,
    **changes: Any,
) -> StreamingQuery:
    """Start a streaming query that has each shard of the stream processed by `processor`, in order.

    `processor`: as for `shoal.Worker`. `hub`: its URL; otherwise the variable SHOAL_HUB. `name`: the query's,
    and the member's, unique in the group. `checkpoint`: a folder for Spark's own checkpoint; without one
    Spark makes a temporary one, and nothing is lost by that. `every`: how often a batch begins, such as
    `"10 seconds"`; otherwise as soon as there is something. `tasks`: of a batch, about. `batch_seconds`:
    after so long a task leaves what it has not come to, or cannot get past, to the next batch. `options`,
    `changes`: see WorkerOptions; `until="now"` ends the query when all that is there now is consumed.
    """
    settings = _checked(options, changes)
    name = None if name is None else checked_name("name", name)
    _check_batches(spark, settings, every=every, tasks=tasks, batch_seconds=batch_seconds)
    factory = factory_of(processor)
    address = _address(hub, leases)
    opened = hub_at(address)
    main, rules, streams = _seen(opened, stream, group, settings)
    job = ProcessorJob(
        hub=address,
        stream=main,
        group=group,
        rules=rules,
        # In a task there is always an end; and what a task does is in the query's own figures.
        options=replace(settings, until="now", failure=None, lag_interval=None, log_interval=None),
        batch_s=batch_seconds,
        factory=pickled(factory),
    )
    given = {
        "hub": address.url,
        "leases": address.leases,
        "stream": ",".join(streams),
        "group": group,
        "member": "true",
        "memberName": name,
        "minPartitions": tasks,
        JOB: job.to_text(),
    }
    trigger: dict[str, Any] = {}
    if settings.until is not None:
        trigger = {"availableNow": True}
    elif every is not None:
        trigger = {"processingTime": every}
    return _started(spark, given, name=name, checkpoint=checkpoint, trigger=trigger)


def _check_batches(
    spark: SparkSession,
    settings: WorkerOptions,
    *,
    every: str | None,
    tasks: int | None,
    batch_seconds: float,
) -> None:
    if not is_number(batch_seconds) or not 0 < batch_seconds <= DURATION_S_MAX:
        raise InvalidInput("batch_seconds", batch_seconds, f"seconds, above 0 and up to {DURATION_S_MAX:g}")
    if tasks is not None and (not is_whole(tasks) or tasks < 1):
        raise InvalidInput("tasks", tasks, "a whole number from 1 on")
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        raise InvalidInput(
            "spark.speculation", "true", "two tasks would process one shard at a time; set it to false"
        )
    if every is not None and settings.until is not None:
        raise InvalidInput("every", every, "with until='now' batches follow each other; leave it out")


def _address(hub: str | None, leases: str | None) -> HubAddress:
    url = hub or os.environ.get("SHOAL_HUB")
    if url is None:
        raise InvalidInput("hub", None, "give the hub's URL: hub='postgresql://…', or the variable SHOAL_HUB")
    return address_of(url, leases)


def _seen(hub: Hub, stream: str, group: str, settings: WorkerOptions) -> tuple[str, FailureRules, list[str]]:
    """The stream, what is done about failures, and all streams that are read. The groups are there then."""
    main = str(stream_name(stream))
    found = hub.describe_stream(main)
    made = see_group(hub, main, checked_name("group", group), settings)
    check_delivery(hub.service.groups.find(stream_name(main), group), main, Delivery.EXCLUSIVE)
    rules = (settings.failure or FailureRules()).of_group(made.policy)
    if rules.policy is not Policy.BEST_TRIED:
        return main, rules, [main]
    # Even if nothing is tried again: dead letters are replayed there.
    aside = Aside(hub, found, group, rules)
    aside.see_retry()
    retry = str(aside.retry)
    see_group(hub, retry, group, as_retry(settings))
    return main, rules, [main, retry]


def _started(
    spark: SparkSession,
    given: dict[str, Any],
    *,
    name: str | None,
    checkpoint: str | None,
    trigger: dict[str, Any],
) -> StreamingQuery:
    spark.dataSource.register(ProcessorSource)
    reader = spark.readStream.format(ProcessorSource.name())
    for key, value in given.items():
        if value is not None:
            reader = reader.option(key, value)
    sums = [functions.sum(column).alias(column) for column in COUNTS]
    writer = reader.load().observe(FIGURES, *sums).writeStream.format("noop")
    if name is not None:
        writer = writer.queryName(name)
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", checkpoint)
    if trigger:
        writer = writer.trigger(**trigger)
    return writer.start()


def _checked(options: WorkerOptions | None, changes: dict[str, Any]) -> WorkerOptions:
    if options is not None and not isinstance(options, WorkerOptions):
        raise InvalidInput("options", options, "WorkerOptions(…), or its fields as keywords")
    try:
        settings = replace(options or WorkerOptions(), **changes)
    except TypeError as error:
        raise InvalidInput("options", sorted(changes), f"{error}; see WorkerOptions") from error
    if settings.lanes is not Lanes.THREADS:
        raise InvalidInput(
            "lanes", settings.lanes.value, "on Spark the executors are the processes; leave it out"
        )
    for field in ("heartbeat_interval", "call_when_idle"):
        if getattr(settings, field) is not None:
            raise InvalidInput(
                field, getattr(settings, field), "it is not for processors on Spark; leave it out"
            )
    if settings.on_stuck is OnStuck.RELEASE:
        raise InvalidInput("on_stuck", "release", "a shard would be processed twice at once; leave it out")
    return settings
