"""What a server counts, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from shoal.core.errors import ShoalError, UnknownGroup, UnknownStream
from shoal.core.group import Note
from shoal.hub.local import LocalHub

_FENCED: Final = {"Fenced", "NotOwner", "ProducerFenced", "NameTaken", "HeartbeatOutdated"}
_REFUSED: Final = {"NotSignedIn", "ClockSkewed", "ReplayedRequest", "AccessDenied"}
"""Not `SignedForAnother`: it is how a client learns whom to sign for."""
_MOVES: Final = {"granted", "forced"}
_EXPIRIES: Final = {"expired"}
_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
GROUPS_SHOWN: Final = 2000
"""Groups whose lag one look at the figures shows: each costs a look at its rows, of a millisecond or two, and
Prometheus waits for ten seconds. How many there are beyond is a figure, too."""
LOOK_S: Final = 4.0
"""As long as such a look goes on; groups that it has not come to are beyond."""


class Counters:
    """Writer: any thread; the counters have locks of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter("requests", "Requests answered.", "call", "status")
        self._seconds = Histogram(
            "shoal_server_request_seconds",
            "How long requests took, waits included.",
            ["call"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._answered: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._appended_batches = self._counter("appended_batches", "Batches stored.")
        self._appended_records = self._counter(
            "appended_records", "Records stored, or kept until they are due."
        )
        self._appended_bytes = self._counter("appended_bytes", "Bytes of batches stored, compressed.")
        self._reads = self._counter("reads", "Reads that found records.")
        self._read_records = self._counter("read_records", "Records read.")
        self._read_bytes = self._counter("read_bytes", "Bytes of batches read, compressed.")
        self._fenced = self._counter(
            "fenced", "Attempts under an epoch or a name that is another's.", "error"
        )
        self._moves = self._counter("moves", "Shards given to a consumer through this server.")
        self._expiries = self._counter("expiries", "Consumers declared dead through this server.")
        self._refusals = self._counter("auth_failures", "Requests that were not let in.", "error")
        self._store_up = Gauge(
            "shoal_server_store_up", "Whether the store answered just now.", registry=self.registry
        )
        self._errors = self._counter("errors", "Requests that failed in a way that nobody foresaw.")

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"shoal_server_{name}", about, labels, registry=self.registry)

    def watch(self, name: str, about: str, value: Callable[[], float]) -> None:
        """A figure that is looked up when someone asks."""
        Gauge(f"shoal_server_{name}", about, registry=self.registry).set_function(value)

    def request(self, call: str, status: int, seconds: float) -> None:
        found = self._answered.get((call, status))
        if found is None:  # To look them up by their labels takes longer than to count.
            found = self._requests.labels(call, str(status)), self._seconds.labels(call)
            self._answered[call, status] = found
        found[0].inc()
        found[1].observe(seconds)

    def appended(self, batches: Sequence[tuple[int, int]]) -> None:
        """Bytes and records of each."""
        if batches:
            self._appended_batches.inc(len(batches))
            self._appended_bytes.inc(sum(size for size, _ in batches))
            self._appended_records.inc(sum(records for _, records in batches))

    def read(self, size: int, records: int) -> None:
        if records:
            self._reads.inc()
            self._read_bytes.inc(size)
            self._read_records.inc(records)

    def error(self, error: ShoalError) -> None:
        name = type(error).__name__
        if name in _FENCED:
            self._fenced.labels(name).inc()
        elif name in _REFUSED:
            self._refusals.labels(name).inc()

    def unforeseen(self) -> None:
        self._errors.inc()

    def noted(self, notes: Sequence[Note]) -> None:
        """See LocalHub."""
        moves = sum(note.kind in _MOVES for note in notes)
        expiries = sum(note.kind in _EXPIRIES for note in notes)
        if moves:
            self._moves.inc(moves)
        if expiries:
            self._expiries.inc(expiries)

    def text(self, is_store_up: bool) -> bytes:
        """All that was counted, as Prometheus reads it, and whether the store answers."""
        self._store_up.set(is_store_up)
        return generate_latest(self.registry)


def lag_text(hub: LocalHub, groups_shown: int = GROUPS_SHOWN, within_s: float = LOOK_S) -> bytes:
    """Lag per group and shard, as Prometheus reads it. Looks at the store: for a thread."""
    of_groups = CollectorRegistry()
    of_groups.register(GroupLag(hub, groups_shown, within_s))
    return generate_latest(of_groups)


class GroupLag(Collector):
    """Lag per group and shard, and what comes later per stream, looked up when someone asks."""

    def __init__(self, hub: LocalHub, groups_shown: int, within_s: float) -> None:
        self._hub = hub
        self._groups_shown, self._within_s = groups_shown, within_s

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing: to be registered must not look at the store."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        records = GaugeMetricFamily(
            "shoal_group_lag_records", "Records still to come.", labels=["stream", "group", "shard"]
        )
        seconds = GaugeMetricFamily(
            "shoal_group_lag_seconds", "Age of the oldest of them.", labels=["stream", "group", "shard"]
        )
        later = GaugeMetricFamily(
            "shoal_stream_delayed_records",
            "Records that come later; of a retry stream, those that wait for another attempt.",
            labels=["stream"],
        )
        beyond = GaugeMetricFamily(
            "shoal_groups_not_shown",
            f"Groups beyond the first {self._groups_shown}, or beyond what could be looked at in "
            f"{self._within_s:g} s, whose lag is not shown here; at least one, if not all were counted.",
        )
        until = time.monotonic() + self._within_s
        delayed, streams = self._hub.all_delayed(), self._hub.list_streams(None)
        for stream in streams:
            if stream.id in delayed:
                later.add_metric([str(stream.full_name)], delayed[stream.id])
        left, not_shown = self._groups_shown, 0
        for stream in streams:
            if time.monotonic() > until:
                not_shown = max(1, not_shown)
                break
            try:
                groups = self._hub.groups.list(stream.full_name)
            except UnknownStream:
                continue
            shown = groups[:left]
            left, not_shown = left - len(shown), not_shown + len(groups) - len(shown)
            for group in shown:
                if time.monotonic() > until:
                    not_shown += 1
                    continue
                try:
                    info = self._hub.groups.describe(stream.full_name, group.name)
                except (UnknownGroup, UnknownStream):
                    continue
                except ShoalError:
                    continue  # Its rows are in a database that this server does not have.
                for shard in info.shards:
                    labels = [str(stream.full_name), group.name, str(shard.id)]
                    records.add_metric(labels, shard.lag)
                    seconds.add_metric(labels, shard.lag_s)
        beyond.add_metric([], not_shown)
        yield records
        yield seconds
        yield later
        yield beyond
