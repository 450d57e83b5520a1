"""Leased groups as people see them from the hub: described, reset, deleted. Their consumers decide."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Final

from shoal.core.checkpoint import Save
from shoal.core.errors import GroupInUse, StoreBusy, StoreUnavailable
from shoal.core.group import Group, GroupSettings, check_beside, check_lease_store, lease_table_of
from shoal.core.lease import Change, ChangeKind, Row, check_epoch, saved_under
from shoal.core.lease_reset import Resetting, numbers_max
from shoal.core.lease_view import as_group, noted
from shoal.core.leasing import Outcome
from shoal.core.limits import HISTORY_KEPT, STEP_TRIES_MAX
from shoal.core.lineage import find_shard
from shoal.core.model import ShardId, StreamInfo
from shoal.hub.group_steps import now_ms
from shoal.lease_port import LeaseTable, draw
from shoal.ports import ChangeSignal, GroupSaves, LeasedGroup, LeasedSave, LeasedTouch, Store


class LeasedGroups:
    """What a hub does with the table of a leased group."""

    def __init__(self, store: Store, leases: Store) -> None:
        self._store = store
        self._leases = leases
        self._known: dict[int, LeasedGroup] = {}

    @property
    def signal(self) -> ChangeSignal:
        """Where news of the groups is heard."""
        return self._leases.signal

    def placed(self, settings: GroupSettings) -> GroupSettings:
        """The settings of a new group, tied to the database that its rows will be in. The table is made:
        there is no group without one."""
        self._leases.lease_table(lease_table_of(settings))
        return replace(settings, lease_store=self._leases.identity)

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
        check_lease_store(group, self._leases.identity, self._leases.description)
        loaded = self._store.load_group(group.id)
        starts = {} if loaded is None else {claim.shard: claim.checkpoint for claim in loaded[0].claims}
        return LeasedGroup(
            table=self._leases.lease_table(lease_table_of(group.settings)),
            key=f"{self._store.identity}-{group.id}",
            starts=starts,
            is_beside=self.is_beside,
        )

    @property
    def is_beside(self) -> bool:
        """Whether the tables are in the log's own database, by whatever URL that was opened."""
        return self._leases.identity == self._store.identity

    def follow(self, group: Group) -> None:
        """The stream was split or merged: its consumers look at it."""
        leased = self.opened(group)
        leased.table.ring(leased.key)

    def viewed(self, group: Group, stream: StreamInfo) -> Group:
        """The group as its rows say."""
        leased = self.opened(group)
        rows, instances = leased.table.list(leased.key), leased.table.instances(leased.key)
        return as_group(group, rows, instances, stream.shards, leased.starts)

    def since(self, group: Group) -> dict[ShardId, int]:
        """When each shard last changed hands, or was asked for, by the history: rows keep no such time."""
        notes = self._store.history(group.id, HISTORY_KEPT)
        return {ShardId(note.shard): at_ms for at_ms, note in notes if note.shard is not None}

    def rewind(
        self, group: Group, stream: StreamInfo, positions: Mapping[ShardId, int], why: str
    ) -> list[ShardId]:
        """Forced checkpoints, row by row; which descendants had been read."""
        leased = self.opened(group)
        table, key = leased.table, leased.key
        holder = f"hub.{secrets.token_hex(8)}"
        resetting = Resetting(
            holder,
            group=key,
            settings=group.settings,
            positions=positions,
            starts=leased.starts,
        )
        for _ in range(STEP_TRIES_MAX):
            rows = table.list(key)
            stream = self._store.refresh_stream(stream)
            changes = resetting.plan(rows, stream.shards, draw(table, key, numbers_max(stream.shards)))
            done = list(takewhile(partial(_is_done, table), changes))
            for change in done:
                resetting.settle(change)
            self._record(group, done, why)
            if not changes:
                return resetting.had_been_read
        raise StoreBusy(f"rows of {group.name} change faster than we can follow", 0.0)

    def _record(self, group: Group, done: Sequence[Change], why: str) -> None:
        notes = [note for change in done if (note := noted(change, "")) is not None]
        if notes:
            told = [replace(note, consumer=None, detail=why) for note in notes]
            self._store.add_notes(group.id, told, now_ms)

    def save(self, group: Group, stream: StreamInfo, saves: Sequence[Save]) -> None:
        """Checkpoints of whoever shows the current epochs: all, or none and an error."""
        leased = self.opened(group)
        for _ in range(STEP_TRIES_MAX):
            changes = []
            for save in saves:
                shard = find_shard(stream, save.shard)
                row = leased.table.load(leased.key, shard.id)
                after = saved_under(row, shard, save, stream=str(stream.full_name))
                changes.append(Change(kind=ChangeKind.SAVE, old=row, new=after))
            tried = leased.table.attempt(leased.key, changes, together=True)
            if any(one.outcome is Outcome.UNKNOWN for one in tried):
                raise StoreUnavailable("no answer: the checkpoints may or may not be stored")
            if all(one.outcome is Outcome.DONE for one in tried):
                return
        raise StoreBusy(f"rows of {group.name} change faster than we can follow", 0.0)

    def touch(self, group: Group, several: Sequence[GroupSaves]) -> LeasedTouch:
        """Owners' checkpoints as a transaction of the log takes them, if the group's rows are beside it."""
        check_beside(group.name, is_beside=self.is_beside)
        return LeasedTouch(
            stream=several[0].stream,
            group_id=group.id,
            table=lease_table_of(group.settings),
            key=self.opened(group).key,
            saves=[LeasedSave(save=save, holder=one.holder) for one in several for save in one.saves],
        )

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
        self.clear(group)

    def clear(self, group: Group) -> None:
        """Remove the rows of a group that is deleted; again, while consumers have not heard of it."""
        leased = self.opened(group)
        table, key = leased.table, leased.key
        for _ in range(STEP_TRIES_MAX):
            # Consumers first: one that is no member any more makes no rows.
            rows: list[Row] = [*table.instances(key), *table.list(key)]
            if not rows:
                return
            for row in rows:
                table.delete(row)
        raise StoreBusy(f"rows of {group.name} change faster than we can remove them", 0.0)


def _is_done(table: LeaseTable, change: Change) -> bool:
    """Whether a step of a reset was carried out, and not refused."""
    if change.old is None:
        assert change.new is not None
        return table.create(change.new)
    return table.delete(change.old) if change.new is None else table.swap(change.old, change.new)


_KNOWN: Final = 256
"""Groups whose tables are kept at hand."""
