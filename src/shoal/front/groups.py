"""The hub's calls about groups: made, changed, looked at, reset, joined."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from shoal.core.checking import as_whole, is_whole
from shoal.core.checkpoint import Save, whole_checkpoint
from shoal.core.describing import GroupInfo, elsewhere
from shoal.core.errors import InvalidInput, OtherLeaseStore, UnknownGroup, UnknownStream
from shoal.core.group import (
    Coordination,
    Delivery,
    Group,
    GroupSettings,
    Note,
    attempts_max,
    checked_lease_table,
    handover_timeout_ms,
    interval_ms,
    timeout_ms,
    unused_ms,
    visibility_ms,
)
from shoal.core.limits import HISTORY_KEPT, POSITION_UNUSED_S, RECEIVE_ATTEMPTS, VISIBILITY_S
from shoal.core.lineage import find_shard
from shoal.core.model import ShardId, StreamName
from shoal.core.names import checked_name, stream_name
from shoal.core.positions import Start, StartKind
from shoal.core.retry import Policy
from shoal.forks import importing
from shoal.front.arguments import choice, flag, start_of
from shoal.ports import Fence, HubService

if TYPE_CHECKING:
    from shoal.consumer import Listener, Membership


class GroupCalls:
    """See Hub."""

    def __init__(self, service: HubService) -> None:
        self._service = service
        self._memberships: weakref.WeakSet[Membership] = weakref.WeakSet()

    def create_group(
        self,
        stream: str,
        group: str,
        *,
        in_order: bool | None = None,
        timeout: float = 20.0,
        handover_timeout: float | None = None,
        coordination: str = "coordinated",
        delivery: str = "exclusive",
        strategy: str = "balanced",
        lease_table: str | None = None,
        failure: str | None = None,
        visibility: float | None = None,
        max_attempts: int | None = None,
        key_ordered: bool = False,
        unused: float | None = None,
        start: str | datetime | Mapping[int, int] = "earliest",
    ) -> GroupInfo:
        """Make a group of consumers that share a stream, each shard with one owner at a time.

        With `delivery="shared"` many consumers share each shard, record by record (see SharedConsumer): a
        record is a consumer's alone for `visibility` seconds, goes to the dead stream after `max_attempts`,
        and with `key_ordered` one record of a key is in flight at a time. With `delivery="broadcast"` each
        consumer gets everything (see BroadcastConsumer), and its position is dropped after `unused` seconds.

        `in_order`, the default unless it is shared: a shard is consumed after all its ancestors, so that keys
        keep their order across splits and merges. `timeout`: seconds after which a silent consumer is dead.
        `handover_timeout`: seconds that a living one may take to let go of a shard; None waits for it.
        `failure`: what its workers do when user code raises: strict, best_tried or stop; without it, strict
        if in order, otherwise best_tried. `start`: earliest, latest, a datetime, or offsets by shard;
        resolved now, once.
        """
        kind = choice("delivery", delivery, Delivery)
        settings = GroupSettings(
            in_order=kind is not Delivery.SHARED if in_order is None else flag("in_order", in_order),
            timeout_ms=timeout_ms("timeout", timeout),
            handover_timeout_ms=handover_timeout_ms(handover_timeout),
            coordination=choice("coordination", coordination, Coordination),
            delivery=kind,
            strategy=checked_name("strategy", strategy),
            lease_table=_lease_table(lease_table, coordination),
            failure=None if failure is None else choice("failure", failure, Policy),
            **_ownerless(kind, visibility, max_attempts, key_ordered, unused),
        )
        name = checked_name("group", group)
        return self._service.groups.create(stream_name(stream), name, settings, start_of("start", start))

    def describe_group(self, stream: str, group: str) -> GroupInfo:
        """The group as of now: `.state`, `.members`, `.shards` with owner, epoch, checkpoint and lag."""
        return self._service.groups.describe(stream_name(stream), checked_name("group", group))

    def list_groups(self, stream: str) -> list[Group]:
        """The groups of a stream by name, with their `.settings`."""
        return list(self._service.groups.list(stream_name(stream)))

    def describe_groups(self, stream: str | None = None) -> list[GroupInfo]:
        """The groups of a stream, or of all streams, by name, each as of now."""
        if stream is not None:
            return self._described(stream_name(stream))
        found: list[GroupInfo] = []
        for info in self._service.list_streams(None):
            with suppress(UnknownStream):  # Deleted since it was listed.
                found += self._described(info.full_name)
        return found

    def _described(self, stream: StreamName) -> list[GroupInfo]:
        found = []
        for group in self._service.groups.list(stream):
            try:
                found.append(self._service.groups.describe(stream, group.name))
            except UnknownGroup:
                continue  # Deleted since it was listed.
            except OtherLeaseStore:
                found.append(elsewhere(group, str(stream)))
        return found

    def update_group(
        self,
        stream: str,
        group: str,
        *,
        in_order: bool | None = None,
        timeout: float | None = None,
        handover_timeout: float | Literal["keep"] | None = "keep",
        failure: str | Literal["keep"] | None = "keep",
        visibility: float | None = None,
        max_attempts: int | None = None,
        unused: float | None = None,
    ) -> GroupInfo:
        """Change a group's settings; what is not given stays.

        From in_order to not: shards that wait are released. The other way: only shards born later are bound.
        """
        given: dict[str, Any] = {
            "in_order": None if in_order is None else flag("in_order", in_order),
            "timeout_ms": None if timeout is None else timeout_ms("timeout", timeout),
            "visibility_ms": None if visibility is None else visibility_ms(visibility),
            "max_attempts": None if max_attempts is None else attempts_max(max_attempts),
            "unused_ms": None if unused is None else unused_ms(unused),
        }
        changes = {name: value for name, value in given.items() if value is not None}
        if handover_timeout != "keep":
            changes["handover_timeout_ms"] = handover_timeout_ms(handover_timeout)
        if failure != "keep":
            changes["failure"] = None if failure is None else choice("failure", failure, Policy)
        return self._service.groups.update(
            stream_name(stream), checked_name("group", group), lambda old: replace(old, **changes)
        )

    def delete_group(self, stream: str, group: str, *, force: bool = False) -> None:
        """Remove a group with its checkpoints. One that consumers use is removed only with `force`."""
        self._service.groups.delete(
            stream_name(stream), checked_name("group", group), force=flag("force", force)
        )

    def reset_group(
        self, stream: str, group: str, to: str | datetime | Mapping[int, int]
    ) -> Sequence[ShardId]:
        """Begin again: at "earliest", "latest", a datetime, or at offsets by shard; also while it runs.

        The leases that it touches end. Returns, for an in-order group, the shards after those that were named
        of which something had been read already.
        """
        name, start = checked_name("group", group), start_of("to", to)
        return self._service.groups.rewind(stream_name(stream), name, start, "reset")

    def checkpoint(
        self,
        stream: str,
        group: str,
        shard: int,
        offset: int,
        *,
        epoch: int | None = None,
        force: bool = False,
    ) -> Sequence[ShardId]:
        """Save where a group goes on in a shard: as its owner, showing the `epoch`, or by `force`.

        A forced one ends the owner's lease, and opens a shard again that was over.
        """
        name, groups, offset = stream_name(stream), self._service.groups, whole_checkpoint(offset)
        if flag("force", force):
            start = Start(kind=StartKind.OFFSETS, offsets={shard: offset})
            return groups.rewind(name, checked_name("group", group), start, "forced checkpoint")
        if epoch is None:
            raise InvalidInput("epoch", epoch, "show the epoch of your lease, or use force=True")
        fence = self._fence(stream, group, epoch)
        assert fence is not None
        save = Save(
            shard=find_shard(self._service.describe_stream(name), shard).id, epoch=fence.epoch, offset=offset
        )
        groups.save(name, fence.group_id, [save])
        return ()

    def drop_position(self, stream: str, group: str, consumer: str) -> None:
        """Forget where a consumer of a broadcast group stands; under that name one begins anew."""
        name = stream_name(stream)
        found = self._service.groups.find(name, checked_name("group", group))
        self._service.positions.drop(name, found.id, checked_name("consumer", consumer))

    def group_history(self, stream: str, group: str, limit: int = 100) -> list[tuple[datetime, Note]]:
        """What happened in a group, oldest first: who joined, left, was expired, what moved, and why."""
        if not is_whole(limit) or not 1 <= limit <= HISTORY_KEPT:
            raise InvalidInput("limit", limit, f"from 1 to {HISTORY_KEPT} lines")
        lines = self._service.groups.history(stream_name(stream), checked_name("group", group), limit)
        return [(datetime.fromtimestamp(at_ms / 1000, UTC), note) for at_ms, note in lines]

    def join_group(
        self,
        stream: str,
        group: str,
        consumer: str,
        *,
        heartbeat_interval: float | None = None,
        listener: Listener | None = None,
    ) -> Membership:
        """Become a member of a group, under a name of your own. For those who process by themselves.

        The membership beats in a thread of its own and knows what it holds; `listener` is told of changes.
        """
        name, of_group = stream_name(stream), checked_name("group", group)
        found = self._service.groups.find(name, of_group)
        who, interval = checked_name("consumer", consumer), None
        if heartbeat_interval is not None:
            interval = interval_ms(heartbeat_interval, found.settings.timeout_ms)
        with importing:
            from shoal.consumer import CoordinatedMembership, LeasedMembership
        membership: Membership
        if found.settings.coordination is Coordination.LEASED:
            membership = LeasedMembership(
                self._service, name, found, who, interval_ms=interval, listener=listener
            )
        else:
            membership = CoordinatedMembership(
                self._service, name, of_group, who, interval_ms=interval, listener=listener
            )
        self._memberships.add(membership)
        return membership

    def _fence(self, stream: str, group: str | None, epoch: int | None) -> Fence | None:
        if group is None and epoch is None:
            return None
        number = as_whole(epoch)
        if group is None or number is None:
            raise InvalidInput("epoch", epoch, "an owner shows both its group and the epoch of its lease")
        found = self._service.groups.find(stream_name(stream), checked_name("group", group))
        return Fence(found.id, number, is_leased=found.settings.coordination is Coordination.LEASED)


def _ownerless(
    kind: Delivery,
    visibility: float | None,
    max_attempts: int | None,
    key_ordered: bool,
    unused: float | None,
) -> dict[str, Any]:
    """Settings of groups without owners: what was given, and what such a group has unless told otherwise."""
    if kind is Delivery.SHARED:
        visibility = VISIBILITY_S if visibility is None else visibility
        max_attempts = RECEIVE_ATTEMPTS if max_attempts is None else max_attempts
    if kind is Delivery.BROADCAST:
        unused = POSITION_UNUSED_S if unused is None else unused
    return {
        "visibility_ms": None if visibility is None else visibility_ms(visibility),
        "max_attempts": None if max_attempts is None else attempts_max(max_attempts),
        "key_ordered": flag("key_ordered", key_ordered),
        "unused_ms": None if unused is None else unused_ms(unused),
    }


def _lease_table(name: str | None, coordination: str) -> str | None:
    if name is None:
        return None
    if coordination != Coordination.LEASED:
        raise InvalidInput("lease_table", name, "only a leased group has a table; coordination='leased'")
    return checked_lease_table(name)
