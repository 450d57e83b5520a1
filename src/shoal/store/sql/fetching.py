"""Reads of batches: from an offset on, as many as a read may bring.

Who keeps up reads a few small batches at a time, and each read must be cheap: one statement brings the shard,
the claim that fences the read, and the batches themselves if they are small. What it cannot bring is fetched
in a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import and_, bindparam, case, func, not_, select

from shoal.core.checkpoint import check_fence
from shoal.core.errors import StoreCorrupt, UnknownStream
from shoal.core.limits import OFFSET_MAX, READ_BATCHES_MAX
from shoal.core.model import Shard, StreamName
from shoal.core.reading import BatchMeta, ReadLimits, ReadPlan, check_offset, plan_read
from shoal.ports import Fence, Fetched, ShardEnd, StoredBatch
from shoal.store.sql import tables
from shoal.store.sql.catalog import SHARD_COLUMNS, shard_of
from shoal.store.sql.database import Database
from shoal.store.sql.prepared import PreparedSelect, Querying

_NOBODY: Final = -1
"""No group has this number."""
_FEW: Final = 8
"""Batches that are looked at first: enough for who keeps up, or for a few large ones."""
_TWO: Final = 2
"""Where each fills a read by itself: to look at one more takes a page of it from the disk."""
_SMALL: Final = 16_384
"""Bytes of a batch that comes along with the first look."""
_LARGE_MAX: Final = 10_000
"""Shards that are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """What a read asks for."""

    name: StreamName
    place: ShardEnd
    offset: int
    limits: ReadLimits
    fence: Fence | None = None

    @property
    def claimed(self) -> Fence | None:
        """What is checked against the group's claims; a lease is checked where the leases are."""
        return None if self.fence is None or self.fence.is_leased else self.fence

    @property
    def where(self) -> dict[str, int]:
        """The parameters of the statements."""
        return {
            "stream": self.place.stream_id,
            "at": self.place.shard,
            "offset": max(0, min(self.offset, OFFSET_MAX)),
            "group": _NOBODY if self.claimed is None else self.claimed.group_id,
        }


