"""The bad days of a query that is its own driver, in one short story: its executor is killed in the midst of
a task, PostgreSQL restarts in the midst of a batch, the driver is killed with kill -9 and begun again.

On a `local-cluster`: executors are processes of their own, and few JVMs have to start. The long ones, on
local[2] and on a real cluster, are in `test_story.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.testing.servers import PostgresServer
from tests.spark.drivers import Driver
from tests.spark.story import Story, faults_of_copies

RECORDS = 6_000


@pytest.mark.timeout(280)
def test_an_executor_the_store_and_the_driver_die_and_every_record_is_there_once_and_in_order(
    spark_url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    orders: dict[str, Any] = {"master": "local-cluster[1,2,640]", "hub": spark_url, "queries": ["copies"]}
    with shoal.connect(spark_url) as hub, Driver(tmp_path, batch=RECORDS // 4, **orders) as driver:
        hub.create_stream("orders", shards=3)
        hub.create_stream("copies", shards=2)
        story = Story(hub, postgres_server, driver, records=RECORDS, parts=6)
        story.begin()
        story.happens("kill_of_executors", "split", "restart_of_the_store", "merge", "kill_in_a_task")
        story.end()
        driver.leave()
        faults = faults_of_copies(hub)
        story.show("local-cluster", faults)
        assert driver.starts == 2
        assert faults == (0, 0, 0)
