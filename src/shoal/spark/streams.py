"""The streams that a query reads, as of now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from shoal.connect import Hub
from shoal.consumer.membership import insist
from shoal.core.errors import InvalidInput, NotFound, StoreError
from shoal.core.model import StreamInfo
from shoal.core.polling import Subscription

Check = Callable[[Iterable[StreamInfo]], None]
"""Raises if the streams of a query are not such as it can read together."""

OUTAGE_S = 120.0
"""How long a plan waits for a store that is away. Spark ends a query whose plan fails, so this is the longest
outage that a query lives through."""


def streams_now(
    hub: Hub, subscription: Subscription, *, strict: bool = True, within_s: float = OUTAGE_S
) -> dict[str, StreamInfo]:
    """The streams that are meant, by name. One that is named and is not there is an error, or left out."""
    found: dict[str, StreamInfo] = {}
    if subscription.pattern is not None:
        existing = insist(partial(hub.service.list_streams, None), StoreError, within_s)
        wanted = set(subscription.wanted([info.full_name for info in existing]))
        return {str(info.full_name): info for info in existing if info.full_name in wanted}
    for name in subscription.names:
        try:
            described = partial(hub.service.describe_stream, name)
            found[str(name)] = insist(described, StoreError, within_s)
        except NotFound:
            if strict:
                raise
    return found


def streams_at_first(
    hub: Hub, subscription: Subscription, *, strict: bool = True
) -> Mapping[str, StreamInfo]:
    """The same, at least one: of names of which none is there, the error is that of the first."""
    found = streams_now(hub, subscription, strict=strict)
    if not found and subscription.pattern is not None:
        what = subscription.pattern.pattern
        raise InvalidInput("stream", what, "no stream has a name that this pattern matches as a whole")
    return found or streams_now(hub, subscription)


def seen_again(
    hub: Hub, subscription: Subscription, streams: Mapping[str, StreamInfo], *, strict: bool
) -> dict[str, StreamInfo]:
    """The same streams as of now; one that is gone, or was made anew, as it was seen before."""
    newer = streams_now(hub, subscription, strict=strict)
    return {
        name: newer[name] if name in newer and newer[name].id == info.id else info
        for name, info in streams.items()
    }
