"""A query as its own driver, through all that happens to one: shards split and merged under it, the driver
killed with kill -9 and begun again, executors killed, PostgreSQL restarted, each in the midst of a batch.

Shown on local[2] and on a standalone cluster: what it copies is there once, each key in order; what it
aggregates and writes back is there once. SHOAL_SPARK_RECORDS says how many records: `make soak-spark` takes a
million. Prints the figures. A short one, for every day, is in `test_bad_days.py`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pytest

import shoal
from shoal.testing.servers import PostgresServer
from shoal.testing.spark_cluster import SparkCluster
from tests.spark.drivers import Driver
from tests.spark.story import Story, check_totals, faults_of_copies, within_s

RECORDS: Final = int(os.environ.get("SHOAL_SPARK_RECORDS", "30000"))
PARTS: Final = 12
BATCH: Final = RECORDS // 10

pytestmark = [
    pytest.mark.timeout(2 * within_s(RECORDS)),
    pytest.mark.skipif("SHOAL_SPARK_RECORDS" not in os.environ, reason="a long run: make soak-spark"),
]


@pytest.mark.parametrize("where", ["local", "cluster"])
def test_every_record_is_there_once_and_each_key_in_order_whatever_happens(
    where: str, spark_url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    with shoal.connect(spark_url) as hub:
        for stream in ("orders", "copies", "totals"):
            hub.create_stream(stream, shards=3)
        orders: dict[str, Any] = {"hub": spark_url, "batch": BATCH}
        sizes: dict[str, Any] = {"records": RECORDS, "parts": PARTS}
        if where == "local":
            orders |= {"master": "local[2]", "queries": ["copies", "totals"]}
            with Driver(tmp_path, **orders) as driver:
                story = Story(hub, postgres_server, driver, **sizes)
                play(story)
                check_totals(hub, driver)
                driver.leave()
        else:
            with SparkCluster(workers=2) as cluster:
                orders |= {"master": cluster.url, "queries": ["copies"]}
                with Driver(tmp_path, cluster.environment, **orders) as driver:
                    story = Story(hub, postgres_server, driver, cluster=cluster, **sizes)
                    play(story, "kill_of_executors")
                    driver.leave()
        faults = faults_of_copies(hub)
        story.show(where, faults)
        assert driver.starts == 4
        assert faults == (0, 0, 0)


def play(story: Story, *more: str) -> None:
    story.begin()
    story.happens("split", "kill_in_a_task", "split", "merge", "restart_of_the_store", "kill_at_random")
    story.happens("split", "split_of_the_sink", "merge", *more, "split", "kill_at_random")
    story.end()
