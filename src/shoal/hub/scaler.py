"""Splits and merges by load: looks, remembers the look, and does what `core.scaling` says.

Every hub looks by itself, and any number of them may: what one has changed the others see as shards that
were just born, which the cool-down leaves alone. The decision is made once outside, and what is left of it
is done inside the transaction that changes the shards.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from shoal.complaints import Complaints
from shoal.core.errors import UnknownStream
from shoal.core.model import Scaling, Shard, StreamInfo, StreamName
from shoal.core.ring import place
from shoal.core.scaling import Cut, Join, Seen, Stuck, changes, loads, overloaded, scaled
from shoal.hub.sampling import newest_keys
from shoal.ports import CatalogStore, HubService

_log: Final = logging.getLogger("shoal.hub.scaling")

Change = Callable[[StreamName, Callable[[StreamInfo], tuple[Shard, ...]]], StreamInfo]


class Scaler:
    """For one hub. Called by its housekeeping."""

    def __init__(self, store: CatalogStore, service: HubService, change: Change) -> None:
        self._store, self._service, self._change = store, service, change
        self._seen: dict[int, Seen] = {}
        self._complaints = Complaints(_log)

    def keep(self) -> None:
        """Look at every stream that scales by itself, and change what is due."""
        scalings = self._store.scalings()
        for gone in self._seen.keys() - scalings.keys():
            del self._seen[gone]
        for stream_id, scaling in scalings.items():
            stream = self._store.load_stream_by_id(stream_id)
            if stream is not None:
                try:
                    self._look(stream, scaling)
                except UnknownStream:
                    continue  # Deleted meanwhile.

    def _look(self, stream: StreamInfo, scaling: Scaling) -> None:
        looked_ms = time.monotonic_ns() // 1_000_000
        before = self._seen.get(stream.id)
        if before is not None and before.is_fresh(looked_ms):
            return
        self._seen[stream.id] = Seen.of(stream, looked_ms)
        if before is None:
            return
        load = loads(before, stream, looked_ms)
        now_ms = time.time_ns() // 1_000_000  # What the births of shards were written down by.
        shards = {shard.id: shard for shard in stream.open_shards}
        how = stream.settings.hash
        places = {
            shard: [
                at
                for key, count in newest_keys(self._service, stream, shards[shard]).items()
                if key is not None
                for at in [place(key, how)] * count
            ]
            for shard in overloaded(load, scaling)
        }
        steps = changes(stream, load, places, scaling, now_ms)
        for step in steps:
            if isinstance(step, Stuck):
                self._complaints.warn(
                    f"{stream.full_name}/{step.shard}",
                    "shard %d of %s takes %.0f records/s, and splitting does not help: a few keys are most "
                    "of it; see shoal stream hot %s",
                    step.shard,
                    stream.full_name,
                    step.load.records,
                    stream.full_name,
                )
        due = [step for step in steps if not isinstance(step, Stuck)]
        if due:
            after = self._change(stream.full_name, partial(scaled, steps=due, scaling=scaling, now_ms=now_ms))
            _log.info("%s: %s; %d open shards", stream.full_name, _text(due), len(after.open_shards))


def _text(steps: Sequence[Cut | Join]) -> str:
    return ", ".join(
        f"split {step.shard}" if isinstance(step, Cut) else f"merged {step.left} and {step.right}"
        for step in steps
    )
