"""The table of a leased group in SQL: compare-and-set on one row at a time, many of them in one commit.

It may live in another database than the log, under a name that the user chooses; it is made when it is first
needed. Statements run on the driver's own cursor: a look at a hundred shards takes a millisecond.

Invariant: whoever changes what others wait for, draws numbers or makes rows, locks the group's sequence
first, and rows after it in the order of their keys. So no two wait for each other in a circle, rows are made
by one at a time, and a renewal, which needs neither, waits for nobody but another writer of its row.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.engine import Connection

from shoal.core.claims import is_at_end
from shoal.core.errors import NotOwner, StoreBusy, StoreFailure, StoreUnavailable
from shoal.core.lease import (
    Change,
    ChangeKind,
    InstanceRow,
    LeaseRow,
    Row,
    SequenceRow,
    numbered,
    saved_under,
)
from shoal.core.leasing import Outcome
from shoal.core.model import Shard, ShardId
from shoal.lease_port import Glance, LeaseNews, Tried
from shoal.ports import LeasedTouch
from shoal.store.sql.database import Database
from shoal.store.sql.dialects.dialect import Hints
from shoal.store.sql.lease_rows import RowShape, shapes
from shoal.store.sql.prepared import PreparedSelect, PreparedWrite

_BREATH_S: Final = 0.01
"""The shortest time between two looks."""
_NO_NEWS: Final = -1
"""Of a group that nobody has joined yet."""


class SQLLeaseTable:
    """See LiveTable.

    `_known`, `_news` and `_glanced_s` are of the last glance. Writer: whoever glances; a race costs a row
    read anew.
    """

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = name
        self._leases, self._instances, self._sequences = shapes(name)
        sequences = self._sequences.table
        of_group = sequences.c.consume_group == bindparam("of_group")
        self._find_news = PreparedSelect(select(sequences.c.news).where(of_group))
        self._highest = PreparedSelect(select(func.max(sequences.c.number).label("number")))
        self._advance = PreparedWrite(
            update(sequences)
            .where(of_group)
            .values(
                revision=sequences.c.revision + bindparam("drawings"),
                number=sequences.c.number + bindparam("numbers"),
                news=sequences.c.news + bindparam("more_news"),
            )
        )
        self._known: dict[int, LeaseRow] = {}
        self._news = _NO_NEWS
        self._glanced_s = 0.0
        self._with_sequence: set[str] = set()
        self._hints: Hints | None = None
        with database.write() as connection, database.dialect.migration_lock(connection):
            for shape in (self._leases, self._instances, self._sequences):
                shape.table.create(connection, checkfirst=True)

    # --- Looking. ---

    def list(self, group: str) -> Sequence[LeaseRow]:
        """See LeaseTable."""
        with self._database.read() as connection:
            return self._all_leases(connection, group)

    def load(self, group: str, shard: ShardId) -> LeaseRow | None:
        """See LeaseTable."""
        with self._database.read() as connection:
            found: LeaseRow | None = self._leases.find(connection, {"consume_group": group, "shard": shard})
        return found

    def instances(self, group: str) -> Sequence[InstanceRow]:
        """See LeaseTable."""
        with self._database.read() as connection:
            return [self._instances.to_row(columns) for columns in self._instances.columns(connection, group)]

    def sequence(self, group: str) -> SequenceRow | None:
        """See LeaseTable."""
        with self._database.read() as connection:
            found: SequenceRow | None = self._sequences.find(connection, {"consume_group": group})
        return found

    def glance(self, group: str) -> Glance:
        """See LiveTable."""
        return self.glimpse(group)[0]

    def place(self, group: str) -> LeaseNews:
        """See LiveTable."""
        return LeaseNews(self._name, group)

    def glimpse(self, group: str) -> tuple[Glance, int]:
        """See LiveTable. All as of one moment."""
        with self._database.read() as connection:
            leases = self._all_leases(connection, group)
            instances = [self._instances.to_row(row) for row in self._instances.columns(connection, group)]
            sequences = self._sequences.columns(connection, group)
        self._glanced_s = time.monotonic()
        news = self._news = sequences[0].news if sequences else _NO_NEWS
        sequence = self._sequences.to_row(sequences[0]) if sequences else SequenceRow(group=group)
        return Glance(leases, instances, sequence), news

    def news(self, groups: Sequence[str]) -> dict[str, int]:
        """How much news each group has had."""
        with self._database.read() as connection:
            found = {group: self._find_news.rows(connection, {"of_group": group}) for group in groups}
        return {group: rows[0].news if rows else _NO_NEWS for group, rows in found.items()}

    def _all_leases(self, connection: Connection, group: str) -> Sequence[LeaseRow]:
        """Most rows are as they were at the last look: what is compared by a swap names one state."""
        known = self._known

        def is_known(row: Any) -> bool:
            last = known.get(row.shard)
            return last is not None and (last.group, last.born, last.revision, last.epoch) == (
                group,
                row.born,
                row.revision,
                row.epoch,
            )

        found = [
            known[columns.shard] if is_known(columns) else self._leases.to_row(columns)
            for columns in self._leases.columns(connection, group)
        ]
        self._known = {row.shard: row for row in found}
        return found

    # --- Changing. ---

    def begin(self, group: str) -> None:
        """See LeaseTable."""
        self._ensure_sequence(group)

    def create(self, row: Row) -> bool:
        """See LeaseTable."""
        return self._alone(Change(kind=ChangeKind.CREATE, old=None, new=row))

    def swap(self, old: Row, new: Row) -> bool:
        """See LeaseTable."""
        return self._alone(Change(kind=ChangeKind.WATCH, old=old, new=new))

    def delete(self, row: Row) -> bool:
        """See LeaseTable."""
        return self._alone(Change(kind=ChangeKind.CLEAN, old=row, new=None))

    def attempt(self, group: str, changes: Sequence[Change], *, together: bool = False) -> Sequence[Tried]:
        """See LiveTable. All in one commit: if its answer is lost, so is that of each."""
        if not changes:
            return []
        try:
            return self._commit(group, changes, together=together)
        except StoreUnavailable:
            return [Tried(change, Outcome.UNKNOWN) for change in changes]
        except _NotAllError as error:
            return [Tried(one.change, Outcome.REFUSED, one.found or one.change.old) for one in error.tried]

    def save(
        self,
        connection: Connection,
        touch: LeasedTouch,
        shards: Mapping[ShardId, Shard],
    ) -> None:
        """Owners' checkpoints within a transaction of more, or an error. The rows are locked, so the look and
        the change are one."""
        ordered = sorted(touch.saves, key=lambda one: one.save.shard)
        ends = [
            is_at_end(shards[one.save.shard], one.save.offset) for one in ordered if one.save.shard in shards
        ]
        if any(ends):  # That is news, and whoever has some locks the sequence first.
            self._locked_number(connection, touch.key)
        is_news = False
        for one in ordered:
            shard = one.save.shard
            row = self._leases.find(connection, {"consume_group": touch.key, "shard": shard}, lock=True)
            if row is None or shard not in shards:
                raise NotOwner(shard=shard, consumer=f"epoch {one.save.epoch}", owner=None)
            after = saved_under(row, shards[shard], one.save, one.holder, stream=str(touch.stream))
            is_done = self._leases.swap(connection, row, after)
            assert is_done, "nobody changes a row that is locked"
            is_news = is_news or Change(kind=ChangeKind.SAVE, old=row, new=after).is_news
        self._move_on(connection, touch.key, 0, is_news=is_news)

    def _alone(self, change: Change) -> bool:
        row = change.old or change.new
        assert row is not None
        (tried,) = self._commit(row.group, [change])
        return tried.outcome is Outcome.DONE

    def _commit(self, group: str, changes: Sequence[Change], *, together: bool = False) -> Sequence[Tried]:
        numbers = sum(change.wants_number for change in changes)
        wants_sequence = numbers > 0 or any(change.is_news or change.old is None for change in changes)
        if wants_sequence:
            self._ensure_sequence(group)
        order = sorted(range(len(changes)), key=lambda place: self._turn(changes[place]))
        tried: dict[int, Tried] = {}
        with self._database.write() as connection:
            for place in order:
                if isinstance(changes[place].row, SequenceRow):
                    tried[place] = self._try(connection, changes[place])
            number = self._locked_number(connection, group) if wants_sequence else 0
            for place in order:
                change = changes[place]
                if change.wants_number:
                    number += 1
                    change = numbered(change, number)
                if place not in tried:
                    tried[place] = self._try(connection, change)
            is_news = any(one.outcome is Outcome.DONE and one.change.is_news for one in tried.values())
            self._move_on(connection, group, numbers, is_news=is_news)
            answers = [tried[place] for place in range(len(changes))]
            if together and any(one.outcome is Outcome.REFUSED for one in answers):
                raise _NotAllError(answers)
        return answers

    def _turn(self, change: Change) -> tuple[int, str, int]:
        """The order in which all who write several rows lock them."""
        match change.row:
            case SequenceRow():
                return (0, "", 0)
            case InstanceRow(name=name):
                return (1, name, 0)
            case LeaseRow(shard=shard):
                return (2, "", shard)

    def _try(self, connection: Connection, change: Change) -> Tried:
        shape = self._shape(change.row)
        old, new = change.old, change.new
        if old is None:
            found = shape.find(connection, shape.key_of(new))
            if found is not None:
                return Tried(change, Outcome.REFUSED, found)
            shape.create(connection, new)
            return Tried(change, Outcome.DONE)
        is_done = shape.delete(connection, old) if new is None else shape.swap(connection, old, new)
        if is_done:
            return Tried(change, Outcome.DONE)
        found = shape.find(connection, shape.key_of(old), lock=True) if change.wants_found else None
        return Tried(change, Outcome.REFUSED, found)

    def _shape(self, row: Row) -> RowShape:
        match row:
            case LeaseRow():
                return self._leases
            case InstanceRow():
                return self._instances
            case SequenceRow():
                return self._sequences

    # --- The sequence, and what is news. ---

    def _ensure_sequence(self, group: str) -> None:
        """See that the group has one. Locking what is not there would make MariaDB's creators block."""
        if group in self._with_sequence:
            return
        if self.sequence(group) is None:
            try:
                with self._database.write() as connection:
                    highest = self._highest.rows(connection, {})[0].number or 0
                    self._sequences.create(connection, SequenceRow(group=group, number=highest))
            except StoreFailure as error:
                if not isinstance(error.__cause__, self._database.engine.dialect.loaded_dbapi.IntegrityError):
                    raise  # Otherwise another was faster.
        self._with_sequence.add(group)

    def _locked_number(self, connection: Connection, group: str) -> int:
        """The last number that was given; nobody else draws, makes rows or has news until we commit."""
        found: SequenceRow | None = self._sequences.find(connection, {"consume_group": group}, lock=True)
        if found is None:
            self._with_sequence.discard(group)
            raise StoreBusy(f"the sequence of {group!r} is gone: the store has forgotten it", 0.0)
        return found.number

    def _move_on(self, connection: Connection, group: str, numbers: int, *, is_news: bool) -> None:
        if numbers or is_news:
            step = {"drawings": int(numbers > 0), "numbers": numbers, "more_news": int(is_news)}
            self._advance.run(connection, [{"of_group": group, **step}])
        if is_news:
            self._database.dialect.announce(connection, [f"l{group}"])

    def listen(self) -> None:
        """See LiveTable. The first wait for a hint opens the connection, and returns at once."""
        if self._hints is None:
            self._hints = self._database.dialect.hints(self._database.engine)
            with self._database.listening(self._hints):
                self._hints.wait()

    def wait(self, group: str, timeout_s: float) -> None:
        """See LiveTable. Every commit of anyone is a hint, so a counter of news says whether it was one."""
        deadline = time.monotonic() + timeout_s
        time.sleep(max(0.0, min(timeout_s, self._glanced_s + _BREATH_S - time.monotonic())))
        self.listen()
        assert self._hints is not None
        while time.monotonic() < deadline:
            with self._database.listening(self._hints):
                heard = self._hints.wait()
            if heard and self._is_news(group):
                self._hints.found()
                return

    def ring(self, group: str) -> None:
        """See LiveTable."""
        with self._database.write() as connection:
            self._move_on(connection, group, 0, is_news=True)

    def _is_news(self, group: str) -> bool:
        with self._database.read() as connection:
            found = self._find_news.rows(connection, {"of_group": group})
        return (found[0].news if found else _NO_NEWS) != self._news

    def close(self) -> None:
        """Give the waiting connection back."""
        if self._hints is not None:
            self._hints.close()
            self._hints = None


class _NotAllError(Exception):
    """Of changes that go together one was refused: nothing is committed."""

    def __init__(self, tried: Sequence[Tried]) -> None:
        super().__init__()
        self.tried = tried
