"""Rows of leased groups as SQL tables hold them: `NAME` for shards, `NAME_instance` for consumers,
`NAME_sequence`. And the statements on one row, each a compare-and-set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    bindparam,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.engine import Connection

from shoal.core.checkpoint import checkpoint_of, marks_text
from shoal.core.lease import InstanceRow, LeaseRow, SequenceRow
from shoal.core.limits import NAME_LENGTH_MAX
from shoal.core.model import ShardId
from shoal.store.sql.prepared import PreparedSelect, PreparedWrite

_KEY: Final = String(64)
_INCARNATION: Final = String(64)


class RowShape:
    """How rows of one kind are stored.

    `key` names a row; `state` with it names one state of the row, for ever, so that it is all a
    compare-and-set compares.
    """

    def __init__(
        self,
        *,
        table: Table,
        key: tuple[str, ...],
        state: tuple[str, ...],
        to_row: Callable[[Any], Any],
        to_columns: Callable[[Any], dict[str, Any]],
    ) -> None:
        self.table = table
        self._key, self._named = key, (*key, *state)
        self.to_row, self._to_columns = to_row, to_columns
        by_key = [table.c[name] == bindparam(f"is_{name}") for name in key]
        by_state = [table.c[name] == bindparam(f"is_{name}") for name in self._named]
        stored = [c.name for c in table.columns if c.name not in key and c.name not in _STAMPED_ONCE]
        self._insert = PreparedWrite(insert(table))
        self._update = PreparedWrite(
            update(table).where(*by_state).values({name: bindparam(f"to_{name}") for name in stored})
        )
        self._delete = PreparedWrite(delete(table).where(*by_state))
        self._find = PreparedSelect(select(table).where(*by_key))
        self._find_locked = PreparedSelect(select(table).where(*by_key).with_for_update())
        in_group = select(table).where(table.c.consume_group == bindparam("is_group"))
        self._list = PreparedSelect(in_group.order_by(*(table.c[name] for name in key)))

    def columns(self, connection: Connection, group: str) -> list[Any]:
        """The columns of all rows of a group: see `to_row`."""
        return self._list.rows(connection, {"is_group": group})

    def find(self, connection: Connection, key: Mapping[str, Any], *, lock: bool = False) -> Any | None:
        """The row of this key, as of now if it is locked."""
        wanted = {f"is_{name}": key[name] for name in self._key}
        found = (self._find_locked if lock else self._find).rows(connection, wanted)
        return self.to_row(found[0]) if found else None

    def key_of(self, row: Any) -> dict[str, Any]:
        columns = self._to_columns(row)
        return {name: columns[name] for name in self._key}

    def create(self, connection: Connection, row: Any) -> None:
        """Store a row whose key is not there."""
        self._insert.run(connection, [{**self._to_columns(row), **self._stamps(_STAMPED)}])

    def swap(self, connection: Connection, old: Any, new: Any) -> bool:
        """Store `new` if `old` is what is stored."""
        values = {**self._to_columns(new), **self._stamps(_STAMPED - _STAMPED_ONCE)}
        changed = {f"to_{name}": value for name, value in values.items() if name not in self._key}
        return self._update.run(connection, [{**changed, **self._is(old)}]) == 1

    def delete(self, connection: Connection, row: Any) -> bool:
        """Remove the row if it is what is stored."""
        return self._delete.run(connection, [self._is(row)]) == 1

    def _is(self, row: Any) -> dict[str, Any]:
        columns = self._to_columns(row)
        return {f"is_{name}": columns[name] for name in self._named}

    def _stamps(self, names: frozenset[str]) -> dict[str, int]:
        """Wall clocks, for people to read; and news begin at 0."""
        now_ms = time.time_ns() // 1_000_000
        return {name: 0 if name == "news" else now_ms for name in names if name in self.table.c}


_STAMPED: Final = frozenset({"update_time_ms", "create_time_ms", "news"})
_STAMPED_ONCE: Final = frozenset({"create_time_ms", "news"})
"""Columns that a change of the row leaves alone."""


def shapes(name: str) -> tuple[RowShape, RowShape, RowShape]:
    """The shapes of shards', consumers' and sequences' rows, in tables of this name."""
    metadata = MetaData()
    bytewise: dict[str, Any] = {
        "mysql_charset": "utf8mb4",
        "mysql_collate": "utf8mb4_bin",
        "mysql_engine": "InnoDB",
    }
    leases = Table(
        name,
        metadata,
        Column("consume_group", _KEY, primary_key=True),
        Column("shard", Integer, primary_key=True, autoincrement=False),
        Column("born", BigInteger, nullable=False),
        Column("revision", BigInteger, nullable=False),
        Column("lease_id", BigInteger, nullable=False),
        Column("lease_owner", _INCARNATION),
        Column("consumer_owner", _INCARNATION),
        Column("check_point", BigInteger, nullable=False),
        Column("marks", Text),
        Column("epoch", BigInteger, nullable=False),
        Column("owner_epoch", BigInteger, nullable=False),
        Column("parents", String(64), nullable=False),
        Column("parents_born", String(64), nullable=False),
        Column("timeout_ms", BigInteger, nullable=False),
        Column("interval_ms", BigInteger, nullable=False),
        Column("stood_ms", BigInteger, nullable=False),
        Column("waited_ms", BigInteger, nullable=False),
        Column("lapse_ms", BigInteger, nullable=False),
        Column("is_over", SmallInteger, nullable=False),
        Column("is_bound", SmallInteger, nullable=False),
        Column("update_time_ms", BigInteger, nullable=False),
        **bytewise,
    )
    instances = Table(
        f"{name}_instance",
        metadata,
        Column("consume_group", _KEY, primary_key=True),
        Column("name", String(NAME_LENGTH_MAX), primary_key=True),
        Column("incarnation", _INCARNATION, nullable=False),
        Column("revision", BigInteger, nullable=False),
        Column("counter", BigInteger, nullable=False),
        Column("timeout_ms", BigInteger, nullable=False),
        Column("interval_ms", BigInteger, nullable=False),
        Column("stood_ms", BigInteger, nullable=False),
        Column("is_taking", SmallInteger, nullable=False),
        Column("former", Text, nullable=False),
        Column("create_time_ms", BigInteger, nullable=False),
        **bytewise,
    )
    sequences = Table(
        f"{name}_sequence",
        metadata,
        Column("consume_group", _KEY, primary_key=True),
        Column("revision", BigInteger, nullable=False),
        Column("number", BigInteger, nullable=False),
        Column("distrusted", BigInteger, nullable=False),
        Column("distrust_ms", BigInteger, nullable=False),
        # Rises with every change that others wait for. Nobody compares and sets it.
        Column("news", BigInteger, nullable=False),
        **bytewise,
    )
    return (
        RowShape(
            table=leases,
            key=("consume_group", "shard"),
            state=("born", "revision", "epoch"),
            to_row=_lease,
            to_columns=_lease_columns,
        ),
        RowShape(
            table=instances,
            key=("consume_group", "name"),
            state=("incarnation", "revision"),
            to_row=_instance,
            to_columns=_instance_columns,
        ),
        RowShape(
            table=sequences,
            key=("consume_group",),
            state=("revision",),
            to_row=_sequence,
            to_columns=_sequence_columns,
        ),
    )


