"""A stay: shards in the hands of one task, from its start to its end. The worker's own runtime, bounded.

Spark gives a shard to whichever process is free, batch by batch, so every stay has processors of its own:
`initialize`, `process` until all that was planned is done, `shutdown`. What is done then is saved; the lease
stays with the query's driver. All that is decided (failures, retries, checkpoints, endings) is decided by the
same crew as in any worker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from shoal.connect import Hub
from shoal.consumer.aside import Aside
from shoal.consumer.held import InThreads
from shoal.consumer.membership import insist
from shoal.consumer.runtime import Runtime
from shoal.consumer.statistics import WorkerStats
from shoal.core.aside import retry_stream
from shoal.core.draining import Drained
from shoal.core.errors import ProcessorFailed, StoreError, StreamReplaced
from shoal.core.model import ShardId, StreamInfo
from shoal.core.names import stream_name
from shoal.core.retry import Policy
from shoal.ports import Fence
from shoal.spark.attempts import FIRST, Attempts, Turn
from shoal.spark.borrowed import OUTAGE_S, BorrowedLeases
from shoal.spark.hubs import task_hub
from shoal.spark.plan import stays
from shoal.spark.plan.spans import Span
from shoal.spark.plan.stays import Standing
from shoal.spark.processor_job import ProcessorJob, factory_in

_log: Final = logging.getLogger("shoal.spark")

_LOOK_S: Final = 0.05
_CLOSE_S: Final = 10.0


class Done(NamedTuple):
    """What a task did with the shards of one stream: a row for Spark."""

    stream: str
    shards: int
    records: int
    failures: int
    retries: int
    dead: int
    lost: int
    seconds: float


def work_on(job: ProcessorJob, member: str, spans: Sequence[Span], turn: Turn = FIRST) -> list[Done]:
    """Have these shards processed, in this process; raises what ends the query."""
    hub = task_hub(job.hub)
    by_stream: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_stream[span.stream].append(span)
    main = insist(partial(hub.service.describe_stream, stream_name(job.stream)), StoreError, OUTAGE_S)
    begun: list[Stay] = []
    try:
        for mine in by_stream.values():
            begun.append(Stay(hub, job, member, main, mine, turn=turn))
            begun[-1].start()
        done = [stay.finish() for stay in begun]
    except BaseException:
        for stay in begun:
            stay.close(has_failed=True)
        raise
    for stay in begun:
        stay.close()
    return done


class Stay:
    """Of the shards of one stream."""

    def __init__(
        self, hub: Hub, job: ProcessorJob, member: str, main: StreamInfo, spans: Sequence[Span], *, turn: Turn
    ) -> None:
        self._job, self._spans, self._began_s = job, spans, time.monotonic()
        self._service = hub.service
        self._stream = stream_name(spans[0].stream)
        self._targets = {ShardId(span.shard): span.end for span in spans}
        self._stats = WorkerStats()
        self._ready = threading.Event()
        self._finished: set[int] = set()
        """Shards of which all that was planned was handed out. Writer: the runtime."""
        self._info = insist(partial(hub.service.describe_stream, self._stream), StoreError, OUTAGE_S)
        if self._info.id != spans[0].stream_id:
            raise StreamReplaced(str(self._stream))
        self._attempts = Attempts(hub.service, spans, self._stream.project, turn)
        found = insist(partial(hub.service.groups.find, self._stream, job.group), StoreError, OUTAGE_S)
        self._attempts.begin(found.settings.timeout_ms / 1000)
        self._borrowed = BorrowedLeases(
            hub.service,
            self._stream,
            job.group,
            member,
            owners={span.shard: Fence(*span.owner) for span in spans if span.owner is not None},
            changed=self._changed,
            check=self._attempts.check,
        )
        try:
            self._runtime = self._made(hub, main)
        except BaseException:
            self._borrowed.abandon()
            raise

    def _made(self, hub: Hub, main: StreamInfo) -> Runtime:
        job = self._job
        self._begun = {shard: int(lease.checkpoint) for shard, lease in self._borrowed.leases.items()}
        blocks = {
            shard.id: shard.blocked
            for shard in self._borrowed.info.shards
            if shard.id in self._begun and shard.blocked is not None
        }
        self._check_stopped(stays.failures(blocks))
        aside = Aside(hub, main, job.group, job.rules) if job.rules.policy is Policy.BEST_TRIED else None
        is_retry = self._stream == retry_stream(stream_name(job.stream), job.group)
        options = replace(job.options, batch_records=1) if is_retry else job.options  # See `as_retry`.
        return Runtime(
            hub.service,
            self._borrowed,
            InThreads(factory_in(job.factory), job.options.outages),
            options,
            job.rules,
            stats=self._stats,
            aside=aside,
            targets=self._targets,
            drained=self._drained,
            shown={shard: block.error for shard, block in blocks.items()},
        )

    def start(self) -> None:
        """Begin; returns at once."""
        self._runtime.start()
        self._ready.set()
        self._changed()

    def close(self, *, has_failed: bool = False) -> None:
        """Nothing of it goes on: it is over, or a part of the task has failed, which Spark will run again."""
        self._runtime.stop(self._job.options.stop_timeout)
        if self._runtime.is_over.wait(self._job.options.stop_timeout + _CLOSE_S) and has_failed:
            self._attempts.end()

    def finish(self) -> Done:
        """Wait for its end, which comes by itself: all is done, or as much as a task has time for."""
        while not self._runtime.is_over.wait(_LOOK_S):
            seconds = time.monotonic() - self._began_s
            if late := stays.late(self._standing, seconds=seconds, batch_s=self._job.batch_s):
                self._borrowed.hand_back(late)
        self._attempts.give_way(self._job.batch_s)
        if self._runtime.error is not None:
            raise self._runtime.error
        if self._borrowed.refused is not None:
            raise self._borrowed.refused
        self._tell_cut_short()
        stats = self._stats
        return Done(
            stream=str(self._stream),
            shards=len(self._targets),
            records=stats.records,
            failures=stats.failures,
            retries=stats.retries,
            dead=stats.dead,
            lost=stats.lost,
            seconds=round(time.monotonic() - self._began_s, 3),
        )

    def _check_stopped(self, shown: dict[ShardId, str]) -> None:
        """Spark repeats a task that fails: what ended the first attempt ends the next ones at once."""
        if self._job.rules.policy is Policy.STOP:
            for shard, error in shown.items():
                kind, _, text = error.partition(": ")
                raise ProcessorFailed(shard=shard, kind=kind, text=text)

    def _standing(self) -> dict[ShardId, Standing]:
        wanted = self._wanted()
        return {
            shard: Standing(
                is_blocked=one.tenure.blocked is not None,
                has_moved=one.checkpoint() > self._begun.get(shard, 0),
            )
            for shard, one in self._runtime.held.items()
            if shard in wanted
        }

    def _wanted(self) -> set[int]:
        return {int(shard) for shard, lease in self._borrowed.leases.items() if lease.is_wanted}

    def _tell_cut_short(self) -> None:
        """Of what was asked back, or held up, the plan cannot see whether all of it was handed out."""
        if self._finished >= self._targets.keys():
            return
        groups = self._service.groups
        seen = insist(partial(groups.describe, self._stream, self._job.group), StoreError, OUTAGE_S)
        told = stays.cut_short(seen, self._info, self._spans, self._finished)
        for shard, block in told.items():
            insist(partial(groups.block, self._borrowed.group_id, shard, block), StoreError, OUTAGE_S)

    def _drained(self, here: Collection[ShardId]) -> Drained:
        """All that was planned is done: hand it back. Once nothing is left, it is over."""
        if not here:
            return Drained.ALL
        done = {int(shard) for shard in here}
        # Of what is asked back it may be that the rest was dropped.
        self._finished |= done & self._wanted()
        self._borrowed.hand_back(done)
        return Drained.NOT_YET

    def _changed(self) -> None:
        if not self._ready.is_set():
            return  # It is about to look.
        self._runtime.leases_changed()
        if not self._borrowed.leases:
            self._runtime.stop(self._job.options.stop_timeout)
