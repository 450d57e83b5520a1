"""Groups whose shards have no owner, as people use them from the hub: described, changed, reset."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from shoal.core.describing import GroupInfo
from shoal.core.errors import GroupInUse, ShoalError, StoreBusy, UnknownGroup
from shoal.core.group import Claim, Delivery, Group, GroupSettings, Note, ShardState, check_settings
from shoal.core.limits import BROADCAST_CONSUMERS_MAX, HISTORY_KEPT, STEP_TRIES_MAX
from shoal.core.lineage import descendants
from shoal.core.listening import MOVED
from shoal.core.model import ShardId, StreamInfo
from shoal.core.share_acts import Restart
from shoal.core.share_view import described_broadcast, described_shared, missing, rules_of
from shoal.ports import Store
from shoal.share_port import ShareTouch, ShareView


class OwnerlessGroups:
    """What a hub does with shared and broadcast groups, but for their consumers."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def viewed(self, group_id: int) -> ShareView:
        """The group with a row for each shard, made if it is not there: a shard was born since."""
        for _ in range(STEP_TRIES_MAX):
            view = self._store.load_shares(group_id)
            if view is None:
                raise UnknownGroup(stream="?", group=str(group_id))
            starts = missing(view.stream.shards, view.states, view.starts)
            if not starts or view.group.settings.delivery is not Delivery.SHARED:
                return view
            self._store.add_shares(group_id, starts, _now_ms())
        raise StoreBusy(f"shards of group {group_id} are born faster than we can follow", 0.0)

    def described(self, group: Group) -> GroupInfo:
        """As of now."""
        view = self.viewed(group.id)
        if view.group.settings.delivery is Delivery.BROADCAST:
            listeners = self._store.load_listeners(group.id)
            history = self._store.history(group.id, HISTORY_KEPT)
            return described_broadcast(view.group, view.stream, view.starts, listeners, history)
        lagging = {
            shard.id: max(view.states[shard.id].start, shard.first_offset)
            for shard in view.stream.shards
            if view.states[shard.id].unsettled(shard)
        }
        found = self._store.batches_at(view.stream.id, lagging) if lagging else {}
        oldest = {shard: meta.appended_ms for shard, meta in found.items()}
        return described_shared(
            view.group,
            view.stream,
            view.states,
            since_ms=view.since_ms,
            oldest_ms=oldest,
            now_ms=_now_ms(),
        )

    def update(self, group_id: int, change: Callable[[GroupSettings], GroupSettings]) -> None:
        """New settings, on those that are found."""
        for _ in range(STEP_TRIES_MAX):
            loaded = self._store.load_group(group_id)
            if loaded is None:
                raise UnknownGroup(stream="?", group=str(group_id))
            before = loaded[0]
            settings = check_settings(change(before.settings))
            if settings == before.settings:
                return
            after = replace(before, settings=settings, version=before.version + 1)
            if self._store.save_group(before, after, [Note(kind="updated")], _now_ms()):
                return
        raise StoreBusy(f"group {group_id} changes faster than we can follow", 0.0)

    def rewind(
        self, group: Group, stream: StreamInfo, positions: Mapping[ShardId, int], why: str
    ) -> Sequence[ShardId]:
        """Forced checkpoints: holds end, positions move. Which descendants had been read, if keys wait."""
        if group.settings.delivery is Delivery.BROADCAST:
            self._move_listeners(group, stream, positions, why)
            return []
        view = self.viewed(group.id)
        rules = rules_of(group.settings)
        touches = [
            ShareTouch(
                group_id=group.id,
                stream_id=view.stream.id,
                shard=shard,
                act=Restart(offset=offset),
                rules=rules,
                left={},
            )
            for shard, offset in sorted(positions.items())
        ]
        for answer in self._store.share(touches, _now_ms()):
            if isinstance(answer, ShoalError):
                raise answer
        notes = [Note(kind="rewound", shard=s, detail=f"to {o}: {why}") for s, o in positions.items()]
        self._store.add_notes(group.id, notes, _now_ms)
        if not rules.key_ordered:
            return []
        after = {child for shard in positions for child in descendants(view.stream.shards, shard)}
        return sorted(shard for shard in after - positions.keys() if view.states[shard].next)

    def _move_listeners(
        self, group: Group, stream: StreamInfo, positions: Mapping[ShardId, int], why: str
    ) -> None:
        """Every position moves, and where new ones begin. Who has one is told at its next save."""
        self._move_starts(group.id, stream, positions, why)
        for one in self._store.load_listeners(group.id):
            moved = replace(one, incarnation=MOVED)
            self._store.join_listener(group.id, moved, limit=BROADCAST_CONSUMERS_MAX, now_ms=_now_ms())
            offsets = {**one.offsets, **positions}
            self._store.save_listener(group.id, one.consumer, MOVED, offsets, _now_ms())

    def _move_starts(
        self, group_id: int, stream: StreamInfo, positions: Mapping[ShardId, int], why: str
    ) -> None:
        notes = [Note(kind="rewound", shard=s, detail=f"to {o}: {why}") for s, o in positions.items()]
        for _ in range(STEP_TRIES_MAX):
            loaded = self._store.load_group(group_id)
            if loaded is None:
                raise UnknownGroup(stream=str(stream.full_name), group=str(group_id))
            before, now = loaded
            claims = list(before.claims)
            for shard in now.shards[len(claims) :]:
                claims.append(Claim(shard=shard.id, state=ShardState.NOT_ALLOC))
            for at, offset in positions.items():
                claims[at] = replace(claims[at], checkpoint=offset)
            after = replace(before, claims=tuple(claims), version=before.version + 1)
            if self._store.save_group(before, after, notes, _now_ms()):
                return
        raise StoreBusy(f"group {group_id} changes faster than we can follow", 0.0)

    def delete(self, group: Group, *, force: bool) -> None:
        """Remove it, unless consumers have records in hand."""
        if not force:
            users = [one.name for one in self.described(group).consumers]
            if users:
                raise GroupInUse(group=group.name, consumers=users)
        self._store.delete_group(group.id)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
