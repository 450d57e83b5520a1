"""Gather records over several polls, insert them together, and only then commit: at least once."""

import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import shoal

BATCH = 250


class Inserting(shoal.RebalanceListener):
    """What is gathered is inserted before its shard is handed over: the next owner need not repeat it."""

    def __init__(self, consumer: shoal.Consumer, database: sqlite3.Connection) -> None:
        self._consumer, self._database = consumer, database
        self._gathered: list[tuple[int, int, bytes]] = []
        self.inserts = 0

    def add(self, batch: shoal.Batch) -> None:
        self._gathered += [(batch.shard, record.offset, record.value) for record in batch]
        if len(self._gathered) >= BATCH:
            self.insert()

    def insert(self) -> None:
        with self._database:
            self._database.executemany("INSERT OR IGNORE INTO orders VALUES (?, ?, ?)", self._gathered)
        self._consumer.commit()  # all that polls returned: it is in the database
        self.inserts += bool(self._gathered)
        self._gathered.clear()

    def on_revoked(self, _: Sequence[shoal.StreamShard]) -> None:
        self.insert()

    def on_lost(self, _: Sequence[shoal.StreamShard]) -> None:
        self._gathered.clear()  # another has them, and does them again


def main(url: str, path: Path) -> None:
    with shoal.connect(url) as hub, closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE orders (shard, offset, value, PRIMARY KEY (shard, offset))")
        hub.create_stream("orders", shards=2)
        with hub.producer("orders") as producer:
            for number in range(1050):
                producer.send(f"order {number}", key=f"customer-{number % 50}")

        with shoal.Consumer(hub, group="insert", auto_commit=False, max_poll_records=100) as consumer:
            inserting = Inserting(consumer, database)
            consumer.subscribe(["orders"], listener=inserting)
            seen = 0
            while seen < 1050:
                for batch in consumer.poll():
                    seen += len(batch)
                    inserting.add(batch)
        (rows,) = database.execute("SELECT count(*) FROM orders").fetchone()
        print(f"{rows} rows, {'few' if inserting.inserts < 10 else 'many'} inserts")
        print("to come for the group:", hub.describe_group("orders", "insert").lag)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/shoal.db", Path(folder) / "mine.db")
