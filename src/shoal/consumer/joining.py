"""How workers and consumers come to a group: what they need of a hub, the group they make, their names."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from shoal.consumer.membership import Listener, Membership
from shoal.consumer.options import WorkerOptions
from shoal.core.aside import Retrying
from shoal.core.errors import GroupExists, InvalidInput, UnknownGroup
from shoal.core.group import GroupSettings
from shoal.core.model import StreamName
from shoal.core.names import stream_name
from shoal.ports import HubService


class HubCalls(Protocol):
    """What workers and consumers need of a hub."""

    @property
    def service(self) -> HubService: ...
    def create_group(
        self,
        stream: str,
        group: str,
        *,
        in_order: bool = ...,
        timeout: float = ...,
        handover_timeout: float | None = ...,
        coordination: str = ...,
        strategy: str = ...,
        failure: str | None = ...,
        start: str | datetime | Mapping[int, int] = ...,
    ) -> object: ...
    def append(self, stream: str, shard: int, records: Sequence[Any]) -> object: ...
    def retrying(self, stream: str, group: str) -> Retrying: ...
    def join_group(
        self,
        stream: str,
        group: str,
        consumer: str,
        *,
        heartbeat_interval: float | None = None,
        listener: Listener | None = None,
    ) -> Membership: ...


def checked_hub(hub: HubCalls) -> HubCalls:
    """Refuse what is no hub."""
    if not all(callable(getattr(hub, name, None)) for name in ("join_group", "create_group", "append")):
        raise InvalidInput("hub", hub, "a hub; make one with shoal.connect(url)")
    return hub


def see_group(hub: HubCalls, stream: str, group: str, options: WorkerOptions) -> GroupSettings:
    """Make the group if it is not there and the user did not forbid it; its settings."""
    groups = hub.service.groups
    try:
        return groups.find(stream_name(stream), group).settings
    except UnknownGroup:
        if not options.create_group:
            raise
        with suppress(GroupExists):
            hub.create_group(
                stream,
                group,
                in_order=options.in_order,
                timeout=options.timeout,
                handover_timeout=options.handover_timeout,
                coordination=options.coordination,
                strategy=options.strategy,
                failure=None if options.failure is None else options.failure.policy,
                start=options.start,
            )
    return groups.find(stream_name(stream), group).settings


def as_retry(options: WorkerOptions) -> WorkerOptions:
    """The same for a retry stream, whose group is the worker's own to make.

    Its records come one by one: each of them may well fail again, and is to be tried as often as was said.
    """
    return replace(options, create_group=True, in_order=False, start="earliest", until=None, batch_records=1)


@contextmanager
def missed_by_name(stream: StreamName, group: str) -> Iterator[None]:
    """A group that is asked for by its number and is gone is missed under the name that the user knows."""
    try:
        yield
    except UnknownGroup as error:
        raise UnknownGroup(stream=str(stream), group=group) from error


def own_name() -> str:
    """Of a consumer that was given none: host, process and chance."""
    host = "".join(c if c.isalnum() or c in "-_." else "-" for c in socket.gethostname())[:60]
    return f"{host or 'worker'}-{os.getpid()}-{secrets.token_hex(3)}"
