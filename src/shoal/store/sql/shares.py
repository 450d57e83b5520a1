"""Shared groups in SQL: one row for each shard, stepped under its lock, many acts in one commit."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import BigInteger, bindparam, func, insert, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from shoal.core.errors import ShoalError, StoreFailure, UnknownGroup
from shoal.core.limits import RETRIES_MAX
from shoal.core.model import Appended, Shard, ShardId
from shoal.core.share import ShareState, forgotten, step
from shoal.core.share_acts import Answer, Settled
from shoal.ports import AppendAnswer, AppendRequest
from shoal.share_port import ShareAnswer, ShareNews, ShareTouch, ShareView
from shoal.store.sql import tables
from shoal.store.sql.catalog import SHARD_COLUMNS, info_of, shard_of
from shoal.store.sql.database import Database
from shoal.store.sql.group_rows import group_of
from shoal.store.sql.log import appended
from shoal.store.sql.prepared import PreparedSelect, PreparedWrite
from shoal.wire.share_form import decoded, encoded

_log: Final = logging.getLogger("shoal.store")

_shares = tables.shares.c
_shards = tables.shards.c
_claims = tables.claims.c

_Where = tuple[int, ShardId]
_KNOWN: Final = 4096
"""Rows whose state is kept as it was read last: most are read again before they change."""


class SQLShares:
    """See ShareStore."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._share_states: dict[_Where, tuple[bytes, ShareState]] = {}

    def load_shares(self, group_id: int) -> ShareView | None:
        """See ShareStore."""
        with self._database.read() as connection:
            found = _GROUP.rows(connection, {"at": group_id})
            streams = _STREAM.rows(connection, {"at": found[0].stream_id}) if found else []
            if not found or not streams:
                return None
            shards = _SHARDS.rows(connection, {"at": found[0].stream_id})
            starts = _STARTS.rows(connection, {"at": group_id})
            rows = _SHARES.rows(connection, {"at": group_id})
        return ShareView(
            group=group_of(found[0]),
            stream=info_of(streams[0], tuple(map(shard_of, shards))),
            states={ShardId(row.shard): self._state_of(row) for row in rows},
            since_ms={ShardId(row.shard): row.since_ms for row in rows},
            starts={ShardId(row.shard): row.checkpoint for row in starts},
        )

    def add_shares(self, group_id: int, starts: Mapping[ShardId, int], now_ms: int) -> None:
        """See ShareStore."""
        for _ in range(RETRIES_MAX):
            try:
                return self._add_shares(group_id, starts, now_ms)
            except StoreFailure as error:
                if not isinstance(error.__cause__, IntegrityError):
                    raise
            # Another process made some of them between our look and our insert: now we see them.
        return self._add_shares(group_id, starts, now_ms)

    def _add_shares(self, group_id: int, starts: Mapping[ShardId, int], now_ms: int) -> None:
        with self._database.write() as connection:
            # The group's row is locked, so that nobody deletes it meanwhile.
            lock = select(tables.groups.c.id).where(tables.groups.c.id == group_id).with_for_update()
            if connection.execute(lock).scalar() is None:
                return
            there = set(
                connection.execute(select(_shares.shard).where(_shares.group_id == group_id)).scalars()
            )
            rows = [
                {
                    "group_id": group_id,
                    "shard": int(shard),
                    "version": 0,
                    "news": 0,
                    "since_ms": now_ms,
                    "state": encoded(ShareState(next=start)),
                }
                for shard, start in sorted(starts.items())
                if shard not in there
            ]
            if rows:
                connection.execute(insert(tables.shares), rows)

    def share(self, touches: Sequence[ShareTouch], now_ms: int) -> list[ShareAnswer]:
        """See ShareStore.

        A fault that has no better name is one act's own: nothing of this commit is in, so each is tried by
        itself, and only the one that brings the fault is answered with it.
        """
        try:
            return self._commit_shares(touches, now_ms)
        except StoreFailure:
            if len(touches) == 1:
                raise
            _log.warning("a commit of %s acts failed; each is tried by itself", len(touches), exc_info=True)
        answers: list[ShareAnswer] = []
        for touch in touches:
            try:
                answers += self._commit_shares([touch], now_ms)
            except ShoalError as error:
                answers.append(error)
        return answers

    def bury(
        self, touch: ShareTouch, letters: AppendRequest, now_ms: int
    ) -> tuple[ShareAnswer, AppendAnswer | None]:
        """See Store. The group's row is locked before the dead stream's, by whoever needs both."""
        try:
            with self._database.write() as connection:
                done = self._stepped(connection, [touch], now_ms)
                (answer,) = done.answers
                if isinstance(answer, ShoalError) or not _is_taken(answer[1]):
                    written: AppendAnswer | None = None
                else:
                    (written,) = appended(connection, self._database, [letters], now_ms)
                    if not isinstance(written, Appended):
                        raise _NotWrittenError(answer, written)
        except _NotWrittenError as error:
            return error.answer, error.written
        self._remember_shares(done.stored, done.changed)
        return answer, written

    def _commit_shares(self, touches: Sequence[ShareTouch], now_ms: int) -> list[ShareAnswer]:
        with self._database.write() as connection:
            done = self._stepped(connection, touches, now_ms)
        # Only now: what was rolled back must not be remembered.
        self._remember_shares(done.stored, done.changed)
        return done.answers

    def _stepped(self, connection: Connection, touches: Sequence[ShareTouch], now_ms: int) -> _Stepped:
        """Lock, ask the machine, save, within a transaction."""
        before = self._lock_shares(connection, touches)
        shards = _load_shards(connection, touches)
        states = dict(before)
        answers: list[ShareAnswer] = []
        for touch in touches:
            where = (touch.group_id, touch.shard)
            if where not in states or (touch.stream_id, touch.shard) not in shards:
                answers.append(UnknownGroup(stream="?", group=str(touch.group_id)))
                continue
            state = states[where]
            if touch.seen > state.version:
                state = forgotten(state, touch.seen)
            state, answer = step(
                state, touch.act, shards[touch.stream_id, touch.shard], touch.rules, touch.left
            )
            states[where] = state
            answers.append((state, answer))
        changed = {where: state for where, state in states.items() if state != before[where]}
        stored = _save(connection, changed, before, now_ms)
        told = {f"s{where[0]}" for where, state in changed.items() if state.news != before[where].news}
        self._database.dialect.announce(connection, sorted(told))
        return _Stepped(answers, stored, changed)

    def _lock_shares(self, connection: Connection, touches: Sequence[ShareTouch]) -> dict[_Where, ShareState]:
        """All in one order, so that two commits never wait for each other."""
        wanted: dict[int, set[int]] = {}
        for touch in touches:
            wanted.setdefault(touch.group_id, set()).add(int(touch.shard))
        return {
            (group_id, ShardId(row.shard)): self._state_of(row)
            for group_id in sorted(wanted)
            for row in _LOCKED.rows(connection, {"at": group_id, "wanted": sorted(wanted[group_id])})
        }

    def _state_of(self, row: Any) -> ShareState:
        where = (row.group_id, ShardId(row.shard))
        stored = row.state if isinstance(row.state, bytes) else bytes(row.state)
        known = self._share_states.get(where)
        if known is not None and known[1].version == row.version and known[0] == stored:
            return known[1]
        state = decoded(stored, version=row.version, news=row.news)
        self._remember_shares({where: stored}, {where: state})
        return state

    def _remember_shares(self, stored: Mapping[_Where, bytes], states: Mapping[_Where, ShareState]) -> None:
        if len(self._share_states) >= _KNOWN:
            self._share_states.clear()
        for where, state in states.items():
            self._share_states[where] = (stored[where], state)

    def share_news(self, places: Sequence[ShareNews]) -> dict[ShareNews, tuple[int, bool]]:
        """For each group that is there: how often there was news; that can always rise."""
        with self._database.read() as connection:
            rows = _NEWS.rows(connection, {"wanted": sorted({place.group_id for place in places})})
        return {ShareNews(row.group_id): (int(row.news), True) for row in rows}


