"""The records that every line of the table uses: 150 bytes of JSON, 100,000 distinct keys."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

RECORD_BYTES: Final = 150
DISTINCT_KEYS: Final = 100_000
CHUNK: Final = 100_000
"""Records in one `send_batch`, and in one commit of the bare loop."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of records as plain Python lists, which is where a user's data begins."""

    keys: list[bytes]
    values: list[bytes]

    def to_table(self) -> pa.Table:
        """The same as Arrow columns."""
        return pa.table(
            {"customer": pa.array(self.keys, pa.binary()), "value": pa.array(self.values, pa.binary())}
        )


def make_chunk(seed: int = 1, records: int = CHUNK) -> Chunk:
    """Records as a shop would log them. About half of their bytes are random, as in real logs."""
    chance = random.Random(seed)
    keys, values = [], []
    for number in range(records):
        customer = chance.randrange(DISTINCT_KEYS)
        text = (
            f'{{"order":{number},"customer":{customer},"trace":"{chance.randbytes(24).hex()}",'
            f'"amount":{chance.randrange(100_000)},"status":"paid","note":"'
        )
        keys.append(b"customer-%d" % customer)
        values.append(text.ljust(RECORD_BYTES - 2, ".")[: RECORD_BYTES - 2].encode() + b'"}')
    return Chunk(keys, values)
