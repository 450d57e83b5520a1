"""The table of a leased group in SQL: compare-and-set on one row at a time, by its revision.

It may live in another database than the log, under a name that the user chooses. The tables are made when
they are first needed: `NAME` for shards, `NAME_instance` for consumers, `NAME_sequence`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Column,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    Update,
    bindparam,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from shoal.core.errors import StoreUnavailable
from shoal.core.lease import Change, ChangeKind, InstanceRow, LeaseRow, Row, SequenceRow
from shoal.core.leasing import Outcome
from shoal.core.limits import NAME_LENGTH_MAX
from shoal.core.model import ShardId
from shoal.store.sql.database import Database
from shoal.store.sql.dialects.dialect import Hints
from shoal.store.sql.prepared import PreparedSelect

_KEY = String(64)
_INCARNATION = String(64)
_BREATH_S = 0.01
"""The shortest time between two looks."""


class SQLLeaseTable:
    """See LeaseTable."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._leases, self._instances, self._sequences = _tables(name)
        leases, instances, sequences = self._leases.c, self._instances.c, self._sequences.c
        of_group: BindParameter[str] = bindparam("of_group")
        all_leases = select(self._leases).where(leases.consume_group == of_group)
        self._all_leases = PreparedSelect(all_leases.order_by(leases.shard))
        self._one_lease = PreparedSelect(all_leases.where(leases.shard == bindparam("at")))
        self._all_instances = PreparedSelect(
            select(self._instances).where(instances.consume_group == of_group)
        )
        self._one_sequence = PreparedSelect(
            select(self._sequences).where(sequences.consume_group == of_group)
        )
        self._known: dict[int, LeaseRow] = {}
        self._hints: Hints | None = None
        self._news: int | None = None
        with database.write() as connection, database.dialect.migration_lock(connection):
            for table in (self._leases, self._instances, self._sequences):
                table.create(connection, checkfirst=True)

    def list(self, group: str) -> Sequence[LeaseRow]:
        """See LeaseTable."""
        with self._database.read() as connection:
            found = self._all_leases.rows(connection, {"of_group": group})
        # Most rows are as they were: (born, revision) names one state for ever.
        known = self._known
        self._known = {
            row.shard: last
            if (last := known.get(row.shard)) is not None
            and (last.group, last.born, last.revision) == (group, row.born, row.revision)
            else _lease(row)
            for row in found
        }
        return list(self._known.values())

    def load(self, group: str, shard: ShardId) -> LeaseRow | None:
        """See LeaseTable."""
        with self._database.read() as connection:
            found = self._one_lease.rows(connection, {"of_group": group, "at": shard})
        return _lease(found[0]) if found else None

    def instances(self, group: str) -> Sequence[InstanceRow]:
        """See LeaseTable."""
        with self._database.read() as connection:
            return [_instance(row) for row in self._all_instances.rows(connection, {"of_group": group})]

    def sequence(self, group: str) -> SequenceRow | None:
        """See LeaseTable."""
        with self._database.read() as connection:
            found = self._one_sequence.rows(connection, {"of_group": group})
        return _sequence(found[0]) if found else None

    def create(self, row: Row) -> bool:
        """See LeaseTable."""
        return self._alone(Change(kind=ChangeKind.CREATE, old=None, new=row))

    def swap(self, old: Row, new: Row) -> bool:
        """See LeaseTable."""
        return self._alone(Change(kind=ChangeKind.WATCH, old=old, new=new))

    def delete(self, row: Row) -> bool:
        """See LeaseTable."""
        return self._alone(Change(kind=ChangeKind.CLEAN, old=row, new=None))

    def _alone(self, change: Change) -> bool:
        with self._database.write() as connection:
            return self._try(connection, change)

    def attempt(self, changes: Sequence[Change]) -> Sequence[Outcome]:
        """See LiveTable. All in one commit: if its answer is lost, so is that of each."""
        outcomes = []
        try:
            with self._database.write() as connection:
                for change in changes:
                    is_done = self._try(connection, change)
                    outcomes.append(Outcome.DONE if is_done else Outcome.REFUSED)
        except StoreUnavailable:
            return [Outcome.UNKNOWN] * len(changes)
        return outcomes

    def _try(self, connection: Connection, change: Change) -> bool:
        old, new = change.old, change.new
        if old is None:
            assert new is not None
            table, key, values = self._placed(new)
            try:
                with connection.begin_nested():
                    connection.execute(insert(table).values(**key, **values, **_stamp(new)))
            except IntegrityError:
                return False
        else:
            table, _, _ = self._placed(old)
            statement = delete(table) if new is None else self._changed_to(new)
            if connection.execute(statement.where(*self._is(old))).rowcount != 1:
                return False
        row = new or old
        assert row is not None
        self._announce(connection, row, old if new is not None else None)
        return True

    def _changed_to(self, new: Row) -> Update:
        table, _, values = self._placed(new)
        stamp = _stamp(new) if isinstance(new, LeaseRow) else {}
        return update(table).values(**values, **stamp)

    def wait(self, group: str, timeout_s: float) -> None:
        """See LiveTable. Every renewal is a hint, so a counter of real news says whether it was one."""
        deadline = time.monotonic() + timeout_s
        time.sleep(min(timeout_s, _BREATH_S))
        if self._hints is None:
            self._hints = self._database.dialect.hints(self._database.engine)
        while time.monotonic() < deadline:
            with self._database.listening(self._hints):
                heard = self._hints.wait()
            if heard and self._is_news(group):
                self._hints.found()
                return

    def _is_news(self, group: str) -> bool:
        query = select(self._sequences.c.news).where(self._sequences.c.consume_group == group)
        with self._database.read() as connection:
            news = connection.execute(query).scalar()
        is_new = news is None or news != self._news
        self._news = news
        return is_new

    def close(self) -> None:
        """Give the waiting connection back."""
        if self._hints is not None:
            self._hints.close()
            self._hints = None

    def _announce(self, connection: Connection, row: Row, old: Row | None = None) -> None:
        """Only what others wait for: who has a shard or is to have it, and who is there."""
        if _is_told(row, old):
            of_group = self._sequences.c.consume_group == row.group
            connection.execute(
                update(self._sequences).where(of_group).values(news=self._sequences.c.news + 1)
            )
            self._database.dialect.announce(connection, [f"l{row.group}"])

    def _placed(self, row: Row) -> tuple[Table, dict[str, Any], dict[str, Any]]:
        """The table of a row, its key, and its values."""
        match row:
            case LeaseRow():
                key: dict[str, Any] = {"consume_group": row.group, "shard": row.shard}
                return self._leases, key, _lease_values(row)
            case InstanceRow():
                return self._instances, {"consume_group": row.group, "name": row.name}, _instance_values(row)
            case SequenceRow():
                return self._sequences, {"consume_group": row.group}, _sequence_values(row)

    def _is(self, row: Row) -> Sequence[Any]:
        """That the stored row is this one: what names a state for ever is enough."""
        match row:
            case LeaseRow():
                found = self._leases.c
                return [
                    found.consume_group == row.group,
                    found.shard == row.shard,
                    found.born == row.born,
                    found.revision == row.revision,
                ]
            case InstanceRow():
                instance = self._instances.c
                return [
                    instance.consume_group == row.group,
                    instance.name == row.name,
                    instance.incarnation == row.incarnation,
                    instance.revision == row.revision,
                ]
            case SequenceRow():
                sequence = self._sequences.c
                return [sequence.consume_group == row.group, sequence.revision == row.revision]


