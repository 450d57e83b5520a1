"""A worker in figures: on the object, in the log, and over HTTP as Prometheus reads them.

Each figure is made to move, and is what it should be.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from shoal import Batch, Checkpointer, Hub, Worker
from shoal.consumer.figures import Lag, ShardLag, WorkerFigures, line, shard_lag
from shoal.consumer.statistics import COUNTERS, WorkerStats
from shoal.core.describing import GroupShard
from shoal.core.errors import Fenced, LeaseLost, MissingPackage, NotOwner, StoreUnavailable
from shoal.core.group import ShardState
from shoal.core.model import ShardId
from shoal.core.retry import Backoff, FailureRules
from shoal.metrics import MetricsServer, WorkerCollector, register, register_producer
from shoal.testing.members import eventually
from shoal.testing.processing import append_numbers

STREAM, GROUP = "orders", "billing"
QUICK = FailureRules(backoff=Backoff(first_s=0.01, max_s=0.05))

Make = Callable[..., Worker]


@pytest.fixture
def work(hub: Hub) -> Iterator[Make]:
    hub.create_stream(STREAM, shards=2)
    with ExitStack() as made:

        def make(processor: object, name: str = "anna", **options: Any) -> Worker:
            options = {"timeout": 5.0, "failure": QUICK, "lag_interval": 0.1, **options}
            worker = Worker(hub, STREAM, GROUP, processor, name=name, **options)
            made.callback(lambda: worker.stop(timeout=1.0) if worker.is_running else None)
            return worker

        yield make


def save(_: Batch, checkpointer: Checkpointer) -> None:
    checkpointer.save()


# --- Over HTTP. --------------------------------------------------------------------------------------


def scrape(port: int) -> dict[tuple[str, str], float]:
    """Values by name and shard."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("stream") == STREAM
            assert labels.pop("group") == GROUP
            assert labels.pop("consumer") == "anna"
            found[sample.name, labels.pop("shard", "")] = sample.value
            assert not labels
    return found


def test_a_scrape_shows_what_a_worker_does(hub: Hub, work: Make) -> None:
    gate = threading.Event()
    gate.set()

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        gate.wait(20)
        if [record.value for record in batch] == [b"13"] and not is_mended.is_set():
            raise ValueError("odd")
        time.sleep(0.01)
        checkpointer.save()

    is_mended = threading.Event()
    worker = work(process)
    server = MetricsServer(lambda: [worker.figures], 0, "127.0.0.1")
    try:
        before = scrape(server.port)
        assert before["shoal_worker_records_total", ""] == before["shoal_worker_shards", ""] == 0
        worker.start()
        for shard in (0, 1):
            append_numbers(hub, STREAM, shard, range(10))
        eventually(lambda: scrape(server.port)["shoal_worker_records_total", ""] == 20, "records")
        now = scrape(server.port)
        assert now["shoal_worker_shards", ""] == 2
        assert now["shoal_worker_processing_seconds_count", ""] >= 2
        assert now["shoal_worker_processing_seconds_sum", ""] >= 0.02
        assert now["shoal_worker_records_per_second", ""] > 0
        eventually(lambda: scrape(server.port).get(("shoal_worker_lag_records", "0")) == 0, "no lag")

        gate.clear()
        append_numbers(hub, STREAM, 0, [13])
        append_numbers(hub, STREAM, 1, range(5))
        eventually(lambda: scrape(server.port)["shoal_worker_lag_records", "1"] == 5, "lag in records")
        eventually(lambda: scrape(server.port)["shoal_worker_lag_seconds", "1"] > 0.2, "lag in seconds")
        gate.set()
        eventually(lambda: scrape(server.port)["shoal_worker_failures_total", ""] >= 2, "failures")
        is_mended.set()
        eventually(lambda: scrape(server.port)["shoal_worker_records_total", ""] == 26, "it goes on")
        eventually(lambda: scrape(server.port)["shoal_worker_lag_seconds", "1"] == 0, "and catches up")

        bert = work(save, "bert").start()
        eventually(lambda: len(bert.shards) == 1, "one is handed over")
        eventually(lambda: scrape(server.port)["shoal_worker_hand_over_seconds_count", ""] == 1, "hand-overs")
        assert 0 < scrape(server.port)["shoal_worker_hand_over_seconds_sum", ""] < 20
        assert ("shoal_worker_restarts_total", "") not in now, "it is no process of a fleet"
        for name in ("retries", "dead", "postponed", "lost", "stuck", "skipped", "fetch_errors", "fenced"):
            assert now[f"shoal_worker_{name}_total", ""] == 0
        assert now["shoal_worker_lane_deaths_total", ""] == 0
    finally:
        server.close()


