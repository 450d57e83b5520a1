"""The native API: decode, check, call the hub, encode. What waits, waits on the event loop; the rest in
threads.

Most calls are the hub's own, by their names. Those that carry batches, wait, or are not as in the ports
have a method in a room of their own, in the order of `native.calls`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from shoal.hub.local import LocalHub
from shoal.native.calls import Call, arguments_from
from shoal.server.access import Access
from shoal.server.checks import check_arguments
from shoal.server.keys import Caller
from shoal.server.metrics import Counters
from shoal.server.native.groups import GroupCalls
from shoal.server.native.leases import LeaseCalls
from shoal.server.native.producers import ProducerCalls
from shoal.server.native.records import RecordCalls
from shoal.server.native.special import PARSED_HERE, Special
from shoal.server.options import ServerOptions
from shoal.server.requests import Answer, Incoming
from shoal.server.turns import Turns
from shoal.server.waiting import Waiting
from shoal.wire.values import to_json


class NativeApi:
    """The calls of one hub."""

    def __init__(
        self,
        hub: LocalHub,
        *,
        options: ServerOptions,
        turns: Turns,
        access: Access,
        counters: Counters,
    ) -> None:
        self._run, self._access = turns.run, access
        self.waiting = Waiting(turns.run_own, options.waiting_max)
        self._parts: Mapping[str, Any] = {
            "hub": hub,
            "groups": hub.groups,
            "shares": hub.shares,
            "positions": hub.positions,
        }
        run, waiting = turns.run, self.waiting
        self._records = RecordCalls(
            hub, run=run, waiting=waiting, options=options, access=access, counters=counters
        )
        self._producers = ProducerCalls(hub, run=run, access=access, counters=counters)
        groups = GroupCalls(hub, run=run, waiting=waiting, options=options, counters=counters)
        leases = LeaseCalls(hub, run=run, waiting=waiting, options=options)
        self._special: Special = {
            **self._records.special,
            **self._producers.special,
            **groups.special,
            **leases.special,
        }

    async def answer(self, call: Call, request: Incoming, caller: Caller) -> Answer:
        """What a call is answered."""
        body = await request.body(call.body_bytes_max)
        if call.name == "transact":
            return await self._producers.transact(body, caller)
        if call.sends_batches:
            return await self._records.append(body, caller)
        if len(body) > PARSED_HERE:
            arguments = await self._run(arguments_from, call, body)
        else:
            arguments = arguments_from(call, body)
        check_arguments(call.part, call.name, arguments)
        await self._access.check_call(caller, call.part, call.name, arguments, self._run)
        special = self._special.get((call.part, call.name))
        if special is not None:
            request.ask_again = partial(
                self._access.check_again, caller, call.part, call.name, arguments, self._run
            )
            value = await special(request, **arguments)
            if isinstance(value, Answer):
                return value
            if len(body) > PARSED_HERE or call.name in _LARGE:
                return await self._run(_json, call, value)  # type: ignore[no-any-return]
            return _json(call, value)
        return await self._run(self._plain, call, arguments, caller)  # type: ignore[no-any-return]

    def _plain(self, call: Call, arguments: Mapping[str, Any], caller: Caller) -> Answer:
        method = getattr(self._parts[call.part], call.name)
        value = method(**arguments)
        return _json(call, self._access.shown(caller, call.part, call.name, arguments, value))


_LARGE: Final = {"glance", "refresh_stream", "update"}
"""Calls whose answers may be large whatever their bodies are: all rows of a group, all shards of a stream."""


def _json(call: Call, value: Any) -> Answer:
    return Answer([to_json(call.answer, value)])
