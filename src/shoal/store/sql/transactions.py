"""What is one commit in SQL: a producer's transaction; delayed records that leave for their shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import delete

from shoal.core.appending import check_fenced, is_named
from shoal.core.model import Appended
from shoal.ports import AppendAnswer, AppendRequest, LeasedTouch, ProducerLife, Touch
from shoal.store.sql import tables
from shoal.store.sql.database import Database
from shoal.store.sql.leases import SQLLeaseTable
from shoal.store.sql.log import append_all
from shoal.store.sql.producers import lock_life
from shoal.store.sql.touches import save_all


class SQLTransactions:
    """The part of Store that is about transactions."""

    def __init__(self, database: Database, leases: Callable[[str], SQLLeaseTable]) -> None:
        """`leases`: the table of leased groups that has this name."""
        self._database, self._leases = database, leases

    def transact(
        self,
        life: ProducerLife,
        requests: Sequence[AppendRequest],
        touches: Sequence[Touch | LeasedTouch],
        now_ms: int,
    ) -> tuple[list[AppendAnswer], list[int]]:
        """See Store. Shards are locked before claims, as by who deletes a stream; claims, and the rows of
        leased groups, in one order: nobody who has locked one of those waits for a shard."""
        ordered = sorted(touches, key=lambda touch: touch.group_id)
        # Before it begins: a table that is not known yet is made by a commit of its own.
        leased = {
            touch.group_id: self._leases(touch.table).save
            for touch in ordered
            if isinstance(touch, LeasedTouch)
        }
        try:
            with self._database.write() as connection:
                answers, new = append_all(connection, self._database, requests, now_ms)
                if is_named(life.producer):
                    opened = lock_life(connection, life.stream_id, life.producer)
                    check_fenced(life.producer, life.epoch, opened)
                if not all(isinstance(answer, Appended) for answer in answers):
                    raise _RefusedError(answers)
                # All that is stored already was committed with its checkpoints.
                is_first = new > 0 or not requests
                ends = save_all(connection, ordered, leased, now_ms) if is_first else [0] * len(ordered)
        except _RefusedError as refused:
            return refused.answers, []
        by_group = {touch.group_id: count for touch, count in zip(ordered, ends, strict=True)}
        return answers, [by_group[touch.group_id] for touch in touches]

    def deliver(
        self, ids: Sequence[int], requests: Sequence[AppendRequest], now_ms: int
    ) -> Sequence[AppendAnswer] | None:
        """See Store. Who is second waits for the first, and does not find the rows any more. Shards come
        before rows, as they do for who deletes a stream."""
        try:
            with self._database.write() as connection:
                answers, _ = append_all(connection, self._database, requests, now_ms)
                if not all(isinstance(answer, Appended) for answer in answers):
                    raise _RefusedError(answers)
                some = tables.delayed.c.id.in_(list(ids))
                if connection.execute(delete(tables.delayed).where(some)).rowcount != len(ids):
                    raise _RefusedError([])
        except _RefusedError as refused:
            return refused.answers or None
        return answers


class _RefusedError(Exception):
    """Something is not as it should be: nothing of the transaction is kept."""

    def __init__(self, answers: list[AppendAnswer]) -> None:
        super().__init__()
        self.answers = answers
