"""Forced checkpoints of a leased group: which rows they concern, and what becomes of each, one at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.core.claims import lineage_of
from shoal.core.errors import InvalidInput
from shoal.core.group import GroupSettings, default_interval_ms
from shoal.core.lease import Change, ChangeKind, InstanceRow, LeaseRow, created, rewound
from shoal.core.model import Shard, ShardId


def concerned(
    settings: GroupSettings, shards: Sequence[Shard], positions: Mapping[ShardId, int]
) -> list[ShardId]:
    """The shards that are named and, in order, all that come after them; parents first."""
    return sorted(lineage_of(shards, positions) if settings.in_order else positions)


def had_been_read(row: LeaseRow | None, offset: int | None) -> bool:
    """A shard that was not named, of which something had been consumed."""
    return row is not None and offset is None and row.checkpoint > 0


def reset(row: LeaseRow, shard: Shard, offset: int | None, number: int) -> LeaseRow:
    """The row under a new epoch: at the offset, or, if none is named, as it was saved."""
    return rewound(row, shard, row.checkpoint if offset is None else offset, number)


def beginning(
    group: str, settings: GroupSettings, shard: Shard, offset: int, rows: Sequence[LeaseRow]
) -> Change:
    """A row for a shard that nobody has looked at yet, at this offset."""
    if any(shard.id in other.parents for other in rows):
        raise InvalidInput(
            "shard",
            shard.id,
            "its lease was cleaned up after it and its children were consumed; name its children, or "
            "read it without a group",
        )
    born = {row.shard: row.born for row in rows}
    nobody = InstanceRow(
        group=group,
        name="hub",
        incarnation="hub",
        timeout_ms=settings.timeout_ms,
        interval_ms=default_interval_ms(settings.timeout_ms),
    )
    parents_born = tuple(born.get(parent, 0) for parent in shard.parents)
    row = created(group, shard, offset, owner=nobody, parents_born=parents_born, bound=settings.in_order)
    return Change(kind=ChangeKind.CREATE, old=None, new=row, wants_number=True)
