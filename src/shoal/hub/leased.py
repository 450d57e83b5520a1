"""Leased groups as people see them from the hub: described, reset, deleted. Their consumers decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shoal.core.checkpoint import Save
from shoal.core.errors import GroupInUse, StoreBusy
from shoal.core.group import Group
from shoal.core.lease import check_epoch, numbered, saved
from shoal.core.lease_reset import beginning, concerned, had_been_read, reset
from shoal.core.lease_view import as_group
from shoal.core.limits import STEP_TRIES_MAX
from shoal.core.lineage import find_shard
from shoal.core.model import Shard, ShardId, StreamInfo
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

    def follow(self, group: Group) -> None:
        """The stream was split or merged: its consumers look at it."""
        leased = self.opened(group)
        leased.table.ring(leased.key)

    def viewed(self, group: Group, stream: StreamInfo) -> Group:
        """The group as its rows say."""
        leased = self.opened(group)
        rows, instances = leased.table.list(leased.key), leased.table.instances(leased.key)
        return as_group(group, rows, instances, stream.shards, leased.starts)

    def rewind(self, group: Group, stream: StreamInfo, positions: Mapping[ShardId, int]) -> list[ShardId]:
        """Forced checkpoints, one row after the other, parents first; which descendants had been read."""
        leased = self.opened(group)
        read = []
        for shard in concerned(group.settings, stream.shards, positions):
            if self._rewind_one(group, leased, stream.shards[shard], positions.get(shard)):
                read.append(shard)
        return read

    def _rewind_one(self, group: Group, leased: LeasedGroup, shard: Shard, offset: int | None) -> bool:
        """One row; whether it had been read without being named."""
        for _ in range(STEP_TRIES_MAX):
            row = leased.table.load(leased.key, shard.id)
            if row is None and offset is None:
                return False
            (number,) = draw(leased.table, leased.key, 1)
            if row is not None:
                is_done = leased.table.swap(row, reset(row, shard, offset, number))
            else:
                assert offset is not None
                rows = leased.table.list(leased.key)
                made = numbered(beginning(leased.key, group.settings, shard, offset, rows), number).new
                assert made is not None
                is_done = leased.table.create(made)
            if is_done:
                return had_been_read(row, offset)
        raise StoreBusy(f"shard {shard.id} of {group.name} changes faster than we can follow", 0.0)

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
