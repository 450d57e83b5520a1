"""The tables, once for all databases, and how they came to be: one migration per schema version.

A place on the ring is kept as 33 hexadecimal digits: it sorts as a number, and no database here has
128-bit integers. Names are compared byte by byte everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import (
    DDL,
    BigInteger,
    Column,
    ColumnElement,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    event,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles

from shoal.core.limits import NAME_LENGTH_MAX

metadata: Final = MetaData()

_BYTEWISE: Final[dict[str, Any]] = {
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mysql_engine": "InnoDB",
}
_Id: Final = BigInteger().with_variant(Integer, "sqlite")
_Blob: Final = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
_Text: Final = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_Name: Final = String(NAME_LENGTH_MAX)

meta: Final = Table(
    "shoal_meta",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
    **_BYTEWISE,
)

projects: Final = Table(
    "shoal_project",
    metadata,
    Column("name", _Name, primary_key=True),
    Column("created_ms", BigInteger, nullable=False),
    **_BYTEWISE,
)

streams: Final = Table(
    "shoal_stream",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("project", _Name, nullable=False),
    # A deleted stream is renamed until it is swept, so that its name is free at once.
    Column("name", String(NAME_LENGTH_MAX + 40), nullable=False),
    Column("is_deleted", SmallInteger, nullable=False, default=0),
    Column("version", BigInteger, nullable=False),
    Column("hash", String(16), nullable=False),
    Column("compression", String(16), nullable=False),
    Column("retention_ms", BigInteger),
    Column("retention_bytes", BigInteger),
    Column("schema", _Blob),
    Column("created_ms", BigInteger, nullable=False),
    UniqueConstraint("project", "name", name="shoal_stream_name"),
    sqlite_autoincrement=True,
    **_BYTEWISE,
)

shards: Final = Table(
    "shoal_shard",
    metadata,
    Column("stream_id", _Id, primary_key=True, autoincrement=False),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("range_begin", String(33), nullable=False),
    Column("range_end", String(33), nullable=False),
    Column("status", String(8), nullable=False),
    Column("parents", String(32), nullable=False),
    Column("first_offset", BigInteger, nullable=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("appended_ms", BigInteger, nullable=False),
    Column("top_timestamp_us", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("closed_ms", BigInteger),
    **_BYTEWISE,
)

batches: Final = Table(
    "shoal_batch",
    metadata,
    Column("stream_id", _Id, primary_key=True, autoincrement=False),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("base_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("records", Integer, nullable=False),
    Column("raw_bytes", Integer, nullable=False),
    Column("stored_bytes", Integer, nullable=False),
    Column("appended_ms", BigInteger, nullable=False),
    Column("top_timestamp_us", BigInteger, nullable=False),
    Column("layout", SmallInteger, nullable=False),
    # Last, so that SQLite finds the columns before it without walking the payload's pages.
    Column("payload", _Blob, nullable=False),
    **_BYTEWISE,
)

# PostgreSQL would try to compress what is compressed already, which takes longer than all the rest.
_EXTERNAL: Final = DDL(  # type: ignore[no-untyped-call]
    "ALTER TABLE shoal_batch ALTER COLUMN payload SET STORAGE EXTERNAL"
)
event.listen(batches, "after_create", _EXTERNAL.execute_if(dialect="postgresql"))


class _PayloadHandle(ColumnElement[Any]):
    """What `Dialect.payload` makes a batch's payload of."""

    inherit_cache = True


payload_handle: Final = _PayloadHandle()


@compiles(_PayloadHandle)
def _payload_itself(*_: Any, **__: Any) -> str:
    return "shoal_batch.payload"


@compiles(_PayloadHandle, "sqlite")
def _payload_row(*_: Any, **__: Any) -> str:
    return "shoal_batch.rowid"