def test_a_worker_is_registered_before_it_begins_and_unregistered_again(work: Make) -> None:
    registry = CollectorRegistry()
    worker = work(save)
    collector = register(worker, registry)
    labels = {"stream": STREAM, "group": GROUP, "consumer": "anna"}
    assert registry.get_sample_value("shoal_worker_records_total", labels) == 0
    registry.unregister(collector)
    assert registry.get_sample_value("shoal_worker_records_total", labels) is None


def test_every_counter_of_a_worker_is_exposed() -> None:
    counters = {name: number + 1 for number, name in enumerate(COUNTERS)}
    figures = WorkerFigures(
        stream=STREAM, group=GROUP, consumer="anna", counters=counters, rate=2.5, restarts=3
    )
    registry = CollectorRegistry()
    registry.register(WorkerCollector(lambda: [figures]))
    values = {sample.name: sample.value for family in registry.collect() for sample in family.samples}
    shown = {
        "batches": "processing_seconds_count",
        "processing_ns": "processing_seconds_sum",
        "hand_overs": "hand_over_seconds_count",
        "hand_over_total_ns": "hand_over_seconds_sum",
    }
    for name, value in counters.items():
        wanted = value / 1e9 if name.endswith("_ns") else value
        assert values[f"shoal_worker_{shown.get(name, f'{name}_total')}"] == wanted
    assert values["shoal_worker_restarts_total"] == 3
    assert values["shoal_worker_records_per_second"] == 2.5


# --- On the object. ----------------------------------------------------------------------------------


def test_lag_is_known_by_shard_and_in_all_and_what_is_declared_and_not_yet_saved_counts(
    hub: Hub, work: Make
) -> None:
    def save_half(batch: Batch, checkpointer: Checkpointer) -> None:
        checkpointer.save(persist=False, offset=4)

    append_numbers(hub, STREAM, 0, range(10))
    append_numbers(hub, STREAM, 1, range(4))
    worker = work(save_half, persist_interval=600).start()
    lag = lag_of(worker)
    assert lag is None, "nobody has looked yet"
    eventually(lambda: lag_of(worker, 6) is not None, "it is seen in the background")
    lag = lag_of(worker)
    assert lag is not None
    assert lag.records == 6
    assert lag.seconds == lag.shards[0].seconds > 0
    assert lag.shards[1].seconds == 0
    assert hub.describe_group(STREAM, GROUP).lag == 14, "the group knows only what is saved"


def lag_of(worker: Worker, records: int | None = None) -> Lag | None:
    """As it is known now; only if it is so many records."""
    found = worker.lag
    return found if found is not None and records in (None, found.records) else None


def test_lag_in_seconds_is_in_proportion_to_what_is_left() -> None:
    shard = GroupShard(
        id=ShardId(0), state=ShardState.ALREADY_ALLOC, owner="a", next=None, epoch=1, checkpoint=100,
        lag=50, lag_s=10.0, since_ms=0,
    )  # fmt: skip
    assert shard_lag(shard) == ShardLag(records=50, seconds=10.0)
    assert shard_lag(shard, 125) == ShardLag(records=25, seconds=5.0)
    assert shard_lag(shard, 150) == ShardLag(records=0, seconds=0.0)
    assert shard_lag(shard, 170) == ShardLag(records=0, seconds=0.0), "more came and was done since"


def test_the_rate_is_of_the_last_seconds() -> None:
    stats = WorkerStats()
    assert stats.rate == 0.0
    stats.processed(500, 1)
    assert stats.rate == pytest.approx(500, rel=0.6)
    second = int(time.monotonic())
    stats.recent.clear()
    stats.recent.extend([(second - 60, 1000), (second - 5, 100)])
    assert stats.rate == pytest.approx(10), "over ten seconds, of which one was busy"
    stats.recent.pop()
    assert stats.rate == 0.0
    assert WorkerStats.sum([stats, stats]).recent[0] == (second - 60, 2000)


def test_reads_and_saves_of_a_shard_that_is_anothers_are_counted(hub: Hub, work: Make) -> None:
    hold, refused = threading.Event(), threading.Event()

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        if batch.shard == 0 and not hold.is_set():
            hold.wait(20)
            try:
                checkpointer.save()
            except LeaseLost:
                refused.set()
            raise LeaseLost(shard=0, epoch=checkpointer.epoch)
        checkpointer.save()

    append_numbers(hub, STREAM, 0, range(3))
    older = work(process, timeout=1.0).start()
    eventually(lambda: older.shards.get(0) == "processing", "it holds it")
    work(save).start()
    eventually(lambda: not set(older.shards), "its name is taken, and with it its shards")
    hold.set()
    assert refused.wait(20)
    eventually(lambda: older.stats.fenced >= 1, "it is counted")


