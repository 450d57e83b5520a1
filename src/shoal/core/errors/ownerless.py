"""Groups whose shards have no owner: shared ones, whose records are settled, and broadcast ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from shoal.core.errors.root import InvalidInput, NotFound, ShoalError


class WrongDelivery(InvalidInput):
    """The group hands its records out in another way than the caller takes them."""

    def __init__(self, *, stream: str, group: str, delivery: str) -> None:
        users = {"shared": "SharedConsumer", "broadcast": "BroadcastConsumer"}
        super().__init__(
            "group",
            group,
            f"its delivery on stream {stream!r} is {delivery!r}; "
            f"use shoal.{users.get(delivery, 'Worker or Consumer')}, or another group",
        )
        self.stream, self.group, self.delivery = stream, group, delivery


class RecordsRefused(ShoalError):
    """Some records could not be settled; those of the same call that could be, were."""

    said: ClassVar[str] = ""
    """What is the matter with them, and what to do."""

    def __init__(self, *, shard: int, offsets: Sequence[int], taken: int) -> None:
        shown = ", ".join(map(str, offsets[:5])) + (", …" if len(offsets) > 5 else "")
        super().__init__(
            f"shard={shard}: {len(offsets)} records (offsets {shown}) {self.said}; "
            f"{taken} others were settled"
        )
        self.shard, self.offsets, self.taken = shard, offsets, taken


class NeverReceived(RecordsRefused):
    """The caller settles what it was never given."""

    said = "were not received by this consumer; settle only what receive() returned"


class AlreadySettled(RecordsRefused):
    """The records are acknowledged, or dead, already."""

    said = "are settled already; settle each record once"


class HoldExpired(RecordsRefused):
    """The hold has ended: it ran out, the records were released, or the group was reset."""

    said = (
        "are not held any more and will come again, or have; settle sooner, extend(), or receive with a "
        "longer visibility"
    )


class HeldByAnother(RecordsRefused):
    """Another consumer has the records."""

    said = "are held by another consumer; settle only what receive() returned to this one"


class TooManyPositions(ShoalError):
    def __init__(self, *, group: str, limit: int) -> None:
        super().__init__(
            f"group={group!r}: {limit} consumers have a position already; give a consumer the same name at "
            "every start, or drop positions with drop_position()"
        )
        self.group, self.limit = group, limit


class UnknownPosition(NotFound):
    """A consumer of a broadcast group has no position (any more)."""

    def __init__(self, *, group: str, consumer: str) -> None:
        super().__init__(
            f"consumer={consumer!r}: group {group!r} has no position of this name (any more); "
            "one that is made anew begins where the group does"
        )
        self.group, self.consumer = group, consumer


class PositionMoved(ShoalError):
    """The group was reset: the consumer goes on from where its position was put."""

    def __init__(self, *, group: str, consumer: str) -> None:
        super().__init__(
            f"consumer={consumer!r}: group {group!r} was reset; take the position again, and go on from there"
        )
        self.group, self.consumer = group, consumer