producers: Final = Table(
    "shoal_producer",
    metadata,
    Column("stream_id", _Id, primary_key=True, autoincrement=False),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("producer", _Name, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("last_sequence", BigInteger, nullable=False),
    Column("recent", Text, nullable=False),
    Column("seen_ms", BigInteger, nullable=False),
    # Since version 3.
    Column("number", BigInteger),
    **_BYTEWISE,
)
producers_by_time: Final = Index("shoal_producer_seen", producers.c.seen_ms)

producer_names: Final = Table(
    "shoal_producer_name",
    metadata,
    Column("stream_id", _Id, primary_key=True, autoincrement=False),
    Column("producer", _Name, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("seen_ms", BigInteger, nullable=False),
    **_BYTEWISE,
)

delayed: Final = Table(
    "shoal_delayed",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("stream_id", _Id, nullable=False),
    Column("due_ms", BigInteger, nullable=False),
    Column("wait_ms", BigInteger),
    Column("place", String(33)),
    Column("records", Integer, nullable=False),
    Column("raw_bytes", Integer, nullable=False),
    Column("layout", SmallInteger, nullable=False),
    Column("payload", _Blob, nullable=False),
    sqlite_autoincrement=True,
    **_BYTEWISE,
)
delayed_by_time: Final = Index("shoal_delayed_due", delayed.c.due_ms, delayed.c.id)

groups: Final = Table(
    "shoal_group",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("stream_id", _Id, nullable=False),
    Column("name", _Name, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("in_order", SmallInteger, nullable=False),
    Column("timeout_ms", BigInteger, nullable=False),
    Column("handover_timeout_ms", BigInteger),
    Column("coordination", String(16), nullable=False),
    Column("delivery", String(16), nullable=False),
    Column("strategy", _Name, nullable=False),
    Column("lease_table", String(48)),
    Column("lease_store", String(32)),
    Column("failure", String(16)),
    Column("visibility_ms", BigInteger),
    Column("max_attempts", Integer),
    Column("key_ordered", SmallInteger, nullable=False),
    Column("unused_ms", BigInteger),
    Column("rules", Integer, nullable=False),
    Column("distrust_ms", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    UniqueConstraint("stream_id", "name", name="shoal_group_name"),
    sqlite_autoincrement=True,
    **_BYTEWISE,
)

members: Final = Table(
    "shoal_member",
    metadata,
    Column("group_id", _Id, primary_key=True, autoincrement=False),
    Column("incarnation", String(64), primary_key=True),
    Column("name", _Name, nullable=False),
    Column("status", String(8), nullable=False),
    Column("beat", BigInteger, nullable=False),
    Column("timeout_ms", BigInteger, nullable=False),
    Column("interval_ms", BigInteger, nullable=False),
    Column("stood_ms", BigInteger, nullable=False),
    Column("assigned", BigInteger, nullable=False),
    Column("held", BigInteger, nullable=False),
    Column("joined_ms", BigInteger, nullable=False),
    **_BYTEWISE,
)

claims: Final = Table(
    "shoal_claim",
    metadata,
    Column("group_id", _Id, primary_key=True, autoincrement=False),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("state", String(16), nullable=False),
    Column("checkpoint", BigInteger, nullable=False),
    Column("marks", Text),
    Column("epoch", BigInteger, nullable=False),
    Column("owner", String(64)),
    Column("owner_epoch", BigInteger, nullable=False),
    Column("next_owner", String(64)),
    Column("is_bound", SmallInteger, nullable=False),
    Column("restart", BigInteger),
    Column("handover_ms", BigInteger, nullable=False),
    Column("lapse_ms", BigInteger, nullable=False),
    # Wall clocks, for people to read; of the second it counts whether it is there (`Claim.is_told`).
    Column("since_ms", BigInteger, nullable=False),
    Column("saved_ms", BigInteger),
    **_BYTEWISE,
)
claims_by_owner: Final = Index("shoal_claim_owner", claims.c.group_id, claims.c.owner)

notes: Final = Table(
    "shoal_group_note",
    metadata,
    Column("group_id", _Id, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("consumer", _Name),
    Column("shard", Integer),
    Column("epoch", BigInteger),
    Column("detail", Text, nullable=False),
    **_BYTEWISE,
)

blocks: Final = Table(
    "shoal_block",
    metadata,
    Column("group_id", _Id, primary_key=True, autoincrement=False),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("error", Text, nullable=False),
    Column("since_ms", BigInteger, nullable=False),
    **_BYTEWISE,
)

shares: Final = Table(
    "shoal_share",
    metadata,
    Column("group_id", _Id, primary_key=True, autoincrement=False),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("version", BigInteger, nullable=False),
    Column("news", BigInteger, nullable=False),
    # For people to read.
    Column("since_ms", BigInteger, nullable=False),
    Column("state", _Blob, nullable=False),
    **_BYTEWISE,
)

positions: Final = Table(
    "shoal_position",
    metadata,
    Column("group_id", _Id, primary_key=True, autoincrement=False),
    Column("consumer", _Name, primary_key=True),
    Column("incarnation", String(64), nullable=False),
    Column("uses", BigInteger, nullable=False),
    Column("idle_ms", BigInteger, nullable=False),
    Column("offsets", _Text, nullable=False),
    # For people to read.
    Column("created_ms", BigInteger, nullable=False),
    Column("saved_ms", BigInteger, nullable=False),
    **_BYTEWISE,
)

sequences: Final = Table(
    "shoal_sequence",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("value", BigInteger, nullable=False),
    **_BYTEWISE,
)

stream_options: Final = Table(
    "shoal_stream_option",
    metadata,
    Column("stream_id", _Id, primary_key=True, autoincrement=False),
    Column("name", String(32), primary_key=True),
    Column("value", Text, nullable=False),
    **_BYTEWISE,
)
"""What few streams are told, and what came after the table of streams was released: each as JSON."""

users: Final = Table(
    "shoal_user",
    metadata,
    Column("name", _Name, primary_key=True),
    Column("created_ms", BigInteger, nullable=False),
    **_BYTEWISE,
)

access_keys: Final = Table(
    "shoal_access_key",
    metadata,
    Column("id", _Name, primary_key=True),
    Column("user_name", _Name, nullable=False),
    Column("is_enabled", SmallInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    # Encrypted, under a key that is not in the database.
    Column("sealed", _Blob, nullable=False),
    **_BYTEWISE,
)
access_keys_by_user: Final = Index("shoal_access_key_user", access_keys.c.user_name)

policies: Final = Table(
    "shoal_policy",
    metadata,
    Column("name", _Name, primary_key=True),
    Column("document", _Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    **_BYTEWISE,
)

attachments: Final = Table(
    "shoal_attachment",
    metadata,
    Column("user_name", _Name, primary_key=True),
    Column("policy", _Name, primary_key=True),
    **_BYTEWISE,
)

nonces: Final = Table(
    "shoal_nonce",
    metadata,
    Column("nonce", String(64), primary_key=True),
    Column("until_ms", BigInteger, nullable=False),
    **_BYTEWISE,
)
nonces_by_time: Final = Index("shoal_nonce_until", nonces.c.until_ms)

EPOCHS: Final = "epoch"
"""The sequence of the highest epoch that any group gave. Its row is made with the schema: who gives the first
epoch ever would otherwise meet another who does, in another group."""

PRODUCER_EPOCHS: Final = "producer"
"""The sequence of the highest epoch that any named producer was given."""

MIGRATIONS: Final[Sequence[Sequence[Table]]] = (
    (projects, streams, shards, batches),
    (producers,),
    (
        *(groups, members, claims, notes, blocks, shares, positions, sequences, stream_options),
        *(users, access_keys, policies, attachments, nonces, producer_names, delayed),
    ),
)
"""What each version added, from version 1 on. A released entry is never changed; a new one is appended."""

ADDED_COLUMNS: Final[Sequence[Sequence[Column[Any]]]] = ((), (), (producers.c.number,))
"""What each version added to tables of versions before it. Such a column may be null."""

SCHEMA_VERSION: Final = len(MIGRATIONS)