def test_a_refusal_is_counted_if_it_is_because_the_shard_is_anothers() -> None:
    stats = WorkerStats()
    stats.fetch_failed(StoreUnavailable("away"))
    assert (stats.fetch_errors, stats.fenced) == (1, 0)
    stats.fetch_failed(Fenced(shard=0, epoch=1, current=2))
    stats.refused(NotOwner(shard=0, consumer="anna", owner="bert"))
    assert (stats.fetch_errors, stats.fenced) == (2, 2)


def test_what_was_declared_done_before_a_raise_is_counted_once(hub: Hub, work: Make) -> None:
    raised = threading.Event()

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        for record in batch:
            if record.value == b"6" and not raised.is_set():
                raised.set()
                raise ValueError("once")
            checkpointer.save(persist=False)

    append_numbers(hub, STREAM, 0, range(10))
    worker = work(process, failure=FailureRules(backoff=Backoff(first_s=0.3))).start()
    eventually(raised.is_set, "it raises")
    eventually(lambda: worker.stats.records == 6, "what was done before")
    eventually(lambda: worker.stats.records == 10, "and the rest, once")
    assert (worker.stats.failures, worker.stats.batches) == (1, 1)


def test_the_listener_is_told_moved_and_stopped_apart(hub: Hub, work: Make) -> None:
    told: list[tuple[str, int]] = []
    anna = work(save, listener=lambda what, shard, _: told.append((what, shard))).start()
    eventually(lambda: len(anna.shards) == 2, "it has both")
    bert = work(save, "bert").start()
    eventually(lambda: len(bert.shards) == 1, "one moves")
    (moved,) = bert.shards
    eventually(lambda: ("moved", moved) in told, "it is told")
    anna.stop()
    assert sorted(told) == sorted([("opened", 0), ("opened", 1), ("moved", moved), ("stopped", 1 - moved)])


# --- In the log. -------------------------------------------------------------------------------------


def test_a_line_is_logged_from_time_to_time_unless_the_user_says_not_to(
    hub: Hub, work: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shoal.worker")
    append_numbers(hub, STREAM, 0, range(10))
    work(save, log_interval=0.2).start()
    eventually(lambda: "anna: 2 shards, " in caplog.text, "a line")
    eventually(lambda: "lag 0 records (0.0 s)" in caplog.text, "with the lag, once that is known")
    silent = work(save, "bert", log_interval=None).start()
    eventually(lambda: silent.lag is not None, "time goes by")
    assert "bert: " not in caplog.text


def test_the_line_says_what_matters() -> None:
    counters = dict.fromkeys(COUNTERS, 0)
    before = WorkerFigures(stream="s", group="g", consumer="c", counters=counters, rate=0.0)
    assert line(before) == "0 shards, 0 records/s, lag not known, no batch, 0 hand-overs, 0 retries"
    now = WorkerFigures(
        stream="s",
        group="g",
        consumer="c",
        counters=counters
        | {
            "batches": 4, "processing_ns": 10_000_000, "hand_overs": 2, "hand_over_total_ns": 30_000_000,
            "retries": 7, "fenced": 1,
        },
        rate=1234.5,
        shards={0: "processing"},
        lag=Lag(shards={0: ShardLag(records=5000, seconds=2.25)}),
    )  # fmt: skip
    assert line(now, before) == (
        "1 shards, 1,234 records/s, lag 5,000 records (2.2 s), 2.5 ms a batch, 2 hand-overs (15 ms each), "
        "7 retries, 1 fenced"
    )


def test_without_the_package_it_is_said_which_one_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "shoal.metrics")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingPackage, match=r"pip install 'shoal\[metrics\]'") as caught:
        importlib.import_module("shoal.metrics")
    assert isinstance(caught.value, ImportError)


def test_a_producer_is_shown_to_prometheus(hub: Hub) -> None:
    hub.create_stream("payments", shards=1)
    registry = CollectorRegistry()
    with hub.producer("payments", name="till-1") as producer:
        register_producer(producer, registry)
        for _ in range(3):
            producer.send(b"x")
        producer.flush()
        labels = {"stream": "payments", "producer": "till-1"}
        assert registry.get_sample_value("shoal_producer_records_total", labels) == 3
        assert registry.get_sample_value("shoal_producer_buffered_bytes", labels) == 0
        assert registry.get_sample_value("shoal_producer_lives_total", labels) == 1