def _lease(row: Any) -> LeaseRow:
    return LeaseRow(
        group=row.consume_group,
        shard=ShardId(row.shard),
        born=row.born,
        revision=row.revision,
        lease_id=row.lease_id,
        lease_owner=row.lease_owner,
        consumer_owner=row.consumer_owner,
        checkpoint=checkpoint_of(row.check_point, row.marks),
        epoch=row.epoch,
        owner_epoch=row.owner_epoch,
        parents=tuple(ShardId(number) for number in _numbers(row.parents)),
        parents_born=tuple(_numbers(row.parents_born)),
        timeout_ms=row.timeout_ms,
        interval_ms=row.interval_ms,
        stood_ms=row.stood_ms,
        waited_ms=row.waited_ms,
        lapse_ms=row.lapse_ms,
        is_over=bool(row.is_over),
        is_bound=bool(row.is_bound),
        update_time_ms=row.update_time_ms,
    )


def _lease_columns(row: LeaseRow) -> dict[str, Any]:
    return {
        "consume_group": row.group,
        "shard": row.shard,
        "born": row.born,
        "revision": row.revision,
        "lease_id": row.lease_id,
        "lease_owner": row.lease_owner,
        "consumer_owner": row.consumer_owner,
        "check_point": int(row.checkpoint),
        "marks": marks_text(row.checkpoint),
        "epoch": row.epoch,
        "owner_epoch": row.owner_epoch,
        "parents": ",".join(map(str, row.parents)),
        "parents_born": ",".join(map(str, row.parents_born)),
        "timeout_ms": row.timeout_ms,
        "interval_ms": row.interval_ms,
        "stood_ms": row.stood_ms,
        "waited_ms": row.waited_ms,
        "lapse_ms": row.lapse_ms,
        "is_over": int(row.is_over),
        "is_bound": int(row.is_bound),
    }


def _instance(row: Any) -> InstanceRow:
    return InstanceRow(
        group=row.consume_group,
        name=row.name,
        incarnation=row.incarnation,
        revision=row.revision,
        counter=row.counter,
        timeout_ms=row.timeout_ms,
        interval_ms=row.interval_ms,
        stood_ms=row.stood_ms,
        is_taking=bool(row.is_taking),
        former=tuple(part for part in row.former.split(" ") if part),
        create_time_ms=row.create_time_ms,
    )


def _instance_columns(row: InstanceRow) -> dict[str, Any]:
    return {
        "consume_group": row.group,
        "name": row.name,
        "incarnation": row.incarnation,
        "revision": row.revision,
        "counter": row.counter,
        "timeout_ms": row.timeout_ms,
        "interval_ms": row.interval_ms,
        "stood_ms": row.stood_ms,
        "is_taking": int(row.is_taking),
        "former": " ".join(row.former),
    }


def _sequence(row: Any) -> SequenceRow:
    return SequenceRow(
        group=row.consume_group,
        revision=row.revision,
        number=row.number,
        distrusted=row.distrusted,
        distrust_ms=row.distrust_ms,
    )


def _sequence_columns(row: SequenceRow) -> dict[str, Any]:
    return {
        "consume_group": row.group,
        "revision": row.revision,
        "number": row.number,
        "distrusted": row.distrusted,
        "distrust_ms": row.distrust_ms,
    }


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]
