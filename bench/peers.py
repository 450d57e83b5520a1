"""What the log is compared with, in the same run: a bare loop, a plain file, Redis Streams."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import redis

from bench.data import Chunk
from shoal.core.model import Compression
from shoal.store.sql.dialects.sqlite import PRAGMAS
from shoal.wire.layout import Layout

SHARDS = 4


def bare_loop(folder: Path, chunk: Chunk, commits: int) -> float:
    """Records a second of a loop that only builds Arrow batches from lists, compresses and inserts them.

    It commits as often, and as many batches at a time, as `send_batch` does; it routes nothing, numbers
    nothing and checks nothing.
    """
    path = folder / "bare.db"
    for old in folder.glob("bare.db*"):
        old.unlink()
    database = sqlite3.connect(path, isolation_level=None)
    for pragma in PRAGMAS:
        database.execute(pragma)
    database.execute(
        "CREATE TABLE batch(stream INT, shard INT, base INT, records INT, payload BLOB, "
        "PRIMARY KEY(stream, shard, base))"
    )
    layout = Layout(None)
    schema = layout.stored(with_headers=False)
    share = len(chunk.values) // SHARDS
    began = time.perf_counter()
    for commit in range(commits):
        database.execute("BEGIN IMMEDIATE")
        for shard in range(SHARDS):
            part = slice(shard * share, (shard + 1) * share)
            now = np.full(share, time.time_ns() // 1000)
            batch = pa.record_batch(
                [
                    pa.array(now).cast(schema.field("timestamp").type),
                    pa.array(chunk.keys[part], pa.binary()),
                    pa.array(chunk.values[part], pa.binary()),
                ],
                schema=schema,
            )
            _, payload = layout.encode(batch, Compression.LZ4)
            database.execute(
                "INSERT INTO batch VALUES (1, ?, ?, ?, ?)", (shard, commit * share, share, payload)
            )
        database.execute("COMMIT")
    rate = commits * share * SHARDS / (time.perf_counter() - began)
    database.close()
    return rate


def plain_file(folder: Path, chunk: Chunk, commits: int) -> float:
    """Records a second of writing the raw bytes to a file, with fdatasync where the log would commit."""
    path = folder / "plain.bin"
    data = b"".join(chunk.values) + b"".join(chunk.keys)
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(commits):
            file.write(data)
            os.fdatasync(file.fileno())
    rate = commits * len(chunk.values) / (time.perf_counter() - began)
    path.unlink()
    return rate


def redis_streams(url: str, chunk: Chunk, records: int) -> tuple[float, float]:
    """Records a second appended to and consumed from a Redis stream: fsync always, pipelines of 1,000."""
    client = redis.Redis.from_url(url)
    client.delete("orders")
    began = time.perf_counter()
    for start in range(0, records, 1000):
        pipe = client.pipeline(transaction=False)
        for i in range(start, start + 1000):
            at = i % len(chunk.values)
            pipe.xadd("orders", {b"k": chunk.keys[at], b"v": chunk.values[at]})
        pipe.execute()
    appended = records / (time.perf_counter() - began)
    began, count = time.perf_counter(), 0
    last: Any = b"0"
    while count < records:
        entries: Any = client.execute_command("XREAD", "COUNT", 1000, "STREAMS", "orders", last)  # type: ignore[no-untyped-call]
        # One stream was asked for: a pair of its name and its entries, as a list or a dict by protocol.
        (entries,) = entries.values() if isinstance(entries, dict) else (entries[0][1],)
        while isinstance(entries[0][0], list | tuple):
            (entries,) = entries
        last = entries[-1][0]
        count += len(entries)
    consumed = records / (time.perf_counter() - began)
    client.delete("orders")
    return appended, consumed