class _Stepped(NamedTuple):
    """What a transaction has done, once it is committed."""

    answers: list[ShareAnswer]
    stored: Mapping[_Where, bytes]
    changed: Mapping[_Where, ShareState]


class _NotWrittenError(Exception):
    """The letters could not be appended: nothing of the transaction is kept."""

    def __init__(self, answer: ShareAnswer, written: AppendAnswer) -> None:
        super().__init__()
        self.answer, self.written = answer, written


def _is_taken(answer: Answer) -> bool:
    return isinstance(answer, Settled) and bool(answer.taken)


def _load_shards(connection: Connection, touches: Sequence[ShareTouch]) -> dict[tuple[int, ShardId], Shard]:
    """After the locks: MariaDB sees the moment of the first plain read."""
    wanted: dict[int, set[int]] = {}
    for touch in touches:
        wanted.setdefault(touch.stream_id, set()).add(int(touch.shard))
    return {
        (stream_id, ShardId(row.shard)): shard_of(row)
        for stream_id, shards in wanted.items()
        for row in _SOME_SHARDS.rows(connection, {"at": stream_id, "wanted": sorted(shards)})
    }


def _save(
    connection: Connection,
    changed: Mapping[_Where, ShareState],
    before: Mapping[_Where, ShareState],
    now_ms: int,
) -> dict[_Where, bytes]:
    stored = {where: encoded(state) for where, state in changed.items()}
    rows = [
        {
            "at": group_id,
            "of_shard": int(shard),
            "to_version": state.version,
            "to_news": state.news,
            "to_state": stored[group_id, shard],
            "now": now_ms if _has_turned(before[group_id, shard], state) else None,
        }
        for (group_id, shard), state in sorted(changed.items())
    ]
    _SAVE.run(connection, rows)
    return stored


