"""Stream to stream: read, aggregate, write back with `writeStream`, stopped at random: exactly once.

With drivers that are killed it is part of the long story, see `test_story.py`.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import shoal
from tests.spark.driver_program import totals
from tests.spark.drivers import batch_at_hand, batches_done
from tests.spark.story import numbers

STOPS = 3


@pytest.mark.filterwarnings("ignore::FutureWarning")  # Of Spark's own, about versions of pandas.
def test_totals_are_written_back_once_wherever_the_query_was_stopped(
    spark: SparkSession, sqlite_url: str, tmp_path: Path
) -> None:
    chance = random.Random(5)
    sent: Counter[bytes] = Counter()
    broken_off = 0
    orders = {"hub": sqlite_url, "folder": str(tmp_path), "batch": 250}
    with shoal.connect(sqlite_url) as hub:
        hub.create_stream("orders", shards=2)
        hub.create_stream("totals", shards=2)
        for stop in range(STOPS + 1):
            with hub.producer("orders") as producer:
                for _ in range(400):
                    key = b"k%d" % chance.randrange(40)
                    producer.send(b"%d" % sent[key], key=key)
                    sent[key] += 1
            if stop in {1, 2}:
                hub.split_shard("orders" if stop == 1 else "totals", 0)
            done = batches_done(tmp_path / "totals")
            query = totals(spark, orders)
            if stop < STOPS:
                _wait_for_another(tmp_path / "totals", done)
                time.sleep(chance.uniform(0.0, 0.6))
                with suppress(PySparkException):
                    query.stop()
                broken_off += batch_at_hand(tmp_path / "totals") is not None
            else:
                query.processAllAvailable()
                query.stop()
        found = numbers(hub, "totals")
    assert broken_off, "at least one stop came in the midst of a batch"
    assert {key: each[-1] for key, each in found.items()} == sent
    for name, each in found.items():
        assert each == sorted(set(each)), f"{name!r} has a total twice, or a step back: {each}"


def _wait_for_another(checkpoint: Path, done: int) -> None:
    """Until what the last stop broke off is done, and another batch is at hand."""
    deadline = time.monotonic() + 60
    while batches_done(checkpoint) == done or batch_at_hand(checkpoint) is None:
        assert time.monotonic() < deadline, "no batch was begun"
        time.sleep(0.01)
