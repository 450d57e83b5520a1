"""Workers and producers for Prometheus: needs `pip install 'shoal[metrics]'`.

    registry = shoal.metrics.register(worker)         # the default registry, or one of yours
    prometheus_client.start_http_server(9400)

Names begin with `shoal_worker_`, labels are stream, group and consumer, and shard where it makes sense; or
with `shoal_producer_` (`register_producer`), and labels are stream and producer.
Figures are read when they are asked for; a scrape asks nothing of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from shoal.consumer.figures import WorkerFigures
from shoal.consumer.worker import Worker
from shoal.core.errors import MissingPackage
from shoal.producer import Producer

try:
    import prometheus_client
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        Metric,
        SummaryMetricFamily,
    )
    from prometheus_client.registry import Collector, CollectorRegistry
except ImportError as error:
    raise MissingPackage(part="shoal.metrics", package="prometheus-client", extra="metrics") from error

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

Source = Callable[[], Iterable[WorkerFigures]]
"""Workers as they are now."""

_LABELS: Final = ("stream", "group", "consumer")
_COUNTERS: Final = {
    "records": "Records that user code came back from, or declared done before it raised",
    "failures": "Times that user code raised",
    "retries": "Records set aside for another attempt",
    "dead": "Records that went to the dead stream",
    "postponed": "Batches that found no valid deadline, and waited for one",
    "lost": "Shards that were lost, not handed over",
    "stuck": "Calls of user code that took longer than process_timeout",
    "skipped": "Records that retention removed before they were read",
    "fetch_errors": "Reads that failed and were tried again",
    "fenced": "Reads, saves and releases refused because the shard was another consumer's",
    "lane_deaths": "Processes of lanes that died",
}
_SUMMARIES: Final = {
    "processing_seconds": ("batches", "processing_ns", "Time that user code took over batches"),
    "hand_over_seconds": (
        "hand_overs",
        "hand_over_total_ns",
        "Time of planned hand-overs, from the request to the release",
    ),
}


class WorkerCollector(Collector):
    """Gives the figures of workers whenever a registry asks."""

    def __init__(self, worker: Worker | Source) -> None:
        """A worker, or a function that gives figures of several."""
        self._source: Source = (lambda: [worker.figures]) if isinstance(worker, Worker) else worker

    def describe(self) -> Iterable[Metric]:
        """See Collector: nothing is asked of a worker that has not begun."""
        return _families([])

    def collect(self) -> Iterable[Metric]:
        """See Collector."""
        return _families(list(self._source()))


def register(worker: Worker | Source, registry: CollectorRegistry | None = None) -> WorkerCollector:
    """Add a worker's figures to a registry; without one, to the default. What to `unregister` later."""
    collector = WorkerCollector(worker)
    (registry or prometheus_client.REGISTRY).register(collector)
    return collector


_PRODUCER_COUNTERS: Final = {
    "records": "Records stored",
    "batches": "Batches that they were stored in",
    "bytes": "Bytes stored, as they were in the buffer",
    "delayed": "Of the records, those that come later",
    "repeats": "Numbered records that an earlier life had stored",
    "transactions": "Transactions committed",
    "calls": "Calls of the hub, to store batches",
    "retries": "Calls that failed for a passing reason, and were made again",
    "failed": "Records whose futures failed",
    "refused": "Batches that came to a shard that was closed",
    "held": "Times that sends waited for a map of shards that was announced",
    "reordered": "Records that lost their place after failed attempts",
    "outboxed": "Records that went to the outbox",
    "moved": "Batches that went to other shards than they were gathered for",
    "lives": "Epochs",
    "blocked": "Times that send waited because the buffer was full",
}


class ProducerCollector(Collector):
    """Gives the figures of one producer whenever a registry asks."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def collect(self) -> Iterable[Metric]:
        """See Collector."""
        stats, labels = self._producer.stats, (self._producer.stream, self._producer.name or "")
        for name, text in _PRODUCER_COUNTERS.items():
            counter = CounterMetricFamily(f"shoal_producer_{name}", text, labels=_PRODUCER_LABELS)
            counter.add_metric(labels, getattr(stats, name))
            yield counter
        waiting = GaugeMetricFamily(
            "shoal_producer_buffered_bytes", "Bytes that wait to be stored", labels=_PRODUCER_LABELS
        )
        waiting.add_metric(labels, stats.buffered_bytes)
        yield waiting


_PRODUCER_LABELS: Final = ("stream", "producer")


def register_producer(producer: Producer, registry: CollectorRegistry | None = None) -> ProducerCollector:
    """The same for a producer. What to `unregister` once it is closed; one of a stream and name at a time."""
    collector = ProducerCollector(producer)
    (registry or prometheus_client.REGISTRY).register(collector)
    return collector


class MetricsServer:
    """Serves figures over HTTP, in a thread, until it is closed."""

    def __init__(self, source: Source, port: int, host: str) -> None:
        registry = CollectorRegistry()
        register(source, registry)
        self._server: WSGIServer
        self._server, self._thread = prometheus_client.start_http_server(port, host, registry)

    @property
    def port(self) -> int:
        """Which it is, if any would do."""
        return self._server.server_port

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _families(workers: list[WorkerFigures]) -> Iterator[Metric]:
    for name, text in _COUNTERS.items():
        counter = CounterMetricFamily(f"shoal_worker_{name}", text, labels=_LABELS)
        for one in workers:
            counter.add_metric(_labels(one), one.counters[name])
        yield counter
    restarts = CounterMetricFamily("shoal_worker_restarts", "Processes started again", labels=_LABELS)
    for one in workers:
        if one.restarts is not None:
            restarts.add_metric(_labels(one), one.restarts)
    yield restarts
    for name, (count, total_ns, text) in _SUMMARIES.items():
        summary = SummaryMetricFamily(f"shoal_worker_{name}", text, labels=_LABELS)
        for one in workers:
            summary.add_metric(
                _labels(one), count_value=one.counters[count], sum_value=one.counters[total_ns] / 1e9
            )
        yield summary
    yield from _gauges(workers)


def _gauges(workers: list[WorkerFigures]) -> Iterator[Metric]:
    rate = GaugeMetricFamily("shoal_worker_records_per_second", "Records a second, lately", labels=_LABELS)
    held = GaugeMetricFamily("shoal_worker_shards", "Shards held", labels=_LABELS)
    records = GaugeMetricFamily(
        "shoal_worker_lag_records", "Records still to come of a shard held", labels=(*_LABELS, "shard")
    )
    seconds = GaugeMetricFamily(
        "shoal_worker_lag_seconds",
        "How long ago the first record still to come was appended",
        labels=(*_LABELS, "shard"),
    )
    for one in workers:
        rate.add_metric(_labels(one), one.rate)
        held.add_metric(_labels(one), len(one.shards))
        for shard, lag in ({} if one.lag is None else one.lag.shards).items():
            records.add_metric((*_labels(one), str(shard)), lag.records)
            seconds.add_metric((*_labels(one), str(shard)), lag.seconds)
    yield from (rate, held, records, seconds)


def _labels(one: WorkerFigures) -> tuple[str, str, str]:
    return one.stream, one.group, one.consumer
