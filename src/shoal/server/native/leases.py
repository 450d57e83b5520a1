"""Calls about the tables of leased groups: rows that clients change by comparing and setting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from shoal.core.errors import InvalidInput, UnknownGroup
from shoal.core.lease import Change, SequenceRow
from shoal.core.leasing import Outcome
from shoal.hub.local import LocalHub
from shoal.native.forms import Attempted, Glimpse, LeasedPlace
from shoal.ports import LeasedGroup
from shoal.server.native.special import Run, Special
from shoal.server.options import ServerOptions
from shoal.server.requests import Incoming
from shoal.server.waiting import Waiting

_GONE_S: Final = 0.5
"""How long one waits at a group that is not there: its consumers have not heard yet."""
_NO_NEWS: Final = -1


class LeaseCalls:
    """Looking, changing, waiting, ringing."""

    def __init__(self, hub: LocalHub, *, run: Run, waiting: Waiting, options: ServerOptions) -> None:
        self._hub, self._run, self._waiting, self._options = hub, run, waiting, options
        self.special: Special = {
            ("groups", "leased"): self._leased,
            ("leases", "glance"): self._glance,
            ("leases", "attempt"): self._attempt,
            ("leases", "wait"): self._wait_for_leases,
            ("leases", "ring"): self._ring,
        }

    async def _leased(self, request: Incoming, group_id: int) -> LeasedPlace:  # noqa: ARG002
        leased = await self._table(group_id)
        if leased is None:
            raise UnknownGroup(stream="?", group=str(group_id))
        return LeasedPlace(key=leased.key, starts=leased.starts, is_beside=leased.is_beside)

    async def _table(self, group_id: int) -> LeasedGroup | None:
        return await self._run(self._hub.groups.table_of, group_id)  # type: ignore[no-any-return]

    async def _glance(self, request: Incoming, group_id: int) -> Glimpse:  # noqa: ARG002
        leased = await self._table(group_id)
        if leased is None:  # Deleted, with its rows.
            return Glimpse(leases=[], instances=[], sequence=SequenceRow(group=str(group_id)), news=_NO_NEWS)
        glance, news = await self._run(leased.table.glimpse, leased.key)
        return Glimpse(
            leases=list(glance.leases), instances=list(glance.instances), sequence=glance.sequence, news=news
        )

    async def _attempt(
        self,
        request: Incoming,  # noqa: ARG002
        group_id: int,
        changes: Sequence[Change],
        together: bool = False,
    ) -> list[Attempted]:
        leased = await self._table(group_id)
        for change in changes:
            _check_change(change, None if leased is None else leased.key)
        if leased is None:
            return [Attempted(change=change, outcome=Outcome.REFUSED) for change in changes]
        tried = await self._run(partial(leased.table.attempt, together=together), leased.key, changes)
        if any(one.change.old is None and one.outcome is not Outcome.REFUSED for one in tried):
            # Its consumer could not remove them: to this server, or another, the group is not there any more.
            await self._run(self._hub.groups.clear_if_gone, group_id)
        return [Attempted(change=one.change, outcome=one.outcome, found=one.found) for one in tried]

    async def _wait_for_leases(self, request: Incoming, group_id: int, news: int, wait_for_s: float) -> None:
        leased = await self._table(group_id)
        wait_s = min(wait_for_s, self._options.wait_s_max)
        if leased is None:
            await asyncio.sleep(min(wait_s, _GONE_S))
            return
        place = leased.table.place(leased.key)
        await self._waiting.until_moved(self._hub.groups.lease_signal, [(place, news)], wait_s, request)

    async def _ring(self, request: Incoming, group_id: int) -> None:  # noqa: ARG002
        leased = await self._table(group_id)
        if leased is not None:
            await self._run(leased.table.ring, leased.key)


def _check_change(change: Change, key: str | None) -> None:
    for row in (change.old, change.new):
        if row is not None and key is not None and row.group != key:
            raise InvalidInput("changes", row.group, "rows of this group alone")
    if change.old is None and change.new is None:
        raise InvalidInput("changes", "no row", "a change has an old or a new row")
