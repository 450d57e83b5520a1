"""One group with members of every kind: Aliyun's worker, workers over HTTP and on the store, a query."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import shoal
from shoal.server.sls.records import SCHEMA
from shoal.spark import drain
from shoal.testing.members import eventually
from shoal.testing.serving import ServerProcess
from tests.sls.client import starter
from tests.sls.running import STREAM, Seen, Writer, check_order, deaths, held, lag, reading, repeats

WITHIN_S: Final = 90.0


class Diary:
    """What reached code of ours, as the programs of Aliyun's write it. Writer: several threads."""

    def __init__(self) -> None:
        self.seen: Seen = []
        self._lock = Lock()

    def note(self, shards: Iterable[int], contents: Iterable[Any]) -> None:
        with self._lock:
            for shard, fields in zip(shards, contents, strict=True):
                text = bytes(dict(fields)["text"]).decode()
                self.seen.append((time.monotonic_ns(), shard, text))

    def process(self, batch: shoal.Batch, checkpointer: Any) -> None:
        rows = batch.to_arrow().column("contents").to_pylist()
        self.note([batch.shard] * len(rows), rows)
        checkpointer.save()

    def batch(self, frame: DataFrame, _: int) -> None:
        rows = frame.select("shard", "offset", "contents").collect()
        rows.sort(key=lambda row: (row.shard, row.offset))
        self.note([row.shard for row in rows], [row.contents for row in rows])


def query(spark: SparkSession, url: str, diary: Diary, checkpoint: str) -> StreamingQuery:
    reader = spark.readStream.format("shoal").option("hub", url).option("stream", STREAM)
    reader = reader.option("group", "g").option("member", "true").option("memberName", "query")
    writer = reader.load().writeStream.foreachBatch(diary.batch)
    return writer.option("checkpointLocation", checkpoint).start()


@pytest.mark.timeout(6 * WITHIN_S)
def test_members_of_every_kind_share_a_group_and_lose_nothing_as_they_come_and_go(
    spark: SparkSession, sqlite_url: str, checkpoint: str, tmp_path: Path
) -> None:
    start = starter()
    diary = Diary()
    with ExitStack() as opened:
        url = opened.enter_context(ServerProcess(sqlite_url)).url
        remote = opened.enter_context(shoal.connect(url))
        embedded = opened.enter_context(shoal.connect(sqlite_url))
        remote.create_stream(STREAM, shards=8, schema=SCHEMA)
        remote.create_group(STREAM, "g", timeout=6.0, in_order=True)

        def shared(*expected: int) -> None:
            eventually(lambda: held(remote) == list(expected), f"{expected} are shared", WITHIN_S)

        writer = Writer(remote, keys=16)
        opened.callback(writer.end)
        theirs = opened.enter_context(reading(start, url, "g", "theirs", "in_order", "beat=3"))
        shared(8)
        over_http = shoal.Worker(remote, STREAM, "g", diary.process, name="over-http").start()
        opened.callback(over_http.stop)
        shared(4, 4)
        on_store = shoal.Worker(embedded, STREAM, "g", diary.process, name="on-store").start()
        opened.callback(on_store.stop)
        shared(2, 3, 3)
        running = query(spark, url, diary, checkpoint)
        opened.callback(running.stop)
        shared(2, 2, 2, 2)
        remote.split_shard(STREAM, 0)
        eventually(lambda: sum(held(remote)) == 9, "the children are consumed", WITHIN_S)

        drain(running, remote)
        shared(3, 3, 3)
        on_store.stop()
        shared(4, 5)
        assert not deaths(remote)
        assert not repeats(diary.seen, theirs.seen), "planned moves repeat nothing"
        over_http.stop()
        shared(9)
        sent = writer.end()
        eventually(
            lambda: sent <= {text for *_, text in [*diary.seen, *theirs.seen]}, "all is read", WITHIN_S
        )
        eventually(lambda: lag(remote) == 0, "all is saved", WITHIN_S)
        theirs.stop()
    check_order(diary.seen, theirs.seen)
    names = {shard for _, shard, _ in theirs.seen} & {shard for _, shard, _ in diary.seen}
    assert names, "shards have moved between Aliyun's and ours"
