"""Consumers that poll, in processes of their own: at most once, at least once, exactly once.

Each writes what reached it into a database of the test's own. What is there was done before it was killed.
"""

from __future__ import annotations

import signal
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import shoal
from shoal.testing.workers import Report

STREAM, GROUP = "orders", "billing"
RECORDS_MAX = 40


def prepare(path: Path) -> None:
    """The test's database: what was done, in the order of time, and how far."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE done (number INTEGER PRIMARY KEY, shard, place, key, value)")
        database.execute("CREATE TABLE position (shard INTEGER PRIMARY KEY, next INTEGER)")


class Sink:
    """The test's database, in one process."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, timeout=30, isolation_level=None)

    def write(self, batch: shoal.Batch) -> None:
        """All of a batch, at once."""
        with self._transaction():
            self._insert(batch)

    def write_once(self, batch: shoal.Batch) -> None:
        """All of a batch, and how far that is, if nobody has come further: in one transaction."""
        with self._transaction():
            if self.position(batch.shard) == batch.first_offset:
                self._insert(batch)
                self._database.execute(
                    "INSERT OR REPLACE INTO position VALUES (?, ?)", [batch.shard, batch.next_offset]
                )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def position(self, shard: int) -> int:
        found = self._database.execute("SELECT next FROM position WHERE shard = ?", [shard]).fetchone()
        return 0 if found is None else int(found[0])

    def _insert(self, batch: shoal.Batch) -> None:
        rows = [(batch.shard, record.offset, record.key, record.value) for record in batch]
        self._database.executemany("INSERT INTO done (shard, place, key, value) VALUES (?, ?, ?, ?)", rows)


def poll_until_told(report: Report, url: str, name: str, path: Path, how: tuple[str, str]) -> None:
    """Until SIGTERM. `how`: a recipe, and the kind of group.

    at_most_once commits before it writes, commit_after when it has written; at_least_once leaves it to auto
    commit; exactly_once keeps positions of its own.
    """
    recipe, coordination = how
    stop = threading.Event()
    with shoal.connect(url) as hub:
        consumer = shoal.Consumer(
            hub,
            GROUP,
            name=name,
            auto_commit=recipe not in ("at_most_once", "commit_after"),
            auto_commit_interval=0.1,
            max_poll_records=RECORDS_MAX,
            timeout=1.5,
            coordination=coordination,
        )

        def told(*_: object) -> None:
            stop.set()
            consumer.wakeup()

        signal.signal(signal.SIGTERM, told)
        sink = Sink(path)
        listener = _Kept(consumer, sink) if recipe == "exactly_once" else None
        consumer.subscribe([STREAM], listener=listener)
        report("ready")
        while not stop.is_set():
            try:
                batches = consumer.poll(1.0)
            except shoal.errors.WokenUp:
                break
            _use(consumer, sink, recipe, batches)
        consumer.close()
    report("closed")


def _use(consumer: shoal.Consumer, sink: Sink, how: str, batches: Sequence[shoal.Batch]) -> None:
    try:
        if how == "at_most_once" and batches:
            consumer.commit()
        for batch in batches:
            sink.write_once(batch) if how == "exactly_once" else sink.write(batch)
        if how == "commit_after" and batches:
            consumer.commit()
    except shoal.errors.LeaseLost:
        return  # It stood still for too long: another has the shard, or it comes again.


class _Kept(shoal.RebalanceListener):
    """Positions that the test's database keeps."""

    def __init__(self, consumer: shoal.Consumer, sink: Sink) -> None:
        self._consumer, self._sink = consumer, sink

    def on_assigned(self, shards: Sequence[shoal.StreamShard]) -> None:
        for place in shards:
            self._consumer.seek(place, self._sink.position(place.shard))
