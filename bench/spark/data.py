"""The rows that every line uses, as parquet files: a log's (232 bytes), and typed events."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DISTINCT: Final = 50_000
"""Rows that differ; then they come again. Half of each value is random, as in real logs."""
FILES: Final = 2


def log_rows(rows: int) -> pa.Table:
    """Offset, timestamp, a key of 16 bytes, a value of 200."""
    chance = np.random.default_rng(1)
    noise = chance.integers(0, 256, (DISTINCT, 100), dtype=np.uint8).tobytes()
    values = [noise[i * 100 : i * 100 + 100] + b"status=paid;" * 8 + b"note" for i in range(DISTINCT)]
    keys = [b"customer-%07d" % number for number in chance.integers(0, 100_000, DISTINCT)]
    which = pa.array(np.arange(rows) % DISTINCT)
    return pa.table(
        {
            "offset": pa.array(np.arange(rows, dtype=np.int64)),
            "timestamp": _times(rows),
            "key": pa.array(keys, pa.binary()).take(which),
            "value": pa.array(values, pa.binary()).take(which),
        }
    )


def typed_rows(rows: int) -> pa.Table:
    """Five columns of 41 bytes, beside a time."""
    chance = np.random.default_rng(2)
    return pa.table(
        {
            "timestamp": _times(rows),
            "customer": pa.array([f"customer-{n:07d}" for n in chance.integers(0, 100_000, rows)]),
            "amount": pa.array(chance.integers(0, 100_000, rows)),
            "price": pa.array(chance.random(rows)),
            "count": pa.array(chance.integers(0, 100, rows, dtype=np.int32)),
            "is_paid": pa.array(chance.random(rows) < 0.5),
        }
    )


TYPED: Final = {
    "customer": "string",
    "amount": "int64",
    "price": "double",
    "count": "int32",
    "is_paid": "bool",
}


def write_parquet(table: pa.Table, folder: Path) -> str:
    """One file for each core, compressed as the log is."""
    folder.mkdir()
    step = -(-table.num_rows // FILES)
    for number in range(FILES):
        part = table.slice(number * step, step)
        pq.write_table(part, folder / f"{number}.parquet", compression="lz4")
    return str(folder)


def write_arrow(table: pa.Table, folder: Path) -> str:
    """The same as plain Arrow, in batches of a size that Spark likes."""
    folder.mkdir()
    step = -(-table.num_rows // FILES)
    for number in range(FILES):
        with pa.ipc.new_stream(folder / f"{number}.arrow", table.schema) as writer:
            writer.write_table(table.slice(number * step, step), max_chunksize=10_000)
    return str(folder)


def _times(rows: int) -> pa.Array:
    return pa.array(1_760_000_000_000_000 + np.arange(rows, dtype=np.int64) * 1000).cast(
        pa.timestamp("us", "UTC")
    )
