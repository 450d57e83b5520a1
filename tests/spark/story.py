"""What happens to a query that is its own driver, as a story for tests to tell: records come while shards are
split and merged, the driver is killed with kill -9 and begun again, executors die, PostgreSQL restarts.

The checks share nothing with what they check: they read the streams as anybody would.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from threading import Semaphore, Thread
from typing import Final, NamedTuple

import shoal
from shoal.testing.servers import PostgresServer
from shoal.testing.spark_cluster import SparkCluster
from tests.spark.drivers import Driver

KEYS: Final = 500
OUTAGE_S: Final = 1.0


def within_s(records: int) -> float:
    """For any one thing of the story: JVMs start, and a slow machine does 500 records a second."""
    return 240 + records / 500


class Writer:
    """Appends numbered records of each key, part after part, as it is told."""

    def __init__(self, hub: shoal.Hub, records: int, parts: int) -> None:
        self.sent = 0
        self._hub, self._records, self._parts = hub, records, parts
        self._due = Semaphore(0)
        self._thread = Thread(target=self._write, daemon=True)
        self._thread.start()

    def next_part(self) -> None:
        self._due.release()

    def finish(self) -> None:
        for _ in range(self._parts):
            self._due.release()
        self._thread.join(within_s(self._records))
        assert self.sent == self._records

    def _write(self) -> None:
        numbers: Counter[int] = Counter()
        chance = random.Random(7)
        with self._hub.producer("orders") as producer:
            for part in range(self._parts):
                self._due.acquire()
                end = self._records * (part + 1) // self._parts
                for _ in range(self.sent, end):
                    key = chance.randrange(KEYS)
                    producer.send(b"%d" % numbers[key], key=b"k%d" % key)
                    numbers[key] += 1
                producer.flush()
                self.sent = end


class Story:
    """What happens to the query, and when."""

    def __init__(
        self,
        hub: shoal.Hub,
        server: PostgresServer,
        driver: Driver,
        *,
        records: int,
        parts: int,
        cluster: SparkCluster | None = None,
    ) -> None:
        """Records come in so many parts, one before each thing that happens."""
        self._hub, self._server, self._driver, self._cluster = hub, server, driver, cluster
        self._records, self._within_s = records, within_s(records)
        self._chance = random.Random(11)
        self._began = time.monotonic()
        self._writer = Writer(hub, records, parts)
        self._rows: list[str] = []
        self.away: list[float] = []
        """Seconds from each kill to the next batch that was done."""

    def begin(self) -> None:
        self._driver.start()
        self._driver.wait_until_begun()

    def happens(self, *what: str) -> None:
        for name in what:
            self._writer.next_part()
            getattr(self, name)()
            self._note(name)

    def end(self) -> None:
        self._writer.finish()
        self._driver.until(lambda: self.copied() >= self._records, "all is copied", self._within_s)
        self._driver.until(
            lambda: self._hub.describe_group("orders", "copying").lag == 0, "the group sees it"
        )
        self._note("all is copied")

    def copied(self) -> int:
        return sum(shard.next_offset for shard in self._hub.describe_stream("copies").shards)

    def split(self) -> None:
        shard = self._chance.choice([s for s in self._hub.describe_stream("orders").shards if s.is_open])
        self._hub.split_shard("orders", shard.id)

    def merge(self) -> None:
        shards = [s for s in self._hub.describe_stream("orders").shards if s.is_open]
        left = self._chance.choice(sorted(shards, key=lambda shard: shard.begin)[:-1])
        self._hub.merge_shards("orders", left.id)

    def split_of_the_sink(self) -> None:
        self._hub.split_shard("copies", 0)

    def kill_in_a_task(self) -> None:
        self._pause()
        self._driver.kill()
        self._go_on()
        self._begin_again()

    def kill_at_random(self) -> None:
        self._wait_for_batch()
        time.sleep(self._chance.uniform(0, 0.8))
        self._driver.kill(whole=True)
        self._begin_again()

    def restart_of_the_store(self) -> None:
        self._pause()
        self._server.stop("immediate")
        self._go_on()
        time.sleep(OUTAGE_S)
        self._server.start()
        self._wait_for_done()

    def kill_of_executors(self) -> None:
        self._pause()
        if self._cluster is None:
            assert self._driver.kill_executors() > 0
        else:
            assert self._cluster.kill_executors(0) + self._cluster.kill_executors(1) > 0
        self._go_on()
        self._wait_for_done()

    def _pause(self) -> None:
        """Have a task of the copies stand still in the midst of its rows."""
        self._folder("paused").unlink(missing_ok=True)
        self._folder("pause").touch()
        self._driver.until(self._folder("paused").exists, "a task has stopped in its midst", self._within_s)
        assert self._driver.batch_at_hand("copies") is not None

    def _go_on(self) -> None:
        self._folder("pause").unlink()

    def _wait_for_batch(self) -> None:
        done = self._driver.batches("copies")
        self._driver.until(
            lambda: (
                self._driver.batches("copies") > done and self._driver.batch_at_hand("copies") is not None
            ),
            "a batch is at hand",
            self._within_s,
        )

    def _wait_for_done(self) -> None:
        done = self._driver.batches("copies")
        self._driver.until(lambda: self._driver.batches("copies") > done, "a batch is done", self._within_s)

    def _begin_again(self) -> None:
        began = time.monotonic()
        self._driver.start()
        self._driver.wait_until_begun()
        self._wait_for_done()
        self.away.append(time.monotonic() - began)

    def _folder(self, name: str) -> Path:
        return self._driver.folder / name

    def _note(self, what: str) -> None:
        shards = sum(shard.is_open for shard in self._hub.describe_stream("orders").shards)
        self._rows.append(
            f"{time.monotonic() - self._began:7.1f} {self._writer.sent:9,} {self.copied():9,} {shards:6} "
            f"{self._driver.batches('copies'):7}  {what.replace('_', ' ')}"
        )

    def show(self, where: str, faults: Faults) -> None:
        away = ", ".join(f"{seconds:.1f} s" for seconds in self.away)
        lines = [
            f"\n{where}: {self._records:,} records, by {self._driver.starts} drivers",
            f"{'s':>7} {'sent':>9} {'copied':>9} {'shards':>6} {'batches':>7}  what",
            *self._rows,
            f"missing {faults.missing}, twice {faults.twice}, keys out of order {faults.disordered}; "
            f"from a start to the first batch done: {away}",
        ]
        print("\n".join(lines))  # noqa: T201 - asked for; seen with -s


def numbers(hub: shoal.Hub, stream: str) -> dict[bytes | None, list[int]]:
    """The numbers of each key, in the order in which a consumer in order gets them: parents come first."""
    found: dict[bytes | None, list[int]] = {}
    for shard in hub.describe_stream(stream).shards:
        offset = 0
        while len(part := hub.read(stream, shard.id, offset)):
            for record in part:
                found.setdefault(record.key, []).append(int(record.value))
            offset = part.next_offset
    return found


class Faults(NamedTuple):
    """What is wrong with the copies."""

    missing: int
    twice: int
    disordered: int


def faults_of_copies(hub: shoal.Hub) -> Faults:
    """Every record is to be there once, each key in order."""
    sent, found = numbers(hub, "orders"), numbers(hub, "copies")
    assert all(each == list(range(len(each))) for each in sent.values()), "as the writer wrote it"
    return Faults(
        missing=sum(len(set(sent[key]) - set(found.get(key, []))) for key in sent),
        twice=sum(len(each) - len(set(each)) for each in found.values()),
        disordered=sum(each != sent.get(key) for key, each in found.items()),
    )


def check_totals(hub: shoal.Hub, driver: Driver) -> None:
    """A total is written when it has changed: one that is there twice, or a step back, is an error."""
    counts = {key: len(each) for key, each in numbers(hub, "orders").items()}

    def last() -> dict[bytes | None, int]:
        return {key: totals[-1] for key, totals in numbers(hub, "totals").items()}

    driver.until(lambda: last() == counts, "the last totals are right", within_s(sum(counts.values())))
    for key, totals in numbers(hub, "totals").items():
        assert totals == sorted(set(totals)), f"{key!r}: {totals}"
