"""Groups as Aliyun's clients use them: heartbeats that report, checkpoints by name. Load, ask
`core.reported`, act.

Such a client is a member like any other, under an incarnation that the server makes for it. All that is
known about it is in the store, so that any server can answer its next call.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from shoal.core.checkpoint import Save
from shoal.core.errors import (
    CheckpointBackwards,
    Fenced,
    HeartbeatOutdated,
    InvalidInput,
    NameTaken,
    NotOwner,
    UnknownConsumer,
    UnknownGroup,
    UnknownProject,
    UnknownShard,
    UnknownStream,
)
from shoal.core.events import Rewind
from shoal.core.group import Group, GroupSettings, timeout_ms
from shoal.core.holding import Assignment, View
from shoal.core.membership import Beat
from shoal.core.model import Shard, StreamInfo, StreamName
from shoal.core.names import checked_name
from shoal.core.positions import Start
from shoal.core.reported import (
    Passed,
    beats_every_ms,
    begun_at_end,
    check_reported,
    checkpointed,
    joining,
    let_go_by,
    member_named,
    run_dry,
    still_held,
    told_start,
    watched_for_ms,
)
from shoal.hub.local import LocalHub
from shoal.ports import Newcomer
from shoal.server.sls.agents import consumers_in, is_java, spelled
from shoal.server.sls.cursors import NoCursor, cursor_at, offset_of
from shoal.server.sls.errors import SlsError

PREFIX: Final = "sls-"
"""Of the incarnations that are made here."""
_TRIES: Final = 8


class SlsGroups:
    """The consumer groups of a hub, in the other dialect."""

    def __init__(self, hub: LocalHub) -> None:
        self._hub = hub
        self.stale_checkpoints = 0

    def create(self, name: StreamName, group: str, body: Any) -> None:
        self._hub.groups.create(name, group, _changed(GroupSettings(in_order=False), body), Start())

    def update(self, name: StreamName, group: str, body: Any, check: Callable[[], None]) -> None:
        """Change the settings; `check` raises if they are not the caller's to change. Workers say at each
        start what the settings already are: then nothing is done."""
        now = self._hub.groups.find(name, group).settings
        if _changed(now, body) != now:
            check()
            self._hub.groups.update(name, group, lambda now: _changed(now, body))

    def spelled(self, name: StreamName, group: str, agent: str, may: Callable[[str], bool]) -> str | None:
        """Another group that Java's consumers mean by this name, of those in which the caller may do what is
        asked; None also where there is nothing of the kind, or no such stream."""
        if not is_java(agent):
            return None
        try:
            groups = self._hub.groups.list(name)
        except (UnknownProject, UnknownStream):
            return None  # Who may not see it is told what one is told of a stream that is there.
        meant = spelled(group, [one.name for one in groups], may)
        return None if meant == group else meant

    def delete(self, name: StreamName, group: str) -> None:
        self._hub.groups.delete(name, group, force=True)

    def heartbeat(self, name: StreamName, group: str, consumer: str, reported: Collection[int]) -> list[int]:
        """The shards that the consumer should hold."""
        checked_name("consumer", consumer)
        for _ in range(_TRIES):
            whole, stream = self._whole(name, group)
            timeout_ms = whole.settings.timeout_ms
            interval_ms = beats_every_ms(timeout_ms)
            member = member_named(whole, consumer, PREFIX)
            if member is None:
                newcomer = Newcomer(
                    name=consumer, incarnation=PREFIX + secrets.token_hex(8), interval_ms=interval_ms
                )
                self._hub.groups.join(name, group, newcomer, partial(joining, prefix=PREFIX))
                continue
            key = member.incarnation
            beat = Beat(
                incarnation=key,
                number=member.beat + 1,
                timeout_ms=watched_for_ms(timeout_ms),
                interval_ms=interval_ms,
                held=still_held(whole, key, reported),
                seen=0,
            )
            try:
                if lettings := let_go_by(whole, key, reported):
                    self._hub.groups.release(whole.id, key, lettings)
                self._hub.groups.save(name, whole.id, run_dry(whole, key, stream.shards))
                answer: Assignment | View | None = self._hub.groups.beat(name, whole.id, beat)
            except HeartbeatOutdated:
                # Another of this name was faster. It came after we looked, and counts as this one.
                answer = self._hub.groups.view(whole.id, key, -1)
            except (NameTaken, UnknownConsumer, NotOwner, Fenced, CheckpointBackwards):
                continue  # It moved since we looked: through another server, or by its timeout.
            if answer is not None:
                return sorted(grant.shard for grant in answer.granted or () if grant.is_wanted)
        raise SlsError(503, "ServerBusy", f"group {group} moves faster than a heartbeat of {consumer}")

    def checkpoints(self, name: StreamName, group: str, shard: int | None) -> list[dict[str, Any]]:
        """Where the group stands; for one shard, or all."""
        whole, stream = self._whole(name, group)
        saved = self._hub.groups.saved_times(whole.id)
        told = []
        for claim in whole.claims:
            if shard is not None and claim.shard != shard:
                continue
            here = stream.shards[claim.shard]
            owner = whole.members.get(claim.owner or "")
            start = told_start(claim, here)
            told.append(
                {
                    "shard": claim.shard,
                    "checkpoint": "" if start is None else cursor_at(here, start),
                    "updateTime": (saved.get(claim.shard) or 0) * 1000,
                    "consumer": "" if owner is None else owner.name,
                }
            )
        return told

    def save(self, name: StreamName, group: str, consumer: str, body: Any, *, is_forced: bool) -> None:
        """A checkpoint, whoever's it is: without a name, a person's."""
        if consumer:
            checked_name("consumer", consumer)
        number, cursor = body.get("shard"), body.get("checkpoint")
        if not isinstance(number, int) or isinstance(number, bool) or not isinstance(cursor, str):
            raise SlsError(400, "PostBodyInvalid", 'a checkpoint is {"shard": number, "checkpoint": cursor}')
        for _ in range(_TRIES):
            whole, stream = self._whole(name, group)
            if not 0 <= number < len(whole.claims):
                raise UnknownShard(stream=str(name), shard=number, shards=len(whole.claims))
            shard = stream.shards[number]
            try:
                offset = offset_of(shard, cursor)
            except NoCursor as error:
                raise SlsError(400, "InvalidShardCheckPoint", str(error)) from error
            rule = partial(
                checkpointed,
                shard=shard,
                offset=offset,
                consumer=consumer,
                is_forced=is_forced,
                prefix=PREFIX,
            )
            try:
                self._do(name, whole, rule)
            except _Moved:
                continue
            return
        raise SlsError(503, "ServerBusy", f"group {group} moves faster than a checkpoint")

    def _do(self, name: StreamName, group: Group, rule: Callable[[Group], Save | Rewind | Passed]) -> None:
        act = rule(group)

        def still(now: Group) -> Rewind:
            if rule(now) != act:
                raise _Moved
            assert isinstance(act, Rewind)
            return act

        match act:
            case Save():
                self._save(name, group, [act])
            case Rewind():
                self._hub.groups.force(group.id, still)
            case Passed(is_stale=is_stale):
                self.stale_checkpoints += is_stale

    def _save(self, name: StreamName, group: Group, saves: Sequence[Save]) -> None:
        try:
            self._hub.groups.save(name, group.id, saves)
        except (Fenced, NotOwner, CheckpointBackwards) as error:
            raise _Moved from error

    def passed_over(
        self, stream: StreamInfo, shard: Shard, agent: str, *, may_save: Callable[[str], bool]
    ) -> None:
        """A consumer that began at the end of a closed shard has done with it: it would never save, and what
        comes after the shard would wait for ever. An agent can be made up, so this is only for those who may
        save in that group."""
        ended = []
        groups = [group.name for group in self._hub.groups.list(stream.full_name)]
        for group, consumer in consumers_in(agent, groups, may_save):
            try:
                whole, _ = self._whole(stream.full_name, group)
            except (UnknownGroup, InvalidInput):
                continue  # It was deleted since we looked; or it has no consumers of this kind.
            save = begun_at_end(whole, shard, consumer, PREFIX)
            if save is not None:
                ended.append((whole, save))
        if len(ended) == 1:  # Names with dashes can be read in two ways; then it is nobody's.
            with suppress(_Moved):  # It is another's by now.
                self._save(stream.full_name, ended[0][0], [ended[0][1]])

    def _whole(self, name: StreamName, group: str) -> tuple[Group, StreamInfo]:
        whole, stream = self._hub.groups.whole(name, group)
        check_reported(whole, str(name))
        return whole, stream


class _Moved(Exception):
    """The group is not as it was when we looked."""


def listed(group: Group) -> dict[str, Any]:
    """A group in a list."""
    return {
        "name": group.name,
        "timeout": max(1, round(group.settings.timeout_ms / 1000)),
        "order": group.settings.in_order,
    }


def _changed(settings: GroupSettings, body: Any) -> GroupSettings:
    if "timeout" in body:
        settings = replace(settings, timeout_ms=timeout_ms("timeout", body["timeout"]))
    if "order" in body:
        if not isinstance(body["order"], bool):
            raise SlsError(400, "PostBodyInvalid", "order is true or false")
        settings = replace(settings, in_order=body["order"])
    return settings
