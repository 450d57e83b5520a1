"""How a producer learns of newer maps: it asks when its own is old, and hears of changes while it sends much.

Only a busy one waits at its hub, which costs something: a place in the store's watch, or a call of a server
that is answered when there is news.
"""

from __future__ import annotations

import logging
from typing import Final

from shoal.core.errors import ShoalError
from shoal.core.model import StreamInfo
from shoal.core.routing import route_number
from shoal.ports import Following, HubService, Place, StreamRoutes
from shoal.producer.options import ProducerOptions

_log: Final = logging.getLogger("shoal.producer")


class Routes:
    """Of one sender. Writer of `is_told`: the hub's threads, too; of all else: the sender's."""

    def __init__(self, service: HubService, options: ProducerOptions, now_s: float) -> None:
        self._service, self._options = service, options
        self._idle_s = max(options.refresh_s, _FOLLOWED_S)
        self._following: Following | None = None
        self._sent_s: float | None = None
        self._looked_s = now_s
        self._has_looked = False
        """Since the last call."""
        self.is_told = False
        """There is a newer map, or one is announced, since the last look."""
        self._is_new = False
        """It has just begun to follow: what happened before is told to who looks."""

    def is_old(self, now_s: float) -> bool:
        """Whether the map is to be looked at before anything is sent."""
        if self._is_new:
            return True
        return not self._has_looked and now_s - self._looked_s >= self._options.refresh_s

    def look(self, stream: StreamInfo, now_s: float) -> tuple[StreamInfo, bool]:
        """The stream as of now, and whether something was told of it."""
        was_told, self.is_told, self._is_new = self.is_told, False, False
        self._looked_s, self._has_looked = now_s, True
        try:
            return self._service.refresh_stream(stream), was_told
        except ShoalError as error:
            _log.debug("the map of %s: %s", stream.full_name, error)  # An append will say it aloud.
            return stream, False

    def sent(self, stream: StreamInfo, now_s: float) -> None:
        """A call is made. The second within a short while begins to follow the map."""
        self._has_looked = False
        is_busy = self._sent_s is not None and now_s - self._sent_s < self._idle_s
        self._sent_s = now_s
        if self._following is not None or not is_busy or not self._options.hold_s:
            return
        try:
            self._following = self._service.follow(self._moved)
            self._following.expect([(StreamRoutes(stream.id), route_number(stream.version))])
        except ShoalError as error:
            _log.debug("the map of %s is not followed: %s", stream.full_name, error)  # An append says more.
            self.rest()
        else:
            self._is_new = True

    def follow(self, stream: StreamInfo) -> None:
        """This map is known now. What was told before was of this one, and nobody waits for it any more; if
        it was of the next, a refusal says so."""
        if self._following is not None:
            self._following.move(StreamRoutes(stream.id), route_number(stream.version))
        self.is_told = False

    def idle_in_s(self, now_s: float) -> float | None:
        """Seconds until nothing was sent for so long that nothing is followed; None: nothing is."""
        if self._following is None or self._sent_s is None:
            return None
        return max(0.0, self._sent_s + self._idle_s - now_s)

    def rest(self) -> None:
        """Nothing is sent any more, for now."""
        following, self._following = self._following, None
        if following is not None:
            following.close()

    def _moved(self, _: Place) -> None:
        self.is_told = True


_FOLLOWED_S: Final = 1.0
"""The map is followed at least so long after a call: to begin anew costs more than to wait."""
