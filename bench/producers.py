"""How fast producers are: by strategy, in transactions, through an outbox, while shards split and merge."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

import shoal
from bench.data import Chunk
from bench.table import Line
from shoal.core.errors import ShardClosed, ShoalError
from shoal.core.model import Appended, StreamInfo
from shoal.outbox.journal import create_outbox
from shoal.ports import HubService, Submission

TRANSACTION: Final = 1_000
"""Records of one."""
SHARDS: Final = 64


def lines(hub: shoal.Hub, folder: Path, chunk: Chunk, less: int) -> Iterator[Line]:
    """What is measured, in a table."""
    strict, of_best, rate, of_sent = ratios(hub, chunk, 300_000 // less, 5)
    yield Line(
        "strict, keyed, 4 shards", _rate(strict), f"{of_best:.2f} of best tried", "0.8", of_best >= 0.8
    )
    what = f"transactions of {TRANSACTION:,} records"
    yield Line(what, _rate(rate), f"{of_sent:.2f} of best tried", "0.5", of_sent >= 0.5)
    rate = statistics.median(relayed(hub, folder, chunk, 100_000 // less) for _ in range(3))
    yield Line("relayed from an outbox on SQLite", _rate(rate), "", _rate(20_000), rate >= 20_000)
    took_ms, refused_ms, append_ms = resharding(hub, chunk, (2 * SHARDS, SHARDS // 2, SHARDS))
    yield Line(
        f"the longest that an append is refused, {SHARDS} shards resharded under load",
        f"{refused_ms:.0f} ms",
        f"an append takes {append_ms:.0f} ms, the reshard {took_ms:.0f} ms",
        "100 ms",
        refused_ms <= 100,
    )


def sent(hub: shoal.Hub, chunk: Chunk, records: int, strategy: str) -> float:
    """Records a second, one by one, across the stream's four shards."""
    stream = _new_stream(hub)
    with hub.producer(stream, strategy=strategy) as producer:
        began = time.perf_counter()
        for i in range(records):
            at = i % len(chunk.values)
            producer.send(chunk.values[at], chunk.keys[at])
        producer.flush()
        return records / (time.perf_counter() - began)


def transacted(hub: shoal.Hub, chunk: Chunk, records: int) -> float:
    """The same in transactions."""
    stream = _new_stream(hub)
    with hub.producer(stream) as producer:
        began = time.perf_counter()
        for first in range(0, records, TRANSACTION):
            with producer.transaction() as transaction:
                for i in range(first, min(first + TRANSACTION, records)):
                    at = i % len(chunk.values)
                    transaction.send(chunk.values[at], chunk.keys[at])
        return records / (time.perf_counter() - began)


def ratios(hub: shoal.Hub, chunk: Chunk, records: int, rounds: int) -> tuple[float, float, float, float]:
    """Strict, its ratio to best tried; transactions, and theirs. Interleaved."""
    strict, transactions, of_strict, of_transactions = [], [], [], []
    for _ in range(rounds):
        best = sent(hub, chunk, records, "best_tried")
        strict.append(sent(hub, chunk, records, "strict"))
        transactions.append(transacted(hub, chunk, records))
        of_strict.append(strict[-1] / best)
        of_transactions.append(transactions[-1] / best)
    return (
        statistics.median(strict),
        statistics.median(of_strict),
        statistics.median(transactions),
        statistics.median(of_transactions),
    )


def relayed(hub: shoal.Hub, folder: Path, chunk: Chunk, records: int) -> float:
    """Records a second that a relay takes from an outbox on SQLite to the log."""
    import sqlite3  # noqa: PLC0415 - the user's database is only here

    stream, outbox = _new_stream(hub), shoal.Outbox()
    own = folder / f"own-{stream.replace('/', '-')}.db"
    create_outbox(f"sqlite:///{own}", outbox)
    connection = sqlite3.connect(own)
    with connection:
        outbox.add_all(
            connection,
            stream,
            (
                shoal.Record(0, 0, chunk.keys[i % len(chunk.keys)], chunk.values[i % len(chunk.values)], {})
                for i in range(records)
            ),
        )
    connection.close()
    with shoal.OutboxRelay(hub, f"sqlite:///{own}") as relay:
        began = time.perf_counter()
        relay.run(until_empty=True)
        took = time.perf_counter() - began
        assert relay.relayed == records
    return records / took


class Watched:
    """A hub's service that notes for how long batches are refused: until their records are stored. Those are
    known by their values, of which there are no two alike."""

    def __init__(self, service: HubService) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._refused: dict[bytes, float] = {}
        self.longest_ms = 0.0
        self.refused = 0
        self.calls_ms: list[float] = []

    def append(self, stream: StreamInfo, batches: Sequence[Submission]) -> list[Appended | ShoalError]:
        began = time.perf_counter()
        answers = self._service.append(stream, batches)
        now = time.perf_counter()
        with self._lock:
            self.calls_ms.append((now - began) * 1000)
            for batch, answer in zip(batches, answers, strict=True):
                values = batch.batch.column("value").to_pylist()
                if isinstance(answer, ShardClosed):
                    self.refused += 1
                    self._refused |= {value: self._refused.get(value, now) for value in values}
                elif self._refused:
                    for value in values:
                        since = self._refused.pop(value, None)
                        if since is not None:
                            self.longest_ms = max(self.longest_ms, (now - since) * 1000)
        return answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)


def resharding(hub: shoal.Hub, chunk: Chunk, counts: Sequence[int]) -> tuple[float, float, float]:
    """Milliseconds of the longest reshard, of the longest that an append was refused, and of one append: half
    of them take less.

    What is imported is kept from Python's collector of garbage, as `shoal serve` does it and any program may
    that wants no pauses: a look at all of it stops every thread for 70 ms.
    """
    stream = _new_stream(hub)
    hub.reshard(stream, SHARDS)
    watched = Watched(hub.service)
    front = shoal.Hub(cast("HubService", watched), "watched")
    is_over = threading.Event()

    def load() -> None:
        i = 0
        with front.producer(stream, refresh_s=3600.0, hold_s=0.0) as producer:
            while not is_over.is_set():
                for _ in range(100):
                    i += 1
                    producer.send(b"%d" % i, chunk.keys[i % len(chunk.keys)])
                time.sleep(0.005)

    gc.collect()
    gc.freeze()
    thread = threading.Thread(target=load)
    thread.start()
    took_ms = []
    try:
        for count in counts:
            time.sleep(0.5)
            took_ms.append(_timed_ms(lambda count=count: hub.reshard(stream, count)))  # type: ignore[misc]
        time.sleep(0.5)
    finally:
        is_over.set()
        thread.join()
        gc.unfreeze()
    assert watched.refused, "no append came to a closed shard"
    return max(took_ms), watched.longest_ms, statistics.median(watched.calls_ms)


def _new_stream(hub: shoal.Hub) -> str:
    name = f"sent-{len(hub.list_streams())}"
    hub.create_stream(name, shards=4)
    return name


def _rate(value: float) -> str:
    return f"{value / 1e3:,.0f} k records/s"


def _timed_ms(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000
