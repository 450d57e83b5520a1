"""Typed columns: a stream with a schema takes an Arrow table and gives Arrow back; nothing is parsed.

Usage: typed_columns.py [HUB URL]. Without a URL it works in a temporary folder and leaves nothing behind.
"""

import sys
import tempfile

import pyarrow as pa
import pyarrow.compute as pc

import shoal


def main(url: str) -> None:
    with shoal.connect(url) as hub:
        # 1. The columns are the stream's own; key, timestamp and headers are there always.
        hub.create_stream(
            "payments", shards=4, schema={"customer": "string", "amount": "int64", "paid": "bool"}
        )

        # 2. A whole table at once, routed by its column `customer`.
        count = 100_000
        table = pa.table(
            {
                "customer": [f"customer-{n % 1000:03}" for n in range(count)],
                "amount": pa.array(range(count), pa.int64()),
                "paid": [n % 2 == 0 for n in range(count)],
            }
        )
        with hub.producer("payments") as producer:
            stored = producer.send_batch(table, key_column="customer").result()
            print(f"stored {sum(at.next_offset - at.first_offset for at in stored):,} records")

            # One record is a dict. What does not fit is refused before it is sent.
            producer.send({"customer": "ada", "amount": 7, "paid": True}, key="ada").result()
            try:
                producer.send({"customer": "ada", "amount": "seven", "paid": True}, key="ada")
            except shoal.errors.SchemaMismatch as error:
                print(f"refused: column {error.column!r}, the stream wants {error.wanted}")

        # 3. Read as Arrow, a shard at a time, and count without a loop per record.
        parts = []
        for shard in hub.describe_stream("payments").shards:
            offset = shard.first_offset
            while offset < shard.next_offset:
                batch = hub.read("payments", shard.id, offset)
                parts.append(batch.to_arrow())
                offset = batch.next_offset
        payments = pa.Table.from_batches(parts)
        print(f"read {payments.num_rows:,} records with columns {', '.join(payments.column_names)}")
        paid = payments.filter(payments["paid"])
        print(f"paid: {paid.num_rows:,} records, {pc.sum(paid['amount']).as_py():,} in all")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"sqlite:///{folder}/shoal.db")
