"""The outbox that users write to, through the connection of their own transaction.

Invariant: a record is there exactly if the transaction was committed. Everything that could keep it from
being sent later is checked here, while the transaction can still be given up.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from shoal.core.errors import InvalidInput
from shoal.core.names import stream_name
from shoal.core.ring import checked_hash, key_bytes
from shoal.outbox.tables import BYTES, JSON, OutboxTables
from shoal.outbox.writing import DIALECTS, ddl, writer_of
from shoal.wire.fitting import check_headers, check_size, headers_size
from shoal.wire.record import Record
from shoal.wire.timestamps import timestamp_ms

DEFAULT_TABLE = "shoal_outbox"


class Outbox:
    """An outbox by the name of its table. Holds no connection and no state."""

    def __init__(self, table: str = DEFAULT_TABLE) -> None:
        self.tables = OutboxTables(table)

    def create(self, connection: Any) -> None:
        """Make the tables, unless they are there. Commit it, and do so before the first `add`."""
        writer = writer_of(connection)
        writer.create(self.tables.waiting)
        writer.create(self.tables.relay)
        if writer.is_empty(self.tables.relay):
            row = {
                "name": RELAY,
                "producer": f"outbox-{secrets.token_hex(8)}",
                "holder": None,
                "beat": 0,
                "lease_ms": 0,
                "number": 0,
                "ids": "",
            }
            writer.insert(self.tables.relay, [row])

    def ddl(self, database: str) -> list[str]:
        """The statements that make the tables on `sqlite`, `postgresql` or `mariadb`, to look at or to keep
        with your own. `create` adds the one row that the relay needs."""
        if database not in DIALECTS:
            raise InvalidInput("database", database, f"one of {', '.join(DIALECTS)}")
        dialect = DIALECTS[database]()
        return [ddl(table, dialect) for table in (self.tables.waiting, self.tables.relay)]

    def add(
        self,
        connection: Any,
        stream: str,
        value: bytes | str | Mapping[str, Any] | None,
        key: bytes | str | None = None,
        *,
        timestamp: int | datetime | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        hash_key: int | str | None = None,
        deliver_at: int | datetime | None = None,
    ) -> None:
        """Write one record, as `Producer.send` takes it, in the transaction of this connection.

        It is sent once that is committed. Records of one key are sent in the order in which transactions
        that wait for each other were committed: add the record after the statement that locks what it is
        about.
        """
        row = row_of(
            stream,
            value,
            key,
            timestamp=timestamp,
            headers=headers,
            hash_key=hash_key,
            deliver_at=deliver_at,
        )
        writer_of(connection).insert(self.tables.waiting, [row])

    def add_all(self, connection: Any, stream: str, records: Iterable[Record]) -> int:
        """Write several at once; how many."""
        rows = [
            row_of(
                stream,
                record.value,
                record.key,
                timestamp=record.timestamp,
                headers=record.headers,
                hash_key=None,
                deliver_at=None,
            )
            for record in records
        ]
        if rows:
            writer_of(connection).insert(self.tables.waiting, rows)
        return len(rows)


RELAY = "relay"


def row_of(
    stream: str,
    value: bytes | str | Mapping[str, Any] | None,
    key: bytes | str | None,
    *,
    timestamp: int | datetime | None,
    headers: Mapping[str, bytes | str] | None,
    hash_key: int | str | None,
    deliver_at: int | datetime | None,
) -> dict[str, Any]:
    """A record as it waits."""
    kept_key, kept_headers = key_bytes(key), check_headers(headers)
    kept, form = _value(value)
    check_size(len(kept or b"") + len(kept_key or b"") + headers_size(kept_headers or {}))
    return {
        "stream": str(stream_name(stream)),
        "key": kept_key,
        "value": kept,
        "form": form,
        "headers": headers_text(kept_headers),
        "timestamp_ms": time.time_ns() // 1_000_000 if timestamp is None else timestamp_ms(timestamp),
        "hash_key": None if hash_key is None else f"{checked_hash(hash_key):032x}",
        "deliver_at_ms": None if deliver_at is None else timestamp_ms(deliver_at, "deliver_at"),
    }


def _value(value: object) -> tuple[bytes | None, int]:
    match value:
        case None | bytes():
            return value, BYTES
        case str():
            return key_bytes(value), BYTES
        case Mapping():
            try:
                return json.dumps(dict(value), allow_nan=False).encode(), JSON
            except (TypeError, ValueError) as error:
                raise InvalidInput(
                    "value", value, f"a row waits as JSON ({error}); give text and numbers"
                ) from error
    raise InvalidInput("value", type(value).__name__, "bytes or str, or a dict for a typed stream")


def headers_text(headers: Mapping[str, bytes] | None) -> str | None:
    """Headers as they wait. Every byte is a character, so that none is lost."""
    if not headers:
        return None
    return json.dumps({name: value.decode("latin-1") for name, value in headers.items()})


def headers_of(text: str | None) -> dict[str, bytes] | None:
    """The same, read back."""
    if text is None:
        return None
    return {name: value.encode("latin-1") for name, value in json.loads(text).items()}
