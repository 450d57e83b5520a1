"""Leased groups as people see them from the hub: described, reset, deleted. Their consumers decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shoal.core.checkpoint import Save
from shoal.core.claims import lineage_of
from shoal.core.errors import GroupInUse, InvalidInput, StoreBusy
from shoal.core.group import Group
from shoal.core.lease import (
    Change,
    ChangeKind,
    InstanceRow,
    check_epoch,
    created,
    numbered,
    rewound,
    saved,
)
from shoal.core.lease_view import as_group
from shoal.core.limits import STEP_TRIES_MAX
from shoal.core.lineage import find_shard
from shoal.core.model import ShardId, StreamInfo
from shoal.lease_port import draw
from shoal.ports import LeasedGroup, Store


class LeasedGroups:
    """What a hub does with the table of a leased group."""

    def __init__(self, store: Store, leases: Store) -> None:
        self._store = store
        self._leases = leases
        self._known: dict[int, LeasedGroup] = {}

    def opened(self, group: Group) -> LeasedGroup:
        """Its table, its key in there, and where it began. Remembered: none of that changes."""
        known = self._known.get(group.id)
        if known is None:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            known = self._known[group.id] = self._open(group)
        return known

    def joined(self, group: Group) -> LeasedGroup:
        """The same for one more member, which waits on the table by itself."""
        return self._open(group)

    def _open(self, group: Group) -> LeasedGroup:
        loaded = self._store.load_group(group.id)
        starts = {} if loaded is None else {claim.shard: claim.checkpoint for claim in loaded[0].claims}
        return LeasedGroup(
            table=self._leases.lease_table(group.settings.lease_table or DEFAULT_TABLE),
            key=f"{self._store.identity}-{group.id}",
            starts=starts,
        )

    def viewed(self, group: Group, stream: StreamInfo) -> Group:
        """The group as its rows say."""
        leased = self.opened(group)
        rows, instances = leased.table.list(leased.key), leased.table.instances(leased.key)
        return as_group(group, rows, instances, stream.shards, leased.starts)

    def rewind(self, group: Group, stream: StreamInfo, positions: Mapping[ShardId, int]) -> list[ShardId]:
        """Forced checkpoints, one row after the other, parents first; which descendants had been read."""
        leased = self.opened(group)
        family = lineage_of(stream.shards, positions) if group.settings.in_order else set(positions)
        read: list[ShardId] = []
        for shard in sorted(family):
            offset = positions.get(shard)
            for _ in range(STEP_TRIES_MAX):
                row = leased.table.load(leased.key, shard)
                if row is None and offset is not None:
                    if self._create(group, leased, stream, shard, offset):
                        break
                    continue
                if row is None:
                    break
                if offset is None and row.checkpoint > 0:
                    read = [*(one for one in read if one != shard), shard]
                target = row.checkpoint if offset is None else offset
                (number,) = draw(leased.table, leased.key, 1)
                if leased.table.swap(row, rewound(row, stream.shards[shard], target, number)):
                    break
            else:
                raise StoreBusy(f"shard {shard} of {group.name} changes faster than we can follow", 0.0)
        return read

    def _create(
        self, group: Group, leased: LeasedGroup, stream: StreamInfo, shard: ShardId, offset: int
    ) -> bool:
        """A lease for a shard that nobody has looked at yet, at this offset."""
        rows = leased.table.list(leased.key)
        known = {row.shard: row.born for row in rows}
        if any(shard in other.parents for other in rows):
            raise InvalidInput(
                "shard",
                shard,
                "its lease was cleaned up after it and its children were consumed; name its children, or "
                "read it without a group",
            )
        settings = group.settings
        hub = InstanceRow(
            group=leased.key,
            name="hub",
            incarnation="hub",
            timeout_ms=settings.timeout_ms,
            interval_ms=max(1, settings.timeout_ms // 4),
        )
        row = created(
            leased.key,
            stream.shards[shard],
            offset,
            owner=hub,
            parents_born=tuple(known.get(parent, 0) for parent in stream.shards[shard].parents),
            bound=settings.in_order,
        )
        change = Change(kind=ChangeKind.CREATE, old=None, new=row, wants_number=True)
        made = numbered(change, draw(leased.table, leased.key, 1)[0]).new
        assert made is not None
        return leased.table.create(made)

    def save(self, group: Group, stream: StreamInfo, saves: Sequence[Save]) -> None:
        """Checkpoints of whoever shows the current epochs, one after the other."""
        leased = self.opened(group)
        for save in saves:
            shard = find_shard(stream, save.shard)
            for _ in range(STEP_TRIES_MAX):
                row = check_epoch(leased.table.load(leased.key, shard.id), shard.id, save.epoch)
                holder = row.consumer_owner or ""
                if leased.table.swap(row, saved(row, shard, holder, save.epoch, save.offset)):
                    break
            else:
                raise StoreBusy(f"shard {shard.id} of {group.name} changes faster than we can follow", 0.0)

    def check_read(self, group: Group, shard: ShardId, epoch: int) -> None:
        """Refuse a read under an epoch that is not the current one."""
        leased = self.opened(group)
        check_epoch(leased.table.load(leased.key, shard), shard, epoch)

    def delete(self, group: Group, *, force: bool) -> None:
        """Remove its rows. The sequence stays: nothing that was given comes again."""
        leased = self.opened(group)
        instances = leased.table.instances(leased.key)
        users = sorted(row.name for row in instances if not row.is_dead)
        if users and not force:
            raise GroupInUse(group=group.name, consumers=users)
        self._store.delete_group(group.id)
        for lease in leased.table.list(leased.key):
            leased.table.delete(lease)
        for instance in instances:
            leased.table.delete(instance)


DEFAULT_TABLE: Final = "shoal_lease"
_KNOWN: Final = 256
"""Groups whose tables are kept at hand."""
