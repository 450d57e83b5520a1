"""What users ask of a hub about load: when a stream scales by itself, and which keys are hot."""

from __future__ import annotations

from typing import Any

from shoal.core.checking import is_instance_of, is_whole
from shoal.core.errors import InvalidInput
from shoal.core.hot import HotKey, hottest
from shoal.core.lineage import find_shard
from shoal.core.model import Scaling, SendStrategy
from shoal.core.names import stream_name
from shoal.core.parcels import checked_strategy
from shoal.hub.sampling import SAMPLE, newest_keys
from shoal.ports import HubService


class ScalingCalls:
    """See Hub."""

    _service: HubService

    def set_scaling(self, stream: str, scaling: Scaling | None = None, **settings: Any) -> Scaling | None:
        """Let a stream split and merge by itself, within limits: a Scaling, or its fields as keywords.

        Without either it no longer does. Housekeeping looks every `housekeeping_s`, in any process that has
        the hub open.
        """
        if settings:
            if scaling is not None:
                raise InvalidInput("scaling", sorted(settings), "give a Scaling or keywords, not both")
            try:
                scaling = Scaling(**settings)
            except TypeError as error:
                raise InvalidInput("scaling", sorted(settings), str(error)) from error
        if scaling is not None and not is_instance_of(scaling, Scaling):
            raise InvalidInput("scaling", scaling, "a shoal.Scaling, or None for never")
        self._service.set_scaling(stream_name(stream), scaling)
        return scaling

    def scaling(self, stream: str) -> Scaling | None:
        """When a stream splits and merges by itself; None is never."""
        return self._service.scaling(stream_name(stream))

    def set_strategy(self, stream: str, strategy: str | None) -> SendStrategy | None:
        """What producers of a stream make of a failed attempt, unless one is told otherwise.

        `strict`: a record keeps its shard and its place, however long that takes. `best_tried`: it may go to
        another shard. None: records with a key are strict, those without are best tried.
        """
        found = checked_strategy(strategy)
        self._service.set_strategy(stream_name(stream), found)
        return found

    def strategy(self, stream: str) -> SendStrategy | None:
        """What was set so."""
        return self._service.strategy(stream_name(stream))

    def hot_keys(
        self, stream: str, shard: int | None = None, *, most: int = 10, sample: int = SAMPLE
    ) -> list[HotKey]:
        """The keys that are most of their shard's newest records: `.key`, `.shard`, `.share`.

        Of one shard, or of every open one; `sample` of the newest records of each are looked at.
        """
        for name, value in (("most", most), ("sample", sample)):
            if not is_whole(value) or value < 1:
                raise InvalidInput(name, value, "a whole number from 1 on")
        info = self._service.describe_stream(stream_name(stream))
        shards = info.open_shards if shard is None else (find_shard(info, shard),)
        return hottest(
            {one.id: newest_keys(self._service, info, one, sample) for one in shards if not one.is_empty},
            most,
        )
