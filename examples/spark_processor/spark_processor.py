"""A processor on Spark's executors, and then the same one in a plain worker, in one group."""

import os
import sqlite3
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import shoal
import shoal.spark

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


ADD = "INSERT INTO bill VALUES (?, ?) ON CONFLICT DO UPDATE SET cents = cents + excluded.cents"


class Billing(shoal.Processor):
    """Adds up what each customer pays; how far a shard is billed is written in the same transaction."""

    def initialize(self, shard: int) -> None:
        self.shard = shard
        self.bills = sqlite3.connect(os.environ["BILLS"], timeout=30, check_same_thread=False)
        found = self.bills.execute("SELECT next FROM done WHERE shard = ?", (shard,)).fetchone()
        self.next = found[0] if found else 0

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        with self.bills:
            for record in batch:
                if record.offset >= self.next:
                    customer, cents = (record.key or b"").decode(), int(record.value)
                    self.bills.execute(ADD, (customer, cents))
            self.next = max(self.next, batch.next_offset)
            self.bills.execute("INSERT OR REPLACE INTO done VALUES (?, ?)", (self.shard, self.next))
        checkpointer.save()

    def shutdown(self, _: shoal.Checkpointer, __: shoal.Reason) -> None:
        self.bills.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/shoal.db"
        os.environ["BILLS"] = str(Path(folder) / "bills.db")
        with sqlite3.connect(os.environ["BILLS"]) as bills:
            bills.execute("CREATE TABLE bill (customer TEXT PRIMARY KEY, cents INTEGER)")
            bills.execute("CREATE TABLE done (shard INTEGER PRIMARY KEY, next INTEGER)")

        with shoal.connect(url) as hub:
            hub.create_stream("orders", shards=4)
            pay(hub, 100)

            spark = (
                SparkSession.builder.master("local[2]")
                .config("spark.ui.enabled", "false")
                .config("spark.ui.showConsoleProgress", "false")
                .getOrCreate()
            )
            query = shoal.spark.run(
                spark, stream="orders", group="billing", processor=Billing, hub=url, until="now"
            )
            query.awaitTermination()
            print("on Spark:", show(hub))
            spark.stop()

            pay(hub, 50)
            shoal.Worker(hub, "orders", "billing", Billing, until="now").run()
            print("in a worker:", show(hub))


def pay(hub: shoal.Hub, orders: int) -> None:
    with hub.producer("orders") as producer:
        for number in range(orders):
            producer.send(b"250", key=("ada", "grace", "alan", "edsger", "barbara")[number % 5])


def show(hub: shoal.Hub) -> str:
    with sqlite3.connect(os.environ["BILLS"]) as bills:
        found = bills.execute("SELECT customer, cents FROM bill ORDER BY customer").fetchall()
    lag = hub.describe_group("orders", "billing").lag
    return ", ".join(f"{customer} {cents / 100:.2f}" for customer, cents in found) + f"; {lag} to come"


if __name__ == "__main__":
    main()
