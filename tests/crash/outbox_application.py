"""A program with transactions of its own: books payments, and adds a record of each to its outbox.

Every payment is one transaction: the balance, a line in the ledger, the record. Each third is rolled back.
It may be killed at any moment, and goes on after the last payment that its database has.
"""

import sys
import time
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import OperationalError

from shoal import Outbox

KEYS = 97
RECEIPTS = 4
"""Of so many payments one has a receipt, for a stream that is made late."""


def prepare(engine: Engine) -> None:
    """The tables, before the first start."""
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE balance (who INTEGER PRIMARY KEY, amount BIGINT NOT NULL)"))
        connection.execute(text("CREATE TABLE ledger (number BIGINT PRIMARY KEY, who INTEGER NOT NULL)"))
        connection.execute(
            text("INSERT INTO balance (who, amount) VALUES (:who, 0)"), [{"who": who} for who in range(KEYS)]
        )
        Outbox().create(connection)


def work(url: str, payments: int) -> None:
    engine, outbox = create_engine(url), Outbox()
    with engine.connect() as connection:
        done = connection.execute(text("SELECT MAX(number) FROM ledger")).scalar()
        connection.rollback()
        number = 0 if done is None else done + 1
        while number < payments:
            try:
                _pay(connection, outbox, number)
            except OperationalError:  # Another writes to this file at the moment.
                connection.rollback()
                time.sleep(0.01)
                continue
            number += 1


def _pay(connection: Connection, outbox: Outbox, number: int) -> None:
    """One payment, one transaction."""
    row: dict[str, Any] = {"who": number % KEYS, "number": number}
    connection.execute(text("UPDATE balance SET amount = amount + 1 WHERE who = :who"), row)
    connection.execute(text("INSERT INTO ledger (number, who) VALUES (:number, :who)"), row)
    outbox.add(connection, "payments", str(number), key=str(number % KEYS))
    if number % RECEIPTS == 1:
        outbox.add(connection, "receipts", str(number), key=str(number % KEYS))
    if number % 3 == 0:
        connection.rollback()
    else:
        connection.commit()


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
