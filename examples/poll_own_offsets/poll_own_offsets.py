"""Positions in the user's own database, written with the result in one transaction: exactly once."""

import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import shoal

ORDERS = 2000


class Rebalances:
    """How long shards of the group were between two owners, in all."""

    def __init__(self) -> None:
        self._since: dict[shoal.StreamShard, float] = {}
        self.total_s = 0.0

    def begin(self, shards: Sequence[shoal.StreamShard]) -> None:
        self._since.update(dict.fromkeys(shards, time.monotonic()))

    def end(self, shards: Sequence[shoal.StreamShard]) -> None:
        self.total_s += sum(
            time.monotonic() - self._since.pop(each) for each in shards if each in self._since
        )


class Kept(shoal.RebalanceListener):
    """Goes on where the database says."""

    def __init__(self, consumer: shoal.Consumer, database: sqlite3.Connection, times: Rebalances) -> None:
        self._consumer, self._database, self._times = consumer, database, times

    def on_revoked(self, shards: Sequence[shoal.StreamShard]) -> None:
        self._times.begin(shards)  # the database has their positions already: with every batch

    def on_assigned(self, shards: Sequence[shoal.StreamShard]) -> None:
        self._times.end(shards)
        for place in shards:
            self._consumer.seek(place, position(self._database, place.shard))


def position(database: sqlite3.Connection, shard: int) -> int:
    row = database.execute("SELECT next FROM position WHERE shard = ?", [shard]).fetchone()
    return 0 if row is None else int(row[0])


def apply(database: sqlite3.Connection, batch: shoal.Batch) -> None:
    """The sum and the position, or neither. Who finds another position was overtaken, and adds nothing."""
    amount = sum(int(record.value) for record in batch)
    database.execute("BEGIN IMMEDIATE")
    if position(database, batch.shard) == batch.first_offset:
        database.execute("UPDATE total SET amount = amount + ?", [amount])
        database.execute("INSERT OR REPLACE INTO position VALUES (?, ?)", [batch.shard, batch.next_offset])
    database.execute("COMMIT")


def main(url: str, path: Path) -> None:
    with shoal.connect(url) as hub, closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE TABLE total (amount INTEGER)")
        database.execute("INSERT INTO total VALUES (0)")
        database.execute("CREATE TABLE position (shard INTEGER PRIMARY KEY, next INTEGER)")
        hub.create_stream("payments", shards=4)
        with hub.producer("payments") as producer:
            for number in range(ORDERS):
                producer.send(str(number), key=f"customer-{number % 50}")

        first = shoal.Consumer(hub, group="sums", name="first", max_poll_records=100)
        second = shoal.Consumer(hub, group="sums", name="second", max_poll_records=100)
        times = Rebalances()
        first.subscribe(["payments"], listener=Kept(first, database, times))
        consumers = [first]
        while sum(position(database, shard) for shard in range(4)) < ORDERS or len(second.assignment) < 2:
            for consumer in consumers:
                for batch in consumer.poll(0.05):
                    apply(database, batch)
            if len(consumers) == 1:
                second.subscribe(
                    ["payments"], listener=Kept(second, database, times)
                )  # half of the shards move to it
                consumers.append(second)
        print("shards of each:", [len(consumer.assignment) for consumer in consumers])
        for consumer in consumers:
            consumer.close()
        (amount,) = database.execute("SELECT amount FROM total").fetchone()
        print("the sum is", "right" if amount == sum(range(ORDERS)) else f"wrong: {amount}")
        print("the group has spent time on rebalances:", times.total_s > 0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/shoal.db", Path(folder) / "mine.db")