class Fetcher:
    """Reads of one database. It remembers which shards were last found to hold large batches, and how many
    of them are worth a look.

    Writer of `_large`: any thread; of two that disagree either is right, for a while.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._large: dict[ShardEnd, int] = {}

    def fetch(self, asked: Fetching) -> Fetched:
        """See LogStore."""
        if asked.place in self._large:
            return self._fetch_large(asked)
        with self._database.glance() as connection:
            front = _FRONTS[_FEW].rows(connection, asked.where)
        found = _checked(front, asked)
        if asked.offset == found.next_offset:
            return Fetched(shard=found, batches=(), end=asked.offset)
        seen = _seen(front, found, asked)
        if seen is not None:
            return seen
        if len(self._large) >= _LARGE_MAX:
            self._large.clear()
        self._large[asked.place] = _FEW
        return self._fetch_large(asked)

    def _fetch_large(self, asked: Fetching) -> Fetched:
        """The same of one moment, with as many statements as it takes."""
        few = self._large.get(asked.place, _FEW)
        with self._database.look() as connection:
            front = _FRONTS[few].rows(connection, asked.where)
            found = _checked(front, asked)
            if asked.offset == found.next_offset:
                self._large.pop(asked.place, None)  # Who has come to the end reads little at a time.
                return Fetched(shard=found, batches=(), end=asked.offset)
            first = front[0]
            holds = first.small is not None or first.payload is not None
            plan = _plan(connection, front, few, asked) if holds else None
            if plan is None:
                raise StoreCorrupt(
                    f"shard {found.id} of {asked.name} has no batch that holds offset {asked.offset}"
                )
            payload = first.small
            if payload is None:
                payload = self._database.dialect.payload(connection, first.payload)
            batches = [_stored(first, payload)]
            if plan.last_base > plan.first_base:
                rest = {**asked.where, "after": first.base_offset, "last": plan.last_base}
                batches += [_stored(row, row.payload) for row in _PAYLOADS.rows(connection, rest)]
            self._large[asked.place] = _TWO if len(batches) == 1 else _FEW
        return Fetched(shard=found, batches=batches, end=plan.end)


def _checked(front: Sequence[Any], asked: Fetching) -> Shard:
    """The shard, if it is there, has the offset, and may be read under the fence."""
    if not front:
        raise UnknownStream(str(asked.name))
    found = shard_of(front[0])
    if asked.claimed is not None:
        check_fence(None if front[0].epoch is None else front[0], found.id, asked.claimed.epoch)
    check_offset(asked.name, found, asked.offset)
    return found


def _seen(front: Sequence[Any], found: Shard, asked: Fetching) -> Fetched | None:
    """The read, if all of it came along; None: there is more to fetch."""
    if front[0].base_offset is None:
        return None
    metas = [meta_of(row) for row in front]
    plan = plan_read(metas, asked.offset, asked.limits)
    if plan is None or (len(metas) == _FEW and plan.last_base == metas[-1].base_offset):
        return None
    wanted = [row for row in front if row.base_offset <= plan.last_base]
    if any(row.small is None for row in wanted):
        return None
    batches = [_stored(row, row.small) for row in wanted]
    return Fetched(shard=found, batches=batches, end=plan.end)


def _plan(connection: Querying, front: Sequence[Any], few: int, asked: Fetching) -> ReadPlan | None:
    """A few batches usually fill a read. Who appends single records needs many looked at."""
    metas = [meta_of(row) for row in front]
    plan = plan_read(metas, asked.offset, asked.limits)
    if len(metas) < few or plan is None or plan.last_base < metas[-1].base_offset:
        return plan
    return plan_read(
        [meta_of(row) for row in _METAS.rows(connection, asked.where)], asked.offset, asked.limits
    )


def _stored(row: Any, payload: Any) -> StoredBatch:
    return StoredBatch(
        base_offset=row.base_offset,
        records=row.records,
        layout=row.layout,
        payload=payload if isinstance(payload, bytes) else bytes(payload),
    )


def meta_of(row: Any) -> BatchMeta:
    """What a row of `META_COLUMNS` says."""
    return BatchMeta(
        base_offset=row.base_offset,
        records=row.records,
        raw_bytes=row.raw_bytes,
        stored_bytes=row.stored_bytes,
        appended_ms=row.appended_ms,
    )


# Statements are built once, so that SQLAlchemy need not look at them again.
_shards = tables.shards.c
_batches = tables.batches.c
_claims = tables.claims.c

META_COLUMNS: Final = (
    _batches.base_offset,
    _batches.records,
    _batches.raw_bytes,
    _batches.stored_bytes,
    _batches.appended_ms,
)
_HOLDING = (
    select(func.max(_batches.base_offset))
    .where(
        _batches.stream_id == bindparam("stream"),
        _batches.shard == bindparam("at"),
        _batches.base_offset <= bindparam("offset"),
    )
    .scalar_subquery()
)
_METAS = PreparedSelect(
    select(*META_COLUMNS)
    .where(
        _batches.stream_id == bindparam("stream"),
        _batches.shard == bindparam("at"),
        _batches.base_offset >= _HOLDING,
    )
    .order_by(_batches.base_offset)
    .limit(READ_BATCHES_MAX)
)
_IS_AHEAD = _batches.base_offset + _batches.records > bindparam("offset")
_IS_SMALL = _batches.stored_bytes <= _SMALL
# The shard and its claim, once for each of the first few batches from the one that holds the offset on. Small
# ones come along; of a large one, its handle, if it holds the offset. To one who waits at the end comes none.
_front = (
    select(
        *SHARD_COLUMNS,
        *META_COLUMNS,
        _batches.layout,
        _claims.epoch,
        _claims.owner,
        _claims.owner_epoch,
        case((and_(_IS_SMALL, _IS_AHEAD), _batches.payload)).label("small"),
        case(
            (
                and_(not_(_IS_SMALL), _batches.base_offset <= bindparam("offset"), _IS_AHEAD),
                tables.payload_handle,
            )
        ).label("payload"),
    )
    .select_from(
        tables.shards.outerjoin(
            tables.claims,
            and_(_claims.group_id == bindparam("group"), _claims.shard == _shards.shard),
        ).outerjoin(
            tables.batches,
            and_(
                _batches.stream_id == _shards.stream_id,
                _batches.shard == _shards.shard,
                _batches.base_offset >= _HOLDING,
            ),
        )
    )
    .where(_shards.stream_id == bindparam("stream"), _shards.shard == bindparam("at"))
    .order_by(_batches.base_offset)
)
_FRONTS = {few: PreparedSelect(_front.limit(few)) for few in (_TWO, _FEW)}
_PAYLOADS = PreparedSelect(
    select(_batches.base_offset, _batches.records, _batches.layout, _batches.payload)
    .where(
        _batches.stream_id == bindparam("stream"),
        _batches.shard == bindparam("at"),
        _batches.base_offset > bindparam("after"),
        _batches.base_offset <= bindparam("last"),
    )
    .order_by(_batches.base_offset)
)
