"""Exactly once into your own database: the offset is saved in the same transaction as the effect.

Usage: exactly_once_sql.py [HUB URL]. Balances are kept in a SQLite file of the user's. The worker crashes in
the middle, on purpose, and goes on where the balances stand.
"""

import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import shoal

DEPOSITS = [(f"account-{i % 5}", i % 7) for i in range(500)]


class Balances(shoal.Processor):
    """Adds deposits to balances. What it has applied, its own table knows."""

    def __init__(self, path: Path, crash_at: int | None) -> None:
        self._path, self._crash_at = path, crash_at

    def initialize(self, shard: int) -> None:
        self._database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        row = self._database.execute("SELECT next FROM applied WHERE shard = ?", [shard]).fetchone()
        self._next = row[0] if row else 0
        self._shard = shard

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            for record in batch:
                if record.offset < self._next:
                    continue  # Applied before the crash; only the checkpoint was not saved.
                if record.offset == self._crash_at:
                    raise SystemExit("crash")
                account = (record.key or b"").decode()
                self._database.execute(
                    "INSERT INTO balance VALUES (?, ?) "
                    "ON CONFLICT DO UPDATE SET amount = amount + excluded.amount",
                    [account, int(record.value)],
                )
            # The fence: who comes with an older epoch than the one that wrote last has lost the shard.
            changed = self._database.execute(
                "INSERT INTO applied VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET next = excluded.next, "
                "epoch = excluded.epoch WHERE epoch <= excluded.epoch",
                [self._shard, batch.next_offset, checkpointer.epoch],
            ).rowcount
            if not changed:
                raise shoal.errors.LeaseLost(shard=self._shard, epoch=checkpointer.epoch)
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._next = batch.next_offset
        checkpointer.save(persist=False)

    def shutdown(self, *_: object) -> None:
        self._database.close()


def main(url: str, path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE balance (account TEXT PRIMARY KEY, amount INTEGER)")
        database.execute("CREATE TABLE applied (shard INTEGER PRIMARY KEY, next INTEGER, epoch INTEGER)")
    with shoal.connect(url) as hub:
        hub.create_stream("deposits", shards=2)
        with hub.producer("deposits") as producer:
            for account, amount in DEPOSITS:
                producer.send(str(amount), key=account)

        def work(crash_at: int | None) -> None:
            shoal.Worker(
                hub,
                "deposits",
                "balances",
                lambda: Balances(path, crash_at),
                batch_records=50,
                until="now",
                failure=shoal.FailureRules(policy=shoal.Policy.STOP),
            ).run()

        try:
            work(crash_at=120)
        except shoal.ShoalError as error:
            print(f"first worker: {error}")
        work(crash_at=None)
    with closing(sqlite3.connect(path)) as database:
        found = dict(database.execute("SELECT account, amount FROM balance ORDER BY account"))
    wanted: dict[str, int] = {}
    for account, amount in DEPOSITS:
        wanted[account] = wanted.get(account, 0) + amount
    for account, amount in found.items():
        print(f"{account}: {amount}, {'as sent' if amount == wanted[account] else 'WRONG'}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/shoal.db", Path(folder) / "mine.db")
