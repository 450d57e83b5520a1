"""The demo's last chapter: how fast whole tables are sent and read."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from shoal import Hub
from shoal.cli.following import read_all

_BATCH_RECORDS: Final = 100_000
_BATCHES: Final = 10


@dataclass(frozen=True, slots=True)
class Measured:
    """So many records, and how many a second."""

    sent: int
    sent_per_s: float
    read: int
    read_per_s: float


def measure(hub: Hub, stream: str) -> Measured:
    """Tables of 150-byte records are sent, after one to warm up, and all of it is read."""
    table = _columns()
    with hub.producer(stream) as producer:
        producer.send_batch(table).result()
        began_s = time.perf_counter()
        futures = [producer.send_batch(table) for _ in range(_BATCHES)]
        for future in futures:
            future.result()
        sent_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    rows = sum(batch.to_arrow().num_rows for batch in read_all(hub, stream))
    sent = _BATCHES * _BATCH_RECORDS
    return Measured(sent, sent / sent_s, rows, rows / (time.perf_counter() - began_s))


def _columns() -> pa.Table:
    numbers = np.random.default_rng(1).permutation(_BATCH_RECORDS)
    keys = [f"customer-{n:06}" for n in numbers.tolist()]
    values = [f'{{"order": {n}, "note": "{"x" * 100}"}}'.ljust(135) for n in numbers.tolist()]
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
