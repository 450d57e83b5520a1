"""A query as its own driver, through all that happens to one: shards split and merged under it, the driver
killed with kill -9 and begun again, executors killed, PostgreSQL restarted, each in the midst of a batch.

Shown on local[2] and on a standalone cluster: what it copies is there once, each key in order; what it
aggregates and writes back is there once. SHOAL_SPARK_RECORDS says how many records: `make soak-spark` takes a
million. Prints the figures.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Semaphore, Thread
from typing import Final

import pytest

import shoal
from shoal.testing.servers import PostgresServer
from shoal.testing.spark_cluster import SparkCluster
from tests.spark.drivers import Driver

RECORDS: Final = int(os.environ.get("SHOAL_SPARK_RECORDS", "30000"))
KEYS: Final = 500
PARTS: Final = 12
"""Records come in so many parts, one before each thing that happens."""
BATCH: Final = RECORDS // 10
OUTAGE_S: Final = 1.0
WITHIN_S: Final = 240 + RECORDS / 500

pytestmark = [
    pytest.mark.timeout(2 * WITHIN_S),
    pytest.mark.skipif("SHOAL_SPARK_RECORDS" not in os.environ, reason="a long run: make soak-spark"),
]


@pytest.fixture
def url(postgres_server: PostgresServer) -> Iterator[str]:
    made = postgres_server.fresh_database()
    yield made
    if not postgres_server.is_running:
        postgres_server.start()
    postgres_server.drop_database(made)


class Writer:
    """Appends numbered records of each key, part after part, as it is told."""

    def __init__(self, hub: shoal.Hub) -> None:
        self.sent = 0
        self._hub = hub
        self._due = Semaphore(0)
        self._thread = Thread(target=self._write, daemon=True)
        self._thread.start()

    def next_part(self) -> None:
        self._due.release()

    def finish(self) -> None:
        for _ in range(PARTS):
            self._due.release()
        self._thread.join(WITHIN_S)
        assert self.sent == RECORDS

    def _write(self) -> None:
        numbers: Counter[int] = Counter()
        chance = random.Random(7)
        with self._hub.producer("orders") as producer:
            for part in range(PARTS):
                self._due.acquire()
                for _ in range(RECORDS * part // PARTS, RECORDS * (part + 1) // PARTS):
                    key = chance.randrange(KEYS)
                    producer.send(b"%d" % numbers[key], key=b"k%d" % key)
                    numbers[key] += 1
                producer.flush()
                self.sent = RECORDS * (part + 1) // PARTS


class Story:
    """What happens to the query, and when."""

    def __init__(
        self, hub: shoal.Hub, server: PostgresServer, driver: Driver, cluster: SparkCluster | None
    ) -> None:
        self._hub, self._server, self._driver, self._cluster = hub, server, driver, cluster
        self._chance = random.Random(11)
        self._began = time.monotonic()
        self._writer = Writer(hub)
        self._rows: list[str] = []
        self.away: list[float] = []
        """Seconds from each kill to the next batch that was done."""

    def happens(self, *what: str) -> None:
        for name in what:
            self._writer.next_part()
            getattr(self, name)()
            self._note(name)

    def end(self) -> None:
        self._writer.finish()
        self._driver.until(lambda: self.copied() >= RECORDS, "all is copied", WITHIN_S)
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
        assert self._cluster is not None
        self._pause()
        assert self._cluster.kill_executors(0) + self._cluster.kill_executors(1) > 0
        self._go_on()
        self._wait_for_done()

    def _pause(self) -> None:
        """Have a task of the copies stand still in the midst of its rows."""
        self._folder("paused").unlink(missing_ok=True)
        self._folder("pause").touch()
        self._driver.until(self._folder("paused").exists, "a task has stopped in its midst", WITHIN_S)
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
            WITHIN_S,
        )

    def _wait_for_done(self) -> None:
        done = self._driver.batches("copies")
        self._driver.until(lambda: self._driver.batches("copies") > done, "a batch is done", WITHIN_S)

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

    def table(self) -> str:
        return "\n".join(
            [f"{'s':>7} {'sent':>9} {'copied':>9} {'shards':>6} {'batches':>7}  what", *self._rows]
        )


def records(hub: shoal.Hub, stream: str) -> dict[bytes | None, list[int]]:
    """The numbers of each key, in the order in which a consumer in order gets them: parents come first."""
    found: dict[bytes | None, list[int]] = {}
    for shard in hub.describe_stream(stream).shards:
        offset = 0
        while len(part := hub.read(stream, shard.id, offset)):
            for record in part:
                found.setdefault(record.key, []).append(int(record.value))
            offset = part.next_offset
    return found


@pytest.mark.parametrize("where", ["local", "cluster"])
def test_every_record_is_there_once_and_each_key_in_order_whatever_happens(
    where: str, url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    with shoal.connect(url) as hub:
        for stream in ("orders", "copies", "totals"):
            hub.create_stream(stream, shards=3)
        if where == "local":
            driver = Driver(tmp_path, master="local[2]", hub=url, batch=BATCH, queries=["copies", "totals"])
            with driver:
                story = play(hub, postgres_server, driver, None)
                check_totals(hub, driver)
                leave(driver)
        else:
            with SparkCluster(workers=2) as cluster:
                orders = {"master": cluster.url, "hub": url, "batch": BATCH, "queries": ["copies"]}
                with Driver(tmp_path, cluster.environment, **orders) as driver:
                    story = play(hub, postgres_server, driver, cluster)
                    leave(driver)
        found = records(hub, "copies")
        sent = records(hub, "orders")
        twice = sum(len(numbers) - len(set(numbers)) for numbers in found.values())
        missing = sum(len(set(sent[key]) - set(found.get(key, []))) for key in sent)
        disordered = sum(numbers != sorted(numbers) for numbers in found.values())
        figures = (
            f"\n{where}: {RECORDS:,} records of {len(sent)} keys, by {driver.starts} drivers\n"
            f"{story.table()}\n"
            f"missing {missing}, twice {twice}, keys out of order {disordered}; "
            f"from a start to the first batch done: {', '.join(f'{s:.1f} s' for s in story.away)}"
        )
        print(figures)  # noqa: T201 - asked for; seen with -s
        assert driver.starts == 4
        assert (missing, twice, disordered) == (0, 0, 0)
        assert found == {key: list(range(len(numbers))) for key, numbers in sent.items()}


def play(hub: shoal.Hub, server: PostgresServer, driver: Driver, cluster: SparkCluster | None) -> Story:
    story = Story(hub, server, driver, cluster)
    driver.start()
    driver.wait_until_begun()
    story.happens("split", "kill_in_a_task", "split", "merge", "restart_of_the_store", "kill_at_random")
    story.happens("split", "split_of_the_sink", "merge")
    if cluster is not None:
        story.happens("kill_of_executors")
    story.happens("split", "kill_at_random")
    story.end()
    return story


def check_totals(hub: shoal.Hub, driver: Driver) -> None:
    """A total is written when it has changed: one that is there twice, or a step back, is an error."""
    counts = {key: len(numbers) for key, numbers in records(hub, "orders").items()}

    def last() -> dict[bytes | None, int]:
        return {key: totals[-1] for key, totals in records(hub, "totals").items()}

    driver.until(lambda: last() == counts, "the last totals are right", WITHIN_S)
    for key, totals in records(hub, "totals").items():
        assert totals == sorted(set(totals)), f"{key!r}: {totals}"
    driver.until(
        lambda: driver.batch_at_hand("totals") is None and driver.batch_at_hand("copies") is None, "idle"
    )


def leave(driver: Driver) -> None:
    driver.tell("stop")
    driver.wait_for_end()