def _has_turned(before: ShareState, after: ShareState) -> bool:
    """For people, who see since when records are in flight."""
    return bool(before.holders) != bool(after.holders)


_GROUP = PreparedSelect(select(tables.groups).where(tables.groups.c.id == bindparam("at")))
_STREAM = PreparedSelect(
    select(tables.streams).where(tables.streams.c.id == bindparam("at"), tables.streams.c.is_deleted == 0)
)
_SHARDS = PreparedSelect(
    select(*SHARD_COLUMNS).where(_shards.stream_id == bindparam("at")).order_by(_shards.shard)
)
_SOME_SHARDS = PreparedSelect(
    select(*SHARD_COLUMNS).where(
        _shards.stream_id == bindparam("at"), _shards.shard.in_(bindparam("wanted", expanding=True))
    )
)
_STARTS = PreparedSelect(select(_claims.shard, _claims.checkpoint).where(_claims.group_id == bindparam("at")))
_SHARES = PreparedSelect(
    select(tables.shares).where(_shares.group_id == bindparam("at")).order_by(_shares.shard)
)
_LOCKED = PreparedSelect(
    select(tables.shares)
    .where(_shares.group_id == bindparam("at"), _shares.shard.in_(bindparam("wanted", expanding=True)))
    .order_by(_shares.shard)
    .with_for_update()
)
_NEWS = PreparedSelect(
    select(_shares.group_id, func.sum(_shares.news).label("news"))
    .where(_shares.group_id.in_(bindparam("wanted", expanding=True)))
    .group_by(_shares.group_id)
)
_ONE = (_shares.group_id == bindparam("at"), _shares.shard == bindparam("of_shard"))
_SAVE = PreparedWrite(
    update(tables.shares)
    .where(*_ONE)
    .values(
        version=bindparam("to_version"),
        news=bindparam("to_news"),
        since_ms=func.coalesce(bindparam("now", type_=BigInteger), _shares.since_ms),
        state=bindparam("to_state"),
    )
)
