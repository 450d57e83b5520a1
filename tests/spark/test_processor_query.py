"""What a query with a processor gives out, batch after batch: a real hub and group, without a JVM."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.core.retry import FailureRules
from shoal.spark.hubs import address_of, close_hubs
from shoal.spark.plan.spans import Span
from shoal.spark.processor_job import ProcessorJob, job_of, pickled
from shoal.spark.processor_source import ROWS, ProcessorReader, StayPartition
from shoal.spark.source_options import source_options
from shoal.spark.stays import work_on
from tests.spark.diary import Diary, Gatherer
from tests.spark.planning import ALL


@pytest.fixture
def hub(sqlite_url: str) -> Iterator[shoal.Hub]:
    with shoal.connect(sqlite_url) as hub:
        yield hub


class Query:
    """Spark's driver, as far as processors need one."""

    def __init__(
        self, url: str, processor: Callable[[str], shoal.Processor], path: Path, *, streams: str = "orders"
    ) -> None:
        options = source_options(
            {"hub": url, "stream": streams, "group": "billing", "member": "true", "memberName": "spark"},
            is_streaming=True,
        )
        self.job = job_of(
            ProcessorJob(
                hub=address_of(url),
                stream="orders",
                group="billing",
                rules=FailureRules(),
                options=shoal.WorkerOptions(
                    until="now", lag_interval=None, log_interval=None, batch_records=10
                ),
                batch_s=10.0,
                factory=pickled(partial(processor, str(path))),
            ).to_text()
        )
        self.reader = ProcessorReader(options, ROWS, self.job)
        self.start: dict[str, Any] = self.reader.initialOffset()

    def plan(self, within: float = 20.0) -> list[Span]:
        """The next batch; nothing if there is none in time."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            end = self.reader.latestOffset(self.start, ALL)
            if end != self.start:
                parts = self.reader.partitions(self.start, end)
                self.start = end
                return [span for part in parts if isinstance(part, StayPartition) for span in part.spans]
        return []

    def work(self, spans: list[Span]) -> None:
        work_on(self.job, "spark", spans)


@pytest.mark.parametrize("coordination", ["coordinated", "leased"])
@pytest.mark.parametrize("is_available_now", [False, True])
def test_a_shard_that_another_asked_for_and_did_not_take_is_given_out_again(
    hub: shoal.Hub, sqlite_url: str, tmp_path: Path, coordination: str, is_available_now: bool
) -> None:
    """Its stay was over before the first save: neither its epoch, checkpoint nor end say so."""
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=4.0, coordination=coordination)
    for shard in range(2):
        hub.append("orders", shard, [b"x"] * 100)
    diary = Diary(tmp_path / "diary")
    query = Query(sqlite_url, Gatherer, diary.path)
    if is_available_now:
        query.reader.prepareForTriggerAvailableNow()
    spans = query.plan()
    while len(spans) < 2:  # A leased member may come to its shards one by one.
        spans += query.plan()
    assert sorted((span.start, span.end) for span in spans) == [(0, 100), (0, 100)]
    task = threading.Thread(target=query.work, args=(spans,))
    task.start()
    _until(lambda: len(diary.lines("process")) == 2)
    other = hub.join_group("orders", "billing", "other")
    _until(lambda: any(shard.next == "other" for shard in hub.describe_group("orders", "billing").shards))
    time.sleep(2.0)  # The task looks ten times in the group's timeout.
    other.leave()
    Path(f"{diary.path}.go").touch()
    task.join(20)
    assert sorted(int(shard.checkpoint) for shard in hub.describe_group("orders", "billing").shards) == [
        0,
        100,
    ]

    (again,) = query.plan()
    assert (again.start, again.end) == (0, 100)
    query.work([again])
    assert [int(shard.checkpoint) for shard in hub.describe_group("orders", "billing").shards] == [100, 100]
    assert query.plan(within=1.0) == [], "and not once more"
    query.reader.stop()
    close_hubs()


def test_a_query_that_holds_nothing_of_its_retry_stream_waits_for_it_once_at_most(
    hub: shoal.Hub, sqlite_url: str, tmp_path: Path
) -> None:
    hub.create_stream("orders", shards=1)
    hub.create_stream("orders.billing.retry", shards=1)
    for stream in ("orders", "orders.billing.retry"):
        hub.create_group(stream, "billing", timeout=10.0)
    with hub.join_group("orders.billing.retry", "billing", "other") as other:
        while not other.leases:
            other.wait(0, 10.0)
        query = Query(sqlite_url, Gatherer, tmp_path / "diary", streams="orders,orders.billing.retry")
        took_s = []
        for _ in range(3):
            hub.append("orders", 0, [b"x"])
            began_s = time.monotonic()
            assert query.plan()
            took_s.append(time.monotonic() - began_s)
        assert max(took_s[1:]) < 1.0, took_s
        query.reader.stop()
    close_hubs()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
