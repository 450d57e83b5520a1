"""Word count: a processor that counts the words of a stream into a SQLite file, each exactly once.

Usage: word_count.py. It works in a temporary folder and leaves nothing behind. README.md shows the same with
`shoal work`, where WORD_COUNTS names the file.
"""

import os
import sqlite3
import tempfile
from collections import Counter

import shoal

LINES = (
    "the shoal keeps its shape",
    "members join and leave",
    "the shoal keeps every key",
    "leave the shape",
)


class WordCount(shoal.Processor):
    """One for each shard. All of them share a file."""

    def initialize(self, shard: int) -> None:
        self.shard = shard
        # Calls come one at a time, but from changing threads.
        self.file = sqlite3.connect(
            os.environ.get("WORD_COUNTS", "words.db"),
            timeout=60,
            isolation_level=None,
            check_same_thread=False,
        )
        self.file.execute("CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, count INTEGER)")
        self.file.execute("CREATE TABLE IF NOT EXISTS done (shard INTEGER PRIMARY KEY, next INTEGER)")

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        # After a crash some records come again. How far a shard is counted is written with the counts, in one
        # transaction: whatever comes again is known.
        self.file.execute("BEGIN IMMEDIATE")
        with self.file:
            row = self.file.execute("SELECT next FROM done WHERE shard = ?", (self.shard,)).fetchone()
            counted = row[0] if row else 0
            words = Counter(
                word for record in batch if record.offset >= counted for word in record.value.decode().split()
            )
            self.file.executemany(
                "INSERT INTO words VALUES (?, ?) "
                "ON CONFLICT (word) DO UPDATE SET count = count + excluded.count",
                words.items(),
            )
            self.file.execute(
                "INSERT INTO done VALUES (?, ?) "
                "ON CONFLICT (shard) DO UPDATE SET next = max(next, excluded.next)",
                (self.shard, batch.next_offset),
            )
        checkpointer.save()

    def shutdown(self, checkpointer: shoal.Checkpointer, reason: shoal.Reason) -> None:  # noqa: ARG002
        self.file.close()


def main(folder: str) -> None:
    os.environ["WORD_COUNTS"] = f"{folder}/words.db"
    with shoal.connect(f"sqlite:///{folder}/shoal.db") as hub:
        hub.create_stream("lines", shards=4)
        with hub.producer("lines") as producer:
            for number, line in enumerate(LINES):
                producer.send(line, key=f"line-{number}")
        shoal.Worker(hub, "lines", "words", WordCount, until="now").run()
    rows = sqlite3.connect(os.environ["WORD_COUNTS"]).execute(
        "SELECT count, word FROM words ORDER BY count DESC, word"
    )
    for count, word in rows:
        print(count, word)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(made)
