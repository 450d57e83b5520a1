"""Where a read begins and ends: asks the hub for what a place leaves open (a group's checkpoints, times)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from shoal.connect import Hub
from shoal.consumer.membership import insist
from shoal.core.errors import StoreError
from shoal.core.model import StreamInfo
from shoal.spark.plan.starting import Kind, Place, check_streams, resolved
from shoal.spark.streams import OUTAGE_S


def offsets_of(
    hub: Hub,
    streams: Mapping[str, StreamInfo],
    place: Place,
    *,
    option: str,
    group: str | None,
    otherwise: Kind,
    strict: bool,
) -> dict[str, dict[int, int]]:
    """By stream, the offset in each shard."""
    check_streams(option, place, streams)
    return {
        name: resolved(info, place, otherwise=otherwise, known=_known(hub, info, place, group), strict=strict)
        for name, info in streams.items()
    }


def _known(hub: Hub, info: StreamInfo, place: Place, group: str | None) -> dict[int, int]:
    service = hub.service
    if place.kind is Kind.TIME:
        return {
            shard.id: insist(
                partial(service.offset_at, info.full_name, shard.id, place.time_ms), StoreError, OUTAGE_S
            )
            for shard in info.shards
        }
    if place.kind is Kind.GROUP:
        assert group is not None, "checked with the options"
        described = insist(partial(service.groups.describe, info.full_name, group), StoreError, OUTAGE_S)
        # As they are: what lanes have done beyond them is done.
        return {shard.id: shard.checkpoint for shard in described.shards}
    return {}
