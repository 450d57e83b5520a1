"""Where a consumer that polls is, and what it has declared done: commits, positions, seeks.

Each call is a piece of work in steps, as in `polling`; what needs no hub is a plain call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Final

from shoal.consumer.held import Held
from shoal.consumer.polling import Committed, Polling
from shoal.consumer.steps import Errand, Steps
from shoal.consumer.threads import Threads
from shoal.core.checkpoint import whole_checkpoint
from shoal.core.errors import InvalidInput, ShoalError, UnknownGroup
from shoal.core.lineage import find_shard
from shoal.core.model import Shard
from shoal.core.names import stream_name
from shoal.core.polling import StreamShard
from shoal.core.reading import check_offset
from shoal.ports import Pledge
from shoal.wire.timestamps import timestamp_ms

_log: Final = logging.getLogger("shoal.consumer")

Places = Mapping[StreamShard, int]


class Offsets:
    """See Consumer for what its calls mean."""

    def __init__(self, polling: Polling) -> None:
        self._polling = polling
        self._errands: Threads | None = None

    # --- Commits. ------------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[object, int] | None) -> Steps[Places]:
        """Declare done, and wait until the hub has it; what of."""
        places = self._declare(offsets)
        yield Errand(partial(self._persist, places))
        return places

    def pledge(self, offsets: Mapping[object, int] | None) -> Pledge:
        """The same, for a producer's transaction to save."""
        places = self._places(offsets)
        several = [(self._polling.held(place), 0, offset) for place, offset in places.items()]
        return Held.pledge(several)

    def commit_later(self, offsets: Mapping[object, int] | None, callback: Committed | None) -> Places:
        """Declare done; the hub gets it in the background, and `callback` is called by a later poll."""
        if callback is not None and not callable(callback):
            raise InvalidInput("callback", callback, "a function of (offsets, error)")
        places = self._declare(offsets)
        if self._errands is None:
            self._errands = Threads("shoal-commit", 1, _log_failure)
        self._errands.submit(self._persist_and_say, places, callback)
        return places

    def close(self) -> Steps[None]:
        """What is on its way arrives."""
        if self._errands is not None:
            yield Errand(self._errands.join)

    def _declare(self, offsets: Mapping[object, int] | None) -> Places:
        """All that polls returned, or what is given: all of it, or none and an error."""
        places = self._places(offsets)
        for place, offset in places.items():
            self._polling.held(place).declare(0, offset)
        return places

    def _places(self, offsets: Mapping[object, int] | None) -> Places:
        """What is to be declared done, if that makes sense of all of it."""
        polling = self._polling
        polling.check_open()
        if polling.group is None:
            raise InvalidInput("group", None, "without a group there is nowhere to commit to; keep positions")
        if offsets is None:
            places = {place: polling.done_upto(place) for place in polling.shards}
        else:
            if not isinstance(offsets, Mapping):
                raise InvalidInput("offsets", offsets, "offsets by shard: {(stream, shard): offset}")
            places = {polling.place(given): _done_below(at) for given, at in offsets.items()}
        held = {place: polling.held(place) for place in places}  # Before anything is declared.
        for place, offset in places.items():
            held[place].check(offset)
        return places

    def _persist(self, places: Places) -> None:
        by_stream: dict[str, list[int]] = {}
        for place in places:
            by_stream.setdefault(place.stream, []).append(place.shard)
        for stream, shards in by_stream.items():
            self._polling.reader(StreamShard(stream, shards[0])).persist(shards)

    def _persist_and_say(self, places: Places, callback: Committed | None) -> None:
        error: ShoalError | None = None
        try:
            self._persist(places)
        except ShoalError as raised:
            error = raised
        if callback is not None:
            self._polling.say(partial(callback, places, error))

    # --- Positions. ----------------------------------------------------------------------------------

    def position(self, given: object) -> int:
        """What the next poll returns first of this shard."""
        self._polling.check_open()
        return self._polling.held(self._polling.place(given)).position

    def seek(self, given: object, to: int | Callable[[Shard], int]) -> Steps[None]:
        """Go on elsewhere, within what the log keeps. `to`: an offset, or what makes one of the shard."""
        self._polling.check_open()
        place = self._polling.place(given)
        held = self._polling.held(place)
        name = stream_name(place.stream)
        stream = yield Errand(partial(self._polling.hub.service.describe_stream, name))
        shard = find_shard(stream, place.shard)
        held.seek(check_offset(name, shard, to(shard) if callable(to) else to))
        self._polling.sought.add(place)
        self._polling.stir(place)

    def pause(self, shards: Iterable[object] | None, *, is_paused: bool) -> None:
        """Return nothing of these until they are resumed; None: of all."""
        polling = self._polling
        polling.check_open()
        places = polling.places(shards)
        held = [polling.held(place) for place in places]
        for place, one in zip(places, held, strict=True):
            one.pause(is_paused=is_paused)
            polling.stir(place)

    @property
    def paused(self) -> list[StreamShard]:
        """Those that are paused."""
        polling = self._polling
        return [place for place in polling.shards if polling.held(place).tenure.is_paused]

    # --- What the hub knows. -------------------------------------------------------------------------

    def committed(self, given: object) -> Steps[int | None]:
        """The next offset that the group wants of a shard; None if there is no group."""
        place = self._polling.place(given)
        if self._polling.group is None:
            return None
        try:
            info = yield Errand(
                partial(
                    self._polling.hub.service.groups.describe, stream_name(place.stream), self._polling.group
                )
            )
        except UnknownGroup:
            return None
        return next((int(shard.checkpoint) for shard in info.shards if shard.id == place.shard), None)

    def ends(
        self, shards: Iterable[object] | None, end: Callable[[Shard], int]
    ) -> Steps[dict[StreamShard, int]]:
        """Of each shard its first offset, or its next; None: of all that it has."""
        polling = self._polling
        places = polling.places(shards)
        found = {}
        for name in dict.fromkeys(place.stream for place in places):
            stream = yield Errand(partial(polling.hub.service.describe_stream, stream_name(name)))
            for place in places:
                if place.stream == name:
                    found[place] = end(find_shard(stream, place.shard))
        return found

    def for_times(self, times: Mapping[object, int | datetime]) -> Steps[dict[StreamShard, int]]:
        """For each shard the first offset at or after a time."""
        if not isinstance(times, Mapping):
            raise InvalidInput("times", times, "a time by shard: {(stream, shard): datetime}")
        asked = {self._polling.place(given): timestamp_ms(time) for given, time in times.items()}
        found = {}
        for place, time_ms in asked.items():
            name = stream_name(place.stream)
            found[place] = yield Errand(
                partial(self._polling.hub.service.offset_at, name, place.shard, time_ms)
            )
        return found


def _done_below(offset: object) -> int:
    if (whole := whole_checkpoint(offset)) < 0:
        raise InvalidInput("offset", offset, "an offset is an int from 0 on")
    return whole


def _log_failure(error: BaseException) -> None:
    """What should not happen, and must not go unnoticed."""
    _log.error("a commit: %r", error, exc_info=error)


FIRST: Final[Callable[[Shard], int]] = lambda shard: shard.first_offset  # noqa: E731
NEXT: Final[Callable[[Shard], int]] = lambda shard: shard.next_offset  # noqa: E731