def _tables(name: str) -> tuple[Table, Table, Table]:
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
    return leases, instances, sequences


def _is_told(row: Row, old: Row | None) -> bool:
    """Renewals, beats and watches are no news, nor are numbers that were drawn."""
    match row, old:
        case (SequenceRow(), _):
            return False
        case (LeaseRow(), LeaseRow()):
            return _hands(row) != _hands(old)
        case (InstanceRow(), InstanceRow()):
            return (row.incarnation, row.is_taking) != (old.incarnation, old.is_taking)
        case _:
            return True


def _hands(row: LeaseRow) -> tuple[str | None, str | None, int, bool]:
    return (row.lease_owner, row.consumer_owner, row.epoch, row.is_over)


def _stamp(row: Row) -> dict[str, Any]:
    """Wall clocks, for people to read."""
    now_ms = time.time_ns() // 1_000_000
    match row:
        case LeaseRow():
            return {"update_time_ms": now_ms}
        case InstanceRow():
            return {"create_time_ms": now_ms}
        case SequenceRow():
            return {"news": 0}


def _lease(row: Any) -> LeaseRow:
    return LeaseRow(
        group=row.consume_group,
        shard=ShardId(row.shard),
        born=row.born,
        revision=row.revision,
        lease_id=row.lease_id,
        lease_owner=row.lease_owner,
        consumer_owner=row.consumer_owner,
        checkpoint=row.check_point,
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


def _lease_values(row: LeaseRow) -> dict[str, Any]:
    return {
        "born": row.born,
        "revision": row.revision,
        "lease_id": row.lease_id,
        "lease_owner": row.lease_owner,
        "consumer_owner": row.consumer_owner,
        "check_point": row.checkpoint,
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


def _instance_values(row: InstanceRow) -> dict[str, Any]:
    return {
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


def _sequence_values(row: SequenceRow) -> dict[str, Any]:
    return {
        "revision": row.revision,
        "number": row.number,
        "distrusted": row.distrusted,
        "distrust_ms": row.distrust_ms,
    }


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]
