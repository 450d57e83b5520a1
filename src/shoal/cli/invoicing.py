"""The demo's chapter on production: exactly once from stream to stream, an application's rows together with
their records, and a record that comes later."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal import Backoff, Batch, Checkpointer, FailureRules, Hub, Outbox, OutboxRelay, Producer, Worker
from shoal.cli.following import read_all
from shoal.cli.hushing import hushed
from shoal.cli.patience import until
from shoal.core.errors import ProducerFenced

PAYMENTS: Final = 150
_BATCH_RECORDS: Final = 250
_LATER_MS: Final = 300
_REMINDER: Final = b"remind"
_INVOICE: Final = b"invoice for "


@dataclass(frozen=True, slots=True)
class Invoiced:
    """What transactions made of a stream."""

    charges: int
    invoices: int
    twice: int
    missing: int
    broken: int
    """Transactions that ended in the middle, with records in them."""
    is_fenced: bool
    """Whether an older life of a producer was refused."""

    @property
    def is_good(self) -> bool:
        is_once = self.invoices == self.charges > 0 and self.twice == self.missing == 0
        return is_once and self.broken > 0 and self.is_fenced


def invoice(hub: Hub, charges: str, invoices: str, group: str) -> Invoiced:
    """Two workers write an invoice for each charge. The first transaction of every shard breaks in the
    middle; and in the end a producer that was replaced tries once more."""
    broken: set[int] = set()
    lock = threading.Lock()

    def is_first_of(shard: int) -> bool:
        with lock:
            is_first = shard not in broken
            broken.add(shard)
            return is_first

    def clerk(number: int, producer: Producer) -> Worker:
        def process(batch: Batch, checkpointer: Checkpointer) -> None:
            with producer.transaction() as transaction:
                for i, record in enumerate(batch):
                    if i == len(batch) // 2 and is_first_of(batch.shard):
                        raise ConnectionError("the tax office does not answer")
                    transaction.send(_INVOICE + record.value, key=record.key)
                transaction.checkpoint(checkpointer)

        return Worker(
            *(hub, charges, group, process),
            name=f"clerk-{number}",
            failure=FailureRules(backoff=Backoff(first_s=0.02)),
            batch_records=_BATCH_RECORDS,
            until="now",
        )

    with (
        hub.producer(invoices, name="clerk-1") as first,
        hub.producer(invoices, name="clerk-2") as second,
        hushed("shoal.worker"),  # Every failure is logged; here they are part of the story.
        clerk(1, first) as one,
        clerk(2, second) as other,
    ):
        until(lambda: not (one.is_running or other.is_running))
    is_fenced = _is_older_life_refused(hub, invoices)
    wanted = Counter(_INVOICE + record.value for batch in read_all(hub, charges) for record in batch)
    found = Counter(record.value for batch in read_all(hub, invoices) for record in batch)
    return Invoiced(
        charges=wanted.total(),
        invoices=found.total(),
        twice=(found - wanted).total(),
        missing=(wanted - found).total(),
        broken=len(broken),
        is_fenced=is_fenced,
    )


def _is_older_life_refused(hub: Hub, stream: str) -> bool:
    try:
        with hub.producer(stream, name="clerk-1") as older:
            transaction = older.transaction()
            transaction.send(b"once more", key="ada")
            with hub.producer(stream, name="clerk-1"):
                transaction.commit()
    except ProducerFenced:
        return True
    return False


@dataclass(frozen=True, slots=True)
class Paid:
    """What an application's transactions said, and what came of it."""

    rows: int
    rolled_back: int
    waited: int
    """Records in the outbox before a relay ran."""
    arrived: int
    is_same: bool
    """Whether each customer's records are the rows, in their order."""

    @property
    def is_good(self) -> bool:
        is_tried = self.rows > 0 and self.rolled_back > 0
        return is_tried and self.rows == self.waited == self.arrived and self.is_same


def pay(hub: Hub, stream: str) -> Paid:
    """An application with a database of its own takes payments; every third is declined in the middle of its
    transaction."""
    outbox, rolled_back = Outbox(), 0
    with tempfile.TemporaryDirectory(prefix="shoal-demo-shop-") as folder:
        database = Path(folder) / "shop.db"
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("CREATE TABLE payment (number INTEGER PRIMARY KEY, customer TEXT)")
            outbox.create(connection)
            connection.commit()
            for number in range(PAYMENTS):
                customer = f"customer-{number % 7}"
                connection.execute("INSERT INTO payment VALUES (?, ?)", (number, customer))
                outbox.add(connection, stream, b"%d" % number, key=customer)
                if number % 3 == 2:
                    connection.rollback()
                    rolled_back += 1
                else:
                    connection.commit()
            (waited,) = connection.execute("SELECT count(*) FROM shoal_outbox").fetchone()
            with OutboxRelay(hub, f"sqlite:///{database}") as relay:
                relay.run(until_empty=True)
            rows = connection.execute("SELECT customer, number FROM payment ORDER BY number").fetchall()
    arrived = [
        ((record.key or b"").decode(), int(record.value))
        for batch in read_all(hub, stream)
        for record in batch
    ]
    return Paid(
        rows=len(rows),
        rolled_back=rolled_back,
        waited=waited,
        arrived=len(arrived),
        is_same=sorted(arrived, key=_customer) == sorted(rows, key=_customer),
    )


def _customer(payment: tuple[str, int]) -> str:
    """What is sorted by this alone keeps each customer's order."""
    return payment[0]


@dataclass(frozen=True, slots=True)
class Reminded:
    """A record that was to come later."""

    waited: int
    came: int
    is_early: bool

    @property
    def is_good(self) -> bool:
        return self.waited == self.came == 1 and not self.is_early


def remind(hub: Hub, stream: str) -> Reminded:
    """Send one that is to come in a while, and look until it is there."""
    due_ms = time.time_ns() // 1_000_000 + _LATER_MS
    with hub.producer(stream) as producer:
        producer.send(_REMINDER, key="ada", deliver_at=due_ms).result()
    waited = hub.count_delayed(stream)
    came: list[int] = []

    def has_come() -> bool:
        seen = [record for batch in read_all(hub, stream) for record in batch if record.value == _REMINDER]
        came.append(len(seen))
        return bool(seen)

    until(has_come)
    return Reminded(waited=waited, came=came[-1], is_early=time.time_ns() // 1_000_000 < due_ms)
