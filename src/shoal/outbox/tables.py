"""The two tables of an outbox in the user's database: what waits, and who relays it."""

from __future__ import annotations

import re
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects import mysql

from shoal.core.errors import InvalidInput
from shoal.core.limits import NAME_LENGTH_MAX

_Blob: Final = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
_Long: Final = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_RULE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")

BYTES: Final = 0
JSON: Final = 1
"""What a value is: as it is, or a row of a typed stream."""


class OutboxTables:
    """The tables of one outbox, by the name that the user gave it."""

    def __init__(self, name: object) -> None:
        if not isinstance(name, str) or not _RULE.fullmatch(name):
            raise InvalidInput("table", name, "1 to 48 of the characters A-Z a-z 0-9 _, and no digit first")
        metadata = MetaData()
        bytewise: dict[str, Any] = {"mysql_charset": "utf8mb4", "mysql_engine": "InnoDB"}
        self.waiting: Final = Table(
            name,
            metadata,
            # Never given again, or a note of the relay's would mean another row.
            Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
            Column("stream", String(2 * NAME_LENGTH_MAX + 1), nullable=False),
            Column("key", _Blob, quote=True),
            Column("value", _Blob, quote=True),
            Column("form", SmallInteger, nullable=False),
            Column("headers", _Long),
            Column("timestamp_ms", BigInteger, nullable=False),
            Column("hash_key", String(32)),
            Column("deliver_at_ms", BigInteger),
            sqlite_autoincrement=True,
            **bytewise,
        )
        self.relay: Final = Table(
            f"{name}_relay",
            metadata,
            Column("name", String(16), primary_key=True),
            # The relay's name as a producer: as long as the table lives.
            Column("producer", String(64), nullable=False),
            Column("holder", String(64)),
            Column("beat", BigInteger, nullable=False),
            Column("lease_ms", BigInteger, nullable=False),
            # The number of the first row of the batch that is on its way, and the ids of its rows.
            Column("number", BigInteger, nullable=False),
            Column("ids", _Long, nullable=False),
            **bytewise,
        )
