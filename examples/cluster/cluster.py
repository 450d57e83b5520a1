"""A Spark cluster over a hub on PostgreSQL: a batch write, and a streaming query from stream to stream."""

import os
import subprocess
import sys
from pathlib import Path

import shoal
from shoal.testing.servers import PostgresServer
from shoal.testing.spark_cluster import SparkCluster

ROWS = 100_000


def main() -> None:
    with PostgresServer() as database, SparkCluster(workers=2) as cluster:
        hub = shoal.connect(database.url)
        hub.create_stream("orders", shards=4)
        hub.create_stream("copies", shards=3)
        # The driver is a process of its own, as it would be with spark-submit.
        driver = [sys.executable, str(Path(__file__).with_name("job.py")), cluster.url, database.url]
        subprocess.run(driver, check=True, env=os.environ | cluster.environment)
        found: dict[bytes | None, list[bytes]] = {}
        for shard in hub.describe_stream("copies").shards:
            offset = 0
            while len(batch := hub.read("copies", shard.id, offset)):
                for record in batch:
                    found.setdefault(record.key, []).append(record.value)
                offset = batch.next_offset
        numbers = sorted(int(value) for values in found.values() for value in values)
        print(f"records: {len(numbers)}, each once: {numbers == list(range(ROWS))}")
        print(f"keys: {len(found)}, each in order: {all(v == sorted(v) for v in found.values())}")
        hub.close()


if __name__ == "__main__":
    main()
