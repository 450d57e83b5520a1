"""Calls of consumers: heartbeats that share commits, waiting for assignments, records of shared groups."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from shoal.core.describing import GroupInfo
from shoal.core.errors import ShoalError
from shoal.core.group import GroupSettings
from shoal.core.holding import Assignment
from shoal.core.membership import Beat
from shoal.core.model import StreamName
from shoal.core.share_acts import Receive
from shoal.hub.local import LocalHub
from shoal.hub.shared import Nothing
from shoal.native.forms import ReceivedLabel
from shoal.native.parts import part_of
from shoal.ports import MemberView, Touch, TouchAnswer
from shoal.server.beaten import Beaten
from shoal.server.gathering import Gathered
from shoal.server.metrics import Counters
from shoal.server.native.special import BATCHES, Run, Special
from shoal.server.options import ServerOptions
from shoal.server.requests import Answer, Incoming
from shoal.server.waiting import Waiting
from shoal.share_port import Received
from shoal.wire.frame import packed


class GroupCalls:
    """Beating, waiting, receiving."""

    def __init__(
        self, hub: LocalHub, *, run: Run, waiting: Waiting, options: ServerOptions, counters: Counters
    ) -> None:
        self._hub, self._run, self._waiting, self._options = hub, run, waiting, options
        self._counters = counters
        self._beats: Gathered[Touch, TouchAnswer] = Gathered(hub.groups.submit, lambda _: 0)
        self._beaten = Beaten()
        self.special: Special = {
            ("groups", "update"): self._update,
            ("groups", "beat"): self._beat,
            ("groups", "wait"): self._wait_for_view,
            ("shares", "receive"): self._receive,
        }

    async def _update(
        self,
        request: Incoming,  # noqa: ARG002
        name: StreamName,
        group: str,
        expected: GroupSettings,
        settings: GroupSettings,
    ) -> GroupInfo | None:
        def change(now: GroupSettings) -> GroupSettings:
            if now != expected:
                raise _OthersNowError
            return settings

        try:
            return await self._run(self._hub.groups.update, name, group, change)  # type: ignore[no-any-return]
        except _OthersNowError:
            return None

    async def _beat(self, request: Incoming, name: StreamName, group_id: int, beat: Beat) -> Assignment:  # noqa: ARG002
        """Without a thread of its own: it waits for the commit that it shares on the event loop."""
        groups, came_s = self._hub.groups, time.monotonic()
        touch = groups.begin_beat(name, group_id, beat)
        (answer,) = await self._beats.commit([touch], within_s=self._beaten.patience_s(beat, came_s))
        if isinstance(answer, ShoalError):
            raise answer
        if isinstance(answer, Assignment):
            groups.was_heard(group_id, beat)
        else:
            answer = await self._run(groups.beat, name, group_id, beat)
        self._beaten.note(beat, came_s)
        return answer

    async def _wait_for_view(
        self, request: Incoming, group_id: int, incarnation: str, seen: int, timeout_s: float
    ) -> object:
        wait_s = min(timeout_s, self._options.wait_s_max)
        place = MemberView(group_id, incarnation)
        if wait_s > 0 and not await self._waiting.until_moved(
            self._hub.signal, [(place, seen)], wait_s, request
        ):
            return None
        return await self._run(self._hub.groups.view, group_id, incarnation, seen)

    async def _receive(
        self,
        request: Incoming,
        *,
        name: StreamName,
        group_id: int,
        asked: Receive,
        wait_for_s: float,
        max_bytes: int,
    ) -> Answer:
        began = time.monotonic()
        deadline = began + min(wait_for_s, self._options.wait_s_max)
        now = partial(self._hub.shares.receive_now, name, group_id, asked, max_bytes=max_bytes)
        while True:
            waited_s = time.monotonic() - began
            found: Received | Nothing = await self._run(now)
            if isinstance(found, Received):
                return await self._run(self._handed, replace(found, waited_s=waited_s))  # type: ignore[no-any-return]
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return self._handed(Received(batch=None, waiting_for=found.waiting_for))
            await self._waiting.until_moved(self._hub.signal, found.places, min(left_s, found.due_s), request)

    def _handed(self, received: Received) -> Answer:
        part, payloads = None, []
        if received.batch is not None:
            part, payload = part_of(received.batch)
            payloads.append(memoryview(payload))
            self._counters.read(len(payload), len(received.batch))
        label = ReceivedLabel(
            part=part,
            hold=received.hold,
            given=received.given,
            waited_s=received.waited_s,
            waiting_for=received.waiting_for,
        )
        return Answer(packed(ReceivedLabel, label, payloads), BATCHES)


class _OthersNowError(Exception):
    """The settings are not those that were expected."""
