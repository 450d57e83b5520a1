"""The socket of waiting: places where something moves, and how to hear of it, in this process and in others.

What is told may be for nothing: who is told looks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from shoal.group_port import MemberView
from shoal.lease_port import LeaseNews
from shoal.log_port import ShardEnd, StreamRoutes
from shoal.share_port import ShareNews

Place = ShardEnd | MemberView | ShareNews | LeaseNews | StreamRoutes
"""Where something can be waited for. Each has a number that rises, and may be over: closed, or gone."""


class Following(Protocol):
    """Several places that are waited for at once, without a thread. For one user."""

    def add(self, place: Place, beyond: int) -> None:
        """Be told when the place may be past `beyond`, or is over; perhaps at once, perhaps for nothing."""

    def add_all(self, places: Sequence[tuple[Place, int]]) -> None:
        """The same for several, with one look at all of them."""

    def expect(self, places: Sequence[tuple[Place, int]]) -> None:
        """The same without a look: what has happened already is told to who looks, after this (`look`)."""

    def move(self, place: Place, beyond: int) -> bool:
        """It is followed already, and was seen at `beyond` since: be told of what is past that.

        What happened since that look has been told, or is told now: nothing is looked at again. False: it is
        not followed.
        """

    def drop(self, place: Place) -> None:
        """Not any more."""

    def close(self) -> None:
        """None of them."""


class HeardFollowing(Following, Protocol):
    """One that also knows what it was told."""

    def heard(self) -> Mapping[Place, int]:
        """Places that are past where they were waited for, can rise further, and how far they have come. What
        was told without a number is not among them: look."""


class ChangeSignal(Protocol):
    """Wakes those who wait for appends, shard changes and assignments, in this process and in others."""

    def wait(self, place: Place, beyond: int, timeout_s: float) -> None:
        """Return when the place may be past `beyond` or is over, or after the timeout; or for nothing."""

    def follow(self, moved: Callable[[Place], None]) -> HeardFollowing:
        """Wait at several places. `moved` is called from other threads, and must not wait for anything."""

    def look(self, places: Sequence[Place]) -> Mapping[Place, tuple[int, bool]]:
        """How far places have come, and whether they can rise further; those that are gone are left out.

        What happens after it is told to who was expected before it.
        """

    def ring(self, places: Sequence[tuple[Place, int]]) -> None:
        """Tell waiters in this process how far places have come."""
