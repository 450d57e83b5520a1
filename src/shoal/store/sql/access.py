"""Users, keys, policies and nonces in SQL. Secrets come here sealed, and leave sealed."""

from __future__ import annotations

import itertools
from typing import Any, Final

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from shoal.access_port import Grant
from shoal.core.access import AccessKey, Policy, User
from shoal.core.errors import (
    PolicyExists,
    PolicyInUse,
    StoreFailure,
    UnknownAccessKey,
    UnknownPolicy,
    UnknownUser,
    UserExists,
)
from shoal.core.model import StreamName
from shoal.store.sql import tables
from shoal.store.sql.database import Database

_users, _keys, _policies = tables.users.c, tables.access_keys.c, tables.policies.c
_attached, _nonces = tables.attachments.c, tables.nonces.c


class SQLAccess:
    """See AccessStore."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept = itertools.count()
        """Nonces. Any thread: to take the next number is one step."""

    def has_users(self) -> bool:
        """See AccessStore."""
        with self._database.read() as connection:
            return connection.execute(select(_users.name).limit(1)).first() is not None

    def grant(self, key_id: str) -> Grant | None:
        """See AccessStore."""
        with self._database.read() as connection:
            row = connection.execute(select(tables.access_keys).where(_keys.id == key_id)).one_or_none()
            if row is None:
                return None
            query = (
                select(_policies.document)
                .join(tables.attachments, _attached.policy == _policies.name)
                .where(_attached.user_name == row.user_name)
            )
            return Grant(key=_key_of(row), policies=list(connection.execute(query).scalars()))

    def keep_nonce(self, nonce: str, until_ms: int, now_ms: int) -> bool:
        """See AccessStore."""
        try:
            with self._database.write() as connection:
                connection.execute(insert(tables.nonces).values(nonce=nonce, until_ms=until_ms))
        except StoreFailure as error:
            if isinstance(error.__cause__, IntegrityError):
                return False
            raise
        # By our own count: what a client chooses, such as a date, must not keep them from being seen to.
        if next(self._kept) % PURGE_EVERY == 0:
            with self._database.write() as connection:
                connection.execute(delete(tables.nonces).where(_nonces.until_ms < now_ms))
        return True

    def group_place(self, group_id: int) -> tuple[StreamName, str] | None:
        """See AccessStore."""
        streams, groups = tables.streams.c, tables.groups.c
        query = (
            select(streams.project, streams.name.label("stream"), groups.name)
            .join(tables.groups, groups.stream_id == streams.id)
            .where(groups.id == group_id, streams.is_deleted == 0)
        )
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else (StreamName(row.project, row.stream), row.name)

    def stream_place(self, stream_id: int) -> StreamName | None:
        """See AccessStore."""
        streams = tables.streams.c
        query = select(streams.project, streams.name).where(streams.id == stream_id, streams.is_deleted == 0)
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else StreamName(row.project, row.name)

    # --- For administrators. ---

    def create_user(self, name: str, now_ms: int) -> None:
        """See AccessStore."""
        try:
            with self._database.write() as connection:
                connection.execute(insert(tables.users).values(name=name, created_ms=now_ms))
        except StoreFailure as error:
            if isinstance(error.__cause__, IntegrityError):
                raise UserExists(name) from error
            raise

    def list_users(self) -> list[User]:
        """See AccessStore."""
        with self._database.read() as connection:
            rows = connection.execute(select(tables.users).order_by(_users.name)).all()
            keys = connection.execute(select(_keys.user_name, _keys.id).order_by(_keys.id)).all()
            attached = connection.execute(select(tables.attachments).order_by(_attached.policy)).all()
        return [
            User(
                name=row.name,
                created_ms=row.created_ms,
                keys=tuple(key.id for key in keys if key.user_name == row.name),
                policies=tuple(one.policy for one in attached if one.user_name == row.name),
            )
            for row in rows
        ]

    def delete_user(self, name: str) -> None:
        """See AccessStore."""
        with self._database.write() as connection:
            _lock_user(connection, name)
            connection.execute(delete(tables.access_keys).where(_keys.user_name == name))
            connection.execute(delete(tables.attachments).where(_attached.user_name == name))
            connection.execute(delete(tables.users).where(_users.name == name))

    def create_key(self, key: AccessKey) -> None:
        """See AccessStore."""
        with self._database.write() as connection:
            _lock_user(connection, key.user)
            connection.execute(
                insert(tables.access_keys).values(
                    id=key.id,
                    user_name=key.user,
                    is_enabled=int(key.is_enabled),
                    created_ms=key.created_ms,
                    sealed=key.sealed,
                )
            )

    def list_keys(self, user: str | None) -> list[AccessKey]:
        """See AccessStore."""
        query = select(tables.access_keys).order_by(_keys.user_name, _keys.id)
        with self._database.read() as connection:
            if user is not None:
                if connection.execute(select(_users.name).where(_users.name == user)).first() is None:
                    raise UnknownUser(user)
                query = query.where(_keys.user_name == user)
            return [_key_of(row) for row in connection.execute(query)]

    def enable_key(self, key_id: str, is_enabled: bool) -> None:
        """See AccessStore."""
        with self._database.write() as connection:
            if connection.execute(select(_keys.id).where(_keys.id == key_id)).first() is None:
                raise UnknownAccessKey(key_id)
            change = update(tables.access_keys).where(_keys.id == key_id)
            connection.execute(change.values(is_enabled=int(is_enabled)))

    def delete_key(self, key_id: str) -> None:
        """See AccessStore."""
        with self._database.write() as connection:
            if not connection.execute(delete(tables.access_keys).where(_keys.id == key_id)).rowcount:
                raise UnknownAccessKey(key_id)

    def save_policy(self, name: str, text: str, now_ms: int, *, replace: bool) -> None:
        """See AccessStore."""
        try:
            with self._database.write() as connection:
                if replace and _is_policy(connection, name):
                    change = update(tables.policies).where(_policies.name == name)
                    connection.execute(change.values(document=text))
                    return
                made = insert(tables.policies).values(name=name, document=text, created_ms=now_ms)
                connection.execute(made)
        except StoreFailure as error:
            if isinstance(error.__cause__, IntegrityError):
                raise PolicyExists(name) from error
            raise

    def list_policies(self) -> list[Policy]:
        """See AccessStore."""
        with self._database.read() as connection:
            rows = connection.execute(select(tables.policies).order_by(_policies.name)).all()
            attached = connection.execute(select(tables.attachments).order_by(_attached.user_name)).all()
        return [
            Policy(
                name=row.name,
                text=row.document,
                created_ms=row.created_ms,
                users=tuple(one.user_name for one in attached if one.policy == row.name),
            )
            for row in rows
        ]

    def delete_policy(self, name: str) -> None:
        """See AccessStore."""
        with self._database.write() as connection:
            if not _is_policy(connection, name):
                raise UnknownPolicy(name)
            many = select(func.count()).where(_attached.policy == name)
            users = connection.execute(many).scalar_one()
            if users:
                raise PolicyInUse(name, users)
            connection.execute(delete(tables.policies).where(_policies.name == name))

    def attach(self, user: str, policy: str) -> None:
        """See AccessStore."""
        with self._database.write() as connection:
            if not self._is_attached(connection, user, policy):
                connection.execute(insert(tables.attachments).values(user_name=user, policy=policy))

    def detach(self, user: str, policy: str) -> None:
        """See AccessStore."""
        with self._database.write() as connection:
            if self._is_attached(connection, user, policy):
                where = (_attached.user_name == user, _attached.policy == policy)
                connection.execute(delete(tables.attachments).where(*where))

    def _is_attached(self, connection: Connection, user: str, policy: str) -> bool:
        """Locks both, so that neither goes away meanwhile."""
        _lock_user(connection, user)
        if not _is_policy(connection, policy):
            raise UnknownPolicy(policy)
        query = select(_attached.policy).where(_attached.user_name == user, _attached.policy == policy)
        return connection.execute(query).first() is not None


def _lock_user(connection: Connection, name: str) -> None:
    query = select(_users.name).where(_users.name == name).with_for_update()
    if connection.execute(query).first() is None:
        raise UnknownUser(name)


def _is_policy(connection: Connection, name: str) -> bool:
    query = select(_policies.name).where(_policies.name == name).with_for_update()
    return connection.execute(query).first() is not None


def _key_of(row: Any) -> AccessKey:
    return AccessKey(
        id=row.id,
        user=row.user_name,
        is_enabled=bool(row.is_enabled),
        created_ms=row.created_ms,
        sealed=bytes(row.sealed),
    )


PURGE_EVERY: Final = 256
"""One nonce in so many, and the first, sees to those whose time is over."""
